package runner_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// asking is a flow whose agent asks a person.
const asking = `
name: asking
nodes:
  - {id: a, type: agent, input: {provider: native, model: m, prompt: "Indent it."}}
`

const indent = `{"questions":[{"question":"Tabs or spaces?","header":"Indent","options":[{"label":"Tabs"},{"label":"Spaces"}]}]}`

// TestAskedAndKilled has an agent ask a person. Wherever its runner dies meanwhile, and
// whichever runner is there when the answer comes, the question waits, and its answer arrives once.
func TestAskedAndKilled(t *testing.T) {
	for i, test := range []struct {
		before string // what is stored, the runner dies; "wait": while it waits; "": never
		nobody bool   // is there when the answer comes
	}{
		{"", false},
		{"permission:required", false},
		{"wait", false},
		{"wait", true},
		{"permission:decided", true},
		{"agent:tool", true},
	} {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				folder := t.TempDir()
				script := &apitest.Script{ByTurn: true, Replies: []apitest.Reply{
					apitest.Message(apitest.Call("t1", ask.Tool, indent)), apitest.Message(apitest.Text("Done.")),
				}}
				r1 := b.native("r1", folder, script)
				cut := make(chan struct{})
				if test.before != "" && test.before != "wait" {
					r1.gate.before(test.before, func() { r1.gate.close(); close(cut) })
				}
				b.submit("run1", shared(asking))
				answer := wire.Command{Type: "reply", PromptID: "t1", Content: wire.RawString("2")}
				if test.before != "permission:required" {
					b.until("run1", wire.TypePermissionRequired)
				}
				switch test.before {
				case "":
				case "wait":
					r1.kill()
				case "permission:required":
					<-cut
					r1.kill()
				default:
					b.command("run1", answer)
					<-cut
					r1.kill()
				}
				if test.before == "wait" && test.nobody {
					b.command("run1", answer)
				}
				if test.before != "" {
					b.native("r2", folder, script)
					b.awaits("an agent that goes on", func() bool { return count(b.read("run1"), wire.TypeAgentStart) == 2 })
				}
				if !test.nobody {
					open := ask.Pending(b.fold("run1", b.until("run1", wire.TypePermissionRequired)))
					if len(open) != 1 || open[0].CallID != "t1" || open[0].Text != "Tabs or spaces? (Tabs, Spaces)" || open[0].Answer != "wake reply run1 ANSWER --prompt t1" {
						t.Fatalf("waits: %+v", open)
					}
					if r := b.tell(wire.Command{Type: "approve", RunID: "run1", CallID: "t1"}); code(r) != "BAD_REQUEST" || !strings.Contains(r.Reason, "--note") {
						t.Errorf("approved without an answer: %+v", r)
					}
					answer.RunID = "run1"
					if r := b.tell(answer); code(r) != "accepted" {
						t.Errorf("answered: %+v", r)
					}
					second := wire.Command{Type: "approve", RunID: "run1", CallID: "t1", Note: "Tabs"}
					if r := b.tell(second); code(r) != "COMMAND_REJECTED" {
						t.Errorf("answered again: %+v", r)
					}
				}
				state, entries := b.ended("run1")
				if text := state.Outputs["a"].TextAt("text"); text != "Done." {
					t.Fatalf("output %q, %s:\n%s", text, state.Error, story(entries))
				}
				got := []int{count(entries, wire.TypeToolIntent), count(entries, wire.TypePermissionRequired), count(entries, wire.TypePermissionDecided), count(entries, wire.TypeAgentTool)}
				if diff := cmp.Diff([]int{1, 1, 1, 1}, got); diff != "" {
					t.Errorf("(-want +got):\n%s\n%s", diff, story(entries))
				}
				last := prompts(t, script, folder)[1]
				if !strings.Contains(last, `"Tabs or spaces?\": \"Spaces\""`) {
					t.Errorf("the model was told %s", last)
				}
			})
		})
	}
}

