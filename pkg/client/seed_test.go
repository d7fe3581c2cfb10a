package client_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/client"
	"code.wake.dev/wake/pkg/wire"
)

// D-SEAL S2: one open call per state, and one of which there is no record: five
// seals, each of which is told as tool:end with its message and what to do, and
// none as executed.
func TestSealsAreTold(t *testing.T) {
	t.Parallel()
	s := play(t, client.Options{})
	mark := s.act("", &wire.TurnStart{})
	want := map[string]*wire.ToolSealed{}
	for _, state := range []wire.ToolCallState{wire.ToolPending, wire.ToolApprovalRequired, wire.ToolApproved, wire.ToolExecuting, ""} {
		c := wire.ToolCall{CallID: "call-" + string(state), Tool: "Write", State: state}
		if state != "" {
			s.act(c.CallID, &wire.ToolIntent{ToolName: c.Tool, ToolInput: wire.Null, InputHash: "00"})
		}
		switch state {
		case wire.ToolApprovalRequired:
			s.act(c.CallID, &wire.PermissionRequired{ToolName: c.Tool, ToolInput: wire.Null})
		case wire.ToolApproved:
			s.act(c.CallID, &wire.PermissionRequired{ToolName: c.Tool, ToolInput: wire.Null})
			s.act(c.CallID, &wire.PermissionDecided{Decision: wire.DecisionAllow})
		case wire.ToolExecuting:
			s.act(c.CallID, &wire.ToolState{From: wire.ToolPending, To: wire.ToolExecuting})
		default: // it is pending, or unknown
		}
		want[c.CallID] = run.Seal(c, "", false)
	}
	for id, seal := range want {
		s.act(id, seal)
		s.act(id, run.SealResult(wire.ToolCall{CallID: id, Tool: "Write", State: seal.From}, seal))
	}
	s.decide("", &wire.FlowAborted{})

	messages := map[string]bool{}
	for e := range s.events(mark) {
		switch e.Type {
		case "tool:end":
			c, seal := e.Call, want[e.Call.ID]
			if seal == nil || c.State != wire.ToolSealedState || c.Name != "Write" || c.Error != seal.Message || len(c.Recommendations) == 0 ||
				!slices.Equal(c.Recommendations, seal.Recommendations) {
				t.Errorf("told %+v", c)
			}
			messages[c.Error] = true
			delete(want, c.ID)
		case "tool_executed", "tool:error":
			t.Errorf("%s of %s", e.Type, e.Call.ID)
		}
	}
	if len(want) != 0 || len(messages) != 5 {
		t.Errorf("not told: %v; %d messages", want, len(messages))
	}
}

// events yields what was told behind a position, until the run ends.
func (s *stage) events(after uint64) func(func(client.Event) bool) {
	return func(yield func(client.Event) bool) {
		for e, err := range s.agent().Subscribe(s.t.Context(), nil, client.SubscribeOptions{Since: client.Bookmark{Seq: after}}) {
			if err != nil {
				s.t.Fatal(err)
			}
			if !yield(e.Event) {
				return
			}
		}
	}
}

// D-SEAL S6: the history of breakpoints is what is told of their changes. To be
// where one is already makes none, and an agent that starts is READY with nothing
// behind it.
func TestBreakpointHistory(t *testing.T) {
	t.Parallel()
	s := play(t, client.Options{})
	mark := s.act("", &wire.TurnEnd{})
	for _, at := range []string{"PRE_MODEL", "TOOL_EXECUTING", "TOOL_EXECUTING"} {
		s.act("", &wire.BreakpointChanged{Current: at})
	}
	s.act("", &wire.AgentStart{Prompt: wire.RawString("again")})
	s.decide("", &wire.FlowAborted{})
	var history []string
	for e := range s.events(mark - 1) {
		if e.Type == "breakpoint_changed" {
			history = append(history, e.Previous+"→"+e.Current)
		}
	}
	want := []string{"→READY", "READY→PRE_MODEL", "PRE_MODEL→TOOL_EXECUTING", "TOOL_EXECUTING→READY"}
	if diff := cmp.Diff(want, history); diff != "" {
		t.Error(diff)
	}
}

