package kahn_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"code.wake.dev/wake/internal/conversation"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/kahn"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

var update = flag.Bool("update", false, "rewrite the expectations in testdata")

// story writes the history of a run: a second between two events.
type story struct {
	t     testing.TB
	log   []*wire.Event
	seqs  map[string]uint64
	execs map[string]int
	at    int64
}

const begin = 1767225600000 // 2026-01-01T00:00:00Z

func newStory(t testing.TB, definition string) *story {
	t.Helper()
	s := &story{t: t, seqs: map[string]uint64{}, execs: map[string]int{}, at: begin}
	d, err := flow.Parse("flow.yaml", []byte(definition))
	if err != nil {
		t.Fatal(err)
	}
	s.add(wire.RunNode, &wire.Event{Payload: &wire.RunClaimed{Runner: "r", Nonce: "n"}})
	s.add(wire.RunNode, &wire.Event{Payload: &wire.FlowStart{FlowName: d.Name, Definition: d.Raw(), DefinitionHash: d.Hash()}})
	return s
}

func (s *story) add(node string, e *wire.Event) {
	s.t.Helper()
	s.seqs[node]++
	s.at += 1000
	e.RunID, e.NodeID, e.Seq, e.Epoch = "run-1", node, s.seqs[node], 1
	if e.Timestamp == 0 {
		e.Timestamp = s.at
	}
	if e.ExecID == "" && node != wire.RunNode {
		e.ExecID = run.ExecID(node, s.execs[node])
	}
	s.log = append(s.log, e)
}

// start schedules a node and begins it; begun by an agent, too.
func (s *story) start(node string, agent bool) {
	s.t.Helper()
	s.execs[node]++
	exec := run.ExecID(node, s.execs[node])
	s.add(wire.RunNode, &wire.Event{ExecID: exec, Payload: &wire.NodeScheduled{Target: node, Attempt: 1}})
	if s.seqs[node] == 0 {
		s.add(node, &wire.Event{ExecID: exec, Payload: &wire.NodeClaimed{Runner: "r", Nonce: "n"}})
	}
	s.add(node, &wire.Event{Payload: &wire.NodeStart{NodeType: "agent", Attempt: 1}})
	if agent {
		s.add(node, &wire.Event{SessionID: "s", Payload: &wire.AgentStart{Prompt: wire.RawString("Do " + node + ".\nAll of it."), Cwd: "/work"}})
	}
}

// do takes a line of a script: `start NODE`, `node NODE` (without an agent), or a
// node, a type and the fields of the event in JSON.
func (s *story) do(line string) {
	s.t.Helper()
	words := strings.SplitN(line, " ", 3)
	switch words[0] {
	case "start":
		s.start(words[1], true)
		return
	case "node":
		s.start(words[1], false)
		return
	}
	fields := "{}"
	if len(words) == 3 {
		fields = words[2]
	}
	head := fmt.Sprintf(`{"v":1,"type":%q,"runId":"run-1","nodeId":%q,"seq":1,"epoch":1,"timestamp":0`, words[1], words[0])
	if fields != "{}" {
		head += ","
	}
	e, err := wire.DecodeJSON([]byte(head + strings.TrimPrefix(fields, "{")))
	if err != nil {
		s.t.Fatalf("%s: %v", line, err)
	}
	s.add(words[0], e)
}

// project returns the lines of a history, and what could not be judged.
func project(t testing.TB, log []*wire.Event, o kahn.Projection) (lines, problems []string, dropped int) {
	t.Helper()
	p := kahn.NewProjector(o)
	for i, e := range log {
		made, err := p.Add(uint64(i+1), e)
		if err != nil {
			problems = append(problems, err.Error())
		}
		for _, line := range made {
			lines = append(lines, string(line))
		}
	}
	return lines, problems, p.Dropped
}

