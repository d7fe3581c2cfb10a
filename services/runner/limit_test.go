package runner_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// limited is the answer of an API whose limit is over after a time.
func limited(after string) apitest.Reply {
	r := apitest.Failure(http.StatusTooManyRequests, "rate_limit_error")
	r.Header = http.Header{"Retry-After": {after}}
	return r
}

const limitFlow = `
name: limited
nodes:
  - {id: a, type: agent, input: {provider: native, model: m, prompt: "do it"}}
`

// TestLimitIsWaitedFor: a node whose model has reached a limit goes on in its session when that is over, whichever runner runs it then, and
// repeats nothing. The agent is gone meanwhile.
func TestLimitIsWaitedFor(t *testing.T) {
	for name, after := range map[string]struct {
		header string
		span   time.Duration
	}{"longer than the agent would wait": {"7200", 2 * time.Hour}, "longer than it may keep its place": {"1800", 30 * time.Minute}} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				folder := t.TempDir()
				script := &apitest.Script{Replies: []apitest.Reply{
					apitest.Message(apitest.Call("c1", "bash", `{"command":"echo r1 >> ledger"}`)), limited(after.header),
					apitest.Message(apitest.Text("Done.")),
				}}
				b.native("r1", folder, script)
				b.submit("run1", shared(limitFlow))
				entries := b.until("run1", wire.TypeNodeError)
				last := entries[len(entries)-1].Event
				at := time.UnixMilli(last.Payload.(*wire.NodeError).RetryAt)
				if wait := at.Sub(time.UnixMilli(last.Timestamp)); wait < after.span-time.Second || wait > after.span+time.Minute {
					t.Fatalf("it goes on after %s:\n%s", wait, story(entries))
				}
				<-time.After(time.Until(at))
				state, entries := b.ended("run1")
				if text := state.Outputs["a"].TextAt("text"); text != "Done." || state.Nodes["a"].Attempt != 1 || state.Nodes["a"].Waits != 1 {
					t.Errorf("output %q, %s, attempt %d after %d waits:\n%s", text, state.Error, state.Nodes["a"].Attempt, state.Nodes["a"].Waits, story(entries))
				}
				var sessions []string
				var again time.Time
				for _, e := range entries {
					if _, ok := e.Event.Payload.(*wire.AgentStart); ok {
						sessions, again = append(sessions, e.Event.SessionID), time.UnixMilli(e.Event.Timestamp)
					}
				}
				if late := again.Sub(at); len(sessions) != 2 || sessions[0] != sessions[1] || late < 0 || late > time.Minute {
					t.Errorf("sessions %v, the last %s late:\n%s", sessions, late, story(entries))
				}
				files, _ := filepath.Glob(filepath.Join(folder, "*", "ledger"))
				if ledger, err := os.ReadFile(strings.Join(files, "")); string(ledger) != "r1\n" {
					t.Errorf("ledger %q in %v: %v", ledger, files, err)
				}
			})
		})
	}
}

// TestLimitThatIsNotWaitedFor: the policy of a node may be against it.
func TestLimitThatIsNotWaitedFor(t *testing.T) {
	for name, policy := range map[string]string{
		"too long":          "{maxRetryWaitMs: 3600000}",
		"an excepted error": "{retry: {maxAttempts: 2, except: [rate_limit]}}",
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				b.native("r1", t.TempDir(), &apitest.Script{Replies: []apitest.Reply{limited("7200"), limited("7200")}})
				b.submit("run1", shared(strings.Replace(limitFlow, `"do it"}}`, `"do it"}, policy: `+policy+`}`, 1)))
				state, entries := b.ended("run1")
				if n := state.Nodes["a"]; state.Result != wire.FlowStatusFailed || n.ErrorType != wire.ErrorRateLimit || n.Execs != 1 {
					t.Errorf("%s after %d executions, %s:\n%s", state.Result, n.Execs, n.ErrorType, story(entries))
				}
			})
		})
	}
}

