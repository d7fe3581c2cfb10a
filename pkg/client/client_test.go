package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/client"
	"code.wake.dev/wake/pkg/wire"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// stage is a run with an owner that records commands as the test says.
type stage struct {
	t     testing.TB
	log   *eventlog.Log
	c     *client.Client
	owner *eventlog.Writer
	own   *eventlog.Writer // of node a
}

const hash = "0123456789abcdef"

// play begins run r1 with an agent at work.
func play(t testing.TB, o client.Options) *stage {
	t.Helper()
	log := logtest.Start(t)
	logtest.Serve(t, log)
	c, err := client.Open(t.Context(), log.Conn(), o)
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{t: t, log: log, c: c, owner: logtest.Claim(t, log, "r1", wire.RunNode)}
	s.decide("", &wire.FlowStart{FlowName: "review", DefinitionHash: hash, Definition: wire.RawOf(map[string]any{"nodes": []any{map[string]any{"id": "a"}}})})
	s.decide("a#1", &wire.NodeScheduled{Target: "a", Attempt: 1})
	s.own = logtest.Claim(t, log, "r1", "a")
	s.act("", &wire.NodeStart{NodeType: "agent", Attempt: 1})
	s.act("", &wire.AgentStart{Prompt: wire.RawString("do it")})
	return s
}

func (s *stage) put(w *eventlog.Writer, events ...*wire.Event) uint64 {
	s.t.Helper()
	for _, e := range events {
		e.Timestamp = 7
	}
	pos, err := w.Append(context.WithoutCancel(s.t.Context()), events...)
	if err != nil {
		s.t.Error(err)
	}
	return pos
}

func (s *stage) decide(exec string, p wire.Payload) uint64 {
	s.t.Helper()
	return s.put(s.owner, &wire.Event{ExecID: exec, Payload: p})
}

func (s *stage) act(call string, p wire.Payload) uint64 {
	s.t.Helper()
	return s.put(s.own, &wire.Event{ExecID: "a#1", CallID: call, SessionID: "s1", Turn: 1, Payload: p})
}

