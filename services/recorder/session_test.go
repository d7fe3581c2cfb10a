package recorder_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
)

// said records a tape, in small batches and as a whole, and returns its tables,
// opened; what both say is the same.
func (p *tape) said(t *testing.T, queries ...string) [][]string {
	t.Helper()
	var first [][]string
	for _, size := range []int{1, 3, 1000} {
		target := newTarget(t)
		s := openAt(t, target)
		p.store(s, size)
		v, err := s.Checker.Verify(t.Context(), "")
		if err != nil || len(v.Damages) > 0 {
			t.Errorf("batches of %d: verify: %v, %v", size, v.Damages, err)
		}
		closed(t, s)
		db := openDB(t, target)
		var got [][]string
		for _, q := range queries {
			rows := []string{}
			for _, row := range rowsOf(t, db, q) {
				rows = append(rows, strings.TrimSpace(row))
			}
			got = append(got, rows)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = got
		}
		if diff := cmp.Diff(first, got); diff != "" {
			t.Errorf("(-batches of 1 +batches of %d):\n%s", size, diff)
		}
	}
	return first
}

func wants(t *testing.T, got [][]string, want ...[]string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// agent begins an agent in a session.
func (p *tape) agent(run, session, prompt string) {
	e := p.add(run, "coder", "coder#1", &wire.AgentStart{Prompt: wire.RawString(prompt), Model: "opus", Provider: "claude"})
	p.again(e, func(e *wire.Event) { e.SessionID = session })
}

// again encodes the last event anew.
func (p *tape) again(e *wire.Event, change func(*wire.Event)) {
	change(e)
	last := p.entries[len(p.entries)-1]
	p.entries = p.entries[:len(p.entries)-1]
	p.pos--
	p.put(e)
	p.entries[len(p.entries)-1].Time = last.Time
}

// call adds the intent of a call.
func (p *tape) call(run, id, tool string) {
	p.again(p.add(run, "coder", "coder#1", &wire.ToolIntent{ToolName: tool, ToolInput: mustRaw(p.t, map[string]any{"of": id})}), func(e *wire.Event) { e.CallID = id })
}

// result adds the result of a call.
func (p *tape) result(run, id, tool, output, failed string) {
	p.again(p.add(run, "coder", "coder#1", &wire.AgentTool{
		ToolName: tool, ToolInput: mustRaw(p.t, map[string]any{"of": id}), ToolOutput: wire.RawString(output), Error: failed,
	}), func(e *wire.Event) { e.CallID = id })
}

const (
	shortMessages = `SELECT role, content, tool_call_id, tool_name FROM messages ORDER BY id`
	countMessages = `SELECT (SELECT count(*) FROM messages) AS visible, (SELECT count(*) FROM audit_messages) AS everything`
)

// C1: four messages, and the tokens of two calls.
func TestC1Messages(t *testing.T) {
	p := newTape(t)
	p.agent("r1", "session-r1", "Read it.")
	p.add("r1", "coder", "coder#1", &wire.TurnStart{})
	p.add("r1", "coder", "coder#1", &wire.AgentTextDelta{Content: "Let me ", Block: 1})
	p.add("r1", "coder", "coder#1", &wire.AgentTextDelta{Content: "see.", Block: 1})
	p.call("r1", "t0", "Read")
	p.add("r1", "coder", "coder#1", &wire.Usage{MessageID: "m1", InputTokens: 120, OutputTokens: 45})
	p.result("r1", "t0", "Read", "the text", "")
	p.add("r1", "coder", "coder#1", &wire.TurnStart{})
	p.add("r1", "coder", "coder#1", &wire.AgentText{Content: "Done."})
	p.add("r1", "coder", "coder#1", &wire.AgentText{Content: "All of it."})
	p.add("r1", "coder", "coder#1", &wire.Usage{MessageID: "m2", InputTokens: 180, OutputTokens: 30})
	p.add("r1", "coder", "coder#1", &wire.Usage{MessageID: "m2", InputTokens: 180, OutputTokens: 30}) // told twice
	p.add("r1", "coder", "coder#1", &wire.TurnEnd{StopReason: "end_turn"})
	wants(t, p.said(t,
		`SELECT role, turn, content, tool_call_id, tool_name, tool_args FROM messages ORDER BY id`,
		`SELECT count(*) AS calls, sum(input_tokens) AS input, sum(output_tokens) AS output FROM token_usage`,
		`SELECT id, agent_id, model, provider, created_at FROM sessions`,
		`SELECT turn, last_msg_id - (SELECT max(id) FROM messages WHERE messages.id < checkpoints.id) AS behind FROM checkpoints ORDER BY id`),
		[]string{
			"role=user turn=0 content=Read it. tool_call_id=<nil> tool_name=<nil> tool_args=<nil>",
			`role=assistant turn=1 content=Let me see. tool_call_id=<nil> tool_name=<nil> tool_args=[{"args":{"of":"t0"},"id":"t0","name":"Read"}]`,
			"role=tool turn=1 content=the text tool_call_id=t0 tool_name=Read tool_args=<nil>",
			"role=assistant turn=2 content=Done.\nAll of it. tool_call_id=<nil> tool_name=<nil> tool_args=<nil>",
		},
		[]string{"calls=2 input=300 output=75"},
		[]string{"id=session-r1 agent_id=coder model=opus provider=claude created_at=1767400001"},
		[]string{"turn=1 behind=0", "turn=2 behind=0"})
}

// C2: what comes after a checkpoint is hidden by a rollback, and kept.
func TestC2RollbackHides(t *testing.T) {
	p := newTape(t)
	p.agent("r1", "session-r1", "Do it.")
	p.add("r1", "coder", "coder#1", &wire.AgentText{Content: "Done."})
	at := p.add("r1", "coder", "coder#1", &wire.Checkpoint{Kind: wire.CheckpointTurn})
	p.add("r1", "coder", "coder#1", &wire.TurnStart{})
	p.add("r1", "coder", "coder#1", &wire.AgentTextDelta{Content: "And the", Block: 2})
	p.add("r1", "coder", "coder#1", &wire.LogTruncated{AtSeq: at.Seq, Reason: "rollback"})
	wants(t, p.said(t, countMessages,
		`SELECT role, content, rolled_back FROM audit_messages ORDER BY id`,
		`SELECT turn, last_msg_id - (SELECT max(id) FROM messages) AS behind FROM checkpoints`,
		`SELECT turn, kind, subturn_tool_idx, subturn_call_id, rolled_back FROM audit_checkpoints ORDER BY id`),
		[]string{"visible=2 everything=3"},
		[]string{"role=user content=Do it. rolled_back=0", "role=assistant content=Done. rolled_back=0", "role=assistant content=And the rolled_back=1"},
		[]string{"turn=1 behind=0"},
		[]string{"turn=1 kind=turn subturn_tool_idx=<nil> subturn_call_id=<nil> rolled_back=0"})
}

// C3: checkpoints after each call; a rollback goes to the last one.
func TestC3Subturns(t *testing.T) {
	p := newTape(t)
	p.agent("r1", "session-r1", "Do it.")
	p.add("r1", "coder", "coder#1", &wire.TurnStart{})
	p.call("r1", "t0", "Read")
	p.call("r1", "t1", "Edit")
	p.result("r1", "t0", "Read", "the result of t0", "")
	at := p.add("r1", "coder", "coder#1", &wire.Checkpoint{Kind: wire.CheckpointSubturn, SubIdx: new(0)})
	p.again(at, func(e *wire.Event) { e.CallID = "t0" })
	p.result("r1", "t1", "Edit", "a part", "")
	p.add("r1", "coder", "coder#1", &wire.LogTruncated{AtSeq: at.Seq, Reason: "rollback"})
	p.result("r1", "t1", "Edit", "the result of t1", "")
	p.add("r1", "coder", "coder#1", &wire.Checkpoint{Kind: wire.CheckpointTurn})
	wants(t, p.said(t, shortMessages, countMessages,
		`SELECT turn, kind, subturn_tool_idx, subturn_call_id FROM audit_checkpoints ORDER BY id`,
		`SELECT m.content FROM checkpoints c JOIN messages m ON m.id = c.last_msg_id ORDER BY c.id`),
		[]string{
			"role=user content=Do it. tool_call_id=<nil> tool_name=<nil>",
			"role=assistant content= tool_call_id=<nil> tool_name=<nil>",
			"role=tool content=the result of t0 tool_call_id=t0 tool_name=Read",
			"role=tool content=the result of t1 tool_call_id=t1 tool_name=Edit",
		},
		[]string{"visible=4 everything=5"},
		[]string{"turn=1 kind=subturn subturn_tool_idx=0 subturn_call_id=t0", "turn=1 kind=turn subturn_tool_idx=<nil> subturn_call_id=<nil>"},
		[]string{"content=the result of t0", "content=the result of t1"})
}

// C4: the tries of a turn are counted from 0, whatever the agent counts from.
func TestC4Attempts(t *testing.T) {
	p := newTape(t)
	p.agent("r1", "session-r1", "Do it.")
	p.add("r1", "coder", "coder#1", &wire.TurnStart{})
	for try := range int64(3) {
		p.add("r1", "coder", "coder#1", &wire.AgentError{ErrorType: wire.ErrorOverloaded, Message: "529", Phase: "model", Attempt: new(try + 1), MaxAttempts: 3})
	}
	p.add("r1", "coder", "coder#1", &wire.AgentText{Content: "At last."})
	p.add("r1", "coder", "coder#1", &wire.TurnStart{})
	p.add("r1", "coder", "coder#1", &wire.AgentError{ErrorType: wire.ErrorOverloaded, Message: "529", Phase: "model", Attempt: new(int64(1)), MaxAttempts: 3})
	p.call("r1", "t0", "Bash")
	p.result("r1", "t0", "Bash", "Exit code 1", "exit 1")
	p.add("r1", "coder", "coder#1", &wire.AgentError{ErrorType: wire.ErrorMaxTurns, Message: "too many"})
	wants(t, p.said(t, `SELECT turn, context, message, attempt FROM errors ORDER BY id`),
		[]string{
			"turn=1 context=llm_stream message=529 attempt=0",
			"turn=1 context=llm_stream message=529 attempt=1",
			"turn=1 context=llm_stream message=529 attempt=2",
			"turn=2 context=llm_stream message=529 attempt=0",
			"turn=2 context=Bash message=exit 1 attempt=0",
			"turn=2 context=max_turns message=too many attempt=0",
		})
}

// What a failed try has said is a message of its own.
func TestTextsOfAttempts(t *testing.T) {
	p := newTape(t)
	p.agent("r1", "session-r1", "Do it.")
	p.add("r1", "coder", "coder#1", &wire.TurnStart{})
	for try := range int64(2) {
		p.add("r1", "coder", "coder#1", &wire.AgentTextDelta{Content: "The answer", Block: int(try) + 1})
		p.add("r1", "coder", "coder#1", &wire.AgentError{ErrorType: wire.ErrorOverloaded, Message: "529", Phase: "model", Attempt: new(try + 1), MaxAttempts: 3})
	}
	p.add("r1", "coder", "coder#1", &wire.AgentTextDelta{Content: "The answer is 42.", Block: 3})
	p.add("r1", "coder", "coder#1", &wire.TurnEnd{})
	wants(t, p.said(t, `SELECT turn, role, content FROM messages ORDER BY id`), []string{
		"turn=0 role=user content=Do it.", "turn=1 role=assistant content=The answer", "turn=1 role=assistant content=The answer", "turn=1 role=assistant content=The answer is 42.",
	})
}

// C5 and C7: messages are searched; who resumes finds the last message once.
func TestC7Resume(t *testing.T) {
	p := newTape(t)
	p.agent("r1", "session-r1", "I like Rust.")
	p.add("r1", "coder", "coder#1", &wire.TurnStart{})
	p.add("r1", "coder", "coder#1", &wire.AgentText{Content: "Rust it is, not Python."})
	p.add("r1", "coder", "coder#1", &wire.TurnEnd{})
	p.add("r1", "coder", "coder#1", &wire.UserMessage{Content: "Go on.", Source: "command"})
	p.agent("r1", "session-r1", "Go on.") // it died before it answered
	p.add("r1", "coder", "coder#1", &wire.UserMessage{Content: "Go on.", Source: "replay"})
	p.add("r1", "coder", "coder#1", &wire.TurnStart{})
	p.add("r1", "coder", "coder#1", &wire.AgentText{Content: "Yes."})
	wants(t, p.said(t,
		`SELECT role, turn, content FROM messages ORDER BY id`,
		`SELECT (SELECT count(*) FROM messages WHERE content LIKE '%Rust%') AS rust, (SELECT count(*) FROM messages WHERE content LIKE '%Python%') AS python`),
		[]string{
			"role=user turn=0 content=I like Rust.",
			"role=assistant turn=1 content=Rust it is, not Python.",
			"role=user turn=1 content=Go on.",
			"role=assistant turn=2 content=Yes.",
		},
		[]string{"rust=2 python=1"})
}

// A session is its agent's from when it is bound; its model may be told late.
func TestSessions(t *testing.T) {
	p := newTape(t)
	e := p.add("r1", "coder", "coder#1", &wire.AgentStart{Prompt: wire.RawString("Do it."), Provider: "ingest"})
	p.again(e, func(e *wire.Event) { e.SessionID = "s1" })
	turn := p.add("r1", "coder", "coder#1", &wire.TurnStart{Model: "opus"})
	p.again(turn, func(e *wire.Event) { e.SessionID = "s1" })
	p.again(p.add("r1", "coder", "coder#1", &wire.SessionBound{OldSession: "s1", NewSession: "s2"}), func(e *wire.Event) { e.SessionID = "s2" })
	p.again(p.add("r1", "coder", "coder#1", &wire.AgentText{Content: "Done."}), func(e *wire.Event) { e.SessionID = "s2" })
	p.again(p.add("r1", "coder", "coder#1", &wire.TurnEnd{}), func(e *wire.Event) { e.SessionID = "s2" })
	other := p.add("r2", "coder", "coder#1", &wire.AgentStart{Prompt: wire.RawString("And on."), Model: "haiku"}) // in another run
	p.again(other, func(e *wire.Event) { e.SessionID = "s2" })
	wants(t, p.said(t,
		`SELECT id, model, provider FROM sessions ORDER BY id`,
		`SELECT session_id, role, content FROM messages ORDER BY id`,
		`SELECT session_id, last_msg_id - (SELECT max(id) FROM messages m WHERE m.session_id = c.session_id AND m.id < c.id) AS behind FROM checkpoints c`),
		[]string{"id=s1 model=opus provider=ingest", "id=s2 model=opus provider=ingest"},
		[]string{"session_id=s1 role=user content=Do it.", "session_id=s2 role=assistant content=Done.", "session_id=s2 role=user content=And on."},
		[]string{"session_id=s2 behind=0"})
}

// What has no announcement, sub-agents, whole messages, and calls of one message.
func TestMessagesOfAllAgents(t *testing.T) {
	p := newTape(t)
	p.agent("r1", "session-r1", "Do it.")
	p.add("r1", "coder", "coder#1", &wire.AgentText{Content: "A tool."})
	p.result("r1", "t0", "Bash", "of t0", "")
	p.result("r1", "t1", "Bash", "of t1", "")
	p.add("r1", "coder", "coder#1", &wire.AgentText{Content: "A helper."})
	p.call("r1", "t2", "Task")
	sub := func(payload wire.Payload) {
		p.again(p.add("r1", "coder", "coder#1", payload), func(e *wire.Event) { e.Parent, e.AgentID, e.CallID = "t2", "claude-subagent:explore", "" })
	}
	sub(&wire.UserMessage{Content: "Look.", Source: "subagent"})
	p.add("r1", "coder", "coder#1", &wire.AgentTextDelta{Content: " Meanwhile.", Block: 9})
	sub(&wire.AgentText{Content: "Found."})
	p.result("r1", "t2", "Task", "Found.", "")
	p.add("r1", "coder", "coder#1", &wire.AgentTextDelta{Content: "So", Block: 10})
	p.add("r1", "coder", "coder#1", &wire.AgentMessage{Content: mustRaw(t, []any{
		map[string]any{"type": "thinking", "thinking": "hm"},
		map[string]any{"type": "text", "text": "So be it."},
		map[string]any{"type": "tool_use", "id": "t3", "name": "Bash", "input": map[string]any{"command": "ls"}},
	})})
	p.call("r1", "t3", "Bash")
	p.result("r1", "t3", "Bash", "of t3", "")
	p.add("r1", "coder", "coder#1", &wire.AgentComplete{Result: "ok"})
	wants(t, p.said(t, `SELECT agent_id, role, turn, content, tool_args FROM messages ORDER BY id`, `SELECT turn FROM checkpoints ORDER BY id`),
		[]string{
			"agent_id=coder role=user turn=0 content=Do it. tool_args=<nil>",
			`agent_id=coder role=assistant turn=1 content=A tool. tool_args=[{"args":{"of":"t0"},"id":"t0","name":"Bash"},{"args":{"of":"t1"},"id":"t1","name":"Bash"}]`,
			"agent_id=coder role=tool turn=1 content=of t0 tool_args=<nil>",
			"agent_id=coder role=tool turn=1 content=of t1 tool_args=<nil>",
			"agent_id=coder role=assistant turn=2 content=A helper.\n Meanwhile. " + `tool_args=[{"args":{"of":"t2"},"id":"t2","name":"Task"}]`,
			"agent_id=claude-subagent:explore role=user turn=2 content=Look. tool_args=<nil>",
			"agent_id=claude-subagent:explore role=assistant turn=2 content=Found. tool_args=<nil>",
			"agent_id=coder role=tool turn=2 content=Found. tool_args=<nil>",
			`agent_id=coder role=assistant turn=3 content=So be it. tool_args=[{"args":{"command":"ls"},"id":"t3","name":"Bash"}]`,
			"agent_id=coder role=tool turn=3 content=of t3 tool_args=<nil>",
		},
		[]string{"turn=1", "turn=2", "turn=3"})
}

// The views have exactly the columns of the agents' own stores.
func TestColumnsOfSessions(t *testing.T) {
	target := newTarget(t)
	closed(t, openAt(t, target))
	db := openDB(t, target)
	defer db.Close()
	for table, want := range map[string]string{
		"sessions":    "id agent_id model provider created_at",
		"messages":    "id session_id agent_id turn role content tool_call_id tool_name tool_args created_at",
		"token_usage": "id session_id agent_id turn input_tokens output_tokens created_at",
		"errors":      "id session_id agent_id turn context message attempt created_at",
		"checkpoints": "id session_id agent_id turn last_msg_id created_at",
	} {
		if got := strings.Join(columnsOf(t, db, target, table), " "); got != want {
			t.Errorf("%s: %s, want %s", table, got, want)
		}
	}
}

// documented returns the statements of docs/store.md by the comments before them.
func documented(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "docs", "store.md"))
	if err != nil {
		t.Fatal(err)
	}
	statements, title := map[string]string{}, ""
	for line := range strings.Lines(string(data)) {
		code, indented := strings.CutPrefix(line, "    ")
		if comment, ok := strings.CutPrefix(code, "-- "); ok && indented {
			title, _, _ = strings.Cut(strings.TrimSpace(comment), ":")
		} else if indented && title != "" {
			statements[title] += code
		} else {
			title = ""
		}
	}
	return statements
}