// TestLimitOverAndOver: an API whose limits are over at once, again and again, is asked less and less often. The attempts of the
// policy are those for other failures.
func TestLimitOverAndOver(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		var replies []apitest.Reply
		for range 7 {
			replies = append(replies, limited("400"))
		}
		refused := apitest.Failure(http.StatusUnauthorized, "authentication_error")
		b.native("r1", t.TempDir(), &apitest.Script{Replies: append(replies, refused, apitest.Message(apitest.Text("Done.")))})
		b.submit("run1", shared(strings.Replace(limitFlow, `"do it"}}`, `"do it"}, policy: {retry: {maxAttempts: 2}}}`, 1)))
		<-time.After(3 * time.Hour)
		state, entries := b.ended("run1")
		if n := state.Nodes["a"]; state.Result != wire.FlowStatusComplete || n.Execs != 9 || n.Attempt != 2 || n.Waits != 7 {
			t.Fatalf("%s: %d executions, attempt %d after %d waits:\n%s", state.Result, n.Execs, n.Attempt, n.Waits, story(entries))
		}
		var waits []time.Duration
		for _, e := range entries {
			if p, ok := e.Event.Payload.(*wire.NodeError); ok && p.RetryAt != 0 {
				waits = append(waits, time.UnixMilli(p.RetryAt).Sub(time.UnixMilli(e.Event.Timestamp)))
			}
		}
		if first, last := waits[0], waits[len(waits)-1]; first > 8*time.Minute || last < time.Hour || last > time.Hour+time.Minute {
			t.Errorf("it waited %v", waits)
		}
	})
}

// TestForkWhileItWaits: a run is forked while its node waits for a limit. Both go on, each in a session of its own.
func TestForkWhileItWaits(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &puppet{play: func(a *act) {
			a.turn()
			if a.nth == 1 {
				a.say(&wire.SessionBound{OldSession: a.request.SessionID, NewSession: "theirs"}, "")
				a.intend("c1")
				a.say(&wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawString("c1"), ToolOutput: wire.RawString("did c1"), Point: "p1"}, "c1")
				a.say(&wire.AgentError{ErrorType: wire.ErrorRateLimit, Message: "limit · try again in 30 minutes", Severity: wire.SeverityError}, "")
				return
			}
			a.say(&wire.AgentComplete{Result: "done"}, "")
		}}
		b.runner("r1", p)
		b.submit("run1", shared(one))
		b.until("run1", wire.TypeNodeError)
		b.publish(subjects.Default.QueueRun(), wire.RunRequest{V: wire.Version, RunID: "fork1", Fork: &wire.ForkRequest{
			ParentRun: "run1", ParentPos: b.position("run1", wire.TypeNodeError),
		}})
		<-time.After(40 * time.Minute)
		for _, id := range []string{"run1", "fork1"} {
			if s, entries := b.ended(id); s.Result != wire.FlowStatusComplete || s.Nodes["a"].Waits != 1 {
				t.Errorf("%s: %s after %d waits:\n%s", id, s.Result, s.Nodes["a"].Waits, story(entries))
			}
		}
		asked := map[string]agent.Request{}
		for _, r := range p.asked()[1:] {
			asked[r.RunID] = r
		}
		if r := asked["run1"]; !r.Resume || r.SessionID != "theirs" || r.ForkOf != "" {
			t.Errorf("the run goes on in session %s (resumed: %t), a copy of %q", r.SessionID, r.Resume, r.ForkOf)
		}
		if r := asked["fork1"]; r.Resume || r.ForkOf != "theirs" || r.ForkAt != "p1" || !strings.Contains(promptOf(r), "did c1") {
			t.Errorf("the fork goes on in session %s (resumed: %t), a copy of %q at %q, and is told %q", r.SessionID, r.Resume, r.ForkOf, r.ForkAt, promptOf(r))
		}
	})
}

