package flow

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/blues/jsonata-go"
	"github.com/blues/jsonata-go/jlib"
	"github.com/blues/jsonata-go/jparse"
	"github.com/blues/jsonata-go/jtypes"

	"wake/pkg/wire"
)

// Expressions are JSONata by github.com/blues/jsonata-go, of which only this
// file knows. It has three traits to know of. A chain (~>) changes the syntax
// tree when it is evaluated, and built-in functions keep the context of their
// last call: so an expression is compiled for each evaluation, and one is
// evaluated at a time in the process. And nothing bounds a recursion: so
// functions have no names here, which leaves nothing to recurse with.

// maxExpression bounds the text of an expression, and with it how deep it nests.
const maxExpression = 4096

// maxRange bounds the items of a range, whose bounds are written as numbers.
const maxRange = 10_000

// maxPad bounds what $pad makes of a text.
const maxPad = 10_000

// expression is a checked JSONata expression. Its zero value is no expression.
type expression struct {
	src  string
	path []string // the names of a plain path, which needs no JSONata
}

// names are what an expression may begin with.
type names struct {
	roots []string // node ids, outputs, state, input and a forEach's item
	nodes []string // the node ids
}

// plainPath matches a path of names. JSONata would read an empty list at its end
// as nothing.
var plainPath = regexp.MustCompile("^(?:[A-Za-z_][A-Za-z0-9_]*|`[^`.]+`)(?:\\.(?:[A-Za-z_][A-Za-z0-9_]*|`[^`.]+`))*$")

var keywords = []string{"and", "or", "in", "true", "false", "null", "function"}

// compile checks an expression: that it is one, that its names exist, and that
// it comes to an end.
func compile(src string, known names) (expression, error) {
	src = strings.TrimSpace(src)
	if src == "" {
		return expression{}, errors.New("the expression is empty")
	}
	if len(src) > maxExpression {
		return expression{}, fmt.Errorf("the expression is longer than %d bytes", maxExpression)
	}
	node, err := parse(src)
	if err != nil {
		return expression{}, fmt.Errorf("%s: %w", src, err)
	}
	c := checker{known: known}
	if c.expr(node, true); c.err != nil {
		return expression{}, fmt.Errorf("%s: %w%s", src, c.err, unquoted(src, known.nodes))
	}
	x := expression{src: src}
	if plainPath.MatchString(src) && !slices.Contains(keywords, src) {
		for name := range strings.SplitSeq(src, ".") {
			x.path = append(x.path, strings.Trim(name, "`"))
		}
	}
	return x, nil
}

// parse keeps a defect of the library's parser from ending the process.
func parse(src string) (node jparse.Node, err error) {
	defer func() {
		if recover() != nil {
			node, err = nil, errors.New("syntax error")
		}
	}()
	return jparse.Parse(src)
}

// unquoted tells of a node id that JSONata takes for a subtraction.
func unquoted(src string, nodes []string) string {
	for _, id := range nodes {
		if strings.Contains(id, "-") && strings.Contains(src, id) && !strings.Contains(src, "`"+id+"`") {
			return fmt.Sprintf("; write `%s` with backticks", id)
		}
	}
	return ""
}

// evaluating is held during an evaluation; see above.
var evaluating sync.Mutex

// eval returns the value of the expression, nil if it has none.
func (x expression) eval(s *scope) (wire.Raw, error) {
	if v, ok := s.walk(x.path); ok {
		return v, nil
	}
	v, err := x.jsonata(s)
	if errors.Is(err, jsonata.ErrUndefined) {
		return nil, nil
	}
	var out wire.Raw
	if err == nil {
		v, err = plain(v, 0)
	}
	if err == nil {
		out, err = wire.Marshal(v)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", x.src, err)
	}
	return out, nil
}

func (x expression) jsonata(s *scope) (v any, err error) {
	defer func() {
		if p := recover(); p != nil { // a defect of the library must not end the process
			v, err = nil, fmt.Errorf("%v", p)
		}
	}()
	code, err := jsonata.Compile(x.src)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(code.RegisterVars(s.vars), code.RegisterExts(functions(s.now))); err != nil {
		return nil, err
	}
	data := s.data()
	evaluating.Lock()
	defer evaluating.Unlock()
	return code.Eval(data)
}

