package runner_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// What an agent was at work on when its run was aborted, or its time was over, comes to an end on record, and what it has cost counts.
func TestAbortEndsCalls(t *testing.T) {
	abort := func(b *bench) { b.tell(wire.Command{Type: "abort", RunID: "run1"}) }
	for name, tt := range map[string]struct {
		ends  func(b *bench)
		tells bool // its agent tells how the call ends
	}{
		"aborted":                       {abort, true},
		"time over":                     {func(*bench) { <-time.After(time.Minute) }, true},
		"by an agent without last word": {abort, false},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				b.runner("r1", &scripted{play: func(s *session, say func(wire.Payload) bool) {
					say(&wire.TurnStart{})
					say(&wire.ToolIntent{ToolName: "Bash", ToolInput: wire.RawString("make")})
					<-s.ctx.Done()
					if !tt.tells {
						return
					}
					say(&wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawString("make"), ToolOutput: wire.Null, Error: wire.CallInterrupted})
					say(&wire.Usage{MessageID: "m1", Model: "m", InputTokens: 900, OutputTokens: 100})
				}})
				b.submit("run1", `
name: f
nodes:
  - {id: a, type: agent, input: {provider: claude, prompt: a}, policy: {timeoutMs: 30000}}
`)
				b.until("run1", wire.TypeToolIntent)
				tt.ends(b)
				b.ended("run1")
				b.awaits("its end", func() bool { return count(b.read("run1"), wire.TypeAgentTool) == 1 })
				entries := b.read("run1")
				s := b.fold("run1", entries)
				if len(s.Tools) != 0 || s.Usage.ToolCalls != 1 || tt.tells && s.Usage.InputTokens != 900 {
					t.Errorf("open: %v, used %+v:\n%s", s.Tools, s.Usage, story(entries))
				}
			})
		})
	}
}

// An owner ends the child of a flow node whose time is over, and begins the child of the next attempt when no agent of the former one is at
// work. It ends the child of the last attempt, too, when the run has failed.
func TestTimeoutEndsChild(t *testing.T) {
	for name, killed := range map[string]bool{"by the same owner": false, "by the next one": true} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				var atWork atomic.Int64
				p := &scripted{say: func(ctx context.Context, _ agent.Request) (string, error) {
					if n := atWork.Add(1); n > 1 && !killed {
						t.Errorf("%d agents are at work", n)
					}
					defer atWork.Add(-1)
					<-ctx.Done()                  // it would go on for ever
					<-time.After(3 * time.Second) // and takes its time to end
					return "", ctx.Err()
				}}
				first := b.process("r1", p)
				b.submit("run1", `
name: f
nodes:
  - id: work
    type: flow
    policy: {timeoutMs: 20000, retry: {maxAttempts: 2, backoffMs: 100}}
    input: {flow: {name: sub, nodes: [{id: a, type: agent, input: {provider: claude, prompt: a}}]}}
`)
				b.until("run1.work#1", wire.TypeAgentStart)
				if killed {
					b.until("run1", wire.TypeNodeError)
					first.kill()
					b.process("r2", p)
				}
				s, _ := b.ended("run1")
				one, entries := b.ended("run1.work#1")
				two, next := b.ended("run1.work#2")
				if s.Result != wire.FlowStatusFailed || one.Status != wire.RunAborted || two.Status != wire.RunAborted {
					t.Errorf("the run has %s, its children are %s and %s", s.Result, one.Status, two.Status)
				}
				if over, begun := entries[len(entries)-1].Pos, next[0].Pos; begun < over && !killed {
					t.Errorf("the second attempt began at %d, the first one ended at %d", begun, over)
				}
			})
		})
	}
}

// The owner begins a node behind a flow node that has run into its time limit when no worker acts for the child run any more: both runs
// work in one folder.
func TestFollowerWaitsForChild(t *testing.T) {
	const child, then = `{id: a, type: agent, input: {prompt: a}}`, `{id: then, type: agent, input: {prompt: then}}`
	for name, nodes := range map[string][2]string{
		"agent":      {child, then},
		"flow":       {child, `{id: then, type: flow, input: {flow: {name: sub, nodes: [{id: b, type: agent, input: {prompt: then}}]}}}`},
		"grandchild": {`{id: g, type: flow, input: {flow: {name: below, nodes: [` + child + `]}}}`, then},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				var atWork atomic.Int64
				b.runner("r1", &scripted{say: func(ctx context.Context, r agent.Request) (string, error) {
					if n := atWork.Add(1); n > 1 {
						t.Errorf("%d agents are at work", n)
					}
					defer atWork.Add(-1)
					if text, _ := r.Prompt.Text(); text == "then" {
						return "done", nil
					}
					<-ctx.Done()
					<-time.After(3 * time.Second)
					return "", ctx.Err()
				}})
				b.submit("run1", `
name: f
nodes:
  - id: work
    type: flow
    policy: {timeoutMs: 20000, continueOnError: true}
    input: {flow: {name: sub, nodes: [`+nodes[0]+`]}}
  - `+nodes[1]+"\nedges:\n  - {from: work, to: then}\n")
				begun := time.Now()
				s, entries := b.ended("run1")
				if took := time.Since(begun); s.NodeStatus["then"] != wire.NodeDone || took > time.Minute {
					t.Errorf("after %v:\n%s", took, story(entries))
				}
			})
		})
	}
}