// TestAnswerBeforeTheAgentGoesOn has the runner of an agent that can't go on from the log
// die, or be told to pause, while the agent asks a person: the question waits on, without
// the agent, and the agent goes on with the answer.
func TestAnswerBeforeTheAgentGoesOn(t *testing.T) {
	for _, paused := range []bool{false, true} {
		natstest.Bubble(t, func(t *testing.T) {
			b := newBench(t)
			input, err := wire.RawFromJSON([]byte(indent))
			if err != nil {
				t.Fatal(err)
			}
			p := &puppet{play: func(a *act) {
				a.turn()
				if a.nth == 1 {
					a.say(&wire.ToolIntent{ToolName: ask.Tool, ToolInput: input}, "t1")
					a.say(&wire.PermissionRequired{ToolName: ask.Tool, ToolInput: input}, "t1")
					select {
					case <-a.interrupted:
						a.say(&wire.PermissionDecided{Decision: wire.DecisionDeny}, "t1") // as Claude Code takes it back
						a.say(&wire.AgentPaused{}, "")
					case <-a.ctx.Done():
					}
					return
				}
				a.say(&wire.AgentComplete{Result: "done"}, "")
			}}
			r1 := b.process("r1", p)
			b.submit("run1", single)
			b.until("run1", wire.TypePermissionRequired)
			if paused {
				b.command("run1", wire.Command{Type: "pause"})
				b.until("run1", wire.TypeAgentPaused)
				b.command("run1", wire.Command{Type: "resume"})
			} else {
				r1.kill()
				b.process("r2", p)
			}
			<-time.After(time.Minute)
			if open := ask.Pending(b.fold("run1", b.read("run1"))); len(open) != 1 || open[0].CallID != "t1" || len(p.asked()) != 1 {
				t.Fatalf("paused %t: %d agents were started, %+v waits:\n%s", paused, len(p.asked()), open, story(b.read("run1")))
			}
			if r := b.tell(wire.Command{Type: "reply", RunID: "run1", PromptID: "t1", Content: wire.RawString("Tabs")}); code(r) != "accepted" {
				t.Errorf("answered: %+v", r)
			}
			state, entries := b.ended("run1")
			if state.Result != wire.FlowStatusComplete || count(entries, wire.TypeToolSealed) != 0 || count(entries, wire.TypePermissionDecided) != 1 {
				t.Errorf("paused %t: run ended as %s:\n%s", paused, state.Result, story(entries))
			}
			if prompt := promptOf(p.asked()[1]); !strings.Contains(prompt, `"Tabs or spaces?": "Tabs"`) {
				t.Errorf("paused %t: the agent was told %q", paused, prompt)
			}
		})
	}
}

// Of two answers that wait for the runner of an ask node, one counts, and the other one is refused.
func TestAnsweredTwice(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		r1 := b.process("r1", &scripted{say: echo})
		b.submit("run1", "name: ask\nnodes:\n  - {id: q, type: ask, input: {prompt: Deploy?}}\n")
		entries := b.until("run1", wire.TypeInputRequested)
		prompt := entries[len(entries)-1].Event.Payload.(*wire.InputRequested).PromptID
		r1.kill()
		for _, answer := range []string{"no", "yes"} {
			b.publish(subjects.Default.Command("run1"), wire.Command{Type: "reply", ID: answer, RunID: "run1", PromptID: prompt, Content: wire.RawString(answer)})
		}
		b.process("r2", &scripted{say: echo})
		state, entries := b.ended("run1")
		if got := state.Outputs["q"].TextAt("answer"); got != "no" {
			t.Errorf("the answer is %q:\n%s", got, story(entries))
		}
		for _, e := range entries {
			if p, is := e.Event.Payload.(*wire.CommandReceived); is && p.Accepted != (p.CommandID == "no") {
				t.Errorf("answer %s: accepted %t:\n%s", p.CommandID, p.Accepted, story(entries))
			}
		}
	})
}

// An answer by the id of a message goes to the agent that has asked it, once; one to
// a message of no agent is refused with what to do. How long an agent waits for a person is measured, the
// same time once.
func TestReplyToMessages(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &puppet{play: func(a *act) {
			a.turn()
			for _, id := range []string{"m1", "m2"} {
				a.say(&wire.CCMessage{Text: "which " + id + "?", Priority: wire.PriorityBlocker}, id)
			}
			obedient(a)
		}}
		b.runner("r1", p)
		b.submit("run1", single)
		b.awaits("questions", func() bool { return count(b.read("run1"), wire.TypeCCMessage) == 2 })
		open := ask.Pending(b.fold("run1", b.read("run1")))
		if len(open) != 2 || open[1].Text != "which m2?" || open[1].Priority != wire.PriorityBlocker || open[1].Since == 0 {
			t.Fatalf("waits: %+v", open)
		}
		reply := func(id, message string) wire.CommandResponse {
			return b.tell(wire.Command{Type: "reply", RunID: "run1", PromptID: id, Content: wire.RawString(message)})
		}
		<-time.After(time.Minute)
		if r := reply("m2", "two"); code(r) != "accepted" {
			t.Errorf("answered: %+v", r)
		}
		if r := reply("m2", "twice"); code(r) != "COMMAND_REJECTED" {
			t.Errorf("answered again: %+v", r)
		}
		if r := reply("nope", "x"); code(r) != "COMMAND_REJECTED" || !strings.Contains(r.Reason, "wake approvals run1") {
			t.Errorf("an answer to nobody: %+v", r)
		}
		b.awaits("an answer", func() bool { return len(heard(b.read("run1"))) == 1 })
		<-time.After(time.Minute)
		s := b.fold("run1", b.read("run1"))
		if open = ask.Pending(s); len(open) != 1 || open[0].CallID != "m1" || s.WaitedMs != 0 || s.WaitsSince != open[0].Since {
			t.Errorf("waits %+v, %d ms since %d", open, s.WaitedMs, s.WaitsSince)
		}
		if r := reply("m1", "stop"); code(r) != "accepted" {
			t.Errorf("answered: %+v", r)
		}
		state, entries := b.ended("run1")
		if waited := time.Duration(state.WaitedMs) * time.Millisecond; state.WaitsSince != 0 || waited < 2*time.Minute || waited > 2*time.Minute+10*time.Second {
			t.Errorf("waited %s, since %d", waited, state.WaitsSince)
		}
		if diff := cmp.Diff([]string{"a: two", "a: stop"}, heard(entries)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
