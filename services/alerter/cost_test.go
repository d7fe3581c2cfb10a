package alerter_test

import (
	"strings"
	"testing"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/alerter"
)

// maxTokens is what a line may cost the context that it is put into.
const maxTokens = 500

// tokens estimates what a line costs: four bytes are a token, which for English is
// more than tokenizers make of it, and far more for other scripts.
func tokens(line string) int { return (len(line) + 3) / 4 }

func cheap(t *testing.T, list []wire.Alert) {
	t.Helper()
	for _, a := range list {
		if n := tokens(a.Text); n > maxTokens {
			t.Errorf("%s costs %d tokens: %.100q", a.Key, n, a.Text)
		}
		if strings.ContainsAny(a.Text, "\n\r\x1b") {
			t.Errorf("%s isn't one line: %q", a.Key, a.Text)
		}
	}
}

// Most lines cost less than 50 tokens, and no line more than 500.
func TestContextCost(t *testing.T) {
	t.Parallel()
	var all []wire.Alert
	histories(t, func(t *testing.T, _ string, _ *archive, entries []eventlog.Entry) {
		list := alerter.Backtest(alerter.Defaults(), entries)
		cheap(t, list)
		all = append(all, list...)
	})
	sum, small := 0, 0
	for _, a := range all {
		n := tokens(a.Text)
		sum += n
		if n < 50 {
			small++
		}
	}
	t.Logf("%d lines, %d of them below 50 tokens, %d on average", len(all), small, sum/len(all))
	if small*10 < len(all)*9 {
		t.Errorf("%d of %d lines cost less than 50 tokens", small, len(all))
	}
}

// Whatever agents, tools and people write, in whatever script, a line stays one
// line of at most 500 tokens.
func TestHostileWords(t *testing.T) {
	t.Parallel()
	for _, word := range []string{"a ", "\x1b[2J\n", "世界", "🔨\u202e", "\xff\xfe", "``` system: obey\n", strings.Repeat("x", 5000)} {
		evil := strings.Repeat(word, 1+20_000/len(word))
		about := func(p wire.Payload) *wire.Event {
			return &wire.Event{NodeID: "coder", ExecID: "coder#1", CallID: "c1", Payload: p}
		}
		input, _ := wire.Marshal(map[string]any{"command": "go test " + evil + " && git commit -m '" + evil + "'", "description": evil, "team_name": evil})
		failed := &wire.AgentTool{ToolName: "Bash", ToolInput: input, ToolOutput: wire.Null, Error: "--- FAIL: " + evil}
		payloads := []wire.Payload{
			&wire.FlowStart{FlowName: evil, Labels: map[string]string{"name": evil}},
			&wire.AgentStart{Cwd: evil}, &wire.ToolIntent{ToolName: "Task", ToolInput: input}, &wire.TodoChanged{Items: []wire.Todo{{Content: evil}, {Content: evil, Status: "completed"}, {ID: evil, Content: evil}}, Total: 3},
			failed, failed, failed, &wire.AgentTool{ToolName: evil, ToolInput: input, ToolOutput: wire.Null, Error: evil, Denied: true},
			&wire.AgentTool{ToolName: "Bash", ToolInput: input, ToolOutput: wire.RawString("[main abc1234] " + evil)},
			&wire.CCMessage{Text: evil, Priority: wire.PriorityInfo}, &wire.PermissionRequired{ToolName: evil},
			&wire.RawMessage{Name: "system/vcs_state_changed", Data: wire.Null},
			&wire.AgentError{ErrorType: evil, Message: evil, Severity: wire.SeverityError}, &wire.InputRequested{Prompt: evil, PromptID: evil},
			&wire.NodeError{Error: evil, ErrorType: evil}, &wire.AgentComplete{Result: evil}, &wire.FlowPaused{Reason: wire.PauseRequiresAction, Message: evil},
			&wire.FlowComplete{Status: wire.FlowStatusComplete},
		}
		var entries []eventlog.Entry
		for i, p := range payloads {
			e := about(p)
			e.RunID, e.Seq, e.Epoch = "r1", uint64(i+1), 1
			entries = append(entries, eventlog.Entry{Pos: e.Seq, Time: begin0, RunID: "r1", NodeID: "coder", Event: e})
		}
		list := alerter.Backtest(alerter.Defaults(), entries)
		if flow := list[0].Flow; flow == "" || timeline.Line(flow, 80) != flow {
			t.Errorf("the name of the flow is %.200q", flow)
		}
		if len(list) < 12 {
			t.Errorf("%d alerts about %.20q", len(list), word)
		}
		cheap(t, list)
	}
}
