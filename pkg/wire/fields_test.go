package wire_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"code.wake.dev/wake/pkg/wire"
)

// refuse decodes an event, as msgpack and as JSON, and expects a FieldError that
// names the field.
func refuse(t *testing.T, m map[string]any, typ wire.Type, field string) {
	t.Helper()
	b, err := wire.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	j, err := b.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, decode := range []func() (*wire.Event, error){
		func() (*wire.Event, error) { return wire.Decode(b) },
		func() (*wire.Event, error) { return wire.DecodeJSON(j) },
	} {
		_, err := decode()
		if e, ok := errors.AsType[*wire.FieldError](err); !ok || e.Field != field || e.Type != typ {
			t.Errorf("%s: error %v, want one that names %s", j, err, field)
		}
	}
}

// everyField calls f for every field of a type with the object that holds it: a
// copy that belongs to f alone, inside of event.
func everyField(t *testing.T, typ wire.Type, f func(event, object map[string]any, path string, info wire.FieldInfo)) {
	t.Helper()
	var walk func(path []string, list []wire.FieldInfo)
	walk = func(path []string, list []wire.FieldInfo) {
		for _, info := range list {
			if info.Name == "v" || info.Name == "type" || info.Name == "blobs" {
				continue
			}
			event := fullEvent(typ)
			object := event
			for _, name := range path {
				object = inside(object[name])
			}
			f(event, object, strings.Join(append(slices.Clone(path), info.Name), "."), info)
			if len(info.Fields) > 0 {
				walk(append(slices.Clone(path), info.Name), info.Fields)
			}
		}
	}
	walk(nil, slices.Concat(wire.DescribeEnvelope(), wire.Describe(typ).Fields))
}

// inside returns an object that a field holds.
func inside(v any) map[string]any {
	switch v := v.(type) {
	case []any:
		return v[0].(map[string]any)
	case map[string]any:
		if inner, ok := v["x"].(map[string]any); ok {
			return inner
		}
		return v
	}
	panic(fmt.Sprintf("%T", v))
}

func TestRequiredFields(t *testing.T) {
	for _, typ := range wire.Types() {
		requires := wire.Describe(typ).Requires
		everyField(t, typ, func(event, object map[string]any, path string, info wire.FieldInfo) {
			delete(object, info.Name)
			if info.Required || slices.Contains(requires, path) {
				refuse(t, event, typ, path)
			} else {
				decodeMap(t, event)
			}
		})
	}
}

func TestEmptyFields(t *testing.T) {
	for _, typ := range wire.Types() {
		requires := wire.Describe(typ).Requires
		everyField(t, typ, func(event, object map[string]any, path string, info wire.FieldInfo) {
			switch info.Kind {
			case wire.FieldString:
				object[info.Name] = ""
			case wire.FieldInteger, wire.FieldUnsigned, wire.FieldNumber:
				object[info.Name] = 0
			default:
				return
			}
			if info.NonEmpty || slices.Contains(requires, path) {
				refuse(t, event, typ, path)
			} else {
				decodeMap(t, event)
			}
		})
	}
}

// TestEmptyObjects: an object without any field lacks those that are required.
func TestEmptyObjects(t *testing.T) {
	refuse(t, map[string]any{"v": 1, "type": "usage"}, "usage", "runId")
	for typ, path := range map[wire.Type]string{
		"agent:complete": "usage.inputTokens", "state:patch": "patch.op", "todo:changed": "items.content",
	} {
		m := fullEvent(typ)
		name, _, _ := strings.Cut(path, ".")
		if _, isList := m[name].([]any); isList {
			m[name] = []any{map[string]any{}}
		} else {
			m[name] = map[string]any{}
		}
		refuse(t, m, typ, path)
	}
}

// TestNull: in an optional field null is as good as nothing, save where every
// value may stand; there it is a value.
func TestNull(t *testing.T) {
	for _, typ := range wire.Types() {
		requires := wire.Describe(typ).Requires
		everyField(t, typ, func(event, object map[string]any, path string, info wire.FieldInfo) {
			object[info.Name] = nil
			if info.Kind != wire.FieldAny && (info.Required || slices.Contains(requires, path)) {
				refuse(t, event, typ, path)
				return
			}
			out := decodeJSON(t, wantError(t, wire.EncodeJSON, decodeMap(t, event))).(map[string]any)
			if info.Kind == wire.FieldAny {
				if v, ok := inPath(out, path); !ok || v != nil {
					t.Errorf("%s: %s: null has become %v, %v", typ, path, v, ok)
				}
			} else if _, ok := inPath(out, path); ok {
				t.Errorf("%s: %s: null was kept", typ, path)
			}
		})
	}
}

