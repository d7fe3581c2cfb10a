package flow_test

import (
	"testing"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

// An answer chooses by its text or by its number from 1, unless the choices are numbers themselves. One that doesn't fit a schema isn't
// taken for the text that it is written as.
func TestAcceptAnswer(t *testing.T) {
	colours, amounts := `{"choices": ["red", "green", "blue"]}`, `{"choices": [10, 20, "none"]}`
	form := `{"schema": {"properties": {"n": {"type": "integer", "minimum": 3}}, "required": ["n"]}}` // which a text fits
	for _, test := range []struct{ input, answer, want string }{
		{colours, `"green"`, `"green"`},
		{colours, `2`, `"green"`},
		{colours, `"2"`, `"green"`},
		{colours, `0`, ""},
		{colours, `4`, ""},
		{colours, `"2.0"`, ""},
		{amounts, `"20"`, `20`},
		{amounts, `2`, ""},
		{amounts, `"none"`, `"none"`},
		{form, `{"n": 3}`, `{"n":3}`},
		{form, `{"n": 1}`, ""},
		{form, `[1]`, `[1]`},
		{`{"schema": {"type": "string"}}`, `5`, `"5"`},
	} {
		input, err := wire.RawFromJSON([]byte(test.input))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := wire.RawFromJSON([]byte(test.answer))
		if err != nil {
			t.Fatal(err)
		}
		got, err := flow.AcceptAnswer(input, answer)
		if text, _ := wire.AppendJSON(nil, got); (err == nil) != (test.want != "") || err == nil && string(text) != test.want {
			t.Errorf("%s of %s: %s, %v; want %q", test.answer, test.input, text, err, test.want)
		}
	}
}