// functions replaces those that ask the clock, have no bound or no order.
func functions(now int64) map[string]jsonata.Extension {
	return map[string]jsonata.Extension{
		"millis": {Func: func() int64 { return now }},
		"now": {Func: func(picture, zone jtypes.OptionalString) (string, error) {
			return jlib.FromMillis(now, picture, zone)
		}},
		"pad": {Func: func(text string, width int, fill jtypes.OptionalString) (string, error) {
			if width > maxPad || width < -maxPad {
				return "", fmt.Errorf("$pad makes at most %d characters", maxPad)
			}
			return jlib.Pad(text, width, fill), nil
		}},
		"keys": {Func: sortedKeys, UndefinedHandler: jtypes.ArgUndefined(0), EvalContextHandler: jtypes.ArgCountEquals(0)},
		"each": {Func: each, UndefinedHandler: jtypes.ArgUndefined(0), EvalContextHandler: jtypes.ArgCountEquals(1)},
	}
}

// sortedKeys is $keys with an order: the library takes that of Go's maps, which
// is another one each time.
func sortedKeys(v reflect.Value) (any, error) {
	keys, err := jlib.Keys(v)
	if list, ok := keys.([]string); ok {
		slices.Sort(list)
	}
	return keys, err
}

// each is $each in the order of the keys.
func each(v reflect.Value, f jtypes.Callable) (any, error) {
	object, ok := reflect.TypeAssert[map[string]any](jtypes.Resolve(v))
	if !ok {
		return nil, errors.New("$each wants an object")
	}
	if n := f.ParamCount(); n < 1 || n > 3 {
		return nil, errors.New("$each wants a function of 1, 2 or 3 arguments")
	}
	out := []any{}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		args := []reflect.Value{reflect.ValueOf(object[key]), reflect.ValueOf(key), reflect.ValueOf(object)}
		res, err := f.Call(args[:f.ParamCount()])
		if err != nil {
			return nil, err
		}
		if res.IsValid() && res.CanInterface() {
			out = append(out, res.Interface())
		}
	}
	return out, nil
}

// null is how JSONata wants null, which it tells from nothing.
var null = (*any)(nil)

// dataOf returns a value as JSONata reads it.
func dataOf(v any) any {
	switch v := v.(type) {
	case nil:
		return null
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

// plain returns what JSONata made as nil, bool, float64, string, []any or
// map[string]any.
func plain(v any, depth int) (any, error) {
	if depth > wire.MaxDepth {
		return nil, wire.ErrDepth
	}
	switch v := v.(type) {
	case nil, bool, float64, string:
		return v, nil
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer:
		if r.IsNil() {
			return nil, nil
		}
		return plain(r.Elem().Interface(), depth+1)
	case reflect.Slice:
		return plainList(r, depth)
	case reflect.Map:
		return plainObject(r, depth)
	case reflect.Bool:
		return r.Bool(), nil
	case reflect.String:
		return r.String(), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return r.Int(), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return r.Uint(), nil
	case reflect.Float32:
		return r.Float(), nil
	}
	return nil, errors.New("comes to a function, which is no value")
}

func plainList(r reflect.Value, depth int) (any, error) {
	out := make([]any, r.Len())
	for i := range out {
		var err error
		if out[i], err = plain(r.Index(i).Interface(), depth+1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func plainObject(r reflect.Value, depth int) (any, error) {
	out := make(map[string]any, r.Len())
	for it := r.MapRange(); it.Next(); {
		v, err := plain(it.Value().Interface(), depth+1)
		if err != nil {
			return nil, err
		}
		out[it.Key().String()] = v
	}
	return out, nil
}

// truth is JSONata's notion of true: not empty, not zero, not nothing.
func truth(v any) bool {
	switch v := v.(type) {
	case bool:
		return v
	case int64:
		return v != 0
	case uint64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case []any:
		return slices.ContainsFunc(v, truth)
	case map[string]any:
		return len(v) > 0
	}
	return false
}