func inPath(m map[string]any, path string) (any, bool) {
	names := strings.Split(path, ".")
	for _, name := range names[:len(names)-1] {
		m = inside(m[name])
	}
	v, ok := m[names[len(names)-1]]
	return v, ok
}

func TestWrongKinds(t *testing.T) {
	wrong := map[wire.FieldKind][]any{
		wire.FieldString:    {7, true, []any{}, map[string]any{}, -1, 0.5},
		wire.FieldInteger:   {"7", true, 0.5, []any{}, uint64(1 << 63), 1e300},
		wire.FieldUnsigned:  {"7", -1, 0.5, true, []any{}, -1e300},
		wire.FieldNumber:    {"7", true, []any{}},
		wire.FieldBoolean:   {"true", 1, []any{}},
		wire.FieldStrings:   {"a", []any{"a", 7}, []any{nil}, map[string]any{}},
		wire.FieldStringMap: {"a", map[string]any{"a": 7}, []any{}},
		wire.FieldObject:    {"a", []any{}, 7},
		wire.FieldObjects:   {"a", []any{7}, map[string]any{}},
		wire.FieldObjectMap: {"a", map[string]any{"a": 7}, []any{}},
	}
	for _, typ := range wire.Types() {
		everyField(t, typ, func(event, object map[string]any, path string, info wire.FieldInfo) {
			for _, value := range wrong[info.Kind] {
				object[info.Name] = value
				refuse(t, event, typ, path)
			}
			if len(info.Enum) > 0 {
				object[info.Name] = "bogus"
				refuse(t, event, typ, path)
			}
		})
	}
}

// TestNames: a payload's fields never have names of the envelope, names differ
// by more than case, and a record stays within what the codec can count.
func TestNames(t *testing.T) {
	shared := map[string]bool{}
	for _, f := range wire.DescribeEnvelope() {
		shared[strings.ToLower(f.Name)] = true
	}
	for _, typ := range wire.Types() {
		info := wire.Describe(typ)
		if len(shared)+len(info.Fields) > 64 {
			t.Errorf("%s has too many fields", typ)
		}
		checkNames(t, string(typ), info.Fields, maps.Clone(shared))
		for _, name := range info.Requires {
			if !shared[strings.ToLower(name)] {
				t.Errorf("%s requires %s, which the envelope lacks", typ, name)
			}
		}
	}
}

func checkNames(t *testing.T, where string, list []wire.FieldInfo, taken map[string]bool) {
	t.Helper()
	for _, f := range list {
		if f.Name == "" || f.Name[0] < 'a' || f.Name[0] > 'z' || strings.ContainsAny(f.Name, "_-. ") {
			t.Errorf("%s: %q is not camelCase", where, f.Name)
		}
		if taken[strings.ToLower(f.Name)] {
			t.Errorf("%s: the name %s is taken", where, f.Name)
		}
		taken[strings.ToLower(f.Name)] = true
		checkNames(t, where+"."+f.Name, f.Fields, map[string]bool{})
	}
}

