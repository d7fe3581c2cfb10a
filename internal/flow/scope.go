package flow

import (
	"wake/pkg/wire"
)

// scope is what an expression sees.
type scope struct {
	state *wire.State
	item  string   // name of the forEach item, if there is one
	value wire.Raw // the item
	vars  map[string]any
	now   int64 // Unix ms: what $now() and $millis() return
	cache map[*byte]any
	all   map[string]any
}

// root returns what a name stands for, nil if it stands for nothing.
func (s *scope) root(name string) wire.Raw {
	switch {
	case s.item != "" && name == s.item:
		return s.value
	case name == "state":
		return s.state.State
	case name == "input":
		return s.state.Input
	}
	return s.state.Outputs[name]
}

// walk follows a plain path through objects. It reports false if there is no
// path or a list is on it: that is JSONata's business.
func (s *scope) walk(path []string) (wire.Raw, bool) {
	if len(path) == 0 || len(path) == 1 && path[0] == "outputs" {
		return nil, false
	}
	if path[0] == "outputs" {
		path = path[1:]
		if s.state.Outputs[path[0]] == nil {
			return nil, true
		}
		return follow(s.state.Outputs[path[0]], path[1:])
	}
	return follow(s.root(path[0]), path[1:])
}

func follow(v wire.Raw, path []string) (wire.Raw, bool) {
	for _, name := range path {
		if isList(v) {
			return nil, false
		}
		v = v.Get(name)
	}
	return v, true
}

func isList(v wire.Raw) bool {
	return len(v) > 0 && (v[0]&0xf0 == 0x90 || v[0] == 0xdc || v[0] == 0xdd)
}

// data is the scope as JSONata wants it.
func (s *scope) data() map[string]any {
	if s.all != nil {
		return s.all
	}
	outputs := make(map[string]any, len(s.state.Outputs))
	s.all = make(map[string]any, len(s.state.Outputs)+4)
	for id, v := range s.state.Outputs {
		outputs[id] = s.decoded(v)
		s.all[id] = outputs[id]
	}
	s.all["outputs"] = outputs
	for _, name := range []string{"state", "input", s.item} {
		if v := s.root(name); v != nil && name != "" {
			s.all[name] = s.decoded(v)
		}
	}
	return s.all
}

// decoded is a value as JSONata wants it, made once: values don't change, and
// JSONata doesn't change them.
func (s *scope) decoded(v wire.Raw) any {
	if len(v) == 0 {
		return nil
	}
	if d, ok := s.cache[&v[0]]; ok {
		return d
	}
	d := dataOf(v.Any())
	s.cache[&v[0]] = d
	return d
}
