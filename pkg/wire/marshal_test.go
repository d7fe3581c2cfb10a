package wire_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"code.wake.dev/wake/pkg/wire"
)

type tagged struct {
	Zulu     string            `json:"zulu"`
	Alpha    int               `json:"alpha,omitempty"`
	Ptr      *int              `json:"ptr,omitempty"`
	List     []string          `json:"list"`
	Map      map[string]uint16 `json:"map"`
	Bytes    []byte            `json:"bytes"`
	Any      any               `json:"any"`
	Raw      wire.Raw          `json:"raw"`
	Maybe    wire.Raw          `json:"maybe,omitempty"`
	When     time.Time         `json:"when,omitzero"`
	Small    int8              `json:"small,omitempty"`
	Float    float32           `json:"float,omitempty"`
	Ignored  string            `json:"-"`
	Untagged bool
	inner
	hidden string //nolint:unused // fields that aren't exported are left out
}

type inner struct {
	Embedded string `json:"embedded,omitempty"`
}

func TestMarshal(t *testing.T) {
	for name, test := range map[string]struct {
		v    any
		want string // JSON
		hex  string // where JSON doesn't tell
	}{
		"nil":            {nil, `null`, ""},
		"text":           {"a\xffb", "\"a\ufffdb\"", ""},
		"float":          {2.0, `2`, "02"},
		"half":           {0.5, `0.5`, ""},
		"minus zero":     {math.Copysign(0, -1), `0`, "00"},
		"1e17":           {1e17, `100000000000000000`, "cf016345785d8a0000"},
		"1e20":           {1e20, `100000000000000000000`, "cb4415af1d78b58c40"},
		"largest":        {uint64(math.MaxUint64), `18446744073709551615`, "cfffffffffffffffff"},
		"smallest":       {int64(math.MinInt64), `-9223372036854775808`, "d38000000000000000"},
		"-1e18":          {-1e18, `-1000000000000000000`, "d3f21f494c589c0000"},
		"empty":          {tagged{}, `{"Untagged":false,"any":null,"bytes":"","list":[],"map":{},"raw":null,"zulu":""}`, ""},
		"bytes":          {[]byte{1, 2}, `"AQI="`, "c4020102"},
		"map of any":     {map[string]any{"b": 1, "a": []any{nil, uint8(200)}}, `{"a":[null,200],"b":1}`, ""},
		"map of structs": {map[wire.Type]inner{"b": {}, "a": {"x"}}, `{"a":{"embedded":"x"},"b":{}}`, ""},
		"pointers":       {new(new(7)), `7`, ""},
		"time":           {time.Unix(0, 0).UTC(), `"1970-01-01T00:00:00Z"`, ""},
		"embedded":       {tagged{inner: inner{"x"}, Alpha: 1, Ptr: new(0)}, `{"Untagged":false,"alpha":1,"any":null,"bytes":"","embedded":"x","list":[],"map":{},"ptr":0,"raw":null,"zulu":""}`, ""},
		"raw":            {wire.Raw{0x81, 0xd9, 1, 'a', 0xcc, 1}, `{"a":1}`, "81a16101"},
		"raw inside":     {[]wire.Raw{{0xd0, 1}, nil}, `[1,null]`, "9201c0"},
		"raw JSON":       {json.RawMessage(`{"b":1, "a":2}`), `{"a":2,"b":1}`, ""},
	} {
		got, err := wire.Marshal(test.v)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		j, err := got.MarshalJSON()
		if err != nil || string(j) != test.want {
			t.Errorf("%s: %s, %v, want %s", name, j, err, test.want)
		}
		if test.hex != "" && hex.EncodeToString(got) != test.hex {
			t.Errorf("%s: %x, want %s", name, got, test.hex)
		}
	}
	if got, err := wire.Marshal(wire.Raw(nil)); got != nil || err != nil {
		t.Errorf("absent: %x, %v", got, err)
	}
}

