package export_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/pkg/wire"
)

// specification is what the agent observability specification (§3) says of each
// event beyond nodeId, runId and timestamp: its fields, required or not.
var specification = map[string]string{
	"agent:start":          "sessionId model? prompt",
	"agent:thinking:delta": "content tokenCount?",
	"agent:thinking":       "content tokenCount?",
	"agent:text:delta":     "content",
	"agent:text":           "content",
	"agent:tool":           "toolName toolInput toolOutput durationMs? error?",
	"agent:error":          "errorType message details?",
	"agent:complete":       "result structuredOutput? usage modelUsage? totalCostUsd? durationMs numTurns",
}

// Every event of every recording has the fields of the specification, no others,
// and those that are required.
func TestSpelledAsSpecified(t *testing.T) {
	seen := map[string]bool{}
	for _, file := range recordings(t) {
		var b bytes.Buffer
		h := recorded(t, file)
		if _, err := export.OpenHarness(&b, h.run, h.events(), h.events()); err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(b.Bytes()) {
			var fields map[string]json.RawMessage
			if err := json.Unmarshal(line, &fields); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			var name string
			_ = json.Unmarshal(fields["type"], &name)
			seen[name] = true
			spec, is := specification[name]
			if !is {
				continue
			}
			known := map[string]bool{"type": true, "nodeId": true, "runId": true, "timestamp": true}
			for f := range strings.FieldsSeq(spec + " nodeId runId timestamp") {
				field, optional := strings.CutSuffix(f, "?")
				known[field] = true
				if _, has := fields[field]; !has && !optional {
					t.Errorf("%s: %s has no %s", file, name, field)
				}
			}
			for field := range fields {
				if !known[field] {
					t.Errorf("%s: %s has a field %s", file, name, field)
				}
			}
			if got := string(fields["runId"]); got != `"coder#1"` {
				t.Errorf("%s: %s is of execution %s", file, name, got)
			}
		}
	}
	for name := range specification {
		if !seen[name] {
			t.Errorf("no recording has %s", name)
		}
	}
}

// Totals have the fields that are named, per model fewer than in all.
func TestTotals(t *testing.T) {
	var b bytes.Buffer
	h := newHistory(t)
	n, usd := int64(3), 0.5
	h.event("a", &wire.Event{ExecID: "a#1", Payload: &wire.AgentComplete{
		Result: "ok", Usage: wire.TokenUsage{InputTokens: 1, OutputTokens: 2, CacheReadInputTokens: &n},
		ModelUsage: map[string]wire.ModelUsage{"m": {InputTokens: 1, OutputTokens: 2, CacheReadInputTokens: &n, CostUsd: &usd, ContextWindow: 9}},
		StopReason: "end_turn", TotalCostUsd: &usd,
	}})
	h.add(wire.RunNode, "", &wire.StatePatch{Patch: wire.Patch{Op: wire.PatchSet, Path: "a", Value: wire.RawString("b")}})
	h.add(wire.RunNode, "b#1", &wire.NodeSkipped{Target: "b", Reason: "when"})
	if _, err := export.OpenHarness(&b, h.run, h.events(), h.events()); err != nil {
		t.Fatal(err)
	}
	want := `{"type":"agent:complete","nodeId":"a","runId":"a#1","timestamp":1795220000200,"result":"ok","usage":{"inputTokens":1,"outputTokens":2,"cacheReadInputTokens":3},"modelUsage":{"m":{"inputTokens":1,"outputTokens":2}},"totalCostUsd":0.5,"durationMs":0,"numTurns":0}
{"type":"state:patch","timestamp":1795220000300,"patch":{"op":"set","path":"a","value":"b"}}
{"type":"node:skipped","nodeId":"b","runId":"b#1","timestamp":1795220000400,"reason":"when"}
`
	if b.String() != want {
		t.Errorf("%s", b.String())
	}
}

// What was taken back, since the message was interrupted, isn't told: it is said anew.
func TestTakenBack(t *testing.T) {
	var b bytes.Buffer
	h := newHistory(t)
	text := func(s string) { h.add("a", "a#1", &wire.AgentTextDelta{Content: s, Block: 1}) }
	h.add("a", "a#1", &wire.TurnStart{})
	begun := h.entries[len(h.entries)-1].Event.Seq
	text("The ans")
	h.add("b", "b#1", &wire.AgentTextDelta{Content: "of b", Block: 1})
	h.add("a", "a#1", &wire.LogTruncated{AtSeq: begun - 1})
	text("The answer")
	if _, err := export.OpenHarness(&b, h.run, h.events(), h.events()); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); strings.Count(got, "The ans") != 1 || !strings.Contains(got, "of b") {
		t.Errorf("%s", got)
	}
}
