package claude_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/pkg/wire"
)

const initLine = `{"type":"system","subtype":"init","session_id":"s1","cwd":"/src","model":"m","tools":["Bash"],"claude_code_version":"2.1.0","permissionMode":"default","uuid":"u0"}`

// run normalises lines that arrive a second apart.
func run(t *testing.T, o claude.NormalizerOptions, exit claude.Exit, lines ...string) []*wire.Event {
	t.Helper()
	n := claude.NewNormalizer(o)
	var events []*wire.Event
	at := int64(epoch)
	for _, line := range lines {
		events = append(events, n.Line(at, []byte(line))...)
		at += 1000
	}
	events = append(events, n.Finish(at, exit)...)
	check(t, events)
	return events
}

// said renders events shortly: the type and what tells them apart.
func said(events []*wire.Event) []string {
	var out []string
	for _, e := range events {
		s := string(e.Type())
		switch p := e.Payload.(type) {
		case *wire.AgentText:
			s += fmt.Sprintf(" #%d %q", p.Block, p.Content)
			if p.Supersedes > 0 {
				s += fmt.Sprintf(" supersedes #%d", p.Supersedes)
			}
		case *wire.AgentTextDelta:
			s += fmt.Sprintf(" #%d %q", p.Block, p.Content)
		case *wire.UserMessage:
			s += fmt.Sprintf(" %s %s %q", p.Source, p.CommandID, p.Content)
		case *wire.ToolIntent:
			s += fmt.Sprintf(" %s %s %v", e.CallID, p.ToolName, p.ToolInput.Any())
		case *wire.AgentTool:
			s += fmt.Sprintf(" %s %s %v %q", e.CallID, p.ToolName, p.ToolOutput.Any(), p.Error)
		case *wire.AgentError:
			s += fmt.Sprintf(" %s %q %s", p.ErrorType, p.Message, p.Severity)
		case *wire.AgentComplete:
			s += fmt.Sprintf(" %q", p.Result)
		case *wire.SessionBound:
			s += fmt.Sprintf(" %s→%s", p.OldSession, p.NewSession)
		case *wire.Usage:
			s += fmt.Sprintf(" %s %d/%d", p.MessageID, p.InputTokens, p.OutputTokens)
		case *wire.RawMessage:
			if p.Name == "malformed" && p.Reason != "" {
				p.Reason = "…"
			}
			s += fmt.Sprintf(" %s %q", p.Name, p.Reason)
		case *wire.TurnStart:
			s += fmt.Sprintf(" %d", e.Turn)
		case *wire.PermissionDecided:
			s += fmt.Sprintf(" %s %s", e.CallID, p.Decision)
		case *wire.ToolState:
			s += fmt.Sprintf(" %s %s %s", e.CallID, p.From, p.To)
		case *wire.CCMessage:
			s += fmt.Sprintf(" %s %q", p.Priority, p.Text)
		}
		if e.Parent != "" {
			s += " in " + e.Parent
		}
		out = append(out, s)
	}
	return out
}

