// Package document reads what a user has written in YAML or JSON: flows, rules of alerts, prices. A [Value] knows
// where it stands, so that each thing that is wrong is told with its place.
//
// It is the only place that parses YAML, since the parser takes time and memory that grow with the
// square of how deep a text nests and how many keys an object has: 200 KB of brackets took 15 GB. So tokens
// are counted before anything is parsed.
package document

import (
	"bytes"
	"path"
)

// Read returns the value of a file of at most limit bytes in YAML, or in JSON if its name ends in .json or the
// text begins with a brace. It is nil if the file has none, or after problems.
func Read(ps *Problems, src []byte, limit int) *Value {
	switch {
	case len(src) > limit:
		ps.Add(Place{1, 1}, "", "the file has %d bytes; at most %d are allowed", len(src), limit)
		return nil
	case path.Ext(ps.File) == ".json" || bytes.HasPrefix(bytes.TrimLeft(src, " \t\r\n"), []byte("{")):
		return readJSON(ps, src)
	}
	return readYAML(ps, src)
}
