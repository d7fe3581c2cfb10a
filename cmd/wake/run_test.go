package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/pkg/wire"
)

func writeFlow(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "flow.yaml")
	src := "name: hello\nnodes:\n  - {id: greet, type: exec, input: {command: echo hello}}\n"
	if err := os.WriteFile(path, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func text(t *testing.T, r wire.Raw) string {
	t.Helper()
	if r == nil {
		return ""
	}
	b, err := wire.AppendJSON(nil, r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestRequest(t *testing.T) {
	file := writeFlow(t)
	a := &app{in: strings.NewReader(`{"from":"stdin"}`)}
	input := filepath.Join(t.TempDir(), "input.json")
	if err := os.WriteFile(input, []byte(`[1, 2]`), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r, err := a.buildRequest(file, runOptions{
		id: "r1", input: "@" + input, fixtures: dir, workspace: dir, labels: []string{"name=a=b", "empty="},
		sets: []string{"n=3", "task=the parser", `quoted="3"`, "deep.a=true", "deep.b.c=null", "json={\"x\":1}", "eq=a=b"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.RunID != "r1" || r.Fixtures != dir || r.Workspace != dir || r.Labels["name"] != "a=b" || r.Labels["empty"] != "" {
		t.Errorf("request %+v", r)
	}
	if got, want := text(t, r.Input), `[1,2]`; got != want {
		t.Errorf("input %s, want %s", got, want)
	}
	want := `{"deep":{"a":true,"b":{"c":null}},"eq":"a=b","json":{"x":1},"n":3,"quoted":"3","task":"the parser"}`
	if got := text(t, r.State); got != want {
		t.Errorf("state %s, want %s", got, want)
	}
	if r, err = a.buildRequest(file, runOptions{input: "-"}); err != nil {
		t.Fatal(err)
	}
	if got, want := text(t, r.Input), `{"from":"stdin"}`; got != want {
		t.Errorf("input %s, want %s", got, want)
	}
	if len(r.RunID) != 26 || r.RunID != strings.ToLower(r.RunID) {
		t.Errorf("id %q, want a lower-case ULID", r.RunID)
	}
	if r.State != nil || r.Labels != nil || r.Fixtures != "" {
		t.Errorf("request %+v, want nothing that wasn't asked for", r)
	}
}

func TestRequestErrors(t *testing.T) {
	file := writeFlow(t)
	tests := []struct {
		o    runOptions
		text string
	}{
		{runOptions{id: "_run"}, "--id: "},
		{runOptions{input: "{"}, "--input is not JSON"},
		{runOptions{input: "hello"}, "--input is not JSON"},
		{runOptions{input: "@/nowhere"}, "/nowhere"},
		{runOptions{sets: []string{"x"}}, `--set: "x" has no key and value`},
		{runOptions{sets: []string{"=x"}}, `--set: "=x" has no key and value`},
		{runOptions{sets: []string{"a=1", "a.b=2"}}, "--set a.b=2: a is set to a value already"},
		{runOptions{labels: []string{"x"}}, `--label: "x" has no key and value`},
		{runOptions{fixtures: "/nowhere"}, "--fixtures: stat /nowhere"},
		{runOptions{workspace: file}, "is no folder"},
	}
	for _, tt := range tests {
		_, err := (&app{}).buildRequest(file, tt.o)
		if err == nil || !strings.Contains(err.Error(), tt.text) || apiError(err).Code != service.CodeUsage {
			t.Errorf("%+v: %v, want wrong use: %s", tt.o, err, tt.text)
		}
	}
}
