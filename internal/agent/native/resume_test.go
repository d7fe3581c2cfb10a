package native_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
)

// newStory is an execution through every breakpoint: two calls in a message, one that
// a person approves, then a command, then the end.
func newStory(t *testing.T) *bench {
	t.Helper()
	b := newBench(t,
		apitest.Message(apitest.Thinking("Hm."), apitest.Text("I look."),
			apitest.Call("t0", "read", `{"path":"a"}`), apitest.Call("t2", "glob", `{"pattern":"a"}`)),
		apitest.Message(apitest.Call("t1", "write", `{"path":"b","content":"B"}`)),
		apitest.Message(apitest.Call("t3", "bash", `{"command":"echo ran >> /dev/null; echo x >> $HERE/ran"}`)),
		apitest.Message(apitest.Text("Done.")))
	b.script.ByTurn = true
	b.request.Options.RequireApproval = []string{"write"}
	b.request.Options.SystemPrompt = "You are in a folder."
	b.request.Options.Env = map[string]string{"HERE": b.request.Options.Cwd}
	b.request.Options.Decide = func(context.Context, agent.Permission) agent.Verdict {
		return agent.Verdict{Allow: true, By: "operator"}
	}
	b.file("a", "A\n")
	return b
}

// ran counts the runs of the story's command.
func (b *bench) ran() int {
	b.t.Helper()
	content, err := os.ReadFile(filepath.Join(b.request.Options.Cwd, "ran"))
	if err != nil && !os.IsNotExist(err) {
		b.t.Fatal(err)
	}
	return strings.Count(string(content), "x")
}

// accountTokens returns how many tokens the model calls on record have read, and how many the ledger of the log has.
func (b *bench) accountTokens() (calls, told int64) {
	l := ledger.Ledger{}
	for _, e := range b.log {
		if p, ok := e.Payload.(*wire.Usage); ok {
			calls += p.InputTokens
		}
		for _, entry := range l.Apply(e) {
			told += entry.InputTokens
		}
	}
	return calls, told
}

// interruptedCall returns the call that was being executed when the log ended and
// isn't one that may be repeated.
func interruptedCall(log []*wire.Event) string {
	executing := ""
	for _, e := range log {
		switch e.Payload.(type) {
		case *wire.ToolState:
			if e.CallID == "t1" || e.CallID == "t3" {
				executing = e.CallID
			}
		case *wire.AgentTool:
			if e.CallID == executing {
				executing = ""
			}
		}
	}
	return executing
}

// TestKilledAnywhere kills the agent before each event is stored, and resumes it: the
// model is asked what an uninterrupted agent would have asked it, byte for byte, and
// no tool runs twice.
func TestKilledAnywhere(t *testing.T) {
	whole := newStory(t)
	whole.run()
	if got := outcome(whole.log); got != "Done." || whole.ran() != 1 {
		t.Fatalf("outcome %q, %d runs", got, whole.ran())
	}
	want := make([]string, 0, 4)
	for _, r := range whole.script.Requests() {
		want = append(want, string(r))
	}
	breakpoints := map[string]bool{}
	for n := 1; n < len(whole.log); n++ {
		b := newStory(t)
		b.each = func(agent.Session, *wire.Event) bool { return len(b.log) < n }
		b.run()
		if len(b.log) != n {
			t.Fatalf("%d events, want %d", len(b.log), n)
		}
		breakpoints[string(b.log[n-1].Type())] = true
		interrupted := interruptedCall(b.log)
		b.each = nil
		b.resume("")
		b.run()
		if got := outcome(b.log); got != "Done." {
			t.Fatalf("killed after event %d (%s): outcome %q", n, b.log[n-1].Type(), got)
		}
		if b.ran() > 1 {
			t.Errorf("killed after event %d (%s): the command ran %d times", n, b.log[n-1].Type(), b.ran())
		}
		for _, r := range b.script.Requests() {
			turn := strings.Count(string(r), `"role":"assistant"`)
			got := strings.ReplaceAll(string(r), b.request.Options.Cwd, whole.request.Options.Cwd)
			if got == want[turn] {
				continue
			}
			if interrupted != "" && strings.Contains(got, `its outcome is unknown.","is_error":true,"tool_use_id":"`+interrupted) {
				continue
			}
			t.Errorf("killed after event %d (%s): prompt of turn %d differs (-want +got):\n%s", n, b.log[n-1].Type(), turn+1, cmp.Diff(want[turn], got))
		}
		if calls, told := b.accountTokens(); calls != told {
			t.Errorf("killed after event %d (%s): the model calls read %d tokens, the ledger has %d", n, b.log[n-1].Type(), calls, told)
		}
		if last := b.log[len(b.log)-1].Turn; last != 4 {
			t.Errorf("killed after event %d: the last turn is %d", n, last)
		}
	}
	for _, at := range []string{"agent:start", "turn:start", "breakpoint_changed", "agent:text:delta", "agent:message", "tool:intent", "permission:required", "permission:decided", "tool:state", "agent:tool", "checkpoint"} {
		if !breakpoints[at] {
			t.Errorf("never killed after %s", at)
		}
	}
}