func TestMarshalRefuses(t *testing.T) {
	type loop struct{ Next *loop }
	endless := &loop{}
	endless.Next = endless
	for name, v := range map[string]any{
		"channel":    make(chan int),
		"infinite":   math.Inf(-1),
		"NaN inside": map[string]any{"a": math.NaN()},
		"int keys":   map[int]string{1: "a"},
		"bad key":    map[string]int{"\xff": 1},
		"bad raw":    []wire.Raw{{0x91}},
		"endless":    endless,
	} {
		if got, err := wire.Marshal(v); err == nil {
			t.Errorf("%s: %x", name, got)
		}
	}
}

func TestUnmarshal(t *testing.T) {
	in := tagged{
		Zulu: "z", Alpha: -7, Ptr: new(0), List: []string{"a", ""}, Map: map[string]uint16{"x": 65535}, Bytes: []byte{0, 255},
		Any: map[string]any{"n": int64(200), "u": uint64(math.MaxUint64), "f": 0.5, "l": []any{nil, true, "s"}, "b": []byte{1}},
		Raw: wire.Null, Maybe: wire.RawString("m"), When: time.UnixMilli(1767400000000).UTC(), Small: -128, Float: 0.5,
		Untagged: true, inner: inner{"e"},
	}
	b, err := wire.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out tagged
	if err := wire.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(in, out, cmp.AllowUnexported(tagged{})); diff != "" {
		t.Error(diff)
	}
	// The same through JSON, where binary data is base64.
	j, err := b.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := wire.RawFromJSON(j)
	if err != nil {
		t.Fatal(err)
	}
	var fromJSON tagged
	if err := wire.Unmarshal(raw, &fromJSON); err != nil {
		t.Fatal(err)
	}
	in.Any.(map[string]any)["b"] = "AQ=="
	if diff := cmp.Diff(in, fromJSON, cmp.AllowUnexported(tagged{})); diff != "" {
		t.Errorf("JSON: %s", diff)
	}
}

