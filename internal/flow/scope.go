package flow

import (
	"code.wake.dev/wake/internal/jsonata"
	"code.wake.dev/wake/pkg/wire"
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

	budget *jsonata.Budget // of all expressions of the scope
}

// ensureBudget is the budget, a whole one if no expression has spent of it.
func (s *scope) ensureBudget() *jsonata.Budget {
	if s.budget == nil {
		s.budget = jsonata.NewBudget()
	}
	return s.budget
}

// rootValue returns what a name stands for, nil if it stands for nothing.
func (s *scope) rootValue(name string) wire.Raw {
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

// walkPath follows a plain path through objects. It reports false if there is no
// path or a list is on it: that is JSONata's business.
func (s *scope) walkPath(path []string) (wire.Raw, bool) {
	if len(path) == 0 || len(path) == 1 && path[0] == "outputs" {
		return nil, false
	}
	if path[0] == "outputs" {
		path = path[1:]
		if s.state.Outputs[path[0]] == nil {
			return nil, true
		}
		return followPath(s.state.Outputs[path[0]], path[1:])
	}
	return followPath(s.rootValue(path[0]), path[1:])
}

func followPath(v wire.Raw, path []string) (wire.Raw, bool) {
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

// Get implements [jsonata.Data].
func (s *scope) Get(name string) (any, bool) {
	if name == "outputs" {
		return s.All()["outputs"], true
	}
	v := s.rootValue(name)
	return s.decodeValue(v), v != nil
}

// All implements [jsonata.Data].
func (s *scope) All() map[string]any {
	if s.all != nil {
		return s.all
	}
	outputs := make(map[string]any, len(s.state.Outputs))
	s.all = make(map[string]any, len(s.state.Outputs)+4)
	for id, v := range s.state.Outputs {
		outputs[id] = s.decodeValue(v)
		s.all[id] = outputs[id]
	}
	s.all["outputs"] = outputs
	for _, name := range []string{"state", "input", s.item} {
		if v := s.rootValue(name); v != nil && name != "" {
			s.all[name] = s.decodeValue(v)
		}
	}
	return s.all
}

// decodeValue is a value as expressions read it, made once: neither the state nor expressions change it.
func (s *scope) decodeValue(v wire.Raw) any {
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

// dataOf returns a value as expressions read it.
func dataOf(v any) any {
	switch v := v.(type) {
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	case []byte:
		return string(v)
	case []any:
		for i := range v {
			v[i] = dataOf(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = dataOf(v[k])
		}
	}
	return v
}
