package redact

import (
	"slices"
	"strings"
)

// Environ returns the values of an environment ("NAME=value") that are secrets by
// their names: *_KEY, *_TOKEN, *_SECRET, *_PASS and what has PASSWORD, PASSWD or
// CREDENTIAL in it. Values that are shorter than [MinValue] don't count, nor do
// paths and numbers, which such names have too.
func Environ(environ []string) []string {
	var out []string
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if len(value) >= MinValue && secretName(name) && !strings.HasPrefix(value, "/") && strings.Trim(value, digits) != "" {
			out = append(out, value)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func secretName(name string) bool {
	name = strings.ToUpper(name)
	for _, end := range []string{"KEY", "TOKEN", "SECRET", "_PASS"} {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	for _, part := range []string{"PASSWORD", "PASSWD", "CREDENTIAL"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}
