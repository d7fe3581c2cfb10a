package flow_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

var update = flag.Bool("update", false, "rewrite the expectations in testdata")

// Each file of testdata/runs is a flow, a script of what workers and people do
// (see driver.do), and what comes of it: the events in order and the outcome.
func TestRuns(t *testing.T) {
	for _, file := range glob(t, "testdata/runs/*.txtar") {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			events, outcome := play(t, a)
			golden(t, file, a, map[string]string{"events": events, "outcome.json": outcome})
		})
	}
}

func play(t *testing.T, a *txtar.Archive) (events, outcome string) {
	t.Helper()
	d, err := flow.Parse("flow.yaml", []byte(section(a, "flow.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	var request wire.RunRequest
	if src := section(a, "input.json"); src != "" {
		request.Input = raw(t, src)
	}
	dr := start(t, d, request)
	dr.settle()
	for line := range strings.Lines(section(a, "script")) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			dr.do(line)
			dr.settle()
		}
	}
	var b strings.Builder
	for _, e := range dr.log {
		b.WriteString(brief(t, e) + "\n")
	}
	return b.String(), dr.outcome()
}

func (dr *driver) outcome() string {
	s := dr.s
	full, err := wire.AppendJSON(nil, encode(dr.t, map[string]any{
		"status": string(s.Status), "result": string(s.Result), "error": s.Error,
		"outputs": s.Outputs, "state": s.State, "loopCounters": s.LoopCounters,
		"nodeStatus": s.NodeStatus, "edgeStatus": s.EdgeStatus, "inbox": s.Inbox,
	}))
	if err != nil {
		dr.t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, full, "", "  "); err != nil {
		dr.t.Fatal(err)
	}
	return out.String() + "\n"
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no files, %v", pattern, err)
	}
	return files
}

func section(a *txtar.Archive, name string) string {
	for _, f := range a.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

// golden compares sections of a file, or rewrites them.
func golden(t *testing.T, file string, a *txtar.Archive, got map[string]string) {
	t.Helper()
	for i, f := range a.Files {
		if text, ok := got[f.Name]; ok {
			if diff := cmp.Diff(string(f.Data), text); diff != "" && !*update {
				t.Errorf("%s differs (-want +got); run with -update to accept:\n%s", f.Name, diff)
			}
			a.Files[i].Data = []byte(text)
			delete(got, f.Name)
		}
	}
	for _, name := range []string{"events", "outcome.json", "problems"} {
		if text, ok := got[name]; ok {
			a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(text)})
			if !*update {
				t.Errorf("%s is missing; run with -update to accept:\n%s", name, text)
			}
		}
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStart(t *testing.T) {
	d, err := flow.Parse("x.yaml", []byte(`
name: x
labels: {team: infra, name: x}
state: {a: {b: 1, c: 2}, list: [1, 2], n: 1}
nodes: [{id: a, type: agent, input: {prompt: go}}]
`))
	if err != nil {
		t.Fatal(err)
	}
	dr := start(t, d, wire.RunRequest{
		Input: raw(t, `[1]`), State: raw(t, `{"a":{"b":9},"list":[3],"new":{"x":null}}`),
		Labels: map[string]string{"name": "mine"}, ParentRun: "p", Workspace: "/w",
	})
	if got, want := jsonText(t, dr.s.State), `{"a":{"b":9,"c":2},"list":[3],"n":1,"new":{"x":null}}`; got != want {
		t.Errorf("state %s, want %s", got, want)
	}
	if diff := cmp.Diff(map[string]string{"team": "infra", "name": "mine"}, dr.s.Labels); diff != "" {
		t.Error(diff)
	}
	if dr.s.Definition == nil || dr.s.DefinitionHash != d.Hash() || dr.s.ParentRun != "p" || dr.s.Workspace != "/w" {
		t.Error("flow:start lacks something")
	}
	if got := len(start(t, d, wire.RunRequest{}).log); got != 2 {
		t.Errorf("a run without a state of its own begins with %d events, want 2", got)
	}
}

func TestDecideRefusesAnotherDefinition(t *testing.T) {
	one, err := flow.Parse("x.yaml", []byte("name: x\nnodes: [{id: a, type: agent, input: {prompt: go}}]"))
	if err != nil {
		t.Fatal(err)
	}
	two, err := flow.Parse("x.yaml", []byte("name: y\nnodes: [{id: a, type: agent, input: {prompt: go}}]"))
	if err != nil {
		t.Fatal(err)
	}
	dr := start(t, one, wire.RunRequest{})
	if _, err := flow.Decide(two, dr.s, 1, nil); err == nil {
		t.Error("a state of another definition was accepted")
	}
	for _, line := range []string{"pause", "resume"} {
		dr.do(line)
		d, err := flow.Decide(one, dr.s, 1, nil)
		if want := map[string]int{"pause": 0, "resume": 1}[line]; err != nil || len(d.Events) != want {
			t.Errorf("after %s: %d events, %v", line, len(d.Events), err)
		}
	}
}

// What is wrong with a flow is told at once, each with its place.
func TestProblems(t *testing.T) {
	for _, file := range glob(t, "testdata/problems/*.txtar") {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			name := a.Files[0].Name
			_, err = flow.Parse(name, a.Files[0].Data)
			if err == nil {
				t.Fatal("the flow was accepted")
			}
			golden(t, file, a, map[string]string{"problems": err.Error() + "\n"})
		})
	}
}