func wantSaid(t *testing.T, got []*wire.Event, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, said(got)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func message(id, parent string, blocks ...string) string {
	p := "null"
	if parent != "" {
		p = `"` + parent + `"`
	}
	return fmt.Sprintf(`{"type":"assistant","parent_tool_use_id":%s,"session_id":"s1","message":{"id":%q,"model":"m","role":"assistant","content":[%s],"usage":{"input_tokens":1,"output_tokens":2}}}`,
		p, id, strings.Join(blocks, ","))
}

func streamed(parent, event string) string {
	p := "null"
	if parent != "" {
		p = `"` + parent + `"`
	}
	return fmt.Sprintf(`{"type":"stream_event","session_id":"s1","parent_tool_use_id":%s,"event":%s}`, p, event)
}

func textOf(s string) string { return fmt.Sprintf(`{"type":"text","text":%q}`, s) }

const success = `{"type":"result","subtype":"success","is_error":false,"result":"Done.","session_id":"s1","duration_ms":5,"num_turns":1,"total_cost_usd":0.5,"usage":{"input_tokens":1,"output_tokens":2}}`

func TestUnknownAndMalformedLines(t *testing.T) {
	got := run(t, claude.NormalizerOptions{}, claude.Exit{},
		initLine,
		"",
		"   ",
		"not json",
		`{"type":"unknown_type","x":1}`,
		`"massive error"`,
		`42`,
		`[1]`,
		`{"silly":"this"}`,
		`{"type":"user","message":"error","uuid":"u1"}`,
		`{"type":"user","message":{"content":["bare"]},"uuid":"u1"}`,
		`{"type":"system","subtype":"api_error","error":{"status":529},"retryAttempt":1,"maxRetries":3,"retryInMs":500}`,
		`{"type":"result","status":"success","stats":{}}`,
		message("m1", "", textOf("Done.")),
		success,
		`{"type":"assistant","message":{"content":[{"ty`)
	wantSaid(t, got,
		"agent:start",
		"agent:init",
		`raw malformed "…"`,
		`raw unknown_type ""`,
		`raw  ""`,
		`raw  ""`,
		`raw  ""`,
		`raw  ""`,
		`raw user ""`,
		`user:message synthetic  "bare"`,
		`agent:error overloaded "overloaded (HTTP 529): retry 1/3" warning`,
		`raw result ""`,
		"turn:start 1",
		`agent:text #1 "Done."`,
		`usage m1 1/2`,
		"turn:end",
		`raw malformed "…"`,
		`agent:complete "Done."`,
	)
	if p := got[2].Payload.(*wire.RawMessage); p.Line != 4 || p.Data.Any() != "not json" {
		t.Errorf("malformed line: %+v", p)
	}
}

func TestDuplicateUUID(t *testing.T) {
	line := `{"type":"user","uuid":"u1","sessionId":"s1","timestamp":"2026-01-01T00:00:00Z","message":{"content":"hello"}}`
	other := strings.Replace(line, "hello", "other", 1)
	answer := strings.Replace(message("m1", "", textOf("Hi.")), `"session_id"`, `"sessionId"`, 1)
	got := run(t, claude.NormalizerOptions{Format: claude.Transcript}, claude.Exit{Unknown: true}, line, line, other, answer)
	wantSaid(t, got,
		"agent:start",
		`raw user "the uuid occurs twice"`,
		"turn:start 1",
		`agent:text #1 "Hi."`,
		"usage m1 1/2",
		`agent:complete "Hi."`,
	)
}

// A sub-agent's stream comes between the pieces of a call's input (N9).
func TestInterleavedInputs(t *testing.T) {
	got := run(t, claude.NormalizerOptions{}, claude.Exit{},
		initLine,
		streamed("", `{"type":"message_start","message":{"id":"m1","model":"m","usage":{"input_tokens":1,"output_tokens":1}}}`),
		streamed("", `{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t1","name":"Bash","input":{}}}`),
		streamed("", `{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"command\":\"ec"}}`),
		streamed("t0", `{"type":"message_start","message":{"id":"m2","model":"m","usage":{"input_tokens":1,"output_tokens":1}}}`),
		streamed("t0", `{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t2","name":"Read","input":{}}}`),
		streamed("t0", `{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"file_path\":\"/a\"}"}}`),
		streamed("", `{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"ho\"}"}}`),
		streamed("t0", `{"type":"content_block_stop","index":0}`),
		streamed("", `{"type":"content_block_stop","index":0}`),
		message("m1", "", `{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"echo"}}`),
		`{"type":"user","parent_tool_use_id":"t0","message":{"content":[{"type":"tool_result","tool_use_id":"t2","content":"A"}]}}`,
		`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","content":"B","is_error":true}]}}`,
		success)
	wantSaid(t, got,
		"agent:start", "agent:init",
		"turn:start 1",
		"tool:intent t2 Read map[file_path:/a] in t0",
		"tool:intent t1 Bash map[command:echo]",
		`agent:tool t2 Read A "" in t0`,
		`agent:tool t1 Bash B "B"`,
		"usage m1 1/2",
		"turn:end",
		`agent:complete "Done."`,
	)
	if d := got[6].Payload.(*wire.AgentTool).DurationMs; d == nil || *d != 3000 {
		t.Errorf("duration of t1 = %v, want 3000", d)
	}
}

// A resumed session may come back under another id (N10).
func TestSessionRebound(t *testing.T) {
	got := run(t, claude.NormalizerOptions{Started: true, SessionID: "old"}, claude.Exit{},
		initLine, message("m1", "", textOf("Done.")), success)
	wantSaid(t, got,
		"session:bound old→s1",
		"agent:init", "turn:start 1", `agent:text #1 "Done."`, "usage m1 1/2", "turn:end", `agent:complete "Done."`)
	for i, e := range got {
		if e.SessionID != "s1" {
			t.Errorf("event %d has session %q", i, e.SessionID)
		}
	}
}

func TestErrorResult(t *testing.T) {
	for _, test := range []struct {
		name, result string
		exit         claude.Exit
		want         string
	}{
		{
			"subtype (N11)", `{"type":"result","subtype":"error_max_turns","is_error":false,"errors":["a","b"],"usage":{}}`,
			claude.Exit{},
			`agent:error error_max_turns "a; b" error`,
		},
		{
			"success that is an error", `{"type":"result","subtype":"success","is_error":true,"api_error_status":429,"result":"API Error: slow down"}`,
			claude.Exit{Code: 1},
			`agent:error rate_limit "API Error: slow down" error`,
		},
		{
			"exit code after success", success,
			claude.Exit{Code: 3, Stderr: "boom\n"},
			`agent:error process_died "the agent ended with exit code 3: boom" error`,
		},
		{
			"no result", `{"type":"keep_alive"}`,
			claude.Exit{},
			`agent:error missing_result "the agent ended without a result" error`,
		},
		{
			"killed", `{"type":"keep_alive"}`,
			claude.Exit{Code: -1, Signal: "KILL", Reason: "time limit"},
			`agent:error process_died "the agent was ended by signal KILL (time limit) before its result" error`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := said(run(t, claude.NormalizerOptions{}, test.exit, initLine, message("m1", "", textOf("Hi.")), test.result))
			if last := got[len(got)-1]; last != test.want {
				t.Errorf("the last event is %s, want %s", last, test.want)
			}
			for _, s := range got {
				if strings.HasPrefix(s, "agent:complete") {
					t.Errorf("%s after a failure", s)
				}
			}
		})
	}
}

