package run_test

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// author draws events that are mostly what a runner would write next, and often
// not: a small world of nodes, executions, calls and prompts, so that they meet.
type author struct {
	t   *rapid.T
	s   *wire.State // what the events so far have folded to
	seq map[string]uint64
	pos uint64
}

func (a *author) pick(label string, from ...string) string {
	return rapid.SampledFrom(from).Draw(a.t, label)
}

func (a *author) often(label string) bool { return rapid.IntRange(0, 9).Draw(a.t, label) > 0 }

var nodes = []string{"a", "b", "a/0", "a/1"}

func (a *author) event() (wire.Position, *wire.Event) {
	target := a.pick("target", nodes...)
	p, byOwner := a.payload(target)
	e := &wire.Event{RunID: "r1", NodeID: target, Payload: p, CallID: a.pick("call", "t1", "t2")}
	if byOwner == a.often("in place") {
		e.NodeID = wire.RunNode
	}
	n := a.s.Nodes[target]
	e.ExecID = run.ExecID(target, n.Execs+scheduling(p))
	if !a.often("exec") {
		e.ExecID = a.pick("exec id", "", "a#1", "a#2", "b#1", "a/0#1", "junk")
	}
	a.envelope(e)
	a.pos += uint64(rapid.SampledFrom([]int{1, 1, 1, 1, 1, 2, 0}).Draw(a.t, "step"))
	return wire.Position{Seq: a.pos}, e
}

func scheduling(p wire.Payload) int {
	if p.Type() == wire.TypeNodeScheduled {
		return 1
	}
	return 0
}

func (a *author) envelope(e *wire.Event) {
	w := a.s.Nodes[e.NodeID]
	e.Epoch = max(w.Epoch, 1)
	if _, ok := e.Payload.(*wire.NodeClaimed); ok {
		e.Epoch = w.Epoch + 1
	}
	if _, ok := e.Payload.(*wire.RunClaimed); ok {
		e.Epoch = w.Epoch + 1
	}
	if !a.often("epoch") {
		e.Epoch = rapid.Uint64Range(0, 4).Draw(a.t, "other epoch")
	}
	a.seq[e.NodeID]++
	e.Seq = a.seq[e.NodeID]
	if !a.often("seq") {
		e.Seq = rapid.Uint64Range(0, 20).Draw(a.t, "other seq")
	}
	e.Timestamp = int64(a.pos) * 10
	e.SessionID = a.pick("session", "", "s1", "s2")
	if !a.often("parent") {
		e.Parent = "t1"
	}
}

func (a *author) payload(target string) (p wire.Payload, byOwner bool) {
	if a.s.Nodes[wire.RunNode].Epoch == 0 || !a.often("claimed") {
		return &wire.RunClaimed{Runner: a.pick("runner", "w1", "w2"), Nonce: "n"}, true
	}
	if a.s.Status == wire.RunIdle {
		return &wire.FlowStart{FlowName: "f", DefinitionHash: "h", Definition: a.value(), Imported: a.pick("imported", "", "", "ingest")}, true
	}
	if a.s.Nodes[target].Epoch == 0 && a.often("claim") {
		return &wire.NodeClaimed{Runner: a.pick("runner", "w1", "w2"), Nonce: "n"}, false
	}
	if rapid.Bool().Draw(a.t, "owner") {
		return a.decision(target), true
	}
	return a.work(target), false
}

func (a *author) value() wire.Raw {
	src := a.pick("value", `null`, `1`, `1.5`, `"x"`, `[]`, `{}`, `{"a":[1,{"b":null}]}`,
		`{"nodes":[{"id":"a"},{"id":"b"}],"edges":[{"from":"a","to":"b"}],"state":{"n":1}}`,
		`{"nodes":3}`, `{"$blob":{"sha256":"x"}}`)
	v, err := wire.RawFromJSON([]byte(src))
	if err != nil {
		a.t.Fatal(err)
	}
	return v
}

