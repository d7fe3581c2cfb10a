package run_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// What an agent is told that goes on, by the history of its execution: files of testdata/notice.
// Calls that are open at their end are closed, as the worker does that goes on. The section
// message is what somebody says with the resumption, folder where the agent goes on instead, and
// begun says that calls may have begun unsaid, late that its session may lack what it was asked until it has answered.
func TestPrompts(t *testing.T) {
	files, err := filepath.Glob("testdata/notice/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no histories: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var folder *run.Folder
			if path, kind, ok := strings.Cut(strings.TrimSpace(string(section(a, "folder"))), " "); ok {
				folder = &run.Folder{Path: path, Clone: kind == "clone"}
			}
			got := txtar.File{Name: "prompt"}
			got.Data = []byte(past(t, a).Prompt(strings.TrimSpace(string(section(a, "message"))), folder) + "\n")
			want := section(a, got.Name)
			if *update {
				a.Files = append(without(a.Files, got.Name), got)
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(want), string(got.Data)); diff != "" {
				t.Errorf("the prompt differs (-want +got); run with -update to accept:\n%s", diff)
			}
		})
	}
}

func without(files []txtar.File, name string) (rest []txtar.File) {
	for _, f := range files {
		if f.Name != name {
			rest = append(rest, f)
		}
	}
	return rest
}

// past folds a history, and closes what it leaves open.
func past(t *testing.T, a *txtar.Archive) *run.Past {
	t.Helper()
	h := parseHistory(t, section(a, "events.jsonl"))
	s, refused := h.fold(t, run.New("r1"))
	if refused != "" {
		t.Fatal(refused)
	}
	begun := without(a.Files, "begun")
	late := without(a.Files, "late")
	p := run.NewPast(wire.RawString("do it"), s.Nodes["a"].Point, len(begun) < len(a.Files), len(late) < len(a.Files), "")
	for _, ev := range h.events {
		if ev.e.ExecID == "a#1" && ev.e.NodeID == "a" {
			p.Take(ev.e)
		}
	}
	for _, c := range run.OpenCalls(s, "a", "a#1") {
		p.Close(c.CallID, run.SealResult(c, run.Seal(c, "", len(begun) < len(a.Files))))
	}
	return p
}

// The calls that an execution has made are known by their ids, whatever has become of them.
func TestPastCalls(t *testing.T) {
	p := run.NewPast(nil, "", false, false, "")
	about := func(call string, payload wire.Payload) {
		p.Take(&wire.Event{ExecID: "a#1", SessionID: "s1", CallID: call, Payload: payload})
	}
	for _, id := range []string{"c1", "c2", "c3"} {
		about(id, &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.Null})
	}
	about("c2", &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null})
	about("c3", &wire.ToolSealed{From: wire.ToolPending})
	about("c3", &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null, Error: wire.CallInterrupted})
	about("c1", &wire.PermissionDecided{Decision: wire.DecisionDeny})
	if diff := cmp.Diff([][]string{{"c1"}, {"c2", "c3"}, {"c3"}, {"c1"}}, [][]string{p.Open, p.Ended, p.Sealed, p.Denied}); diff != "" {
		t.Error(diff)
	}
	for _, resumed := range []bool{true, false, true} {
		about("", &wire.AgentStart{Prompt: wire.Null, Resumed: resumed})
		t.Logf("resumed: %t", resumed)
	}
	if !p.Whole {
		t.Error("a session that began with the execution isn't known to have done so once it goes on")
	}
}

// An agent that goes on in a fork is told so: no runner has died.
func TestForkedNotice(t *testing.T) {
	call := wire.ToolCall{CallID: "c1", Tool: "Bash", State: wire.ToolPending}
	p := run.NewPast(nil, "", false, false, run.CauseForked)
	p.Close(call.CallID, run.SealResult(call, run.Seal(call, "", false)))
	if told := p.Prompt("", nil); !strings.Contains(told, "forked from another one") || strings.Contains(told, "died") {
		t.Errorf("the agent is told %q", told)
	}
	p.Take(&wire.Event{ExecID: "a#1", Payload: &wire.AgentStart{Prompt: wire.Null, Resumed: true}})
	p.Close(call.CallID, run.SealResult(call, run.Seal(call, "", false)))
	if told := p.Prompt("", nil); !strings.Contains(told, "died") {
		t.Errorf("once it has begun it is told %q", told)
	}
}

