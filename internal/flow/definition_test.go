package flow_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"code.wake.dev/wake/internal/document"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

const whole = `
name: review
description: plan, test, fix
workspace: node
pool: big
labels: {team: infra}
state: {task: "…", n: 9007199254740993, list: [1, 2.5, true, null]}
nodes:
  - id: plan
    type: agent
    when: $exists(state.task)
    input: {provider: claude, prompt: "Plan {{ state.task }}", maxTurns: 20, outputSchema: {type: object}}
    goal: plan.ok
    score: "plan.done / plan.total"
    scope: {tools: [Read, Edit], paths: ["src/**"]}
    audits: [{id: "audit:tests", command: go test ./...}]
    pool: gpu
    ui: {x: 1, y: 2}
  - id: test
    type: exec
    input: {command: [go, test, ./...]}
    idempotent: true
    policy: {retry: {maxAttempts: 2, backoffMs: 500}, timeoutMs: 600000, continueOnError: true}
  - id: each
    type: set
    input: {merge: {seen: "{{ item }}"}}
edges:
  - {from: plan, to: test, gate: any}
  - {id: back, from: test, to: plan, when: {not: {equals: {var: test.exitCode, value: 0}}}, maxIterations: 3}
  - {from: test, to: each, forEach: {in: state.list, as: item}}
`

