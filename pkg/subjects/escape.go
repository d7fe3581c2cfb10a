package subjects

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxToken is the length in bytes that no token exceeds.
const MaxToken = 128

// hashMark separates the readable beginning of a hashed id from its hash. It
// can't occur in an escaped id, where two hexadecimal digits follow each '='.
const hashMark = "=="

// hashDigits is the length of a hash in hexadecimal.
const hashDigits = 2 * sha256.Size

// hashedHead is the number of bytes that a hashed id keeps of its escaped form.
const hashedHead = MaxToken - len(hashMark) - hashDigits

// emptyToken is the token of the empty id: it makes [Escape] total. No other id has
// it and it is never valid.
const emptyToken = "="

// ErrHashed is returned by [Unescape] for the token of an id that was too long
// to keep. The id can't be recovered from it; compare tokens instead.
var ErrHashed = errors.New("subjects: the id was shortened to a hash")

// ErrToken is returned for a token that [Escape] never yields.
var ErrToken = errors.New("subjects: not a token")

// Escape returns the token of an id. Letters, digits, '_' and '-' stay, every
// other byte becomes "=XX" (upper-case hexadecimal); it has no dot, space, '*'
// or '>'. An id that would be longer than [MaxToken] keeps its first bytes,
// followed by "==" and its SHA-256. Different ids have different tokens.
func Escape(id string) string {
	if id == "" {
		return emptyToken
	}
	n := escapedLen(id)
	switch {
	case n == len(id) && n <= MaxToken:
		return id
	case n <= MaxToken:
		return string(appendEscaped(make([]byte, 0, n), id, n))
	}
	b := appendEscaped(make([]byte, 0, MaxToken), id, hashedHead)
	sum := sha256.Sum256([]byte(id))
	return string(hex.AppendEncode(append(b, hashMark...), sum[:]))
}

// Unescape returns the id of a token. It fails with [ErrHashed] or [ErrToken].
func Unescape(token string) (string, error) {
	if token == emptyToken {
		return "", nil
	}
	if token == "" || len(token) > MaxToken {
		return "", fmt.Errorf("%w: %d bytes", ErrToken, len(token))
	}
	if isHashed(token) {
		return "", ErrHashed
	}
	id := make([]byte, 0, len(token))
	for i := 0; i < len(token); i++ {
		c := token[i]
		if c == '=' {
			var ok bool
			if c, ok = parseHexByte(token[i+1:]); !ok || isPlain(c) {
				return "", fmt.Errorf("%w: %q", ErrToken, token)
			}
			i += 2
		} else if !isPlain(c) {
			return "", fmt.Errorf("%w: %q", ErrToken, token)
		}
		id = append(id, c)
	}
	return string(id), nil
}

// isPlain reports whether c stands for itself in a token.
func isPlain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}

func escapedLen(id string) int {
	n := len(id)
	for i := range len(id) {
		if !isPlain(id[i]) {
			n += 2
		}
	}
	return n
}

// appendEscaped appends as many whole bytes of id as fit into limit.
func appendEscaped(b []byte, id string, limit int) []byte {
	const digits = "0123456789ABCDEF"
	for i := range len(id) {
		c := id[i]
		switch {
		case isPlain(c) && len(b) < limit:
			b = append(b, c)
		case !isPlain(c) && len(b)+3 <= limit:
			b = append(b, '=', digits[c>>4], digits[c&15])
		default:
			return b
		}
	}
	return b
}

// isHashed reports whether token has the form of a hashed id. Its hash can't be
// checked.
func isHashed(token string) bool {
	head, hash, ok := cutHash(token)
	if !ok || len(head) < hashedHead-2 || len(head) > hashedHead {
		return false // only an escape that didn't fit leaves room
	}
	for i := range len(hash) {
		if c := hash[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	_, err := Unescape(head)
	return err == nil
}

func cutHash(token string) (head, hash string, ok bool) {
	i := len(token) - hashDigits
	if i < len(hashMark)+1 || token[i-len(hashMark):i] != hashMark {
		return "", "", false
	}
	return token[:i-len(hashMark)], token[i:], true
}

// parseHexByte reads two upper-case hexadecimal digits.
func parseHexByte(s string) (byte, bool) {
	if len(s) < 2 {
		return 0, false
	}
	high, ok1 := hexDigit(s[0])
	low, ok2 := hexDigit(s[1])
	return high<<4 | low, ok1 && ok2
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	default:
		return 0, false
	}
}

// Ids that begin with an underscore are wake's own.
const (
	// NoRun is the run of what belongs to no run.
	NoRun = "_"
	// RunNode is the node of what belongs to the run itself.
	RunNode = "_run"
)

// DefaultPool is the queue of node executions that name no pool.
const DefaultPool = "default"

// MaxID is the length in bytes that an id chosen by a user may have.
const MaxID = 512

// ErrID is returned for an id that a user may not choose.
var ErrID = errors.New("subjects: invalid id")

// CheckNewRun is [CheckID] of the id of a run that is to be. One with a leading @ would be taken for a reference such as @last.
func CheckNewRun(id string) error {
	if strings.HasPrefix(id, "@") {
		return fmt.Errorf("%w %q: a leading @ is reserved for references such as @last", ErrID, id)
	}
	return CheckID(id)
}

// CheckID fails with [ErrID] if id can't be chosen for a run, a node, a pool or
// a label: it is empty, longer than [MaxID], not UTF-8 or reserved.
func CheckID(id string) error {
	switch {
	case id == "":
		return fmt.Errorf("%w: it is empty", ErrID)
	case len(id) > MaxID:
		return fmt.Errorf("%w: it has %d bytes, at most %d are allowed", ErrID, len(id), MaxID)
	case strings.HasPrefix(id, "_"):
		return fmt.Errorf("%w %q: a leading underscore is reserved", ErrID, id)
	case !utf8.ValidString(id):
		return fmt.Errorf("%w %q: it is not UTF-8", ErrID, id)
	default:
		return nil
	}
}