// TestLimitOver: when the limit of an account is over, the program tells before it gives up.
func TestLimitOver(t *testing.T) {
	const rejected = `{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":4102444800,"rateLimitType":"five_hour"}}`
	const allowed = `{"type":"rate_limit_event","rate_limit_info":{"status":"allowed_warning","resetsAt":4102444800}}`
	const failed = `{"type":"assistant","error":"%s","message":{"id":"x","model":"<synthetic>","content":[{"type":"text","text":"You've hit your limit"}]}}`
	limit := fmt.Sprintf(failed, "rate_limit")
	for name, test := range map[string]struct {
		lines []string
		want  int64
	}{
		"reached":         {[]string{rejected, limit}, 4102444800000},
		"in a result":     {[]string{rejected, `{"type":"result","subtype":"success","is_error":true,"api_error_status":429,"result":"slow down"}`}, 4102444800000},
		"near":            {[]string{allowed, limit}, 0},
		"another failure": {[]string{rejected, fmt.Sprintf(failed, "server_error")}, 0},
		"unsaid":          {[]string{limit}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			lines := append([]string{initLine, message("m1", "", textOf("Hi."))}, test.lines...)
			for _, e := range run(t, claude.NormalizerOptions{}, claude.Exit{Code: 1}, lines...) {
				if p, ok := e.Payload.(*wire.AgentError); ok && p.ErrorType != wire.ErrorProcessDied && p.ResetsAt != test.want {
					t.Errorf("%s is over at %d, want %d", p.ErrorType, p.ResetsAt, test.want)
				} else if ok {
					return
				}
			}
			t.Error("there is no error")
		})
	}
}

func TestStartFailed(t *testing.T) {
	got := run(t, claude.NormalizerOptions{Started: true, SessionID: "s1"}, claude.Exit{Code: 1, Stderr: "Error: Session ID s1 is already in use.\n"})
	wantSaid(t, got, `agent:error start_failed "the agent didn't start: it ended with exit code 1: Error: Session ID s1 is already in use." error`)
}

