package flow_test

import (
	"testing"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

// An answer chooses by its text or by its number from 1, unless the choices are numbers themselves.
func TestAcceptAnswer(t *testing.T) {
	colours, amounts := `{"choices": ["red", "green", "blue"]}`, `{"choices": [10, 20, "none"]}`
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