// TestSpecification holds the agent events against their specification: its
// fields are here under their names, as present or absent as it says, and every
// other field is optional.
func TestSpecification(t *testing.T) {
	const spec = `
agent:start: sessionId string, model? string, prompt any
agent:thinking:delta: content string, tokenCount? integer
agent:thinking: content string, tokenCount? integer
agent:text:delta: content string
agent:text: content string
agent:tool: toolName string, toolInput any, toolOutput any, durationMs? integer, error? string
agent:error: errorType string, message string, details? any
agent:complete: result string, structuredOutput? any, usage object, modelUsage? objectMap, totalCostUsd? number, durationMs integer, numTurns integer
agent:complete.usage: inputTokens integer, outputTokens integer, cacheCreationInputTokens? integer, cacheReadInputTokens? integer
agent:complete.modelUsage: inputTokens integer, outputTokens integer`
	for line := range strings.Lines(strings.TrimSpace(spec)) {
		where, list, _ := strings.Cut(strings.TrimSpace(line), ": ")
		name, inner, nested := strings.Cut(where, ".")
		typ := wire.Type(name)
		fields := wire.Describe(typ).Fields
		if nested {
			fields = fields[slices.IndexFunc(fields, func(f wire.FieldInfo) bool { return f.Name == inner })].Fields
		}
		want := map[string]string{}
		for field := range strings.SplitSeq(list, ", ") {
			name, kind, _ := strings.Cut(field, " ")
			want[strings.TrimSuffix(name, "?")] = fmt.Sprint(kind, !strings.HasSuffix(name, "?"))
		}
		for _, f := range slices.Concat(fields, baseFields(typ, nested)) {
			got := fmt.Sprint(f.Kind, f.Required)
			if expected, ok := want[f.Name]; ok && got != expected {
				t.Errorf("%s: %s is %s, the specification says %s", where, f.Name, got, expected)
			} else if !ok && f.Required {
				t.Errorf("%s: %s is required, the specification doesn't know it", where, f.Name)
			}
			delete(want, f.Name)
		}
		for name := range want {
			t.Errorf("%s lacks %s", where, name)
		}
	}
	for _, f := range wire.DescribeEnvelope() {
		if slices.Contains([]string{"nodeId", "runId", "timestamp"}, f.Name) && !f.Required {
			t.Errorf("%s is optional", f.Name)
		}
	}
}

// baseFields are the fields of the envelope that a type requires.
func baseFields(typ wire.Type, nested bool) (list []wire.FieldInfo) {
	for _, f := range wire.DescribeEnvelope() {
		if !nested && slices.Contains(wire.Describe(typ).Requires, f.Name) {
			f.Required = true
			list = append(list, f)
		}
	}
	return list
}

// TestKinds holds the kinds of events against the table of the design.
func TestKinds(t *testing.T) {
	prefixes := map[string]wire.Kind{
		"flow": wire.KindFlow, "node": wire.KindFlow, "edge": wire.KindFlow, "loop": wire.KindFlow, "state": wire.KindFlow,
		"command": wire.KindFlow, "run": wire.KindFlow, "input": wire.KindFlow,
		"tool": wire.KindTool, "permission": wire.KindTool,
	}
	exact := map[wire.Type]wire.Kind{
		"agent:tool": wire.KindTool,
		"agent:text": wire.KindText, "agent:thinking": wire.KindText,
		"agent:text:delta": wire.KindDelta, "agent:thinking:delta": wire.KindDelta, "exec:output": wire.KindDelta,
	}
	count := map[wire.Kind]int{}
	for _, typ := range append(wire.Types(), "future", "tool:future") {
		want, ok := exact[typ]
		if !ok {
			if want, ok = prefixes[strings.Split(string(typ), ":")[0]]; !ok {
				want = wire.KindAgent
			}
		}
		if got := typ.Kind(); got != want {
			t.Errorf("%s is of kind %s, want %s", typ, got, want)
		}
		count[typ.Kind()]++
	}
	for _, kind := range wire.Kinds {
		if count[kind] == 0 {
			t.Errorf("no type is of kind %s", kind)
		}
		delete(count, kind)
	}
	if len(count) > 0 {
		t.Errorf("kinds that aren't listed: %v", count)
	}
}

// TestAwaited: what comes before a deed is awaited, what comes in streams never is.
func TestAwaited(t *testing.T) {
	for _, typ := range wire.Types() {
		if k := typ.Kind(); typ.Awaited() && (k == wire.KindDelta || k == wire.KindText) {
			t.Errorf("%s, of kind %s, is awaited", typ, k)
		}
	}
	for _, typ := range []wire.Type{
		"agent:start", "session:bound", "tool:intent", "tool:sealed", "permission:decided", "command:received", "agent:complete", "node:complete", "node:error",
		"flow:start", "flow:complete", "log:truncated", "run:forked", "run:claimed", "node:claimed",
	} {
		if !typ.Awaited() {
			t.Errorf("%s isn't awaited", typ)
		}
	}
}

// TestPayloads: every type has a payload of its own that knows its type.
func TestPayloads(t *testing.T) {
	seen := map[string]wire.Type{}
	for _, typ := range wire.Types() {
		p := decodeMap(t, leastEvent(typ)).Payload
		name := fmt.Sprintf("%T", p)
		if p.Type() != typ || name == "*wire.Opaque" || seen[name] != "" {
			t.Errorf("%s has payload %s of type %s (%s)", typ, name, p.Type(), seen[name])
		}
		seen[name] = typ
	}
}