// TestExpectsMessage shows that an agent which had come to its end doesn't end before it has the message that it is to go on with.
func TestExpectsMessage(t *testing.T) {
	b := newBench(t, apitest.Message(apitest.Text("Done.")), apitest.Message(apitest.Text("Done again.")))
	b.each = func(_ agent.Session, e *wire.Event) bool { return e.Type() != wire.TypeAgentComplete }
	b.run()
	b.resume("")
	b.request.Expects = true
	var late sync.WaitGroup
	b.each = func(s agent.Session, e *wire.Event) bool {
		if e.Type() == wire.TypeAgentInit {
			late.Go(func() {
				<-time.After(50 * time.Millisecond) // it would have ended by then
				if err := s.Send(t.Context(), agent.Message{CommandID: "c1", Content: "Go on."}); err != nil {
					t.Error(err)
				}
			})
		}
		return true
	}
	said := of[*wire.UserMessage](b.run())
	late.Wait()
	if got := outcome(b.log); got != "Done again." || len(said) != 1 || said[0].CommandID != "c1" {
		t.Errorf("outcome %q, %d messages", got, len(said))
	}
}

// TestResumeTells tells a resumed agent something, which the model hears once.
func TestResumeTells(t *testing.T) {
	b := newStory(t)
	b.each = func(_ agent.Session, e *wire.Event) bool { return e.Type() != wire.TypeTurnStart || e.Turn < 3 }
	b.run()
	b.each = nil
	b.resume("Hurry up.")
	b.run()
	requests := b.script.Requests()
	for _, r := range requests[len(requests)-2:] {
		if n := strings.Count(string(r), "Hurry up."); n != 1 {
			t.Errorf("told %d times: %s", n, r)
		}
		if n := strings.Count(string(r), "Do it."); n != 1 {
			t.Errorf("the prompt is there %d times: %s", n, r)
		}
	}
}

// TestRolledBack is C2 and C3 of features.md: what lies behind the point is in the log
// and not in the prompt.
func TestRolledBack(t *testing.T) {
	b := newStory(t)
	b.each = func(_ agent.Session, e *wire.Event) bool { return e.Turn < 4 }
	b.run()
	i := slices.IndexFunc(b.log, func(e *wire.Event) bool { return e.Type() == wire.TypeAgentMessage && e.Turn == 3 })
	before := len(b.log)
	b.store(&wire.Event{ExecID: "n#1", Payload: &wire.LogTruncated{AtSeq: b.log[i].Seq - 1}})
	b.each = nil
	b.resume("")
	b.run()
	requests := b.script.Requests()
	if diff := cmp.Diff(string(requests[2]), string(requests[3])); diff != "" {
		t.Errorf("the third turn isn't taken again (-first +again):\n%s", diff)
	}
	if len(b.log) <= before || b.ran() != 2 {
		t.Errorf("%d events, %d runs of the command", len(b.log), b.ran())
	}
}

// TestDiverged refuses a log that isn't the one the agent wrote.
func TestDiverged(t *testing.T) {
	b := newStory(t)
	b.run()
	for _, e := range b.log {
		if p, ok := e.Payload.(*wire.AgentTool); ok && e.CallID == "t0" {
			p.ToolOutput = wire.RawString("something else")
		}
	}
	b.resume("")
	p := b.provider()
	s, err := p.Start(t.Context(), b.request)
	if err != nil {
		t.Fatal(err)
	}
	var problem error
	for _, err := range s.Events() {
		problem = err
	}
	if problem == nil || !strings.Contains(problem.Error(), "the log differs") {
		t.Errorf("error %v", problem)
	}
}