// check validates lines and follows them to their end.
func check(t testing.TB, lines []string, strict bool) *kahn.Checker {
	t.Helper()
	s := schema(t)
	c := &kahn.Checker{}
	calls := map[string]int64{} // step of the last transition to a call, by agent
	for _, line := range lines {
		if err := valid(s, line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		e, err := kahn.Parse([]byte(line))
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		switch b := e.Body.(type) {
		case *kahn.Transition:
			if b.To == kahn.ToolCall {
				calls[e.AgentID] = b.Step
			}
		case *kahn.ToolInvocation:
			if at, ok := calls[e.AgentID]; (!ok || at != b.Step) && !strict {
				t.Errorf("no transition to a call has the step of %s", line)
			}
		}
		for _, f := range c.Add(e) {
			if f.Severity == kahn.Violation || strict && f.Severity == kahn.Extension {
				t.Errorf("line %d: %s: %s", f.Line, f.Problem, line)
			}
		}
	}
	return c
}

// Each file of testdata/project is a flow, what happens in a run of it, and the
// lines that come of it. What is strict is a part of what isn't.
func TestProjections(t *testing.T) {
	files, err := filepath.Glob("testdata/project/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := newStory(t, section(a, "flow.yaml"))
			for line := range strings.Lines(section(a, "script")) {
				if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
					s.do(line)
				}
			}
			lines, problems, _ := project(t, s.log, kahn.Projection{})
			check(t, lines, false)
			if diff := cmp.Diff(waits(s.log), blocked(t, lines)); diff != "" {
				t.Errorf("blocked for (-conversation +lines):\n%s", diff)
			}
			strict, _, dropped := project(t, s.log, kahn.Projection{Strict: true})
			check(t, strict, true)
			got := map[string]string{"lines": joined(lines), "strict": fmt.Sprintf("%d dropped\n%s", dropped, joined(strict))}
			if dropped == 0 {
				if diff := cmp.Diff(lines, strict); diff != "" {
					t.Errorf("nothing was dropped, but: %s", diff)
				}
				delete(got, "strict")
			}
			if len(problems) > 0 {
				got["problems"] = joined(problems)
			}
			golden(t, file, a, got)
		})
	}
}

// waits returns how long the agents of nodes have waited for people, as their conversations
// have it: until the end of the node.
func waits(log []*wire.Event) time.Duration {
	var sum int64
	talks := map[string]*conversation.Conversation{}
	for i, e := range log {
		switch e.Payload.(type) {
		case *wire.NodeComplete, *wire.NodeError:
			if talk := talks[e.NodeID]; talk != nil {
				if own := talk.Thread(""); own.BlockedAt > 0 {
					sum += e.Timestamp - own.BlockedAt
				}
				sum += talk.Thread("").BlockedMs
			}
			delete(talks, e.NodeID)
		default:
			if e.NodeID != wire.RunNode && talks[e.NodeID] == nil {
				talks[e.NodeID] = &conversation.Conversation{}
			}
			if e.NodeID != wire.RunNode {
				talks[e.NodeID].Apply(uint64(i+1), e)
			}
		}
	}
	return time.Duration(sum) * time.Millisecond
}

// blocked returns how long agents are blocked in lines.
func blocked(t testing.TB, lines []string) time.Duration {
	t.Helper()
	var sum time.Duration
	since := map[string]time.Time{}
	for _, line := range lines {
		e, err := kahn.Parse([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse(time.RFC3339, e.TS)
		if err != nil {
			t.Fatal(err)
		}
		if b, ok := e.Body.(*kahn.Transition); ok {
			if from, waits := since[e.AgentID]; waits {
				sum += at.Sub(from)
				delete(since, e.AgentID)
			}
			if b.To == kahn.Blocked {
				since[e.AgentID] = at
			}
		}
	}
	return sum
}

func joined(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return strings.Join(lines, "\n") + "\n"
}

func section(a *txtar.Archive, name string) string {
	for _, f := range a.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

func golden(t *testing.T, file string, a *txtar.Archive, got map[string]string) {
	t.Helper()
	if *update {
		kept := a.Files[:0]
		for _, f := range a.Files {
			if f.Name == "flow.yaml" || f.Name == "script" {
				kept = append(kept, f)
			}
		}
		a.Files = kept
		for _, name := range []string{"lines", "strict", "problems"} {
			if data, ok := got[name]; ok {
				a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(data)})
			}
		}
		if err := os.WriteFile(file, txtar.Format(a), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, name := range []string{"lines", "strict", "problems"} {
		if diff := cmp.Diff(section(a, name), got[name]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A projection doesn't depend on how far the run has come: what was written before
// an event stays.
func TestFollowing(t *testing.T) {
	s := newStory(t, "name: f\nnodes: [{id: a, type: agent, input: {provider: claude, prompt: x}}]\n")
	for _, line := range []string{
		"start a", `a turn:start {"turn":1}`, `a agent:text {"turn":1,"content":"Looking."}`,
		`a tool:intent {"turn":1,"callId":"c","toolName":"Read","toolInput":{}}`,
		`a agent:tool {"turn":1,"callId":"c","toolName":"Read","toolInput":{},"toolOutput":"x"}`,
		`a agent:text {"turn":2,"content":"Done."}`, `a turn:end`, `a node:complete {"output":{},"durationMs":1}`,
	} {
		s.do(line)
	}
	all, _, _ := project(t, s.log, kahn.Projection{})
	for n := range s.log {
		some, _, _ := project(t, s.log[:n], kahn.Projection{})
		if !bytes.HasPrefix([]byte(joined(all)), []byte(joined(some))) {
			t.Errorf("after %d events:\n%s", n, joined(some))
		}
	}
}
