package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"wake/pkg/wire"
)

func TestText(t *testing.T) {
	a := &app{in: strings.NewReader("two\nlines\n")}
	if got, err := a.text("-"); err != nil || got != "two\nlines" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := a.text(" x "); err != nil || got != " x " {
		t.Errorf("%q, %v", got, err)
	}
	for _, empty := range []string{"", " \n", "-"} { // stdin is at its end
		if got, err := a.text(empty); err == nil {
			t.Errorf("%q: %q", empty, got)
		}
	}
}

func TestWaitingCalls(t *testing.T) {
	s := &wire.State{RunID: "r1", Tools: map[string]wire.ToolCall{
		"a#1/toolu_12": {Node: "a", CallID: "toolu_12", Tool: "Bash", State: wire.ToolApprovalRequired, Since: 5},
		"b#1/toolu_13": {Node: "b", CallID: "toolu_13", Tool: "Edit", State: wire.ToolApprovalRequired, Since: 2},
		"b#1/toolu_2":  {Node: "b", CallID: "toolu_2", Tool: "Read", State: wire.ToolExecuting, Since: 1},
		"c#1/toolu_3":  {Node: "c", CallID: "toolu_3", Tool: "Write", State: wire.ToolApprovalRequired, Since: 9},
	}}
	want := []approval{
		{RunID: "r1", NodeID: "b", CallID: "toolu_13", ToolName: "Edit", Since: 2},
		{RunID: "r1", NodeID: "a", CallID: "toolu_12", ToolName: "Bash", Since: 5},
		{RunID: "r1", NodeID: "c", CallID: "toolu_3", ToolName: "Write", Since: 9},
	}
	if diff := cmp.Diff(want, waitingCalls(s)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for call, id := range map[string]string{"toolu_12": "toolu_12", "toolu_3": "toolu_3", "toolu_13": "toolu_13", "toolu_2": "toolu_2", "nosuch": "nosuch"} {
		if got, err := waitingCall(s, call); err != nil || got != id {
			t.Errorf("%s: %q, %v", call, got, err)
		}
	}
	_, err := waitingCall(s, "toolu_1")
	if e := apiError(err); e.Code != wire.CodeAmbiguousID || len(e.Matches) != 2 {
		t.Errorf("%+v", e)
	}
}
