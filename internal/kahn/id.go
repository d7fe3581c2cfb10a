package kahn

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxID is the length of run and agent ids.
const maxID = 64

// AgentID makes an agent id of any name: lower-case, other characters replaced by
// a hyphen, at most 64.
func AgentID(name string) string {
	return sanitizeID(strings.ToLower(name), func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == ':' || c == '-'
	})
}

// RunID makes a run id of any id; one that had to be changed gets a suffix, so that
// two stay two.
func RunID(id string) string {
	if runPattern().MatchString(id) {
		return id
	}
	return withHashSuffix(sanitizeID(id, func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
	}), id)
}

func sanitizeID(s string, allowed func(byte) bool) string {
	b := make([]byte, 0, maxID)
	for _, r := range s {
		if len(b) == maxID {
			break
		}
		c := byte('-')
		if r < 0x80 && allowed(byte(r)) {
			c = byte(r)
		}
		if len(b) == 0 && (c == '-' || c == ':' || c == '_') {
			continue // the first is a letter or a digit
		}
		b = append(b, c)
	}
	if len(b) == 0 {
		return "x"
	}
	return string(b)
}

// withHashSuffix tells an id from another one by what it was made of.
func withHashSuffix(id, of string) string {
	sum := sha256.Sum256([]byte(of))
	suffix := "-" + hex.EncodeToString(sum[:4])
	return id[:min(len(id), maxID-len(suffix))] + suffix
}
