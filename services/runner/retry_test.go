package runner_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
)

// TestRetryGoesOn tries an agent again that fails twice: in its session, so that it repeats no
// call, unless the flow wants a new one.
func TestRetryGoesOn(t *testing.T) {
	for _, test := range []struct {
		session string
		ledger  []string
		same    bool
	}{
		{"", []string{"r1", "r2"}, true},
		{", session: continue", []string{"r1", "r2"}, true},
		{", session: new", []string{"r1", "r2", "r1", "r2", "r1", "r2"}, false},
	} {
		t.Run(test.session, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				var ledger []string
				p := &puppet{play: func(a *act) {
					a.turn()
					if !a.request.Resume {
						for i, call := range []string{"r1", "r2"} {
							a.intend(call)
							ledger = append(ledger, call)
							if i == 0 {
								a.say(&wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawString(call), ToolOutput: wire.RawString("did " + call)}, call)
							}
						}
					}
					if a.nth < 3 {
						a.say(&wire.AgentError{ErrorType: wire.ErrorException, Message: fmt.Sprint("no luck ", a.nth), Severity: wire.SeverityError}, "")
						return
					}
					a.say(&wire.AgentComplete{Result: "done"}, "")
				}}
				b.runner("r1", p)
				b.submit("run1", shared(`
name: unlucky
nodes:
  - {id: a, type: agent, input: {prompt: "do it"}, policy: {retry: {maxAttempts: 3`+test.session+`}}}
`))
				state, entries := b.ended("run1")
				if state.Result != wire.FlowStatusComplete {
					t.Fatalf("%s: %s\n%s", state.Result, state.Error, story(entries))
				}
				if diff := cmp.Diff(test.ledger, ledger); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
				requests := p.asked()
				for i, r := range requests[1:] {
					if (r.SessionID == requests[0].SessionID) != test.same || r.Resume != test.same {
						t.Errorf("attempt %d: session %s (resumed: %t), the first %s", i+2, r.SessionID, r.Resume, requests[0].SessionID)
					}
					prompt := promptOf(r)
					for _, want := range []string{fmt.Sprint("no luck ", i+1), "have ended", "did r1", "cut off", "\n\n- Bash \"r2\"\n  It was cut off."} {
						if strings.Contains(prompt, want) != test.same {
							t.Errorf("attempt %d is told %q: want %q there %t", i+2, prompt, want, test.same)
						}
					}
				}
			})
		})
	}
}

// TestRetryOfNative tries wake's own agent again, whose turns and budget are those of the attempt.
func TestRetryOfNative(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		bash := func(word string) apitest.Reply {
			return apitest.Message(apitest.Call(word, "bash", `{"command":"echo `+word+` >> ledger"}`))
		}
		refused := apitest.Failure(http.StatusUnauthorized, "authentication_error")
		folder := t.TempDir()
		script := &apitest.Script{Replies: []apitest.Reply{bash("r1"), bash("r2"), refused, refused, bash("r3"), apitest.Message(apitest.Text("Done."))}}
		b.native("r1", folder, script)
		b.submit("run1", shared(`
name: unlucky
nodes:
  - {id: a, type: agent, input: {provider: native, model: m, prompt: "do it", maxTurns: 3}, policy: {retry: {maxAttempts: 3}}}
`))
		state, entries := b.ended("run1")
		if text := state.Outputs["a"].TextAt("text"); text != "Done." {
			t.Fatalf("output %q, %s:\n%s", text, state.Error, story(entries))
		}
		files, _ := filepath.Glob(filepath.Join(folder, "*", "ledger"))
		var ledger []byte
		for _, f := range files {
			ledger, _ = os.ReadFile(f)
		}
		if string(ledger) != "r1\nr2\nr3\n" {
			t.Errorf("ledger %q in %v", ledger, files)
		}
		var sessions []string
		for _, e := range entries {
			if _, ok := e.Event.Payload.(*wire.AgentStart); ok {
				sessions = append(sessions, e.Event.SessionID)
			}
		}
		if len(sessions) != 3 || len(slices.Compact(sessions)) != 1 {
			t.Errorf("sessions %v", sessions)
		}
		last := string(script.Requests()[len(script.Requests())-1])
		if strings.Count(last, "Your last attempt at this task failed") != 2 || strings.Count(last, "do it") != 1 {
			t.Errorf("the model is told %s", last)
		}
	})
}

// TestMessageBetweenAttempts tells an agent something that has failed, and begins again: when its wait is over, or in a run that had failed.
func TestMessageBetweenAttempts(t *testing.T) {
	for name, test := range map[string]struct {
		policy string
		resume func(b *bench)
	}{
		"in its wait": {`, policy: {retry: {maxAttempts: 2, backoffMs: 60000}}`, func(b *bench) {
			b.until("run1", wire.TypeNodeError)
			b.command("run1", wire.Command{Type: "pause"})
			b.until("run1", wire.TypeFlowPaused)
			b.command("run1", wire.Command{Type: "resume", Message: "stop"})
		}},
		"rerun": {"", func(b *bench) {
			b.ended("run1")
			b.command("run1", wire.Command{Type: "resume", Message: "stop", Rerun: []string{"a"}})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				b.runner("r1", &puppet{play: func(a *act) {
					if a.nth == 1 {
						a.turn()
						a.say(&wire.AgentError{ErrorType: wire.ErrorException, Message: "no luck", Severity: wire.SeverityError}, "")
						return
					}
					obedient(a)
				}})
				b.submit("run1", "name: unlucky\nnodes:\n  - {id: a, type: agent, input: {prompt: \"do it\"}"+test.policy+"}\n")
				test.resume(b)
				b.awaits("the end", func() bool { return b.fold("run1", b.read("run1")).Result == wire.FlowStatusComplete })
				entries := b.read("run1")
				if diff := cmp.Diff([]string{"a: stop"}, heard(entries)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if s := b.fold("run1", entries); s.Nodes["a"].Resume != nil || count(entries, wire.TypeAgentStart) != 2 {
					t.Errorf("%+v is still to be told; %d starts", s.Nodes["a"].Resume, count(entries, wire.TypeAgentStart))
				}
			})
		})
	}
}
