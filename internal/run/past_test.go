package run_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"code.wake.dev/wake/internal/run"
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
