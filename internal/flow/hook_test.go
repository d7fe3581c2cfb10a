package flow_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"code.wake.dev/wake/internal/flow"
)

// The hooks of a node are the flow's and its own, in this order, whichever way a
// command is written; they survive the log.
func TestHooks(t *testing.T) {
	d, err := flow.Parse("x.yaml", []byte(`
name: x
hooks: [{event: AgentStart, url: "https://policy/x?y"}, {event: PreToolUse, matcher: "Write|Edit", command: ./guard.sh}]
nodes:
  - {id: a, type: agent, input: {prompt: go}, hooks: [{event: TurnEnd, subject: hooks.x-1, name: n, timeoutMs: 500}, {event: PreToolUse, command: [a, "b c"]}]}
  - {id: b, type: agent, input: {prompt: go}}
`))
	if err != nil {
		t.Fatal(err)
	}
	all := []flow.Hook{
		{Event: "AgentStart", URL: "https://policy/x?y"},
		{Event: "PreToolUse", Matcher: "Write|Edit", Command: []string{"/bin/sh", "-c", "./guard.sh"}},
		{Event: "TurnEnd", Subject: "hooks.x-1", Name: "n", TimeoutMs: 500},
		{Event: "PreToolUse", Command: []string{"a", "b c"}},
	}
	again, err := flow.FromRaw(d.Raw())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []*flow.Definition{d, again} {
		if diff := cmp.Diff(all, d.HooksOf(d.Node("a"))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(all[:2], d.HooksOf(d.Node("b"))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// The schema of hooks and the parser agree.
func TestHookSchema(t *testing.T) {
	s, err := jsonschema.NewCompiler().Compile("../../schemas/hook.schema.json#/$defs/hook")
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []string{
		`{"event":"AgentStart","command":"true"}`, `{"event":"PreToolUse","matcher":"a|b","name":"n","command":["a","b"],"timeoutMs":300000}`,
		`{"event":"TurnEnd","url":"http://x"}`, `{"event":"TurnEnd","url":"https://x:1/y?z"}`, `{"event":"TurnEnd","subject":"a.b_c-D.1"}`,
		`{"event":"Nap","command":"true"}`, `{"command":"true"}`, `{"event":"TurnEnd"}`, `{"event":"TurnEnd","command":"true","url":"http://x"}`,
		`{"event":"TurnEnd","command":" "}`, `{"event":"TurnEnd","command":[]}`, `{"event":"TurnEnd","command":[1]}`, `{"event":"TurnEnd","command":7}`,
		`{"event":"TurnEnd","url":"x"}`, `{"event":"TurnEnd","url":"http:///x"}`, `{"event":"TurnEnd","url":"http://a b"}`,
		`{"event":"TurnEnd","subject":"a.>"}`, `{"event":"TurnEnd","subject":"$a"}`, `{"event":"TurnEnd","subject":"a..b"}`, `{"event":"TurnEnd","subject":"_INBOX.a"}`,
		`{"event":"TurnEnd","command":"true","timeoutMs":300001}`, `{"event":"TurnEnd","command":"true","timeoutMs":-1}`, `{"event":"TurnEnd","command":"true","on":1}`, `7`,
	} {
		_, err := flow.Parse("x.json", fmt.Appendf(nil, `{"name":"x","nodes":[{"id":"a","type":"agent","input":{"prompt":"go"}}],"hooks":[%s]}`, h))
		v, jsonErr := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(h)))
		if jsonErr != nil {
			t.Fatal(jsonErr)
		}
		if invalid := s.Validate(v); (err == nil) != (invalid == nil) {
			t.Errorf("%s: parsed %v, schema %v", h, err, invalid)
		}
	}
}
