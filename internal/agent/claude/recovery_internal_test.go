package claude

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// TestRecovery compares session files that the program left behind with what the log has: what
// becomes an event, and what their results say once they are corrected.
func TestRecovery(t *testing.T) {
	files, err := filepath.Glob("testdata/recovery/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no session files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var calls struct {
				Open, Ended, Denied, Counted []string
				Whole                        bool
			}
			content := part(a, "session.jsonl")
			if err := json.Unmarshal(part(a, "calls.json"), &calls); err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			for _, e := range recoveredCalls(content, "s1", agent.Calls{Open: calls.Open, Ended: calls.Ended, Counted: calls.Counted, Whole: calls.Whole}, nil) {
				if text := fmt.Sprint(e); e.Timestamp != 0 || text == "" {
					t.Errorf("%s has a time", text)
				}
				switch p := e.Payload.(type) {
				case *wire.ToolIntent:
					fmt.Fprintf(&b, "%s tool:intent %s %v recovered=%s\n", e.CallID, p.ToolName, p.ToolInput.Any(), p.Recovered)
				case *wire.Usage:
					fmt.Fprintf(&b, "usage of %s: %d in, %d out\n", p.MessageID, p.InputTokens, p.OutputTokens)
				case *wire.AgentTool:
					fmt.Fprintf(&b, "%s agent:tool %s recovered=%s error=%q output=%.40q\n", e.CallID, p.ToolName, p.Recovered, p.Error, fmt.Sprint(p.ToolOutput.Any()))
				}
			}
			b.WriteString("\n")
			fixed := correctRefusals(content, calls.Denied)
			for _, said := range results(t, fixed) {
				fmt.Fprintf(&b, "%s says %.120q\n", said[0], said[1])
			}
			if again := correctRefusals(fixed, calls.Denied); !bytes.Equal(again, fixed) {
				t.Error("it is corrected twice")
			}
			if update := flag.Lookup("update"); update.Value.String() == "true" {
				a.Files = append(slices.DeleteFunc(a.Files, func(f txtar.File) bool { return f.Name == "want" }), txtar.File{Name: "want", Data: []byte(b.String())})
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(part(a, "want")), b.String()); diff != "" {
				t.Errorf("it differs (-want +got); run with -update to accept:\n%s", diff)
			}
		})
	}
}

func part(a *txtar.Archive, name string) []byte {
	for _, f := range a.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

// results returns the calls that a session file has results of, and what these say.
func results(t *testing.T, content []byte) (said [][2]string) {
	t.Helper()
	for line := range bytes.Lines(content) {
		var m struct {
			Message struct {
				Content []resultBlock `json:"content"`
			} `json:"message"`
		}
		if json.Unmarshal(line, &m) != nil {
			continue
		}
		for _, r := range m.Message.Content {
			if r.Type == "tool_result" {
				_, text := r.rawText()
				said = append(said, [2]string{r.ToolUseID, text})
			}
		}
	}
	return said
}

// FuzzRecovery compares anything with what the log has. Nothing is recovered that the log has,
// and no words for a missing result; what is corrected keeps its lines, and has no refusal
// left that nobody has given.
func FuzzRecovery(f *testing.F) {
	files, err := filepath.Glob("testdata/recovery/*.txtar")
	if err != nil || len(files) == 0 {
		f.Fatalf("no session files: %v", err)
	}
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(part(a, "session.jsonl"), "toolu_1", "toolu_2", len(file)%2 == 0)
	}
	f.Add([]byte(`{"message":{"content":[{"type":"tool_result","tool_use_id":"a","is_error":true,"content":[{"type":"text","text":"The user doesn't want to take this action right now. STOP what you are doing and wait for the user to tell you how to proceed."}]}]}}`), "a", "b", true)
	f.Fuzz(func(t *testing.T, content []byte, open, ended string, whole bool) {
		for _, e := range recoveredCalls(content, "s1", agent.Calls{Open: []string{open}, Ended: []string{ended}, Whole: whole}, nil) {
			p, result := e.Payload.(*wire.AgentTool)
			if e.CallID == ended || !result && e.CallID == open {
				t.Fatalf("%q is in the log", e.CallID)
			}
			if result && (isFeigned(p.Error) || isMissingResult(p.Error)) {
				t.Fatalf("the result of %q is %q", e.CallID, p.Error)
			}
		}
		fixed := correctRefusals(content, []string{ended})
		if bytes.Count(fixed, []byte("\n")) != bytes.Count(content, []byte("\n")) {
			t.Fatalf("lines are lost")
		}
		before, after := bytes.Split(content, []byte("\n")), bytes.Split(fixed, []byte("\n"))
		for i := range before {
			if json.Valid(before[i]) != json.Valid(after[i]) {
				t.Fatalf("%q became %q", before[i], after[i])
			}
		}
		if !bytes.Equal(correctRefusals(fixed, []string{ended}), fixed) {
			t.Fatal("it is corrected twice")
		}
	})
}
