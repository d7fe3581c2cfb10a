package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/pkg/wire"
)

func TestText(t *testing.T) {
	a := &app{in: strings.NewReader("two\nlines\n")}
	if got, err := a.readText("-"); err != nil || got != "two\nlines" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := a.readText(" x "); err != nil || got != " x " {
		t.Errorf("%q, %v", got, err)
	}
	for _, empty := range []string{"", " \n", "-"} { // stdin is at its end
		if got, err := a.readText(empty); err == nil {
			t.Errorf("%q: %q", empty, got)
		}
	}
}

func TestWaitingCalls(t *testing.T) {
	s := &wire.State{RunID: "r1", Status: wire.RunRunning, Tools: map[string]wire.ToolCall{
		"a#1/toolu_12": {Node: "a", CallID: "toolu_12", Tool: "Bash", State: wire.ToolApprovalRequired, Since: 5},
		"b#1/toolu_13": {Node: "b", CallID: "toolu_13", Tool: ask.Tool, State: wire.ToolApprovalRequired, Since: 2},
		"b#1/toolu_2":  {Node: "b", CallID: "toolu_2", Tool: "Read", State: wire.ToolExecuting, Since: 1},
		"c#1/toolu_3":  {Node: "c", CallID: "toolu_3", Tool: "Write", State: wire.ToolApprovalRequired, Since: 9},
	}, Nodes: map[string]wire.NodeState{"q": {Scheduled: 1, PromptID: "toolu_4"}}}
	var ids []string
	for _, a := range waitingCalls(s) {
		ids = append(ids, a.CallID)
	}
	if diff := cmp.Diff([]string{"toolu_13", "toolu_12", "toolu_3"}, ids); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for call, id := range map[string]string{"toolu_12": "toolu_12", "toolu_3": "toolu_3", "toolu_13": "toolu_13", "toolu_2": "", "nosuch": ""} {
		got, err := waitingUnder(waitingCalls(s), "call", call, "")
		if err != nil || (got == nil) != (id == "") || got != nil && got.CallID != id {
			t.Errorf("%s: %+v, %v", call, got, err)
		}
	}
	for begin, matches := range map[string][]string{"toolu_1": {"toolu_13", "toolu_12"}, "toolu_": {"toolu_13", "toolu_12", "toolu_3"}, "toolu": {"toolu_13", "toolu_12", "toolu_3"}} {
		_, err := waitingUnder(waitingCalls(s), "call", begin, "")
		if e := apiError(err); e.Code != wire.CodeAmbiguousID || !slices.Equal(e.Matches, matches) {
			t.Errorf("%s: %+v", begin, e)
		}
	}
	s.Tools["c#1/toolu_12"] = wire.ToolCall{Node: "c", CallID: "toolu_12", Tool: "Write", State: wire.ToolApprovalRequired, Since: 9}
	for node, is := range map[string]bool{"a": true, "c": true, "b": false, "": false} {
		if got, _ := waitingUnder(waitingCalls(s), "call", "toolu_12", node); (got != nil) != is || is && got.NodeID != node {
			t.Errorf("of node %q: %+v", node, got)
		}
	}
}
