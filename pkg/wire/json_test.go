package wire_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"code.wake.dev/wake/pkg/wire"
)

func TestRawFromJSON(t *testing.T) {
	for in, want := range map[string]string{
		`1e3`:                      `1000`,
		`-0`:                       `0`,
		`-0.0`:                     `0`,
		`1.0`:                      `1`,
		`0.1`:                      `0.1`,
		`9223372036854775807`:      `9223372036854775807`,
		`18446744073709551615`:     `18446744073709551615`,
		`18446744073709551616`:     `18446744073709552000`,
		`-9223372036854775809`:     `-9223372036854775808`,
		`1e-7`:                     `1e-07`,
		`1e-400`:                   `0`,
		`1e21`:                     `1e+21`,
		`{"b":1,"a":2,"b":3}`:      `{"a":2,"b":3}`,
		`{"a":1,"a":2}`:            `{"a":2}`,
		` [ 1 , { } , [ ] ] `:      `[1,{},[]]`,
		`"\ud83d\ude00"`:           `"😀"`,
		`"\ud83d"`:                 "\"\ufffd\"",
		`"\ude00\ud83d\u0041"`:     "\"\ufffd\ufffdA\"",
		`"\u00e9\b\f\n\r\t\/\\\""`: `"é\u0008\u000c\n\r\t/\\\""`,
		"\"a\xff\xfeb\"":           "\"a\ufffd\ufffdb\"",
		"\"\\n\xff\"":              "\"\\n\ufffd\"",
		`"\u001b[31m\u202e\u2028"`: `"\u001b[31m\u202e\u2028"`,
		"\"\u007f\u0085\u200e\"":   `"\u007f\u0085\u200e"`,
	} {
		raw, err := wire.RawFromJSON([]byte(in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got, err := raw.MarshalJSON(); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v, want %s", in, got, err, want)
		}
	}
}

func TestRawFromJSONRefuses(t *testing.T) {
	for in, at := range map[string]int{
		``: 0, `  `: 2, `{`: 1, `[`: 1, `[1`: 2, `[1,]`: 3, `[,1]`: 1, `{"a"}`: 4, `{"a":}`: 5, `{"a":1,}`: 7, `{,}`: 1, `{a:1}`: 1,
		`{"a":1 "b":2}`: 7, `nul`: 0, `nulll`: 4, `True`: 0, `01`: 2, `-`: 1, `1.`: 2, `.5`: 0, `1e`: 2, `+1`: 0, `0x1`: 1, `1 2`: 2,
		`"a`: 2, `"\x"`: 2, `"\u12"`: 3, `"\u12g4"`: 3, "\"\n\"": 1, `'a'`: 0, `1e400`: 0, "\ufeff1": 0, `NaN`: 0, `"\`: 2, `"\u+123"`: 3,
	} {
		_, err := wire.RawFromJSON([]byte(in))
		e, ok := errors.AsType[*wire.JSONError](err)
		if !ok || !errors.Is(err, wire.ErrSyntax) {
			t.Errorf("%q: %v", in, err)
		} else if e.Offset != at {
			t.Errorf("%q: %v, want byte %d", in, err, at)
		}
		if json.Valid([]byte(in)) && in != `1e400` {
			t.Errorf("%q is valid", in)
		}
	}
}

// TestLongContainers: the header of a container is written when its length is
// known.
func TestLongContainers(t *testing.T) {
	for _, n := range []int{0, 1, 15, 16, 17, 65535, 65536} {
		list := strings.TrimSuffix(strings.Repeat("7,", n), ",")
		in := `[[` + list + `],{"a":[` + list + `]}]`
		raw, err := wire.RawFromJSON([]byte(in))
		if err != nil {
			t.Fatal(n, err)
		}
		if got, err := raw.MarshalJSON(); err != nil || string(got) != in {
			t.Fatalf("%d: %v", n, err)
		}
	}
}

// TestJSONIsSafe: whatever an event holds, its JSON form is one line that a
// terminal shows and doesn't obey.
func TestJSONIsSafe(t *testing.T) {
	var all strings.Builder
	for r := range rune(0x3000) {
		all.WriteRune(r)
	}
	j := wantError(t, wire.EncodeJSON, anEventOf(&wire.AgentText{Content: all.String()}))
	for _, r := range string(j) {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0x2028 || r == 0x2029 {
			t.Errorf("%U stands in the output", r)
		}
	}
	e, err := wire.DecodeJSON(j)
	if err != nil || e.Payload.(*wire.AgentText).Content != all.String() {
		t.Errorf("the content has changed: %v", err)
	}
}

// TestForeignFloats: msgpack has numbers that JSON lacks; they are printed as
// null and refused as values.
func TestForeignFloats(t *testing.T) {
	for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		b := appendLong(nil, x, true)
		if j, err := wire.AppendJSON(nil, b); err != nil || string(j) != "null" {
			t.Errorf("%v: %s, %v", x, j, err)
		}
		if _, err := wire.Canonical(b); !errors.Is(err, wire.ErrSyntax) {
			t.Errorf("%v: %v", x, err)
		}
	}
}

func TestDecodeJSONRefuses(t *testing.T) {
	for in, want := range map[string]error{
		``:                      wire.ErrSyntax,
		`[]`:                    wire.ErrSyntax,
		`{"v":2,"type":"x"}`:    wire.ErrVersion,
		`{"v":1,"type":"x"} {}`: wire.ErrSyntax,
	} {
		if _, err := wire.DecodeJSON([]byte(in)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", in, err, want)
		}
	}
}

func TestRawPlain(t *testing.T) {
	t.Parallel()
	list, err := wire.Marshal([]any{"a", 1, nil})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		value wire.Raw
		want  string
	}{
		{wire.RawString(`say "no"`), `say "no"`}, {wire.RawString(""), ""}, {wire.Null, "null"}, {list, `["a",1,null]`}, {nil, ""}, {wire.Raw("\xc1"), ""}, {list[:2], ""},
	} {
		if got := test.value.Plain(); got != test.want {
			t.Errorf("%x: %q, want %q", []byte(test.value), got, test.want)
		}
	}
}