func TestDefinitionSurvivesTheLog(t *testing.T) {
	d, err := flow.Parse("review.yaml", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	again, err := flow.FromRaw(d.Raw())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(d.Raw(), again.Raw()) || d.Hash() != again.Hash() {
		t.Errorf("the definition differs:\n%s", cmp.Diff(jsonText(t, d.Raw()), jsonText(t, again.Raw())))
	}
	if diff := cmp.Diff(d.Nodes, again.Nodes); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(d.Edges, again.Edges); diff != "" {
		t.Error(diff)
	}
	const want = "6cd1fd4a" // a change of the hash makes every running flow another one
	if got := d.Hash()[:8]; got != want {
		t.Errorf("hash %s, want %s", got, want)
	}
}

// The same flow in JSON is the same definition.
func TestJSONAndYAMLAreTheSame(t *testing.T) {
	d, err := flow.Parse("review.yaml", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	j, err := flow.Parse("review.json", []byte(jsonText(t, d.Raw())))
	if err != nil {
		t.Fatal(err)
	}
	if j.Hash() != d.Hash() {
		t.Error(cmp.Diff(jsonText(t, d.Raw()), jsonText(t, j.Raw())))
	}
}

func TestJSONEscapes(t *testing.T) {
	src := `{"name":"\ud83d\ude00\/\u00e9","nodes":[{"id":"a","type":"set","input":{"output":"\u007b{ 'x' }}"}}]}`
	d, err := flow.Parse("x", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	if d.Name != "😀/é" {
		t.Errorf("name is %q", d.Name)
	}
}

func TestYAMLReuse(t *testing.T) {
	d, err := flow.Parse("x.yaml", []byte(`
# a comment
name: x
nodes:
  - {id: a, type: set, input: &in {output: {v: 1}}}
  - {id: b, type: set, input: *in}
  - id: c
    type: set
    input:
      output: |
        two
        lines
`))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(d.Nodes[0].Input, d.Nodes[1].Input) {
		t.Error("an alias is not what it stands for")
	}
	if got := d.Nodes[2].Input.TextAt("output"); got != "two\nlines\n" {
		t.Errorf("got %q", got)
	}
}

// A file that would be huge with its aliases replaced is refused, soon.
func TestAliasBomb(t *testing.T) {
	var b strings.Builder
	b.WriteString("name: x\nnodes: []\nstate:\n  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := range 9 {
		prev, next := string(rune('0'+i)), string(rune('1'+i))
		b.WriteString("  a" + next + ": &a" + next + " [" + strings.Repeat("*a"+prev+", ", 9) + "*a" + prev + "]\n")
	}
	_, err := flow.Parse("bomb.yaml", []byte(b.String()))
	if err == nil || !strings.Contains(err.Error(), "what aliases stand for") {
		t.Errorf("got %v", err)
	}
}

func TestHugeFiles(t *testing.T) {
	for name, src := range map[string]string{
		"size.yaml": "name: " + strings.Repeat("x", 600<<10),
		"deep.json": strings.Repeat("[", 100_000),
		"deep.yaml": "name: " + strings.Repeat("[", 2000) + strings.Repeat("]", 2000),
	} {
		if _, err := flow.Parse(name, []byte(src)); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestFromRawRefusesWhatIsNoFlow(t *testing.T) {
	for _, src := range []string{`null`, `{}`, `[]`, `{"name":"x","nodes":[{"id":"a","type":"magic"}]}`} {
		_, err := flow.FromRaw(raw(t, src))
		var problems *document.Error
		if !errors.As(err, &problems) || !strings.HasPrefix(err.Error(), "definition: ") {
			t.Errorf("%s: got %v", src, err)
		}
	}
}

func TestNode(t *testing.T) {
	d, err := flow.Parse("x.yaml", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{"plan": "plan", "each/3": "each", "nope": "", "": "", "/": ""} {
		got := ""
		if n := d.Node(id); n != nil {
			got = n.ID
		}
		if got != want {
			t.Errorf("Node(%q) is %q, want %q", id, got, want)
		}
	}
}

func TestEmbed(t *testing.T) {
	files := map[string]string{
		"flows/parent.yaml":      "name: parent\nnodes: [{id: c, type: flow, input: {flow: child/a.yaml, input: {x: \"{{ state.x }}\"}}}]",
		"flows/child/a.yaml":     "name: a\nnodes: [{id: b, type: flow, input: {flow: ../b.json}}]",
		"flows/b.json":           `{"name":"b","nodes":[{"id":"e","type":"set","input":{"output":"{{ input.x }}"}}]}`,
		"flows/self.yaml":        "name: self\nnodes: [{id: c, type: flow, input: {flow: self.yaml}}]",
		"flows/missing.yaml":     "name: missing\nnodes: [{id: c, type: flow, input: {flow: nope.yaml}}]",
		"flows/bad.yaml":         "name: bad\nnodes: [{id: c, type: flow, input: {flow: badchild.yaml}}]",
		"flows/badchild.yaml":    "name: badchild\nnodes: [{id: c, type: sett}]",
		"flows/childless.yaml":   "name: childless\nnodes: [{id: a, type: set, input: {output: 1}}]",
		"flows/deep.yaml":        "name: deep\nnodes: [{id: c, type: flow, input: {flow: deep1.yaml}}]",
		"flows/lead.yaml":        "name: lead\nnodes: [{id: a, type: agent, input: {provider: native, prompt: p}, flows: [{name: a, flow: child/a.yaml}, {name: in, flow: {name: in, nodes: [{id: c, type: flow, input: {flow: b.json}}]}}]}]",
		"flows/leads.yaml":       "name: leads\nnodes: [{id: a, type: agent, input: {provider: native, prompt: p}, flows: [{name: me, flow: leads.yaml}]}]",
		"flows/outer/again.yaml": "name: x\nnodes: [{id: c, type: flow, input: {flow: ../self.yaml}}]",
	}
	for i := 1; i < 10; i++ {
		next := string(rune('1' + i))
		files["flows/deep"+string(rune('0'+i))+".yaml"] = "name: deep\nnodes: [{id: c, type: flow, input: {flow: deep" + next + ".yaml}}]"
	}
	read := func(file string) ([]byte, error) {
		if src, ok := files[file]; ok {
			return []byte(src), nil
		}
		return nil, &fs.PathError{Op: "open", Path: file, Err: fs.ErrNotExist}
	}
	embed := func(file string) (*flow.Definition, error) {
		d, err := flow.Parse(file, []byte(files[file]))
		if err != nil {
			t.Fatal(err)
		}
		return d.Embed(file, read)
	}
	d, err := embed("flows/parent.yaml")
	if err != nil {
		t.Fatal(err)
	}
	inner := d.Nodes[0].Input.Get("flow")
	if name := inner.TextAt("name"); name != "a" {
		t.Errorf("the child is %q", name)
	}
	if !strings.Contains(jsonText(t, inner), `"name":"b"`) {
		t.Error("the child's child is missing")
	}
	if d, err = embed("flows/lead.yaml"); err != nil {
		t.Fatal(err)
	}
	for _, c := range d.Nodes[0].Flows {
		if !strings.Contains(jsonText(t, c.Flow), `"name":"b"`) {
			t.Errorf("%s hasn't its child: %s", c.Name, jsonText(t, c.Flow))
		}
	}
	if d, err := embed("flows/childless.yaml"); err != nil || d.Name != "childless" {
		t.Errorf("got %v", err)
	}
	for file, want := range map[string]string{
		"flows/self.yaml":        "flows/self.yaml:2:43: nodes[0].input.flow: flows/self.yaml contains itself",
		"flows/leads.yaml":       "flows/leads.yaml:2:93: nodes[0].flows[0].flow: flows/leads.yaml contains itself",
		"flows/outer/again.yaml": "flows/self.yaml:2:43: nodes[0].input.flow: flows/self.yaml contains itself",
		"flows/missing.yaml":     "flows/missing.yaml:2:43: nodes[0].input.flow: open flows/nope.yaml: file does not exist",
		"flows/bad.yaml":         `flows/badchild.yaml:2:23: nodes[0].type: "sett" is unknown; it is one of agent, exec, set, ask, sleep, at, flow; did you mean "set"?`,
		"flows/deep.yaml":        "flows/deep7.yaml:2:43: nodes[0].input.flow: flows nest deeper than 8",
	} {
		if _, err := embed(file); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", file, err, want)
		}
	}
}

// The flows that come with wake are right.
func TestExamples(t *testing.T) {
	for _, file := range glob(t, "../../flows/*.yaml") {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		d, err := flow.Parse(file, src)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		if _, err := d.Embed(file, os.ReadFile); err != nil {
			t.Errorf("%v", err)
		}
	}
}

func jsonText(t testing.TB, v wire.Raw) string {
	t.Helper()
	b, err := wire.AppendJSON(nil, v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// No file makes the parser panic; what it accepts survives the log, and every
// problem has a place.
func FuzzParse(f *testing.F) {
	f.Add("x.yaml", []byte(whole))
	f.Add("x.json", []byte(`{"name":"x","nodes":[{"id":"a","type":"set","input":{"output":"\ud83d\ude00"}}]}`))
	for _, pattern := range []string{"testdata/problems/*.txtar", "testdata/runs/*.txtar"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			a, err := txtar.ParseFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(a.Files[0].Name, a.Files[0].Data)
		}
	}
	f.Fuzz(func(t *testing.T, name string, src []byte) {
		d, err := flow.Parse(name, src)
		var problems *document.Error
		if err != nil {
			if !errors.As(err, &problems) || len(problems.Problems) == 0 {
				t.Fatalf("%T %v", err, err)
			}
			for _, p := range problems.Problems {
				if p.Line < 1 || p.Col < 1 || p.Message == "" {
					t.Fatalf("no place: %+v", p)
				}
			}
			return
		}
		again, err := flow.FromRaw(d.Raw())
		if err != nil {
			t.Fatalf("what was accepted is refused: %v", err)
		}
		if again.Hash() != d.Hash() {
			t.Fatal(cmp.Diff(jsonText(t, d.Raw()), jsonText(t, again.Raw())))
		}
	})
}