// A result may hold the first piece of the last message only (N12).
func TestTruncatedResult(t *testing.T) {
	result := func(s string) string { return strings.Replace(success, "Done.", s, 1) }
	for _, test := range []struct{ name, result, want string }{
		{"first block", `{\"a\":1,`, `{"a":1,"b":2}`},
		{"empty", ``, `{"a":1,"b":2}`},
		{"cut with dots", `{\"a\"…`, `{"a":1,"b":2}`},
		{"another text", `other`, `other`},
		{"whole", `{\"a\":1,\"b\":2}`, `{"a":1,"b":2}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := run(t, claude.NormalizerOptions{}, claude.Exit{}, initLine,
				message("m1", "", textOf("First I look.")),
				message("m2", "", textOf(`{"a":1,`)), message("m2", "", textOf(`"b":2}`)), result(test.result))
			c := got[len(got)-1].Payload.(*wire.AgentComplete)
			if c.Result != test.want {
				t.Errorf("result %q, want %q", c.Result, test.want)
			}
		})
	}
}

var brokenStream = []string{
	initLine,
	streamed("", `{"type":"message_start","message":{"id":"m1","model":"m","usage":{"input_tokens":1,"output_tokens":1}}}`),
	streamed("", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`),
	streamed("", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Half an ans"}}`),
	message("m2", "", textOf("A whole answer.")),
	success,
}

func TestBrokenStream(t *testing.T) {
	for _, blocks := range []agent.Blocks{agent.BlocksFallback, agent.BlocksAlways, agent.BlocksNever} {
		t.Run(string(blocks), func(t *testing.T) {
			wantSaid(t, run(t, claude.NormalizerOptions{Blocks: blocks}, claude.Exit{}, brokenStream...),
				"agent:start", "agent:init", "turn:start 1",
				`agent:text:delta #1 "Half an ans"`,
				`agent:text #2 "A whole answer." supersedes #1`,
				"usage m2 1/2", "turn:end", `agent:complete "Done."`)
		})
	}
}

// A stream that is cut for good leaves its pieces; a reader of whole blocks only
// gets them as one.
func TestCutStream(t *testing.T) {
	got := said(run(t, claude.NormalizerOptions{Blocks: agent.BlocksAlways}, claude.Exit{Code: -1, Signal: "KILL"}, brokenStream[:4]...))
	want := []string{`agent:text #1 "Half an ans"`, `agent:error process_died "the agent was ended by signal KILL before its result" error`}
	if diff := cmp.Diff(want, got[len(got)-2:]); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestBlocks(t *testing.T) {
	lines := []string{
		initLine,
		streamed("", `{"type":"message_start","message":{"id":"m1","model":"m","usage":{"input_tokens":1,"output_tokens":1}}}`),
		streamed("", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`),
		streamed("", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"A"}}`),
		streamed("", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"B"}}`),
		message("m1", "", textOf("AB")),
		streamed("", `{"type":"content_block_stop","index":0}`),
		streamed("", `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}`),
		streamed("", `{"type":"message_stop"}`),
		message("m2", "", textOf("C")),
		success,
	}
	for blocks, want := range map[agent.Blocks][]string{
		agent.BlocksFallback: {`agent:text:delta #1 "A"`, `agent:text:delta #1 "B"`, "usage m1 1/9", "turn:start 2", `agent:text #2 "C"`},
		agent.BlocksAlways:   {`agent:text:delta #1 "A"`, `agent:text:delta #1 "B"`, `agent:text #1 "AB"`, "usage m1 1/9", "turn:start 2", `agent:text #2 "C"`},
		agent.BlocksNever:    {`agent:text:delta #1 "A"`, `agent:text:delta #1 "B"`, "usage m1 1/9", "turn:start 2", `agent:text:delta #2 "C"`},
	} {
		got := said(run(t, claude.NormalizerOptions{Blocks: blocks}, claude.Exit{}, lines...))
		if diff := cmp.Diff(want, got[3:len(got)-3]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", blocks, diff)
		}
	}
}

// What comes in pieces without a message_start is told once.
func TestPiecesWithoutMessage(t *testing.T) {
	lines := []string{initLine}
	for i, text := range []string{"AB", "CD"} {
		lines = append(lines,
			streamed("", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`),
			streamed("", fmt.Sprintf(`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":%q}}`, text)),
			streamed("", `{"type":"content_block_stop","index":0}`),
			message(fmt.Sprintf("m%d", i+1), "", textOf(text)),
		)
	}
	for blocks, want := range map[agent.Blocks][]string{
		agent.BlocksFallback: {`agent:text:delta #1 "AB"`, "usage m1 1/2", "turn:start 2", `agent:text:delta #2 "CD"`, "usage m2 1/2"},
		agent.BlocksAlways:   {`agent:text:delta #1 "AB"`, `agent:text #1 "AB"`, "usage m1 1/2", "turn:start 2", `agent:text:delta #2 "CD"`, `agent:text #2 "CD"`, "usage m2 1/2"},
	} {
		got := said(run(t, claude.NormalizerOptions{Blocks: blocks}, claude.Exit{}, append(slices.Clone(lines), success)...))
		if diff := cmp.Diff(want, got[3:len(got)-2]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", blocks, diff)
		}
	}
}

func TestDanglingCalls(t *testing.T) {
	got := run(t, claude.NormalizerOptions{}, claude.Exit{Code: 143, Signal: "TERM"}, initLine,
		message("m1", "", `{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"a"}}`, `{"type":"tool_use","id":"t2","name":"Bash","input":{"command":"b"}}`),
		`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t2","content":[{"type":"text","text":"ok"}]}]}}`,
		`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t2","content":"again"}]}}`,
		`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t9","content":"whose?"}]}}`)
	wantSaid(t, got,
		"agent:start", "agent:init", "turn:start 1",
		"tool:intent t1 Bash map[command:a]", "tool:intent t2 Bash map[command:b]",
		`agent:tool t2 Bash [map[text:ok type:text]] ""`,
		`raw user/tool_result "the call has a result"`,
		`agent:tool t9 unknown whose? ""`,
		"usage m1 1/2",
		`agent:tool t1 Bash <nil> "interrupted"`,
		`agent:error process_died "the agent was ended by signal TERM before its result" error`)
}

func TestReplayedMessage(t *testing.T) {
	n := claude.NewNormalizer(claude.NormalizerOptions{Started: true, SessionID: "s1"})
	n.Sent("u7", claude.Sent{Source: "command", CommandID: "cmd-1"})
	n.Line(epoch, []byte(initLine))
	got := n.Line(epoch, []byte(`{"type":"user","isReplay":true,"uuid":"u7","session_id":"s1","message":{"content":[{"type":"text","text":"prefer tabs"}]}}`))
	wantSaid(t, got, `user:message command cmd-1 "prefer tabs"`)
}

func TestPermissions(t *testing.T) {
	n := claude.NewNormalizer(claude.NormalizerOptions{Started: true, SessionID: "s1"})
	var got []*wire.Event
	for _, line := range []string{
		initLine,
		message("m1", "", `{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"rm"}}`),
		`{"type":"control_request","request_id":"r1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"rm"},"tool_use_id":"t1"}}`,
	} {
		got = append(got, n.Line(epoch, []byte(line))...)
	}
	got = append(got, n.Decided(epoch, "t1", &wire.PermissionDecided{Decision: wire.DecisionDeny, By: "operator"})...)
	got = append(got, n.Line(epoch, []byte(`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","content":"no","is_error":true}]}}`))...)
	got = append(got, n.Line(epoch, []byte(`{"type":"system","subtype":"permission_denied","tool_name":"Write","tool_use_id":"t2","message":"dontAsk"}`))...)
	check(t, got)
	wantSaid(t, got, "agent:init", "turn:start 1",
		"tool:intent t1 Bash map[command:rm]", "permission:required", "permission:decided t1 deny",
		`agent:tool t1 Bash no "no"`, "permission:decided t2 deny")
	if !got[5].Payload.(*wire.AgentTool).Denied {
		t.Error("the call isn't denied")
	}
}

// What the program says in the user's name when it is interrupted, or when its question has no
// answer, isn't taken for a refusal; what an approver on record has refused is one.
func TestFeignedRefusals(t *testing.T) {
	const (
		reject = "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, the new_string was NOT written to the file)."
		stop   = " STOP what you are doing and wait for the user to tell you how to proceed."
		cancel = "The user doesn't want to take this action right now." + stop
	)
	asks := `{"type":"control_request","request_id":"r1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"rm"},"tool_use_id":"t1"}}`
	hook := `{"type":"control_request","request_id":"r1","request":{"subtype":"hook_callback","input":{"hook_event_name":"PreToolUse","permission_mode":"bypassPermissions","tool_name":"Bash","tool_input":{"command":"rm"},"tool_use_id":"t1"}}}`
	ours := claude.NormalizerOptions{Started: true, SessionID: "s1"}
	tests := []struct {
		name    string
		opt     claude.NormalizerOptions
		before  string // a question about the call
		denied  bool   // by an approver
		message string
		want    string // the error
	}{
		{"nothing known of its beginning", ours, "", false, reject + stop, wire.CallInterrupted},
		{"begun", ours, hook, false, reject + stop, wire.CallInterrupted},
		{"begun, and corrected by 2.1.329", ours, hook, false, reject + stop + " Correction to the text above: this call was stopped while running.", wire.CallInterrupted},
		{"never begun", ours, "", false, cancel, wire.CallInterrupted},
		{"of a sub-agent", ours, "", false, reject, wire.CallInterrupted},
		{"asked, and not answered", ours, asks, false, reject + stop, wire.CallInterrupted},
		{"asked, by a stream of somebody else", claude.NormalizerOptions{}, asks, false, reject + stop, reject + stop},
		{"denied", ours, asks, true, reject + stop, reject + stop},
		{"a user's own words", ours, asks, false, reject + " To tell you how to proceed, the user said:\\nno", reject + " To tell you how to proceed, the user said:\nno"},
		{"an interactive user's", claude.NormalizerOptions{Format: claude.Transcript}, "", false, reject + stop, reject + stop},
		{"no result", ours, "", false, "[Tool call interrupted: the session ended before this call's result was recorded.]", wire.CallInterrupted},
		{"an error", ours, hook, false, "Exit code 1\\n" + reject + stop, "Exit code 1\n" + reject + stop},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := claude.NewNormalizer(tt.opt)
			n.Line(epoch, []byte(initLine))
			n.Line(epoch, []byte(message("m1", "", `{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"rm"}}`)))
			if tt.before != "" {
				n.Line(epoch, []byte(tt.before))
			}
			if tt.denied {
				n.Decided(epoch, "t1", &wire.PermissionDecided{Decision: wire.DecisionDeny, By: "operator"})
			}
			line := `{"type":"user","timestamp":"2026-01-01T00:00:00.000Z","session_id":"s1","message":{"content":[{"type":"tool_result","tool_use_id":"t1","content":"` + tt.message + `","is_error":true}]}}`
			got := n.Line(epoch, []byte(line))
			p, ok := got[len(got)-1].Payload.(*wire.AgentTool)
			if !ok || p.Error != tt.want {
				t.Fatalf("events %v, error %q, want %q", said(got), p.Error, tt.want)
			}
			if output, _ := p.ToolOutput.Text(); output == wire.CallInterrupted || p.Denied != (tt.before == asks && tt.want != wire.CallInterrupted) {
				t.Errorf("denied is %t, the model read %q", p.Denied, output)
			}
		})
	}
}

