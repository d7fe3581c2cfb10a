package wire_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
)

func upper(_ []string, _ bool, text string) string { return strings.ToUpper(text) }

// Texts of the payload are mapped, at any depth; the envelope isn't, nor what
// allows few words only.
func TestMapText(t *testing.T) {
	t.Parallel()
	input := wire.RawOf(map[string]any{"a": []any{"x", int64(1), map[string]any{"b": "y", "B": "z"}}})
	got := mapped(t, &wire.Event{Payload: &wire.AgentTool{ToolName: "bash", ToolInput: input, ToolOutput: wire.RawString("out")}}, upper)
	want := &wire.AgentTool{ToolName: "BASH", ToolInput: wire.RawOf(map[string]any{"A": []any{"X", int64(1), map[string]any{"B": "Z", "B#2": "Y"}}}), ToolOutput: wire.RawString("OUT")}
	if d := cmp.Diff(want, got.Payload); d != "" {
		t.Error(d)
	}
	if got.RunID != "r" || got.CallID != "c" {
		t.Errorf("the envelope became %s, %s", got.RunID, got.CallID)
	}
	end := mapped(t, &wire.Event{Payload: &wire.FlowComplete{FlowName: "f", Status: wire.FlowStatusFailed, Error: "e"}}, upper)
	if d := cmp.Diff(&wire.FlowComplete{FlowName: "F", Status: wire.FlowStatusFailed, Error: "E"}, end.Payload); d != "" {
		t.Error(d)
	}
}

// Whatever vector there is: mapping texts to themselves changes nothing, and
// every text comes by with the path that leads to it.
func TestMapTextIsIdentity(t *testing.T) {
	t.Parallel()
	paths := map[string]bool{}
	e := &wire.Event{Payload: &wire.FlowStart{
		FlowName: "f", Definition: wire.RawOf(map[string]any{"nodes": []any{map[string]any{"id": "n"}}}), DefinitionHash: "h",
		Labels: map[string]string{"l": "v"},
	}}
	got := mapped(t, e, func(path []string, key bool, text string) string {
		if !key {
			paths[strings.Join(slices.Clone(path), ".")+"="+text] = true
		}
		return text
	})
	if d := cmp.Diff(e, got); d != "" {
		t.Error(d)
	}
	want := map[string]bool{"flowName=f": true, "definition.nodes.id=n": true, "definitionHash=h": true, "labels.l=v": true}
	if d := cmp.Diff(want, paths); d != "" {
		t.Error(d)
	}
}

func mapped(t *testing.T, e *wire.Event, f func([]string, bool, string) string) *wire.Event {
	t.Helper()
	e.RunID, e.NodeID, e.Seq, e.Epoch, e.CallID = "r", "n", 1, 1, "c"
	data, err := wire.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	got, err := wire.MapText(data, f)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// Keys that become equal are numbered, however many there are: an agent may have as many as a line holds.
func TestMapManyEqualKeys(t *testing.T) {
	t.Parallel()
	const keys = 50_000
	fields := map[string]any{}
	for i := range keys {
		fields[strconv.Itoa(i)] = true
	}
	one := func(_ []string, isKey bool, text string) string {
		if isKey {
			return "k"
		}
		return text
	}
	e := mapped(t, &wire.Event{Payload: &wire.AgentTool{ToolName: "t", ToolInput: wire.RawOf(fields), ToolOutput: wire.Null}}, one)
	got, _ := e.Payload.(*wire.AgentTool).ToolInput.Any().(map[string]any)
	if last := "k#" + strconv.Itoa(keys); len(got) != keys || got["k"] != true || got[last] != true {
		t.Errorf("%d of %d keys are left", len(got), keys)
	}
}
