package wire_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"code.wake.dev/wake/pkg/wire"
)

// The types that make up most of a log.
var hotTypes = []wire.Type{"agent:text:delta", "agent:thinking:delta", "agent:tool", "usage", "tool:intent"}

// plainEvent is what an event would be without the codec: one struct that is
// encoded by reflection.
type plainEvent struct {
	V            int    `json:"v" msgpack:"v"`
	Type         string `json:"type" msgpack:"type"`
	RunID        string `json:"runId" msgpack:"runId"`
	NodeID       string `json:"nodeId" msgpack:"nodeId"`
	Seq          uint64 `json:"seq" msgpack:"seq"`
	Epoch        uint64 `json:"epoch" msgpack:"epoch"`
	Timestamp    int64  `json:"timestamp" msgpack:"timestamp"`
	ExecID       string `json:"execId,omitempty" msgpack:"execId,omitempty"`
	SessionID    string `json:"sessionId,omitempty" msgpack:"sessionId,omitempty"`
	Turn         int    `json:"turn,omitempty" msgpack:"turn,omitempty"`
	CallID       string `json:"callId,omitempty" msgpack:"callId,omitempty"`
	Content      string `json:"content,omitempty" msgpack:"content,omitempty"`
	TokenCount   *int64 `json:"tokenCount,omitempty" msgpack:"tokenCount,omitempty"`
	Block        int    `json:"block,omitempty" msgpack:"block,omitempty"`
	ToolName     string `json:"toolName,omitempty" msgpack:"toolName,omitempty"`
	ToolInput    any    `json:"toolInput,omitempty" msgpack:"toolInput,omitempty"`
	ToolOutput   any    `json:"toolOutput,omitempty" msgpack:"toolOutput,omitempty"`
	DurationMs   *int64 `json:"durationMs,omitempty" msgpack:"durationMs,omitempty"`
	InputHash    string `json:"inputHash,omitempty" msgpack:"inputHash,omitempty"`
	MessageID    string `json:"messageId,omitempty" msgpack:"messageId,omitempty"`
	Model        string `json:"model,omitempty" msgpack:"model,omitempty"`
	InputTokens  int64  `json:"inputTokens,omitempty" msgpack:"inputTokens,omitempty"`
	OutputTokens int64  `json:"outputTokens,omitempty" msgpack:"outputTokens,omitempty"`
}

func hotPayload(t wire.Type) wire.Payload {
	input := raw(map[string]any{"file_path": "/work/src/main.go", "offset": 120, "limit": 80})
	switch t {
	case "agent:text:delta":
		return &wire.AgentTextDelta{Content: "I'll start by reading ", Block: 3}
	case "agent:thinking:delta":
		return &wire.AgentThinkingDelta{Content: "Let me analyze the ", TokenCount: new(int64(5)), Block: 2}
	case "agent:tool":
		return &wire.AgentTool{
			ToolName: "Read", ToolInput: input, DurationMs: new(int64(42)),
			ToolOutput: wire.RawString(strings.Repeat("    120\tfunc main() {\n", 90)), // 2 KiB
		}
	case "usage":
		return &wire.Usage{MessageID: "msg_01ABCDEFGHIJKLMNOP", Model: "claude-sonnet-4-5", InputTokens: 1200, OutputTokens: 340}
	case "tool:intent":
		return &wire.ToolIntent{ToolName: "Read", ToolInput: input, InputHash: strings.Repeat("0a", 32)}
	default:
		panic(t)
	}
}

func raw(v any) wire.Raw {
	r, err := wire.Marshal(v)
	if err != nil {
		panic(err)
	}
	return r
}

func hotEvent(t wire.Type) *wire.Event {
	e := anEventOf(hotPayload(t))
	e.RunID, e.SessionID, e.Turn = "01KA8Z7Q4M2N8X0V5T3B1C6D9E", "7d4c1c9e-5b0e-4f6b-9d53-0c1f3a5e8b11", 3
	if strings.Contains(string(t), "tool") {
		e.CallID = "toolu_01ABCDEFGHIJKLMNOPQRST"
	}
	return e
}