// TestRerunBesideAWait: a run fails beside a node that waits for a limit. Run again, that goes on in its session, at once.
func TestRerunBesideAWait(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &puppet{play: func(a *act) {
			a.turn()
			switch {
			case a.request.NodeID == "a" && a.request.ExecID == "a#1":
				a.intend("c1")
				a.say(&wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawString("c1"), ToolOutput: wire.RawString("did c1")}, "c1")
				a.say(&wire.AgentError{ErrorType: wire.ErrorRateLimit, Message: "limit · try again in 30 minutes", Severity: wire.SeverityError}, "")
			case a.request.ExecID == "b#1":
				<-time.After(time.Minute)
				a.say(&wire.AgentError{ErrorType: wire.ErrorException, Message: "no luck", Severity: wire.SeverityError}, "")
			default:
				a.say(&wire.AgentComplete{Result: "done"}, "")
			}
		}}
		b.runner("r1", p)
		b.submit("run1", shared("name: two\nnodes:\n  - {id: a, type: agent, input: {prompt: p}}\n  - {id: b, type: agent, input: {prompt: p}}\n"))
		b.ended("run1")
		if r := b.tell(wire.Command{Type: "resume", RunID: "run1", Rerun: []string{"b"}}); code(r) != "accepted" {
			t.Fatalf("%+v", r)
		}
		<-time.After(10 * time.Minute)
		entries := b.read("run1")
		s := b.fold("run1", entries)
		if s.Result != wire.FlowStatusComplete {
			t.Errorf("%s (%s):\n%s", s.Status, s.Error, story(entries))
		}
		var first string
		for _, r := range p.asked() {
			switch r.ExecID {
			case "a#1":
				first = r.SessionID
			case "a#2":
				if !r.Resume || r.SessionID != first || !strings.Contains(promptOf(r), "did c1") {
					t.Errorf("it goes on in session %s (resumed: %t), not %s, and is told %q", r.SessionID, r.Resume, first, promptOf(r))
				}
			}
		}
	})
}

// TestLimitToldBefore: what an agent has said of a limit counts from when it has said it, though its runner hears it later, and however
// long it says that it would wait.
func TestLimitToldBefore(t *testing.T) {
	hours := func(n float64) *float64 { return new(n * 3_600_000) }
	for name, test := range map[string]struct {
		said   wire.AgentError
		policy string
		after  time.Duration // 0: its node doesn't wait
		result wire.FlowStatus
	}{
		"in words":    {wire.AgentError{Message: "limit · try again in 3 hours", Severity: wire.SeverityError}, "{}", 10 * time.Minute, wire.FlowStatusComplete},
		"as a delay":  {wire.AgentError{Message: "later", Severity: wire.SeverityWarning, RetryDelayMs: hours(3)}, "{}", 10 * time.Minute, wire.FlowStatusComplete},
		"it is over":  {wire.AgentError{Message: "later", Severity: wire.SeverityWarning, RetryDelayMs: hours(1)}, "{}", 0, wire.FlowStatusComplete},
		"of ages":     {wire.AgentError{Message: "later", Severity: wire.SeverityWarning, RetryDelayMs: hours(1e20)}, "{}", 0, wire.FlowStatusFailed},
		"not allowed": {wire.AgentError{Message: "later", Severity: wire.SeverityWarning, RetryDelayMs: hours(1e20)}, "{maxRetryWaitMs: 1000}", 0, wire.FlowStatusFailed},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				b.runner("r1", &puppet{play: func(a *act) {
					if said := test.said; a.nth == 1 {
						said.ErrorType = wire.ErrorRateLimit
						e := &wire.Event{Timestamp: time.Now().Add(-170 * time.Minute).UnixMilli(), Payload: &said}
						if !a.yield(e, nil) || said.Severity == wire.SeverityError {
							return
						}
					}
					a.say(&wire.AgentComplete{Result: "done"}, "")
				}})
				b.submit("run1", shared("name: late\nnodes:\n  - {id: a, type: agent, input: {prompt: p}, policy: "+test.policy+"}\n"))
				begun := time.Now()
				state, entries := b.ended("run1")
				if state.Result != test.result || (state.Nodes["a"].Waits > 0) != (test.after > 0) {
					t.Fatalf("%s (%s) after %d waits:\n%s", state.Result, state.Error, state.Nodes["a"].Waits, story(entries))
				}
				for _, e := range entries {
					if p, ok := e.Event.Payload.(*wire.NodeError); ok && test.after > 0 {
						if wait := time.UnixMilli(p.RetryAt).Sub(begun); wait < test.after-time.Minute || wait > test.after+time.Minute {
							t.Errorf("it waits %s", wait)
						}
					}
				}
			})
		})
	}
}
