package native

import (
	"context"
	"strings"
	"testing"
)

// brokenModel is a model whose answers wake can't read.
type brokenModel struct{ model }

func (brokenModel) streamAnswer(context.Context, modelQuestion, func(streamPiece) error) (modelAnswer, error) {
	panic("no such block")
}

func TestDefectInAnAnswer(t *testing.T) {
	if _, err := readAnswer(t.Context(), brokenModel{}, modelQuestion{}, nil); err == nil || !strings.Contains(err.Error(), "no such block") {
		t.Errorf("%v", err)
	}
}

// Servers that speak OpenAI's protocol differ: some give all calls of an answer the same index, or none, and tell errors as texts.
func TestReadChat(t *testing.T) {
	call := func(index, id, name, input string) string {
		return `data: {"id":"a","choices":[{"delta":{"tool_calls":[{` + index + `"id":"` + id + `","function":{"name":"` + name + `","arguments":"` + input + `"}}]}}]}` + "\n\n"
	}
	end := `data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}` + "\n\ndata: [DONE]\n\n"
	for name, test := range map[string]struct{ stream, want string }{
		"two calls without index":     {call("", "x", "read", `{}`) + call("", "y", "glob", `{}`) + end, "x read {}, y glob {}"},
		"two calls of the same index": {call(`"index":0,`, "x", "read", `{}`) + call(`"index":0,`, "y", "glob", `{}`) + end, "x read {}, y glob {}"},
		"a call in pieces":            {call(`"index":0,`, "x", "read", `{`) + call(`"index":0,`, "", "", `}`) + end, "x read {}"},
		"pieces that repeat the id":   {call(`"index":0,`, "x", "read", `{`) + call(`"index":0,`, "x", "", `}`) + end, "x read {}"},
		"an error":                    {`data: {"error":{"type":"t","message":"no room"}}` + "\n\n", "no room"},
		"an error as a text":          {`data: {"error":"no room"}` + "\n\n", "no room"},
		"an error as a number":        {`data: {"error":17}` + "\n\n", "17"},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := readChat(strings.NewReader(test.stream), func() {}, func(streamPiece) error { return nil })
			if err != nil {
				if !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v, want %s", err, test.want)
				}
				return
			}
			var got []string
			for _, b := range a.blocks {
				got = append(got, b.TextAt("id")+" "+b.TextAt("name")+" "+string(jsonOf(b.Get("input"))))
			}
			if s := strings.Join(got, ", "); s != test.want {
				t.Errorf("%s, want %s", s, test.want)
			}
		})
	}
}