// What is told of breakpoints is what the state says, whatever calls are open
// beside each other and whichever agent makes them: the call that is nearest to a human
// counts, and calls of sub-agents don't.
func TestBreakpointsAreThoseOfTheState(t *testing.T) {
	t.Parallel()
	s := play(t, client.Options{})
	var at []uint64
	intend := func(call, parent string) {
		at = append(at, s.put(s.own, &wire.Event{ExecID: "a#1", CallID: call, Parent: parent, Payload: &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.Null, InputHash: "00"}}))
	}
	act := func(call string, p wire.Payload) { at = append(at, s.act(call, p)) }
	done := &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null}
	act("", &wire.TurnStart{})
	intend("c1", "")
	act("c1", &wire.ToolState{From: wire.ToolPending, To: wire.ToolExecuting})
	intend("c2", "")
	intend("sub", "c1")
	act("c2", &wire.PermissionRequired{ToolName: "Bash", ToolInput: wire.Null})
	act("c1", done)
	act("c2", &wire.PermissionDecided{Decision: wire.DecisionAllow})
	intend("c3", "")
	act("c3", &wire.PermissionRequired{ToolName: "Bash", ToolInput: wire.Null})
	act("c3", &wire.PermissionDecided{Decision: wire.DecisionDeny})
	act("c2", &wire.ToolState{From: wire.ToolApproved, To: wire.ToolExecuting})
	act("c2", done)
	act("", &wire.TurnEnd{})
	act("", &wire.TurnStart{})
	act("", &wire.AgentComplete{Result: "done"})
	s.decide("", &wire.FlowAborted{})

	told, seen := map[uint64]string{}, map[string]bool{}
	for e, err := range s.agent().Subscribe(t.Context(), nil, client.SubscribeOptions{Kinds: []string{"breakpoint_changed"}}) {
		if err != nil {
			t.Fatal(err)
		}
		told[e.Bookmark.Seq] = e.Event.Current
	}
	now := ""
	for _, pos := range at {
		if to, changed := told[pos]; changed {
			now = to
		}
		state, err := s.c.StateAt(t.Context(), "r1", pos)
		if err != nil {
			t.Fatal(err)
		}
		if want := state.Nodes["a"].Breakpoint; now != want {
			t.Errorf("at %d it is told to be at %s, and the state says %s", pos, now, want)
		}
		seen[now] = true
	}
	for _, want := range []string{"READY", "PRE_MODEL", "TOOL_PENDING", "AWAITING_APPROVAL", "PRE_TOOL", "TOOL_EXECUTING", "POST_TOOL"} {
		if !seen[want] {
			t.Errorf("it never was at %s", want)
		}
	}
}

// A sub-agent's words are no part of its parent's.
func TestSubAgentsSpeakForThemselves(t *testing.T) {
	t.Parallel()
	s := play(t, client.Options{})
	mark := s.act("c1", &wire.ToolIntent{ToolName: "Task", ToolInput: wire.Null, InputHash: "00"})
	s.act("", &wire.AgentTextDelta{Content: "one ", Block: 1})
	s.put(s.own, &wire.Event{ExecID: "a#1", Parent: "c1", Payload: &wire.AgentText{Content: "sub", Block: 1}})
	s.act("", &wire.AgentTextDelta{Content: "two", Block: 1})
	s.act("", &wire.TurnEnd{})
	s.decide("", &wire.FlowAborted{})
	var ends []string
	for e := range s.events(mark) {
		if e.Type == "text_chunk_end" {
			ends = append(ends, e.Wire.Parent+" "+e.Text)
		}
	}
	if diff := cmp.Diff([]string{"c1 sub", " one two"}, ends); diff != "" {
		t.Error(diff)
	}
}

// D-SEAL S7: what stands at the bookmark has been told.
func TestSinceIsStrict(t *testing.T) {
	t.Parallel()
	s := play(t, client.Options{})
	var chunks []uint64
	for i := range 3 {
		chunks = append(chunks, s.act("", &wire.AgentTextDelta{Content: fmt.Sprint(i), Block: 1}))
	}
	s.act("", &wire.AgentComplete{Result: "012"})
	s.decide("", &wire.FlowAborted{})
	kinds := []string{"text_chunk", "done"}
	for i, since := range append([]uint64{0}, chunks...) {
		got := s.told([]client.Channel{client.Progress}, client.SubscribeOptions{Kinds: kinds, Since: client.Bookmark{Seq: since}})
		want := []string{"progress text_chunk 0", "progress text_chunk 1", "progress text_chunk 2", "progress done completed"}[i:]
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("since %d: %s", since, diff)
		}
	}
}

// D-FLOW F15: without a store there is nothing to resume, and the first step
// towards it says so.
func TestNoStore(t *testing.T) {
	log := logtest.Start(t)
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := client.Open(soon, log.Conn(), client.Options{}); err == nil || !strings.Contains(err.Error(), "no recorder") {
		t.Errorf("nobody reads the store: %v", err)
	}
	logtest.Serve(t, log)
	c, err := client.Open(t.Context(), log.Conn(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ResumeFromStore(t.Context(), "r1", client.ResumeOptions{}); code(err) != wire.CodeAgentNotFound {
		t.Errorf("an empty store: %v", err)
	}
}

// A run that is stored without a flow that can be read isn't resumed, and neither is
// one with commands only (seeds/003, troubleshooting).
func TestCorrupted(t *testing.T) {
	t.Parallel()
	s := play(t, client.Options{})
	odd := logtest.Claim(t, s.log, "odd", wire.RunNode)
	s.put(odd, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", DefinitionHash: "h", Definition: wire.RawString("x")}})
	s.put(odd, &wire.Event{Payload: &wire.FlowPaused{Reason: wire.PauseOperator}})
	bare := logtest.Claim(t, s.log, "bare", wire.RunNode)
	s.put(bare, &wire.Event{Payload: &wire.CommandReceived{Command: wire.Null, Reason: "x"}})
	for _, run := range []string{"odd", "bare"} {
		if _, err := s.c.ResumeFromStore(t.Context(), run, client.ResumeOptions{}); code(err) != wire.CodeCorruptedData {
			t.Errorf("%s: %v", run, err)
		}
	}
}