func (a *author) command() wire.Raw {
	src := fmt.Sprintf(`{"type":%q,"promptId":"p1","callId":"t1","label":"l1","resumable":%t}`,
		a.pick("command", "send", "reply", "resume", "pause", "abort", "approve", "bookmark", "fork", ""), a.often("resumable"))
	v, err := wire.RawFromJSON([]byte(src))
	if err != nil {
		a.t.Fatal(err)
	}
	return v
}

func (a *author) decision(target string) wire.Payload {
	small := rapid.IntRange(0, 3)
	switch rapid.IntRange(0, 15).Draw(a.t, "decision") {
	case 0, 1, 2:
		return &wire.NodeScheduled{
			Target: target, Attempt: small.Draw(a.t, "attempt"), Count: small.Draw(a.t, "count"),
			Input: a.value(), Error: a.pick("error", "", "", "bad"),
		}
	case 3:
		return &wire.NodeSkipped{Target: target, Reason: "when"}
	case 4:
		return &wire.NodeCancelled{Target: target, Reason: "timeout"}
	case 5:
		return &wire.EdgeFire{From: "a", To: "b"}
	case 6:
		return &wire.EdgeSkip{From: "a", To: "b"}
	case 7:
		return &wire.LoopIterate{
			EdgeID: "a->b", Iteration: small.Draw(a.t, "iteration"),
			Nodes: []string{target}, Edges: []string{"a->b"},
		}
	case 8:
		return &wire.StatePatch{Patch: wire.Patch{
			Op: wire.PatchOp(a.pick("op", "set", "merge", "junk")), Path: a.pick("path", "", "n", "a.b", "a.0"), Value: a.value(),
		}}
	case 9, 10:
		return &wire.CommandReceived{
			Command: a.command(), CommandID: a.pick("id", "", "c1", "c2"), AtPos: uint64(small.Draw(a.t, "at")), Accepted: a.often("accepted"),
		}
	case 11:
		return &wire.FlowPaused{Reason: "operator"}
	case 12:
		return &wire.FlowResumed{}
	case 13:
		return &wire.NodeStart{Target: target, NodeType: "set"}
	case 14:
		return &wire.NodeComplete{Target: target, Output: a.value()}
	default:
		return a.rare()
	}
}

func (a *author) rare() wire.Payload {
	switch rapid.IntRange(0, 9).Draw(a.t, "rare") {
	case 0:
		return &wire.FlowComplete{Status: wire.FlowStatusFailed}
	case 1:
		return &wire.FlowAborted{}
	case 2:
		s, err := wire.Marshal(a.s)
		if err != nil {
			a.t.Fatal(err)
		}
		return &wire.RunForked{ParentRun: "r0", ParentPos: 1, State: s}
	case 3:
		return &wire.RunForked{ParentRun: "r0", State: a.value()}
	default:
		return &wire.Checkpoint{Kind: wire.CheckpointSFP, Label: a.pick("label", "", "l1", "l2")}
	}
}

func (a *author) work(target string) wire.Payload {
	cost := rapid.SampledFrom([]*float64{nil, new(0.1), new(0.3), new(1.0), new(-1.0)}).Draw(a.t, "cost")
	states := []string{"PENDING", "APPROVAL_REQUIRED", "APPROVED", "EXECUTING", "COMPLETED", "FAILED", "DENIED", "SEALED", "JUNK"}
	switch rapid.IntRange(0, 21).Draw(a.t, "work") {
	case 0, 1, 2:
		return &wire.NodeStart{NodeType: "agent"}
	case 3, 4:
		return &wire.NodeComplete{Output: a.value()}
	case 5:
		return &wire.NodeError{Error: a.pick("error", "", "boom"), ErrorType: a.pick("error type", "exit", "cancelled")}
	case 6:
		return &wire.AgentStart{Prompt: a.value()}
	case 7:
		return &wire.SessionBound{NewSession: "s3"}
	case 8, 9:
		return &wire.ToolIntent{ToolName: "Bash", ToolInput: a.value()}
	case 10, 11:
		return &wire.ToolState{From: wire.ToolCallState(a.pick("from", states...)), To: wire.ToolCallState(a.pick("to", states...))}
	case 12:
		return &wire.ToolSealed{From: wire.ToolCallState(a.pick("from", states...)), Message: "m"}
	case 13:
		return &wire.AgentTool{ToolName: "Bash", ToolInput: a.value(), ToolOutput: a.value(), Error: a.pick("error", "", "boom"), Denied: a.often("denied")}
	case 14:
		return &wire.PermissionRequired{ToolName: "Bash"}
	case 15:
		return &wire.PermissionDecided{Decision: wire.Decision(a.pick("decision", "allow", "deny"))}
	case 16:
		return &wire.TurnEnd{TurnCostUsd: cost}
	case 17:
		return &wire.AgentComplete{TotalCostUsd: cost}
	case 18:
		return &wire.Usage{MessageID: "m", InputTokens: 3, CacheReadInputTokens: new(int64(2))}
	case 19:
		return &wire.TodoChanged{Items: []wire.Todo{{Content: "c", Status: "pending"}}}
	case 20:
		return &wire.InputRequested{Target: a.pick("speaks for", "", target, "b"), PromptID: a.pick("prompt", "p1", "p2"), Prompt: "?"}
	default:
		return a.talk()
	}
}