func TestUnmarshalRefuses(t *testing.T) {
	for in, want := range map[string]string{
		`{"zulu":7}`:             "zulu",
		`{"alpha":"7"}`:          "alpha",
		`{"alpha":1.5}`:          "alpha",
		`{"alpha":1e300}`:        "alpha",
		`{"small":128}`:          "small",
		`{"small":-129}`:         "small",
		`{"map":{"a":-1}}`:       "map.a",
		`{"map":{"a":65536}}`:    "map.a",
		`{"map":[]}`:             "map",
		`{"list":["a",1]}`:       "list",
		`{"list":"a"}`:           "list",
		`{"bytes":"not base64"}`: "bytes",
		`{"bytes":7}`:            "bytes",
		`{"float":1e200}`:        "float",
		`{"when":"yesterday"}`:   "when",
		`{"Untagged":1}`:         "Untagged",
		`[]`:                     "value",
		`"text"`:                 "value",
	} {
		raw, err := wire.RawFromJSON([]byte(in))
		if err != nil {
			t.Fatal(err)
		}
		var v tagged
		err = wire.Unmarshal(raw, &v)
		if e, ok := errors.AsType[*wire.FieldError](err); !ok || e.Field != want {
			t.Errorf("%s: %v, want an error about %s", in, err, want)
		}
	}
	var v tagged
	for name, b := range map[string][]byte{
		"nothing":         {},
		"cut off":         {0x81, 0xa4, 'z'},
		"trailing":        {0x80, 0x80},
		"field twice":     []byte("\x82\xa4zulu\xa0\xa4zulu\xa0"),
		"key twice":       []byte("\x81\xa3map\x82\xa1a\x01\xa1a\x01"),
		"key is a number": {0x81, 1, 1},
		"not UTF-8":       []byte("\x81\xa4zulu\xa1\xff"),
		"extension":       {0x81, 0xa3, 'a', 'n', 'y', 0xd4, 1, 1},
		"unknown cut off": []byte("\x81\xa1x\x92\x01"),
		"any twice":       []byte("\x81\xa3any\x82\xa1a\x01\xa1a\x01"),
	} {
		if err := wire.Unmarshal(b, &v); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	if err := wire.Unmarshal([]byte{0x80}, v); err == nil {
		t.Error("a value is no pointer")
	}
}

// TestUnmarshalLeaves: fields that the value lacks stay as they are, null
// empties them, names are taken to the letter.
func TestUnmarshalLeaves(t *testing.T) {
	v := tagged{Zulu: "z", Alpha: 7, Untagged: true, List: []string{"a"}}
	raw, err := wire.RawFromJSON([]byte(`{"alpha":null,"list":null,"ZULU":"x","more":[{}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := wire.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tagged{Zulu: "z", Untagged: true}, v, cmp.AllowUnexported(tagged{})); diff != "" {
		t.Error(diff)
	}
}

// documents are the plain structs of the wire.
var documents = []any{
	wire.State{}, wire.Alert{}, wire.RunRequest{}, wire.NodeOffer{}, wire.Command{}, wire.Poison{}, wire.Position{},
}

// TestDocuments: a state, an alert, a request is the same after a trip through
// either notation, has one encoding, and has it whether its empty lists are nil
// or not.
func TestDocuments(t *testing.T) {
	for _, doc := range documents {
		typ := reflect.TypeOf(doc)
		t.Run(typ.Name(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				v := reflect.New(typ)
				fill(t, v.Elem())
				b, err := wire.Marshal(v.Interface())
				if err != nil {
					t.Fatal(err)
				}
				if c, err := wire.Canonical(b); err != nil || !bytes.Equal(c, b) {
					t.Fatalf("%v: not canonical: %x", err, b)
				}
				j, err := b.MarshalJSON()
				if err != nil {
					t.Fatal(err)
				}
				fromJSON, err := wire.RawFromJSON(j)
				if err != nil {
					t.Fatal(err)
				}
				for _, in := range [][]byte{b, fromJSON, appendLong(nil, b.Any(), false)} {
					back := reflect.New(typ)
					if err := wire.Unmarshal(in, back.Interface()); err != nil {
						t.Fatal(err)
					}
					if again, err := wire.Marshal(back.Interface()); err != nil || !bytes.Equal(again, b) {
						t.Fatalf("%v\n got %x\nwant %x", err, again, b)
					}
				}
			})
		})
	}
}

// fill sets a value of the wire's plain structs at random.
func fill(t *rapid.T, v reflect.Value) {
	switch {
	case v.Type() == reflect.TypeFor[wire.Raw]():
		if rapid.Bool().Draw(t, "present") {
			raw, err := wire.Marshal(aValue(2).Draw(t, "value"))
			if err != nil {
				t.Fatal(err)
			}
			v.SetBytes(raw)
		}
	case v.Kind() == reflect.Struct:
		for _, field := range v.Fields() {
			fill(t, field)
		}
	case v.Kind() == reflect.Pointer:
		if rapid.Bool().Draw(t, "present") {
			v.Set(reflect.New(v.Type().Elem()))
			fill(t, v.Elem())
		}
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		v.SetBytes(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
	case v.Kind() == reflect.Slice:
		if n := rapid.IntRange(-1, 3).Draw(t, "length"); n >= 0 { // nil and empty, too
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				fill(t, v.Index(i))
			}
		}
	case v.Kind() == reflect.Map:
		if n := rapid.IntRange(-1, 3).Draw(t, "length"); n >= 0 {
			v.Set(reflect.MakeMap(v.Type()))
			for range n {
				item := reflect.New(v.Type().Elem()).Elem()
				fill(t, item)
				v.SetMapIndex(reflect.ValueOf(rapid.String().Draw(t, "key")), item)
			}
		}
	case v.CanInt():
		v.SetInt(rapid.Int64().Draw(t, "int"))
	case v.CanUint():
		v.SetUint(rapid.Uint64().Draw(t, "uint"))
	case v.CanFloat():
		v.SetFloat(rapid.Float64().Draw(t, "float"))
	case v.Kind() == reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case v.Kind() == reflect.String:
		v.SetString(rapid.String().Draw(t, "text"))
	default:
		t.Fatalf("no values of type %s", v.Type())
	}
}

// TestStateNamesSnapshot: a state has the fields of the specification's
// RunSnapshot, under their names, always present.
func TestStateNamesSnapshot(t *testing.T) {
	b, err := wire.Marshal(wire.State{})
	if err != nil {
		t.Fatal(err)
	}
	m := b.Any().(map[string]any)
	for _, name := range []string{
		"runId", "status", "outputs", "state", "nodeStatus", "edgeStatus", "loopCounters", "inbox", "agentSessions",
	} {
		if _, ok := m[name]; !ok {
			t.Errorf("an empty state has no %s: %v", name, maps.Keys(m))
		}
	}
}

func TestRaw(t *testing.T) {
	raw, err := wire.RawFromJSON([]byte(`{"a":{"b":[1,"x"]},"s":"text","n":null,"":0}`))
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := raw.Get("s").Text(); !ok || s != "text" {
		t.Errorf("s = %q, %v", s, ok)
	}
	if s, ok := raw.Get("a").Text(); ok {
		t.Errorf("a map is the text %q", s)
	}
	if !bytes.Equal(raw.Get("n"), wire.Null) || raw.Get("missing") != nil || raw.Get("s").Get("x") != nil || wire.Raw(nil).Get("a") != nil {
		t.Error("null, missing, text or nothing")
	}
	if diff := cmp.Diff([]any{int64(1), "x"}, raw.Get("a").Get("b").Any()); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []wire.Raw{nil, {}, {0x91}, {0xc1}, {0xa5, 'x'}, {1, 2}, {0x81, 1, 1}, {0xdd, 255, 255, 255, 255}} {
		if v := bad.Any(); v != nil {
			t.Errorf("%x is %v", bad, v)
		}
		if s, ok := bad.Text(); ok {
			t.Errorf("%x is %q", bad, s)
		}
		if v := bad.Get("a"); v != nil {
			t.Errorf("%x has %x", bad, v)
		}
	}
	if s := string(wire.RawString("a\xffb")[1:]); s != "a\ufffdb" {
		t.Errorf("%q", s)
	}
	var back struct{ R wire.Raw }
	if err := json.Unmarshal([]byte(`{"R":{"b":1,"a":[]}}`), &back); err != nil {
		t.Fatal(err)
	}
	if j, err := json.Marshal(back); err != nil || string(j) != `{"R":{"a":[],"b":1}}` {
		t.Errorf("%s, %v", j, err)
	}
}

func TestParseAny(t *testing.T) {
	for in, want := range map[string]struct {
		json bool
		out  string
	}{
		` {"a":1}`:      {true, `{"a":1}`},
		"\n\t{}":        {true, `{}`},
		"\x81\xa1a\x01": {false, `{"a":1}`},
		"\xc0":          {false, `null`},
	} {
		v, isJSON, err := wire.ParseAny([]byte(in))
		if err != nil || isJSON != want.json {
			t.Errorf("%q: JSON %v, %v", in, isJSON, err)
			continue
		}
		if j, _ := v.MarshalJSON(); string(j) != want.out {
			t.Errorf("%q: %s", in, j)
		}
	}
	for _, in := range []string{"", "{", `{"a"}`, "[1]", "\x81", strings.Repeat(" ", 3)} {
		if v, _, err := wire.ParseAny([]byte(in)); err == nil {
			t.Errorf("%q is %x", in, v)
		}
	}
}