// judge has the owner answer the commands to r1: judged returns why not.
func (s *stage) judge(judged func(wire.Command) (reason string, effects []wire.Payload)) {
	s.t.Helper()
	c, err := s.log.JetStream().OrderedConsumer(s.t.Context(), s.log.Names().CommandsStream(), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{s.log.Names().Command("r1")},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	consume, err := c.Consume(func(m jetstream.Msg) {
		var cmd wire.Command
		command, _, err := wire.ParseAny(m.Data())
		if err == nil {
			err = wire.Unmarshal(command, &cmd)
		}
		if err != nil {
			s.t.Error(err)
			return
		}
		reason, effects := judged(cmd)
		events := []*wire.Event{{Payload: &wire.CommandReceived{Command: command, CommandID: cmd.ID, Accepted: reason == "", Reason: reason}}}
		for _, p := range effects {
			events = append(events, &wire.Event{Payload: p})
		}
		s.put(s.owner, events...) // one decision
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		consume.Stop()
		<-consume.Closed()
	})
}

func code(err error) wire.ErrorCode {
	e, ok := errors.AsType[*wire.APIError](err)
	if !ok {
		return ""
	}
	return e.Code
}

func (s *stage) agent() *client.Agent {
	s.t.Helper()
	a, err := s.c.Agent(s.t.Context(), "r1")
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

func TestCommandsAreAnswered(t *testing.T) {
	t.Parallel()
	s := play(t, client.Options{})
	s.judge(func(cmd wire.Command) (string, []wire.Payload) {
		switch cmd.Message {
		case "nobody":
			return "AMBIGUOUS_ID: 2 agents are live", nil
		case "odd":
			return "SOMETHING: else", nil
		}
		return "", nil
	})
	ok, err := s.c.Do(t.Context(), wire.Command{Type: "send", RunID: "r1", Message: "hi"})
	if err != nil || !ok.Recorded || !ok.Accepted || ok.Position == 0 {
		t.Errorf("%+v, %v", ok, err)
	}
	for message, want := range map[string]wire.ErrorCode{"nobody": wire.CodeAmbiguousID, "odd": wire.CodeCommandRejected} {
		no, err := s.c.Do(t.Context(), wire.Command{Type: "send", RunID: "r1", Message: message})
		if code(err) != want || !no.Recorded || no.Accepted {
			t.Errorf("%s: %+v, %v", message, no, err)
		}
	}
	if err := s.agent().Approve(t.Context(), "c1", "fine"); err != nil {
		t.Error(err)
	}
}

// Without a runner the command is stored, and that is no error; without a run it
// is stored, and that is one.
func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	s := play(t, client.Options{Wait: 50 * time.Millisecond})
	answer, err := s.c.Do(t.Context(), wire.Command{Type: "pause", RunID: "r1"})
	if err != nil || answer.Recorded {
		t.Errorf("%+v, %v", answer, err)
	}
	if _, err := s.c.Do(t.Context(), wire.Command{Type: "send", Message: "hi"}); code(err) != wire.CodeBadRequest {
		t.Errorf("without a run: %v", err)
	}
	stream, err := s.log.JetStream().Stream(t.Context(), s.log.Names().CommandsStream())
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 2 {
		t.Errorf("%d commands are stored", n)
	}
}

// A command for a run that nobody owns is recorded under run `_`.
func TestRejectedByTheCatchAll(t *testing.T) {
	t.Parallel()
	s := play(t, client.Options{})
	none := logtest.Claim(t, s.log, "_", wire.RunNode)
	done := make(chan error, 1)
	go func() {
		_, err := s.c.Do(t.Context(), wire.Command{Type: "send", ID: "c9", RunID: "nobody", Message: "hi"})
		done <- err
	}()
	s.put(none, &wire.Event{Payload: &wire.CommandReceived{Command: wire.Null, CommandID: "other", Reason: "RUN_NOT_FOUND: x"}})
	for range 200 { // the client may not follow yet: its record comes after it has begun
		s.put(none, &wire.Event{Payload: &wire.CommandReceived{Command: wire.Null, CommandID: "c9", Reason: "RUN_NOT_FOUND: there is no run nobody"}})
		select {
		case err := <-done:
			if code(err) != wire.CodeRunNotFound {
				t.Errorf("%v", err)
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Error("no answer")
}

// D-SEAL S11: a run exists if it has begun with a flow that can be read: not one
// of which nothing is stored, nothing but a refused command, or a flow that is none.
func TestExists(t *testing.T) {
	t.Parallel()
	s := play(t, client.Options{})
	bare := logtest.Claim(t, s.log, "bare", wire.RunNode)
	s.put(bare, &wire.Event{Payload: &wire.CommandReceived{Command: wire.Null, Reason: "x"}})
	odd := logtest.Claim(t, s.log, "odd", wire.RunNode)
	s.put(odd, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", DefinitionHash: "h", Definition: wire.RawString("x")}})
	for run, want := range map[string]bool{"nobody": false, "bare": false, "odd": false, "r1": true, "../x": false} {
		if got, err := s.c.Exists(t.Context(), run); err != nil || got != want {
			t.Errorf("%s: %t, %v", run, got, err)
		}
	}
}

// D-SEAL S14, D-FLOW F15: a run that isn't what the caller expects, is resumed by
// another client, has ended or never was, isn't resumed, and each has a code.
func TestResume(t *testing.T) {
	t.Parallel()
	s := play(t, client.Options{})
	var got wire.Command
	s.judge(func(cmd wire.Command) (string, []wire.Payload) {
		got = cmd
		if cmd.Message == "again" {
			return "LEASE_HELD: the run is running", nil // S14
		}
		return "", []wire.Payload{&wire.FlowResumed{Strategy: "crash"}}
	})
	s.decide("", &wire.FlowPaused{Reason: wire.PauseOperator})
	dir := t.TempDir()
	config := client.Config{Template: "review@0123", Model: "opus", Sandbox: client.Sandbox{Kind: "local", WorkDir: dir, EnforceBoundary: true}}
	o := client.ResumeOptions{Strategy: "crash", AutoRun: new(true), Overrides: wire.RawOf(map[string]any{"maxTurns": 3}), Message: "go on"}
	a, err := s.c.Resume(t.Context(), "r1", config, o)
	if err != nil || a.ID != "r1" {
		t.Fatal(err)
	}
	want := map[string]any{"maxTurns": int64(3), "model": "opus", "workspace": dir, "permissionMode": "default"}
	if d := cmp.Diff(fmt.Sprint(want), fmt.Sprint(got.Overrides.Any())); d != "" {
		t.Error(d)
	}
	if got.Type != "resume" || got.Strategy != "crash" || got.Message != "go on" || got.AutoRun == nil || !*got.AutoRun {
		t.Errorf("command %+v", got)
	}
	for name, c := range map[string]struct {
		run    string
		config client.Config
		o      client.ResumeOptions
		want   wire.ErrorCode
	}{
		"unknown":       {run: "nobody", want: wire.CodeAgentNotFound},
		"other flow":    {run: "r1", config: client.Config{Template: "deploy"}, want: wire.CodeTemplateUnknown},
		"other version": {run: "r1", config: client.Config{Template: "review@ff"}, want: wire.CodeTemplateVersion},
		"no folder":     {run: "r1", config: client.Config{Sandbox: client.Sandbox{WorkDir: dir + "/none"}}, want: wire.CodeSandboxInit},
		"no sandbox":    {run: "r1", config: client.Config{Sandbox: client.Sandbox{Kind: "vm"}}, want: wire.CodeSandboxInit},
		"odd overrides": {run: "r1", o: client.ResumeOptions{Overrides: wire.RawString("x")}, want: wire.CodeBadRequest},
		"running":       {run: "r1", o: client.ResumeOptions{Message: "again"}, want: wire.CodeLeaseHeld},
	} {
		if _, err := s.c.Resume(t.Context(), c.run, c.config, c.o); code(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.decide("", &wire.FlowAborted{Reason: "enough"})
	if _, err := s.c.ResumeFromStore(t.Context(), "r1", client.ResumeOptions{}); code(err) != wire.CodeNotResumable {
		t.Errorf("ended: %v", err)
	}
}

// What the log says in the words of the seed.
func TestSubscribe(t *testing.T) {
	t.Parallel()
	s := play(t, client.Options{})
	s.act("", &wire.TurnStart{})
	s.act("", &wire.AgentThinkingDelta{Content: "hm", Block: 1})
	s.act("", &wire.AgentTextDelta{Content: "Let ", Block: 2})
	s.act("", &wire.AgentTextDelta{Content: "me.", Block: 2})
	s.act("c1", &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.Null, InputHash: "00"})
	s.act("c1", &wire.PermissionRequired{ToolName: "Bash", ToolInput: wire.Null})
	s.act("c1", &wire.PermissionDecided{Decision: wire.DecisionAllow, By: "me"})
	s.act("c1", &wire.ToolState{From: wire.ToolApproved, To: wire.ToolExecuting})
	s.act("c1", &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null, Error: "exit 1"})
	s.act("c2", &wire.ToolIntent{ToolName: "Write", ToolInput: wire.Null, InputHash: "00"})
	s.decide("", &wire.FlowPaused{Reason: wire.PauseOperator})
	s.act("", &wire.AgentPaused{})
	s.decide("", &wire.FlowResumed{Strategy: "crash"})
	s.act("c2", &wire.ToolSealed{ToolName: "Write", From: wire.ToolPending, Message: "interrupted", Recommendations: []string{"check"}})
	s.act("c2", &wire.AgentTool{ToolName: "Write", ToolInput: wire.Null, ToolOutput: wire.Null, Error: "interrupted"})
	mark := s.act("", &wire.AgentResumed{Strategy: "crash", Sealed: []string{"c2"}})
	s.act("", &wire.AgentText{Content: "Done.", Block: 3})
	s.act("", &wire.AgentComplete{Result: "Done."})
	s.act("", &wire.NodeComplete{Output: wire.Null})
	s.decide("", &wire.FlowComplete{FlowName: "review", Status: wire.FlowStatusComplete})

	all := s.told(nil, client.SubscribeOptions{})
	want := []string{
		"monitor state_changed WORKING", "monitor breakpoint_changed READY", "monitor breakpoint_changed PRE_MODEL",
		"monitor breakpoint_changed STREAMING_MODEL", "progress think_chunk_start", "progress think_chunk hm",
		"progress think_chunk_end hm", "progress text_chunk_start", "progress text_chunk Let ", "progress text_chunk me.",
		"progress text_chunk_end Let me.", "progress tool:start Bash PENDING", "monitor breakpoint_changed TOOL_PENDING",
		"control permission_required Bash APPROVAL_REQUIRED", "monitor breakpoint_changed AWAITING_APPROVAL",
		"control permission_decided Bash APPROVED", "monitor breakpoint_changed PRE_TOOL", "monitor breakpoint_changed TOOL_EXECUTING",
		"progress tool:error Bash FAILED", "progress tool:end Bash FAILED", "monitor tool_executed Bash FAILED", "monitor breakpoint_changed POST_TOOL",
		"progress tool:start Write PENDING", "monitor breakpoint_changed TOOL_PENDING",
		"monitor state_changed PAUSED", "progress done interrupted", "monitor state_changed WORKING",
		"progress tool:end Write SEALED check", "monitor breakpoint_changed POST_TOOL", "monitor agent_resumed crash [c2]",
		"monitor breakpoint_changed STREAMING_MODEL", "progress text_chunk_start", "progress text_chunk Done.", "progress text_chunk_end Done.",
		"monitor breakpoint_changed READY", "progress done completed", "monitor state_changed READY",
	}
	if d := cmp.Diff(want, all); d != "" {
		t.Error(d)
	}
	// D-SEAL S7: only these, and only after the bookmark.
	some := s.told([]client.Channel{client.Progress}, client.SubscribeOptions{Kinds: []string{"text_chunk", "done"}, Since: client.Bookmark{Seq: mark}})
	if d := cmp.Diff([]string{"progress text_chunk Done.", "progress done completed"}, some); d != "" {
		t.Error(d)
	}
	if none := s.told(nil, client.SubscribeOptions{Node: "b"}); len(none) != 0 {
		t.Errorf("of another node: %v", none)
	}
}

func (s *stage) told(channels []client.Channel, o client.SubscribeOptions) (out []string) {
	s.t.Helper()
	cursor := uint64(0)
	for e, err := range s.agent().Subscribe(s.t.Context(), channels, o) {
		if err != nil {
			s.t.Fatal(err)
		}
		if cursor++; e.Cursor != cursor || e.Bookmark.Seq <= o.Since.Seq || e.Bookmark.Timestamp != 7 {
			s.t.Errorf("envelope %+v", e)
		}
		out = append(out, words(e.Event))
	}
	return out
}

func words(e client.Event) string {
	s := []string{string(e.Channel), e.Type}
	add := func(word string) {
		if word != "" {
			s = append(s, word)
		}
	}
	add(e.State)
	add(e.Current)
	add(e.Delta + e.Text)
	if e.Call != nil {
		add(e.Call.Name)
		add(string(e.Call.State))
		add(strings.Join(e.Call.Recommendations, " "))
	}
	if e.Type == "done" {
		add(e.Reason)
	}
	add(e.Strategy)
	if e.Sealed != nil {
		add(fmt.Sprint(e.Sealed))
	}
	return strings.Join(s, " ")
}

// Listeners are those of this Agent, and hear of what comes after it was made.
func TestListeners(t *testing.T) {
	t.Parallel()
	s := play(t, client.Options{})
	s.judge(func(cmd wire.Command) (string, []wire.Payload) {
		if cmd.Type == "approve" {
			return "", []wire.Payload{&wire.FlowComplete{FlowName: "review", Status: wire.FlowStatusComplete}}
		}
		return "NOT_RUNNING: x", nil
	})
	s.act("", &wire.TodoChanged{Items: []wire.Todo{}})
	a := s.agent()
	if err := a.On("text_chunk", func(client.Event) {}); err == nil {
		t.Error("a listener of progress was taken")
	}
	heard := map[string]int{}
	for _, kind := range []string{"todo_changed", "state_changed"} {
		if err := a.On(kind, func(e client.Event) { heard[e.Type]++ }); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.On("permission_required", func(e client.Event) {
		if err := e.Respond(true, "fine"); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	s.act("", &wire.TodoChanged{Items: []wire.Todo{}})
	s.act("c1", &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.Null, InputHash: "00"})
	s.act("c1", &wire.PermissionRequired{ToolName: "Bash", ToolInput: wire.Null})
	state, err := a.Wait(t.Context())
	if err != nil || state.Status != wire.RunComplete {
		t.Fatalf("%+v, %v", state, err)
	}
	if d := cmp.Diff(map[string]int{"todo_changed": 1, "state_changed": 1}, heard); d != "" {
		t.Error(d)
	}
	if state, err := a.Wait(t.Context()); err != nil || state.Status != wire.RunComplete {
		t.Errorf("waiting again: %v", err)
	}
}

// An approval that waits since before the Agent was made is told, once, and an event that nobody sends is an error.
func TestListenersHearOfWhatWaits(t *testing.T) {
	t.Parallel()
	s := play(t, client.Options{})
	s.judge(func(cmd wire.Command) (string, []wire.Payload) {
		if cmd.Type == "approve" && cmd.CallID == "c1" {
			return "", []wire.Payload{&wire.FlowComplete{FlowName: "review", Status: wire.FlowStatusComplete}}
		}
		return "NOT_RUNNING: x", nil
	})
	for _, call := range []string{"c0", "c1"} {
		s.act(call, &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.RawString("ls"), InputHash: "00"})
		s.act(call, &wire.PermissionRequired{ToolName: "Bash", ToolInput: wire.RawString("ls")})
	}
	s.act("c0", &wire.PermissionDecided{Decision: wire.DecisionAllow, By: "somebody"})
	a := s.agent()
	var asked []string
	if err := a.On("permission_required", func(e client.Event) {
		asked = append(asked, e.Node+" "+e.Call.ID+" "+e.Call.Name)
		if err := e.Respond(true, "fine"); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := a.On("permission_requird", func(client.Event) {}); err == nil {
		t.Error("a listener of an unknown event was taken")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if state, err := a.Wait(ctx); err != nil || state.Status != wire.RunComplete {
		t.Fatalf("%+v, %v", state, err)
	}
	if d := cmp.Diff([]string{"a c1 Bash"}, asked); d != "" {
		t.Error(d)
	}
}

// D-SEAL S15: forks have ids of their own, and the request names the point.
func TestFork(t *testing.T) {
	t.Parallel()
	s := play(t, client.Options{Wait: 50 * time.Millisecond})
	point := s.act("", &wire.UserMessage{Content: "do it", Source: "prompt"})
	s.act("", &wire.TurnStart{})
	ids := map[string]bool{}
	for range 5 {
		f, err := s.c.Fork(t.Context(), client.ForkRequest{RunID: "r1", At: "sfp-2"})
		if err != nil || f.Recorded || f.Parent != "r1" || f.Position != point {
			t.Fatalf("%+v, %v", f, err)
		}
		ids[f.RunID] = true
	}
	if len(ids) != 5 {
		t.Errorf("%d ids for 5 forks", len(ids))
	}
	if _, err := s.c.Fork(t.Context(), client.ForkRequest{RunID: "r1", At: "sfp-7"}); code(err) != wire.CodeNotFound {
		t.Errorf("no such point: %v", err)
	}
	if _, err := s.c.Fork(t.Context(), client.ForkRequest{RunID: "r1", NewID: "r1"}); code(err) != wire.CodeBadRequest {
		t.Errorf("an id that is taken: %v", err)
	}
}
