package runner_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/natstest"
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

// TestLimitIsWaitedFor: a node whose model has reached a limit goes on in its session when that is over, whoever runs it then, and
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
				if text, _ := state.Outputs["a"].Get("text").Text(); text != "Done." || state.Nodes["a"].Attempt != 1 || state.Nodes["a"].Waits != 1 {
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