func TestNotifyParent(t *testing.T) {
	call := func(args string) string {
		return `{"type":"control_request","request_id":"r","request":{"subtype":"mcp_message","server_name":"parent","message":{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"notify_parent","arguments":` + args + `}}}}`
	}
	n := claude.NewNormalizer(claude.NormalizerOptions{Started: true, SessionID: "s1"})
	for args, want := range map[string]string{
		`{"message":"Need help"}`:                      `cc_message info "Need help"`,
		`{"message":"Need help","priority":"blocker"}`: `cc_message blocker "Need help"`,
		`{"message":"Need help","priority":"urgent"}`:  `raw control_request/mcp_message ""`,
		`{"priority":"info"}`:                          `raw control_request/mcp_message ""`,
		`{"message":7}`:                                `raw control_request/mcp_message ""`,
	} {
		wantSaid(t, n.Line(epoch, []byte(call(args))), want)
	}
}

// Totals are cumulative: over the process, or over the session in versions
// that also say what a result adds.
func TestCost(t *testing.T) {
	result := func(total float64, usage, since string) string {
		s := fmt.Sprintf(`{"type":"result","subtype":"success","result":"","total_cost_usd":%g,"usage":{"input_tokens":10,"output_tokens":1},"modelUsage":{"m":%s}`, total, usage)
		if since != "" {
			s += `,"model_usage_since_last_result":` + since
		}
		return s + `}`
	}
	const one, two = `{"inputTokens":100,"outputTokens":10,"costUSD":0.5}`, `{"inputTokens":150,"outputTokens":30,"costUSD":0.75}`
	for _, test := range []struct {
		name  string
		lines []string
		turns []float64
		input int64
		total float64
	}{
		{"over the process", []string{result(0.5, one, ""), result(0.75, two, "")}, []float64{0.5, 0.25}, 150, 0.75},
		{
			"over the session",
			[]string{result(0.75, two, `{"m":{"inputTokens":50,"outputTokens":20,"costUSD":0.25}}`), result(0.75, two, `{}`)},
			[]float64{0.25, 0},
			50, 0.25,
		},
		{"counted anew", []string{result(0.75, two, ""), result(0.5, one, "")}, []float64{0.75, 0.5}, 250, 1.25},
		{"no total", []string{result(0.5, one, ""), result(-1, one, ""), result(0.75, two, "")}, []float64{0.5, -1, 0.25}, 150, 0.75},
	} {
		t.Run(test.name, func(t *testing.T) {
			events := run(t, claude.NormalizerOptions{}, claude.Exit{}, append([]string{initLine}, test.lines...)...)
			var turns []float64
			for _, e := range events {
				if p, ok := e.Payload.(*wire.TurnEnd); ok {
					cost := -1.0 // it isn't told
					if p.TurnCostUsd != nil {
						cost = *p.TurnCostUsd
					}
					turns = append(turns, cost)
				}
			}
			c := events[len(events)-1].Payload.(*wire.AgentComplete)
			if diff := cmp.Diff(test.turns, turns); diff != "" || *c.TotalCostUsd != test.total || c.ModelUsage["m"].InputTokens != test.input {
				t.Errorf("turns %v, total %v, usage %+v", turns, *c.TotalCostUsd, c.ModelUsage["m"])
			}
		})
	}
}

