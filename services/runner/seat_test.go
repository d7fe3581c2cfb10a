package runner_test

import (
	"context"
	"testing"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// TestWaitingLeavesItsPlace has agents wait for people on a runner with one place: others
// work meanwhile. An agent that is answered goes on when there is a place, before what hasn't begun;
// an agent that is withdrawn ends without one. What waits beyond the bound keeps its place.
func TestWaitingLeavesItsPlace(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		release := map[string]chan struct{}{"busy": make(chan struct{}), "busy2": make(chan struct{})}
		p := &puppet{play: func(a *act) {
			a.turn()
			switch a.request.RunID {
			case "call", "gone", "third":
				a.intend("c1")
				a.say(&wire.PermissionRequired{ToolName: "Bash"}, "c1")
				if !a.request.Options.Decide(a.ctx, agent.Permission{CallID: "c1", ToolName: "Bash"}).Allow {
					return
				}
				a.say(&wire.PermissionDecided{Decision: wire.DecisionAllow}, "c1")
				a.say(&wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null}, "c1")
				a.say(&wire.AgentComplete{Result: "done"}, "")
			case "asks":
				a.say(&wire.CCMessage{Text: "which?", Priority: wire.PriorityQuestion}, "m1")
				a.say(&wire.TurnEnd{}, "")
				select {
				case m := <-a.messages:
					a.say(&wire.UserMessage{Source: "command", CommandID: m.CommandID, Content: m.Content}, "")
					a.say(&wire.AgentComplete{Result: "told"}, "")
				case <-a.ctx.Done():
				}
			default:
				if c := release[a.request.RunID]; c != nil {
					select {
					case <-c:
					case <-a.ctx.Done():
					}
				}
				a.say(&wire.AgentComplete{Result: "done"}, "")
			}
		}}
		b.runner("r1", p, func(c *runner.Config) { c.MaxAgents, c.MaxWaiting = 1, 3 })
		begun := func(id string) bool { return count(b.read(id), wire.TypeTurnStart) > 0 }
		start := func(id string) {
			b.submit(id, single)
			b.awaits(id, func() bool { return begun(id) })
		}
		start("call")
		start("asks")
		start("gone")
		start("other")
		b.ended("other")

		// All places are taken: the answers wait for one.
		start("busy")
		b.submit("busy2", single)
		b.command("call", wire.Command{Type: "approve", CallID: "c1"})
		b.command("asks", wire.Command{Type: "reply", PromptID: "m1", Content: wire.RawString("stop")})
		<-time.After(time.Minute)
		if count(b.read("call"), wire.TypePermissionDecided)+len(heard(b.read("asks"))) > 0 || begun("busy2") {
			t.Error("more agents work than there are places")
		}
		b.command("gone", wire.Command{Type: "abort"})
		b.until("gone", wire.TypeAgentAborted)
		close(release["busy"])
		b.ended("call")
		b.ended("asks")
		b.awaits("busy2", func() bool { return begun("busy2") })
		if on := b.read("asks"); count(on, wire.TypeNodeComplete) != 1 {
			t.Errorf("the agent that was answered hasn't gone on first:\n%s", story(on))
		}
		close(release["busy2"])
		b.ended("busy2")
	})
}

// TestWaitingIsBounded has one agent more wait than may without a place: it keeps its own.
func TestWaitingIsBounded(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &puppet{play: func(a *act) {
			a.turn()
			if a.request.RunID != "other" {
				a.intend("c1")
				a.say(&wire.PermissionRequired{ToolName: "Bash"}, "c1")
				a.request.Options.Decide(a.ctx, agent.Permission{CallID: "c1", ToolName: "Bash"})
			}
			a.say(&wire.AgentComplete{Result: "done"}, "")
		}}
		b.runner("r1", p, func(c *runner.Config) { c.MaxAgents, c.MaxWaiting = 1, 1 })
		for _, id := range []string{"first", "second"} {
			b.submit(id, single)
			b.until(id, wire.TypePermissionRequired)
		}
		b.submit("other", single)
		<-time.After(time.Minute)
		if count(b.read("other"), wire.TypeTurnStart) > 0 {
			t.Error("two wait without a place")
		}
		b.command("second", wire.Command{Type: "deny", CallID: "c1"})
		b.ended("second")
		b.ended("other")
		b.command("first", wire.Command{Type: "deny", CallID: "c1"})
		b.ended("first")
	})
}

// TestQueueHasItsTurn shows that nodes that any runner may take aren't kept waiting by nodes that this runner's own owners have for it.
func TestQueueHasItsTurn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &scripted{say: func(ctx context.Context, r agent.Request) (string, error) {
			<-time.After(time.Second)
			return echo(ctx, r)
		}}, func(c *runner.Config) { c.MaxAgents = 1 })
		b.submit("wide", `
name: wide
nodes:
  - {id: list, type: set, input: {output: {n: 1}}}
  - {id: work, type: agent, input: {prompt: "w"}}
edges:
  - {from: list, to: work, forEach: {in: "[1..60]", as: item}}
`)
		b.awaits("the first agents", func() bool { return count(b.read("wide"), wire.TypeAgentStart) == 3 })
		b.submit("run1", `
name: few
workspace: shared
nodes:
  - {id: a, type: agent, input: {prompt: "a"}}
  - {id: b, type: agent, input: {prompt: "b"}}
edges:
  - {from: a, to: b}
`)
		begun := time.Now()
		if _, entries := b.ended("run1"); time.Since(begun) > 10*time.Second {
			t.Errorf("its two agents took %v:\n%s", time.Since(begun), story(entries))
		}
		b.command("wide", wire.Command{Type: "abort"})
	})
}