func (a *author) talk() wire.Payload {
	switch rapid.IntRange(0, 6).Draw(a.t, "talk") {
	case 0:
		return &wire.InputReceived{PromptID: a.pick("prompt", "p1", "p2"), Content: a.value()}
	case 1:
		return &wire.UserMessage{Content: "x", CommandID: a.pick("id", "", "c1", "c2")}
	case 2:
		return &wire.CCMessage{Text: "?", Priority: wire.PriorityQuestion}
	case 3:
		return &wire.AgentText{Content: "text"}
	case 4:
		return &wire.BreakpointChanged{Current: "PRE_MODEL"}
	case 5:
		return &wire.AgentPaused{}
	default:
		return &wire.Opaque{Name: "from:the:future"}
	}
}

// Whatever is written: Apply does not panic, a refusal changes nothing, the
// position never falls, and every snapshot with its tail is the whole.
func TestApplyAnything(t *testing.T) {
	kinds := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		a := &author{t: t, s: run.New("r1"), seq: map[string]uint64{}}
		var events []entry
		for range rapid.IntRange(1, 80).Draw(t, "events") {
			pos, e := a.event()
			events = append(events, entry{pos: pos, e: e})
			before, at := encodeTo(t, a.s), a.s.Position.Seq
			err := run.Apply(a.s, pos, e)
			kinds[err == nil]++
			if err != nil && !bytes.Equal(before, encodeTo(t, a.s)) {
				t.Fatalf("%v: and the state changed", err)
			}
			if a.s.Position.Seq < at {
				t.Fatalf("position fell from %d to %d", at, a.s.Position.Seq)
			}
		}
		cut := rapid.IntRange(0, len(events)).Draw(t, "cut")
		overlap := rapid.IntRange(0, cut).Draw(t, "overlap")
		snapshot := foldAll(run.New("r1"), events[:cut])
		again, err := run.Decode(encodeTo(t, snapshot))
		if err != nil {
			t.Fatal(err)
		}
		got, whole := encodeTo(t, foldAll(again, events[cut-overlap:])), encodeTo(t, a.s)
		if !bytes.Equal(got, whole) {
			t.Fatalf("cut at %d with overlap %d makes another state\n got %s\nwant %s", cut, overlap, jsonOf(got), jsonOf(whole))
		}
	})
	t.Logf("%d events were folded, %d refused", kinds[true], kinds[false])
	if kinds[true]*5 < kinds[false] {
		t.Error("too few events are legal to say much")
	}
}

func foldAll(s *wire.State, events []entry) *wire.State {
	for _, ev := range events {
		_ = run.Apply(s, ev.pos, ev.e) // refusals are part of the history
	}
	return s
}

func encodeTo(t *rapid.T, s *wire.State) wire.Raw {
	b, err := wire.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func jsonOf(b wire.Raw) string {
	text, err := wire.AppendJSON(nil, b)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