// Old session files hold the messages of sub-agents between those of the main thread.
func TestSidechain(t *testing.T) {
	line := func(uuid string, side bool, typ, content string) string {
		return fmt.Sprintf(`{"type":%q,"uuid":%q,"isSidechain":%v,"sessionId":"s1","parentUuid":"gone","timestamp":"2026-01-01T00:00:0%sZ","message":{"id":"m%s","model":"m","content":%s}}`,
			typ, uuid, side, uuid, uuid, content)
	}
	got := run(t, claude.NormalizerOptions{Format: claude.Transcript}, claude.Exit{Unknown: true},
		line("1", false, "user", `"Go."`),
		line("2", false, "assistant", `[{"type":"tool_use","id":"t1","name":"Task","input":{"prompt":"Look."}}]`),
		line("3", true, "user", `"Look."`),
		line("4", true, "assistant", `[{"type":"text","text":"Seen."}]`),
		line("5", false, "user", `[{"type":"tool_result","tool_use_id":"t1","content":"Seen."}]`),
		line("6", false, "assistant", `[{"type":"text","text":"All seen."}]`))
	wantSaid(t, got, "agent:start", "turn:start 1",
		"tool:intent t1 Task map[prompt:Look.]",
		`user:message subagent  "Look." in t1`, `agent:text #1 "Seen." in t1`,
		`agent:tool t1 Task Seen. ""`, "turn:start 2", `agent:text #2 "All seen."`, `agent:complete "All seen."`)
}