// A flow node whose time is over when its run gets another owner, since the one before has died: that one ends the node's run, and
// what follows waits for it.
func TestTimeOverWithoutOwner(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		var atWork, begun atomic.Int64
		p := &scripted{say: func(ctx context.Context, r agent.Request) (string, error) {
			if n := atWork.Add(1); n > 1 {
				t.Errorf("%d agents are at work", n)
			}
			defer atWork.Add(-1)
			if text, _ := r.Prompt.Text(); text == "then" {
				return "done", nil
			}
			begun.Add(1)
			<-ctx.Done()
			<-time.After(3 * time.Second)
			return "", ctx.Err()
		}}
		owner := b.process("owner", p, func(c *runner.Config) { c.Pools = []string{"elsewhere"} })
		b.submit("run1", `
name: f
workspace: shared
nodes:
  - id: work
    type: flow
    policy: {timeoutMs: 3000, continueOnError: true}
    input: {flow: {name: sub, nodes: [{id: a, type: agent, input: {prompt: a}}]}}
  - {id: then, type: agent, input: {prompt: then}}
edges:
  - {from: work, to: then}
`)
		b.until("run1.work#1", wire.TypeNodeScheduled)
		b.runner("worker", p)
		b.awaits("the agent", func() bool { return begun.Load() == 1 })
		owner.kill()
		s, entries := b.ended("run1")
		if s.NodeStatus["then"] != wire.NodeDone || s.Nodes["work"].ErrorType != wire.ErrorTimeout {
			t.Error(story(entries))
		}
		if state, entries := b.ended("run1.work#1"); state.Status != wire.RunAborted {
			t.Error(story(entries))
		}
	})
}

// Nor does a new owner go on beside a child that a former one has told to end.
func TestNewOwnerWaitsForChild(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		var atWork, begun atomic.Int64
		p := &scripted{say: func(ctx context.Context, r agent.Request) (string, error) {
			if n := atWork.Add(1); n > 1 {
				t.Errorf("%d agents are at work", n)
			}
			defer atWork.Add(-1)
			if text, _ := r.Prompt.Text(); text == "then" {
				return "done", nil
			}
			second := begun.Add(1) == 2
			<-ctx.Done()
			if second {
				<-time.After(12 * time.Second)
			}
			return "", ctx.Err()
		}}
		dir := t.TempDir()
		folder := func(c *runner.Config) { c.Workspaces = dir }
		stopFolder := b.runner("folder", p, folder)
		b.submit("run1", `
name: f
workspace: shared
nodes:
  - id: work
    type: flow
    policy: {timeoutMs: 60000, continueOnError: true}
    input: {flow: {name: sub, nodes: [{id: a, type: agent, input: {prompt: a}}]}}
  - {id: then, type: agent, input: {prompt: then}}
edges:
  - {from: work, to: then}
`)
		b.awaits("the first agent", func() bool { return begun.Load() == 1 })
		stopOwner := b.runner("owner", p)
		stopFolder()
		b.runner("folder", p, folder)
		b.awaits("the second agent", func() bool { return begun.Load() == 2 })
		b.awaits("the end of the child", func() bool { return count(b.read("run1.work#1"), wire.TypeFlowAborted) == 1 })
		stopOwner()
		if s, entries := b.ended("run1"); s.NodeStatus["then"] != wire.NodeDone {
			t.Error(story(entries))
		}
	})
}

// An owner tells a child nothing whose end was that of its node, and the next round of a loop doesn't wait for that child.
func TestRoundsOfChildren(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", nil)
		begun := time.Now()
		b.submit("run1", `
name: f
nodes:
  - {id: work, type: flow, input: {flow: {name: sub, nodes: [{id: a, type: set, input: {output: {n: 1}}}]}}}
edges:
  - {from: work, to: work, when: "true", maxIterations: 3}
`)
		s, entries := b.ended("run1")
		if took := time.Since(begun); took > time.Second || s.Nodes["work"].Execs != 4 {
			t.Errorf("%d rounds took %v:\n%s", s.Nodes["work"].Execs, took, story(entries))
		}
		<-time.After(time.Minute)
		for _, id := range []string{"run1.work#1", "run1.work#2"} {
			if n := count(b.read(id), wire.TypeCommandReceived); n != 0 {
				t.Errorf("%s has %d commands:\n%s", id, n, story(b.read(id)))
			}
		}
	})
}
