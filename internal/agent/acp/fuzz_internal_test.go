package acp

import (
	"bytes"
	"strings"
	"testing"

	sdk "github.com/coder/acp-go-sdk"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// FuzzLines gives the fold whatever a program may print. It makes events that can be stored, each call ends once, what it knows
// can be left and taken up again, and it comes to one end.
func FuzzLines(f *testing.F) {
	for _, lines := range []string{
		`{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"authMethods":[],"agentCapabilities":{"loadSession":true}}}`,
		`{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s","modes":{"availableModes":[{"id":"a","name":"A"}],"currentModeId":"a"},"configOptions":[{"type":"select","id":"m","name":"M","category":"model","currentValue":"x","options":[{"value":"x","name":"X"}]}]}}`,
		`{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"tool_call","toolCallId":"c","title":"t","rawInput":{"a":1}}}}` + "\n" +
			`{"id":7,"method":"session/request_permission","params":{"sessionId":"s","options":[{"kind":"allow_once","name":"x","optionId":"y"}],"toolCall":{"toolCallId":"c"}}}` + "\n" +
			`{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed","content":[{"type":"diff","path":"p","newText":"n"}]}}}`,
		`{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"plan","entries":[{"content":"x","priority":"high","status":"completed"}]}}}`,
		`{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"usage_update","used":5,"size":-1,"cost":{"amount":1e300,"currency":"usd"}}}}`,
		`{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn","usage":{"inputTokens":-5,"outputTokens":7,"totalTokens":2},"_meta":{"quota":{"token_count":{"input_tokens":1}}}}}`,
		`{"jsonrpc":"2.0","id":"3","error":{"code":-32000,"message":"\u001b[2J","data":{"x":[1]}}}`, `{"id":{},"method":1}`, "\x00\xff",
	} {
		f.Add([]byte(lines))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		r := agent.Request{SessionID: "ours", Options: agent.Options{Blocks: agent.BlocksAlways}}
		x := newFold(r)
		x.Sent = map[string]request{"1": {Method: sdk.AgentMethodInitialize}, "2": {Method: sdk.AgentMethodSessionNew}, "3": {Method: sdk.AgentMethodSessionPrompt}}
		x.Prompted = bytes.ContainsRune(input, 'p')
		var events []*wire.Event
		for line := range strings.Lines(string(input)) {
			m, _, _ := x.takeLine(5, []byte(line))
			events = append(events, x.takeEvents()...)
			if id := string(m.ID); x.Questions[id] != "" {
				x.takeDecision(6, id, &wire.PermissionDecided{Decision: wire.DecisionDeny})
			}
			left, err := wire.Marshal(&x.state)
			if err != nil {
				t.Fatalf("what it knows can't be left: %v", err)
			}
			next := newFold(r)
			if err := wire.Unmarshal(left, &next.state); err != nil {
				t.Fatalf("what it knew can't be read: %v", err)
			}
			next.fillMaps()
			next.out, x = x.out, next
		}
		events = append(append(events, x.takeEvents()...), x.finish(9, exit{}, false)...)
		open, ends := map[string]bool{}, 0
		for i, e := range events {
			e.RunID, e.NodeID, e.Seq, e.Epoch = "r1", "n", uint64(i+1), 1
			if _, err := wire.Encode(e); err != nil {
				t.Fatalf("%s can't be stored: %v", e.Type(), err)
			}
			switch p := e.Payload.(type) {
			case *wire.ToolIntent:
				if open[e.CallID] {
					t.Fatalf("call %q begins twice", e.CallID)
				}
				open[e.CallID] = true
			case *wire.AgentTool:
				if !open[e.CallID] {
					t.Fatalf("call %q ends without a begin", e.CallID)
				}
				delete(open, e.CallID)
			case *wire.AgentComplete:
				ends++
			case *wire.AgentError:
				if p.Severity == wire.SeverityError {
					ends++
				}
			}
		}
		if ends != 1 || len(open) > 0 {
			t.Fatalf("it has %d ends, and %v are open", ends, open)
		}
	})
}
