package redact

import (
	"net/url"
	"slices"
	"strings"
)

// Environ returns the values of an environment ("NAME=value") that are secrets by
// their names: *_KEY, *_TOKEN, *_SECRET, *_PASS and what has PASSWORD, PASSWD or
// CREDENTIAL in it; and what follows the scheme in the headers that an exporter of
// OpenTelemetry sends, OTEL_EXPORTER_*_HEADERS ("authorization=Bearer%20..."). Values
// that are shorter than [MinValue] don't count, nor do paths and numbers, which such
// names have too.
func Environ(environ []string) []string {
	var out []string
	add := func(value string) {
		if len(value) >= MinValue && !strings.HasPrefix(value, "/") && strings.Trim(value, digits) != "" {
			out = append(out, value)
		}
	}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		switch {
		case secretName(name):
			add(value)
		case strings.HasPrefix(name, "OTEL_EXPORTER_") && strings.HasSuffix(name, "_HEADERS"):
			for header := range strings.SplitSeq(value, ",") {
				_, sent, _ := strings.Cut(header, "=")
				if plain, err := url.PathUnescape(sent); err == nil {
					sent = plain
				}
				add(sent[strings.LastIndexByte(sent, ' ')+1:])
			}
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
	return slices.ContainsFunc([]string{"PASSWORD", "PASSWD", "CREDENTIAL"}, func(part string) bool { return strings.Contains(name, part) })
}