func TestTodos(t *testing.T) {
	use := func(id, name, input string) string {
		return message("m"+id, "", fmt.Sprintf(`{"type":"tool_use","id":%q,"name":%q,"input":%s}`, id, name, input))
	}
	done := func(id, structured string) string {
		return fmt.Sprintf(`{"type":"user","tool_use_result":%s,"message":{"content":[{"type":"tool_result","tool_use_id":%q,"content":"ok"}]}}`, structured, id)
	}
	events := run(t, claude.NormalizerOptions{}, claude.Exit{}, initLine,
		use("1", "TodoWrite", `{"todos":["bare",{"content":"x","status":"completed","priority":"high"}]}`), done("1", `null`),
		use("2", "TaskCreate", `{"subject":"s"}`), done("2", `{"task":{"id":"7"}}`),
		use("3", "TaskUpdate", `{"taskId":"7","status":"in_progress"}`), done("3", `{}`),
		use("4", "TaskUpdate", `{"taskId":"7","status":"in_progress"}`), done("4", `{}`),
		use("5", "TaskList", `{}`), done("5", `{"tasks":[{"id":"7","subject":"s","status":"completed"}]}`), success)
	var got []string
	for _, e := range events {
		if p, ok := e.Payload.(*wire.TodoChanged); ok {
			s := fmt.Sprintf("%d/%d", p.Done, p.Total)
			for _, item := range p.Items {
				s = strings.Join([]string{s, item.ID + ":" + item.Content + ":" + item.Status}, " ")
			}
			got = append(got, s)
		}
	}
	want := []string{
		"1/2 :bare:pending :x:completed",
		"1/3 :bare:pending :x:completed 7:s:pending",
		"1/3 :bare:pending :x:completed 7:s:in_progress",
		"1/1 7:s:completed",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lists (-want +got):\n%s", diff)
	}
}