// Every statement of the docs works, and says what it should.
func TestDocumentedStatements(t *testing.T) {
	p := newTape(t)
	p.agent("r1", "session-r1", "Do it.")
	p.add("r1", "coder", "coder#1", &wire.TurnStart{})
	for try := range int64(3) {
		p.add("r1", "coder", "coder#1", &wire.AgentError{ErrorType: wire.ErrorOverloaded, Message: "529", Phase: "model", Attempt: new(try + 1)})
	}
	p.add("r1", "coder", "coder#1", &wire.AgentText{Content: "Done."})
	p.call("r1", "t0", "Bash")
	p.add("r1", "coder", "coder#1", &wire.Usage{MessageID: "m1", Model: "opus", InputTokens: 120, OutputTokens: 45})
	p.result("r1", "t0", "Bash", "Exit code 1", "exit 1")
	cut := p.add("r1", "coder", "coder#1", &wire.TurnStart{})
	p.add("r1", "coder", "coder#1", &wire.AgentText{Content: "Hm."})
	p.add("r1", "coder", "coder#1", &wire.LogTruncated{AtSeq: cut.Seq, Reason: "rollback"})
	p.clock += 300_000
	p.add("r1", "coder", "coder#1", &wire.AgentText{Content: "Better."})
	p.add("r1", "coder", "coder#1", &wire.Usage{MessageID: "m2", Model: "opus", InputTokens: 180, OutputTokens: 30})
	target := newTarget(t)
	s := openAt(t, target)
	p.store(s, 4)
	closed(t, s)
	db := openDB(t, target)
	defer db.Close()
	statements := documented(t)
	for title, want := range map[string]string{
		"sessions by the beginning of their id": "id=session-r1 agent_id=coder model=opus provider=claude created_at=1767400001",
		"one timeline": `id=1 created_at=1767400001 turn=0 what=message_user detail=Do it.
id=3 created_at=1767400003 turn=1 what=error_llm_stream detail=attempt=0 529
id=4 created_at=1767400004 turn=1 what=error_llm_stream detail=attempt=1 529
id=5 created_at=1767400005 turn=1 what=error_llm_stream detail=attempt=2 529
id=6 created_at=1767400006 turn=1 what=message_assistant detail=Done.
id=8 created_at=1767400008 turn=1 what=token_usage detail=in=120 out=45
id=9 created_at=1767400009 turn=1 what=error_Bash detail=attempt=0 exit 1
id=9 created_at=1767400009 turn=1 what=message_tool detail=Bash
id=10 created_at=1767400010 turn=1 what=checkpoint detail=last_msg_id=9
id=13 created_at=1767400313 turn=3 what=message_assistant detail=Better.
id=14 created_at=1767400314 turn=3 what=token_usage detail=in=180 out=30`,
		"retry storms":                       "session_id=session-r1 turn=1 context=llm_stream failures=3 last_attempt=2 seconds=2",
		"messages after the last checkpoint": "session_id=session-r1 turn=1 last_msg_id=9 orphans=1",
		"tokens per five minutes":            "since=1767399900 input=120 output=45\nsince=1767400200 input=180 output=30",
		"what was rolled back":               "run=r1 node=coder turn=2 role=assistant content=Hm.",
	} {
		text := strings.ReplaceAll(statements[title], "SESSION%", "session-r%")
		if got := strings.ReplaceAll(strings.Join(rowsOf(t, db, text), "\n"), " \n", "\n"); strings.TrimSpace(got) != want {
			t.Errorf("%s:\n%s\nwant\n%s", title, got, want)
		}
		delete(statements, title)
	}
	if rows := rowsOf(t, db, statements["cost by model"]); len(rows) != 1 || !strings.HasPrefix(rows[0], "model=opus calls=2 input=300 output=75 usd=0") {
		t.Errorf("cost by model: %q", rows)
	}
	if len(statements) < 6 {
		t.Errorf("statements %q", statements)
	}
	for _, text := range statements {
		rowsOf(t, db, text)
	}
}
