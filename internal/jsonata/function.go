package jsonata

import (
	"fmt"
	"regexp"

	"github.com/blues/jsonata-go/jparse"
)

// function is one of lambda, builtin and pattern.
type function struct {
	name    string
	lambda  *jparse.LambdaNode
	types   []jparse.Param // of the arguments of a lambda that has them
	at      any            // the context in which a lambda stands
	frame   *frame
	builtin *builtin
	pattern *regexp.Regexp
}

// paramCount is how many parameters a function has.
func (f *function) paramCount() int {
	switch {
	case f.lambda != nil:
		return len(f.lambda.ParamNames)
	case f.builtin != nil:
		return len(f.builtin.params)
	}
	return 1
}

// callFunction calls a function in a context.
func (m *machine) callFunction(f *function, args []any, at any) (any, error) {
	m.countSteps(1)
	switch {
	case f.builtin != nil:
		return m.callBuiltin(f, args, at)
	case f.pattern != nil:
		return nil, fmt.Errorf("the pattern %s can't be called", f.name)
	}
	args, err := m.checkTypes(f, args)
	if err != nil {
		return nil, err
	}
	m.calls++
	defer func() { m.calls-- }()
	m.checkDepth(m.calls)
	inner := &frame{parent: f.frame}
	m.countBytes(16 * len(f.lambda.ParamNames))
	for i, name := range f.lambda.ParamNames {
		var v any = nothing{}
		if i < len(args) {
			v = args[i]
		}
		inner.bind(name, v)
	}
	return m.eval(f.lambda.Body, f.at, inner)
}

// callEach calls a function with as many of the arguments as it has parameters, at least one.
func (m *machine) callEach(f *function, args ...any) (any, error) {
	return m.callFunction(f, args[:min(max(f.paramCount(), 1), len(args))], nothing{})
}

// callBuiltin checks the arguments of a built-in function and calls it.
func (m *machine) callBuiltin(f *function, args []any, at any) (any, error) {
	b := f.builtin
	given := len(args)
	if b.context != nil && b.context(args) {
		args = append([]any{m.wholeData(at)}, args...)
	}
	if !b.total && len(args) > 0 && isAbsent(args[0]) {
		return nothing{}, nil
	}
	for len(args) < len(b.params) && b.params[len(args)].optional {
		args = append(args, nothing{})
	}
	if len(args) < len(b.params) || len(args) > len(b.params) && !b.variadic {
		return nil, fmt.Errorf("function %q takes %d argument(s), got %d", f.name, len(b.params), given)
	}
	for i, v := range args {
		if !b.params[min(i, len(b.params)-1)].acceptsValue(v) {
			return nil, fmt.Errorf("argument %d of function %q does not match function signature", i+1, f.name)
		}
	}
	return b.call(m, args)
}

// param is what a built-in takes: s text, n number, f function, p text or pattern, b text, number or
// boolean, x anything.
type param struct {
	kind     byte
	optional bool
}

func (p param) acceptsValue(v any) bool {
	if isAbsent(v) {
		return p.optional || p.kind == 'x'
	}
	switch v := v.(type) {
	case string:
		return p.kind == 's' || p.kind == 'p' || p.kind == 'b' || p.kind == 'x'
	case float64:
		return p.kind == 'n' || p.kind == 'b' || p.kind == 'x'
	case bool:
		return p.kind == 'b' || p.kind == 'x'
	case *function:
		return p.kind == 'x' || p.kind == 'p' || p.kind == 'f' && v.pattern == nil || p.kind == 'r' && v.pattern != nil
	}
	return p.kind == 'x'
}

// checkTypes checks the arguments of a lambda that says their types.
func (m *machine) checkTypes(f *function, args []any) ([]any, error) {
	params := f.types
	if len(params) == 0 {
		return args, nil
	}
	given := len(args)
	if given < len(params) && params[0].Option == jparse.ParamContextable {
		args = append([]any{m.wholeData(f.at)}, args...)
	}
	for len(args) < len(params) && params[len(args)].Option == jparse.ParamOptional {
		args = append(args, nothing{})
	}
	last := params[len(params)-1]
	variadic := last.Option == jparse.ParamVariadic
	if len(args) < len(params) || len(args) > len(params) && !variadic {
		return nil, fmt.Errorf("function %q takes %d argument(s), got %d", f.name, len(params), given)
	}
	for i, v := range args {
		p := params[min(i, len(params)-1)]
		if isAbsent(v) {
			continue
		}
		if p.Type == jparse.ParamTypeArray {
			v = elementsOf(v)
			args[i] = v
		}
		if !m.fitsType(v, p) {
			return nil, fmt.Errorf("argument %d of function %q does not match function signature", i+1, f.name)
		}
	}
	if variadic {
		args = append(args[:len(params)-1:len(params)-1], args[len(params)-1:])
	}
	return args, nil
}

// fitsType reports whether a value has the type of a parameter.
func (m *machine) fitsType(v any, p jparse.Param) bool {
	m.countSteps(1)
	t := p.Type
	if t&jparse.ParamTypeAny != 0 {
		return true
	}
	if _, is := v.(*function); is {
		return t&jparse.ParamTypeFunc != 0
	}
	if t&jparse.ParamTypeJSON != 0 {
		return true
	}
	switch v := v.(type) {
	case string:
		return t&jparse.ParamTypeString != 0
	case float64:
		return t&jparse.ParamTypeNumber != 0
	case bool:
		return t&jparse.ParamTypeBool != 0
	case map[string]any:
		return t&jparse.ParamTypeObject != 0
	case []any:
		if t&jparse.ParamTypeArray == 0 {
			return false
		}
		for _, item := range v {
			if len(p.SubParams) > 0 && !m.fitsType(item, p.SubParams[0]) {
				return false
			}
		}
		return true
	}
	return false
}