func TestLines(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	in := "a\n\n" + long + "\nb\r\nlast"
	var got []string
	for line, err := range claude.Lines(strings.NewReader(in), 50<<10) {
		if err != nil {
			got = append(got, err.Error())
			continue
		}
		got = append(got, string(line))
	}
	want := []string{"a", "", "claude: line 3 has 102400 bytes; at most 51200 are read", "b\r", "last"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestLongLine(t *testing.T) {
	text := strings.Repeat("0123456789", 200<<10)
	line, err := json.Marshal(map[string]any{"type": "user", "message": map[string]any{"content": []any{
		map[string]any{"type": "tool_result", "tool_use_id": "t1", "content": text},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	for got, err := range claude.Lines(strings.NewReader(string(line)), claude.MaxLine) {
		if err != nil {
			t.Fatal(err)
		}
		events := claude.NewNormalizer(claude.NormalizerOptions{Started: true}).Line(epoch, got)
		if s, _ := events[0].Payload.(*wire.AgentTool).ToolOutput.Text(); s != text {
			t.Errorf("output of %d bytes, want %d", len(s), len(text))
		}
	}
}

// FuzzNormalizer feeds arbitrary lines: no crash, every event valid, and
// malformed lines kept.
func FuzzNormalizer(f *testing.F) {
	for _, lines := range [][]string{brokenStream, {initLine, success}, {"not json", `{"type":"user","message":{"content":[{"type":"tool_result"}]}}`}} {
		f.Add([]byte(strings.Join(lines, "\n")), true)
	}
	f.Fuzz(func(t *testing.T, input []byte, stream bool) {
		o := claude.NormalizerOptions{Format: claude.Transcript}
		if stream {
			o.Format = claude.Stream
		}
		n := claude.NewNormalizer(o)
		var events []*wire.Event
		for line, err := range claude.Lines(strings.NewReader(string(input)), 1<<20) {
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, n.Line(epoch, line)...)
		}
		check(t, append(events, n.Finish(epoch, claude.Exit{})...))
	})
}

// 2.1.197 asks before a sub-agent's call without having told of the call.
func TestHookBeforeCall(t *testing.T) {
	hook := func(agentID, call string) string {
		return fmt.Sprintf(`{"type":"control_request","request_id":"q","request":{"subtype":"hook_callback","input":{"hook_event_name":"PreToolUse","agent_id":%q,"tool_name":"Bash","tool_input":{"command":"ls"},"tool_use_id":%q}}}`, agentID, call)
	}
	got := run(t, claude.NormalizerOptions{}, claude.Exit{}, initLine,
		message("m1", "", `{"type":"tool_use","id":"t1","name":"Agent","input":{}}`),
		`{"type":"system","subtype":"task_started","task_id":"a1","task_type":"local_agent","tool_use_id":"t1"}`,
		hook("a1", "t2"),
		message("m2", "t1", `{"type":"tool_use","id":"t2","name":"Bash","input":{"command":"ls"}}`),
		`{"type":"user","parent_tool_use_id":"t1","message":{"content":[{"type":"tool_result","tool_use_id":"t2","content":"a"}]}}`,
		hook("stranger", "t3"),
		success)
	wantSaid(t, got[2:], "turn:start 1", "tool:intent t1 Agent map[]", `raw system/task_started ""`,
		"tool:intent t2 Bash map[command:ls] in t1", `agent:tool t2 Bash a "" in t1`,
		"tool:intent t3 Bash map[command:ls]",
		"usage m1 1/2", "usage m2 1/2 in t1", "turn:end",
		`agent:tool t1 Agent <nil> "interrupted"`, `agent:tool t3 Bash <nil> "interrupted"`, `agent:complete "Done."`)
	for i, want := range map[int]string{5: "a1", 6: "a1", 7: "stranger"} {
		if got[i].AgentID != want {
			t.Errorf("%s is of agent %q, want %q", got[i].Type(), got[i].AgentID, want)
		}
	}
}

// TestRewrittenLines: what a program that resumes a session writes anew, block by block under other uuids, is told once.
func TestRewrittenLines(t *testing.T) {
	line := func(typ, uuid, parent, at, id string, blocks ...string) string {
		return fmt.Sprintf(`{"type":%q,"uuid":%q,"parentUuid":%s,"sessionId":"s1","timestamp":"2026-02-03T06:17:5%sZ","message":{"id":%q,"model":"m","content":[%s],"usage":{"input_tokens":3,"output_tokens":5}}}`,
			typ, uuid, parent, at, id, strings.Join(blocks, ","))
	}
	image := `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBO"}}`
	result := `{"type":"tool_result","tool_use_id":"c1","content":"ok"}`
	call := `{"type":"tool_use","id":"c1","name":"Bash","input":{}}`
	got := run(t, claude.NormalizerOptions{Format: claude.Transcript}, claude.Exit{Unknown: true},
		line("user", "u1", "null", "0", "", textOf("look"), image, textOf("at this")),
		line("assistant", "a1", `"u1"`, "1", "m1", textOf("a robot")),
		line("assistant", "a2", `"a1"`, "1", "m1", textOf("a robot")), // said twice at once
		line("assistant", "a3", `"a2"`, "2", "m1", call),
		line("user", "u2", `"a3"`, "3", "", result),
		// Written anew.
		line("user", "v1", "null", "0", "", textOf("look")),
		line("user", "v2", `"v1"`, "0", "", image),
		line("user", "v3", `"v2"`, "0", "", textOf("at this")),
		line("assistant", "b1", `"v3"`, "1", "m1", textOf("a robot")),
		line("assistant", "b2", `"b1"`, "2", "m1", call),
		line("user", "v4", `"b2"`, "3", "", result),
		// And gone on with, in the same words.
		line("user", "v5", `"v4"`, "4", "", textOf("look")),
		line("assistant", "b3", `"v5"`, "5", "m2", textOf("a robot")),
	)
	const again = ` "the program wrote it again, under another uuid"`
	wantSaid(t, got,
		"agent:start", `raw user/image ""`,
		"turn:start 1", `agent:text #1 "a robot"`, `agent:text #2 "a robot"`, "tool:intent c1 Bash map[]", `agent:tool c1 Bash ok ""`,
		"raw user"+again, "raw user"+again, "raw user"+again, "raw assistant"+again, "raw assistant"+again, "raw user"+again,
		"usage m1 3/5", `user:message prompt  "look"`,
		"turn:start 2", `agent:text #3 "a robot"`, "usage m2 3/5", `agent:complete "a robot"`,
	)
}