// TestPastFacts shows what the session of an agent has to have: what its own agent was told and what its calls came to, without what
// came after a point to which it was taken back, and since it last began.
func TestPastFacts(t *testing.T) {
	p := run.NewPast(nil, "r1", false, false, "")
	seq := uint64(0)
	take := func(call, parent string, payload wire.Payload) {
		seq++
		p.Take(&wire.Event{ExecID: "a#1", SessionID: "s1", CallID: call, Parent: parent, Seq: seq, Payload: payload})
	}
	result := func(point string) *wire.AgentTool {
		return &wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawString("in"), ToolOutput: wire.Null, Point: point}
	}
	known := func(want ...string) {
		t.Helper()
		var marks []string
		for _, f := range p.Facts {
			marks = append(marks, f.Mark)
		}
		if diff := cmp.Diff(want, marks); diff != "" {
			t.Errorf("behind seq %d the session has to have (-want +got):\n%s", seq, diff)
		}
	}
	take("", "", &wire.AgentStart{Prompt: wire.Null})
	take("", "", &wire.UserMessage{Source: "command", Content: "use tabs", Point: "u1"})
	take("", "", &wire.UserMessage{Source: "prompt", Content: "do it", Point: "u2"})
	take("c1", "", &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.RawString("in")})
	take("c1", "", result("r1")) // seq 5
	take("c2", "c1", result("r1"))
	take("c3", "", result("r3"))
	known("u1", "c1", "c3")
	if p.PointSeq != 5 {
		t.Errorf("the last safe point is at seq %d, want 5", p.PointSeq)
	}
	if len(p.Inputs) != 4 {
		t.Errorf("%d inputs of calls, want those of one intent and three results", len(p.Inputs))
	}
	take("", "", &wire.LogTruncated{AtSeq: 5, Lost: 2})
	if known("u1", "c1", "c3"); p.RolledBack {
		t.Error("a log that has lost events counts as a session that was taken back")
	}
	take("", "", &wire.LogTruncated{AtSeq: 5})
	if known("u1", "c1"); !p.RolledBack {
		t.Error("the session isn't known to have been taken back")
	}
	take("", "", &wire.AgentStart{Prompt: wire.Null, Resumed: true})
	if known("u1", "c1"); !p.RolledBack {
		t.Error("that the agent is to go on counts as a sign of it")
	}
	take("c4", "", &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.Null})
	if p.RolledBack {
		t.Error("the session counts as taken back behind what the agent has done in it")
	}
	take("", "", &wire.AgentStart{Prompt: wire.Null})
	known()
}

// TestPastOfLateAgent shows that an agent which tells late of having been asked knows of what was cut off once it makes a call, and not
// as its turn begins.
func TestPastOfLateAgent(t *testing.T) {
	p := run.NewPast(wire.RawString("do it"), "", false, true, "")
	take := func(call string, payload wire.Payload) {
		p.Take(&wire.Event{ExecID: "a#1", SessionID: "s1", CallID: call, Payload: payload})
	}
	take("", &wire.AgentStart{Prompt: wire.RawString("do it")})
	take("c1", &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.Null})
	take("c1", &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null, Error: wire.CallInterrupted})
	take("", &wire.AgentStart{Prompt: wire.Null, Resumed: true})
	take("", &wire.TurnStart{})
	if told := p.Prompt("", nil); !strings.Contains(told, "interrupted") {
		t.Errorf("as its turn begins it isn't told of the call that was cut off: %q", told)
	}
	take("c2", &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.Null})
	if told := p.Prompt("", nil); strings.Contains(told, "interrupted") {
		t.Errorf("behind a call it is told again of the one that was cut off: %q", told)
	}
}

func TestChildID(t *testing.T) {
	exec := "a#1"
	fits := strings.Repeat("r", subjects.MaxID-len(exec)-1)
	if id := run.ChildID(fits, exec); id != fits+"."+exec || len(id) != subjects.MaxID {
		t.Errorf("the id of a child that fits is %q", id)
	}
	if id := run.ChildID(fits+"r", exec); len(id) > subjects.MaxID || id != run.ChildID(fits+"r", exec) || id == run.ChildID(fits+"r", "a#2") {
		t.Errorf("the id of a child that is too long is %q", id)
	}
}
