package acp_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/acp"
	"code.wake.dev/wake/pkg/wire"
)

// update is a script's line of a session update.
func updateLine(text string) string {
	return `raw {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"sess-1","update":{"toolCallId":"c1",` + text + "}}}\n"
}

// Each agent says in its own words that it has told its parent something; the lines are those of opencode 1.18, claude-agent-acp 0.49, codex-acp
// 0.16 and Gemini's 0.61.
func TestParent(t *testing.T) {
	const done = `"status":"completed","content":[{"type":"content","content":{"type":"text","text":"delivered"}}]`
	const call, more = `"sessionUpdate":"tool_call",`, `"sessionUpdate":"tool_call_update",`
	for agent, script := range map[string]string{
		"opencode": updateLine(call+`"title":"parent_notify_parent","kind":"other","status":"pending","locations":[],"rawInput":{}`) +
			updateLine(more+`"status":"in_progress","kind":"other","title":"parent_notify_parent","rawInput":{"message":"Half done."}`) + updateLine(more+done),
		"claude": updateLine(call+`"_meta":{"claudeCode":{"toolName":"mcp__parent__notify_parent"}},"rawInput":{},"status":"pending","title":"x","kind":"other","content":[]`) +
			updateLine(more+`"rawInput":{"message":"Half done."},"title":"x","kind":"other","content":[]`) + updateLine(more+done),
		"codex": updateLine(call+`"title":"Tool: parent/notify_parent","status":"in_progress","rawInput":{"server":"parent","tool":"notify_parent","arguments":{"message":"Half done."}}`) +
			updateLine(more+done),
		"gemini": updateLine(call+`"status":"pending","title":"notify_parent (parent MCP Server)","kind":"other","content":[{"type":"content","content":{"type":"text","text":"{\"message\":\"Half done.\"}"}}]`) +
			updateLine(more+`"title":"notify_parent (parent MCP Server)","kind":"other","locations":[],`+done),
	} {
		t.Run(agent, func(t *testing.T) {
			lines := drain(t, start(t, newPlace(t).request(t, script)), nil)
			if told := withPrefix(lines, "cc_message"); !cmp.Equal(told, []string{"cc_message c1 info Half done."}) {
				t.Errorf("the parent is told %q:\n%s", told, strings.Join(lines, "\n"))
			}
		})
	}
	failed := updateLine(call+`"title":"parent_notify_parent","status":"pending","rawInput":{"message":" "}`) + updateLine(more+`"status":"failed"`)
	if told := withPrefix(drain(t, start(t, newPlace(t).request(t, failed)), nil), "cc_message"); len(told) > 0 {
		t.Errorf("a call that failed told the parent %q", told)
	}
}

func withPrefix(lines []string, prefix string) (found []string) {
	for _, line := range lines {
		if strings.HasPrefix(line, prefix) {
			found = append(found, line)
		}
	}
	return found
}

// The server of the parent is among those that the session gets, beside the node's own.
func TestParentIsServed(t *testing.T) {
	p := newPlace(t)
	r := p.request(t, "say Hi.")
	r.Options.MCPServers = map[string]agent.MCPServer{"files": {Command: []string{"files"}}}
	s, err := (&acp.Provider{Environ: os.Environ(), Grace: time.Second, Parent: []string{"wake", "mcp", "parent"}}).Start(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	drain(t, s, nil)
	want := `[{"args":[],"command":"files","env":[],"name":"files"},{"args":["mcp","parent"],"command":"wake","env":[],"name":"parent"}]`
	if diff := cmp.Diff(want, p.read(t, "servers")); diff != "" {
		t.Errorf("servers (-want +got):\n%s", diff)
	}
	if len(r.Options.MCPServers) != 1 {
		t.Error("the node's options were changed")
	}
}

// An agent that has asked its parent waits for the answer when its turn is over, and goes on with that; other messages don't answer.
func TestParentAnswers(t *testing.T) {
	script := updateLine(`"sessionUpdate":"tool_call","title":"parent_notify_parent","status":"pending","rawInput":{"message":"Tabs?","priority":"question"}`) +
		updateLine(`"sessionUpdate":"tool_call_update","status":"completed"`) + "--\nsay Noted.\n--\nsay Tabs."
	p := newPlace(t)
	s := start(t, p.request(t, script))
	var ends int
	lines := drain(t, s, func(e *wire.Event) {
		if e.Type() != wire.TypeTurnEnd {
			return
		}
		m := agent.Message{CommandID: "k1", Content: "It is late.", Notice: true}
		if ends++; ends == 2 {
			m = agent.Message{CommandID: "k2", Content: "Tabs.", Answers: "c1"}
		}
		if ends <= 2 {
			if err := s.Send(t.Context(), m); err != nil {
				t.Error(err)
			}
		}
	})
	if ends != 3 || len(withPrefix(lines, "agent:complete")) != 1 {
		t.Errorf("%d turns:\n%s", ends, strings.Join(lines, "\n"))
	}

	r := newPlace(t).request(t, "say Hi.") // a session that goes on knows what is asked; an interruption ends the wait
	r.Asked = []string{"c0"}
	s = start(t, r)
	lines = drain(t, s, func(e *wire.Event) {
		if e.Type() == wire.TypeTurnEnd {
			if err := s.Interrupt(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	if len(withPrefix(lines, "agent:paused")) != 1 {
		t.Errorf("it didn't end as paused:\n%s", strings.Join(lines, "\n"))
	}
}

// An agent that ends, or is ended, while it waits for an answer hasn't come to its end.
func TestParentClosed(t *testing.T) {
	r := newPlace(t).request(t, "say Hi.")
	r.Asked = []string{"c0"}
	s := start(t, r)
	closed := make(chan error, 1)
	lines := drain(t, s, func(e *wire.Event) {
		if e.Type() == wire.TypeTurnEnd {
			go func() { closed <- s.Close() }()
		}
	})
	if err := <-closed; err != nil || len(withPrefix(lines, "agent:complete")) > 0 || len(withPrefix(lines, "agent:error")) != 1 {
		t.Errorf("%v:\n%s", err, strings.Join(lines, "\n"))
	}
}