// TestUnknownSession fails if the log has nothing of the agent, whatever it is told.
func TestUnknownSession(t *testing.T) {
	for _, message := range []string{"", "Go on."} {
		b := newStory(t)
		b.resume(message)
		b.run()
		if got := outcome(b.log); !strings.HasPrefix(got, wire.ErrorSessionNotFound) {
			t.Errorf("told %q: outcome %q", message, got)
		}
	}
}

// TestInterrupt comes to a safe point while a tool runs, while the model answers, and
// while a person is to approve a call; then it goes on.
func TestInterrupt(t *testing.T) {
	for _, test := range []struct {
		name string
		at   func(e *wire.Event) bool
		hang bool
	}{
		{"streaming", func(e *wire.Event) bool { return e.Type() == wire.TypeAgentTextDelta }, true},
		{"waiting for approval", func(e *wire.Event) bool { return e.Type() == wire.TypePermissionRequired }, false},
		{"between turns", func(e *wire.Event) bool { return e.Type() == wire.TypeCheckpoint && e.Turn == 2 }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newStory(t)
			decide := b.request.Options.Decide
			b.request.Options.Decide = func(ctx context.Context, _ agent.Permission) agent.Verdict {
				<-ctx.Done()
				return agent.Verdict{}
			}
			if test.name == "between turns" {
				b.request.Options.Decide = decide
			}
			b.script.Replies[0].Hang = test.hang
			b.each = func(s agent.Session, e *wire.Event) bool {
				if test.at(e) {
					if err := s.Interrupt(t.Context()); err != nil {
						t.Error(err)
					}
				}
				return true
			}
			b.run()
			if got := outcome(b.log); got != "paused" {
				t.Fatalf("outcome %q", got)
			}
			if cut := of[*wire.Usage](b.log); test.hang && (len(cut) != 1 || cut[0].InputTokens == 0) {
				t.Errorf("of the call that was cut off is on record %+v", cut)
			}
			b.each, b.script.Replies[0].Hang = nil, false
			b.request.Options.Decide = decide
			b.resume("")
			if got := outcome(b.run()); got != "Done." || b.ran() != 1 {
				t.Errorf("outcome %q, %d runs", got, b.ran())
			}
		})
	}
}

// TestMessage tells the agent something under way: after the results of the calls, or
// at once if it interrupts.
func TestMessage(t *testing.T) {
	b := newStory(t)
	b.each = func(s agent.Session, e *wire.Event) bool {
		if e.Type() == wire.TypeToolIntent && e.CallID == "t0" {
			if err := s.Send(t.Context(), agent.Message{CommandID: "c1", Content: "Also: c."}); err != nil {
				t.Error(err)
			}
		}
		return true
	}
	b.run()
	if got := outcome(b.log); got != "Done." {
		t.Fatalf("outcome %q", got)
	}
	if r := string(b.script.Requests()[1]); !strings.Contains(r, `"tool_use_id":"t2","type":"tool_result"},{"text":"Also: c.","type":"text"}],"role":"user"}]`) {
		t.Errorf("second request %s", r)
	}
	if heard := of[*wire.UserMessage](b.log); len(heard) != 1 || heard[0].CommandID != "c1" {
		t.Errorf("heard %+v", heard)
	}
}

// TestClose ends what is under way, and waits for it.
func TestClose(t *testing.T) {
	b := newBench(t, apitest.Message(apitest.Call("t", "bash", `{"command":"trap 'sleep 0.2; touch ended; exit' TERM; touch begun; sleep 600 & wait"}`)))
	s, err := b.provider().Start(t.Context(), b.request)
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error)
	for e, err := range s.Events() {
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := e.Payload.(*wire.ToolState); !ok || p.To != wire.ToolExecuting {
			continue
		}
		go func() {
			for {
				if _, err := os.Stat(filepath.Join(b.request.Options.Cwd, "begun")); err == nil {
					break
				}
				<-time.After(time.Millisecond)
			}
			err := s.Close()
			if _, there := os.Stat(filepath.Join(b.request.Options.Cwd, "ended")); there != nil {
				err = there
			}
			closed <- err
		}()
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}