func quoteName(b testing.TB, e *wire.Event) *plainEvent {
	p := new(plainEvent)
	if err := json.Unmarshal(wantError(b, wire.EncodeJSON, e), p); err != nil {
		b.Fatal(err)
	}
	return p
}

// BenchmarkEncode compares the codec with encoding/json and with msgpack by
// reflection, as its documentation recommends it: compact integers, a recycled
// encoder.
func BenchmarkEncode(b *testing.B) {
	for _, typ := range hotTypes {
		e := hotEvent(typ)
		p := quoteName(b, e)
		b.Run(string(typ)+"/wire", func(b *testing.B) { loop(b, func() error { _, err := wire.Encode(e); return err }) })
		b.Run(string(typ)+"/json", func(b *testing.B) { loop(b, func() error { _, err := json.Marshal(p); return err }) })
		b.Run(string(typ)+"/msgpack", func(b *testing.B) { loop(b, func() error { _, err := reflective(p); return err }) })
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, typ := range hotTypes {
		e := hotEvent(typ)
		p := quoteName(b, e)
		ours := encode(b, e)
		text := wantError(b, json.Marshal, any(p))
		packed := wantError(b, reflective, p)
		b.Run(string(typ)+"/wire", func(b *testing.B) { loop(b, func() error { _, err := wire.Decode(ours); return err }) })
		b.Run(string(typ)+"/json", func(b *testing.B) { loop(b, func() error { return json.Unmarshal(text, new(plainEvent)) }) })
		b.Run(string(typ)+"/msgpack", func(b *testing.B) { loop(b, func() error { return msgpack.Unmarshal(packed, new(plainEvent)) }) })
	}
}

func loop(b *testing.B, f func() error) {
	b.ReportAllocs()
	for b.Loop() {
		if err := f(); err != nil {
			b.Fatal(err)
		}
	}
}

func reflective(p *plainEvent) ([]byte, error) {
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	var out bytes.Buffer
	enc.Reset(&out)
	enc.UseCompactInts(true)
	enc.SetSortMapKeys(true)
	err := enc.Encode(p)
	return out.Bytes(), err
}

// BenchmarkState is a snapshot of a run of 100 nodes.
func BenchmarkState(b *testing.B) {
	s := wire.State{
		V: 1, RunID: "r1", Status: wire.RunRunning, Outputs: map[string]wire.Raw{}, NodeStatus: map[string]wire.NodeStatus{},
		Nodes: map[string]wire.NodeState{},
	}
	for i := range 100 {
		name := strings.Repeat("n", i+1)
		s.Outputs[name] = raw(map[string]any{"text": strings.Repeat("output ", 50), "ok": true})
		s.NodeStatus[name] = wire.NodeDone
		s.Nodes[name] = wire.NodeState{Epoch: 1, Seq: 100, Runner: "runner-1", Exec: name + "#1", Execs: 1, Type: "agent"}
	}
	packed := raw(s)
	b.SetBytes(int64(len(packed)))
	b.Run("Marshal", func(b *testing.B) { loop(b, func() error { _, err := wire.Marshal(&s); return err }) })
	b.Run("Unmarshal", func(b *testing.B) { loop(b, func() error { return wire.Unmarshal(packed, new(wire.State)) }) })
	b.Run("json.Marshal", func(b *testing.B) { loop(b, func() error { _, err := json.Marshal(&s); return err }) })
}

func BenchmarkJSON(b *testing.B) {
	e := hotEvent("agent:tool")
	text := wantError(b, wire.EncodeJSON, e)
	b.SetBytes(int64(len(text)))
	b.Run("EncodeJSON", func(b *testing.B) { loop(b, func() error { _, err := wire.EncodeJSON(e); return err }) })
	b.Run("DecodeJSON", func(b *testing.B) { loop(b, func() error { _, err := wire.DecodeJSON(text); return err }) })
}
