package recorder_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
)

// log247 is a run of 247 lines, one every two seconds: every fourth is a tool, every
// fifth of the rest says "error".
func log247(t testing.TB) *tape {
	p := newTape(t)
	exec := p.start("r1", "coder", map[string]string{"name": "sentinella"})
	lines := 3 // run started, node started, the prompt
	for lines < 247 {
		lines++
		p.clock += 1000
		switch {
		case lines%4 == 0:
			p.seqs["r1/coder"]++
			p.clock += 1000
			p.put(&wire.Event{
				RunID: "r1", NodeID: "coder", ExecID: exec, Seq: p.seqs["r1/coder"], Epoch: 1, CallID: fmt.Sprint("c", lines), Timestamp: p.clock,
				Payload: &wire.AgentTool{ToolName: "Bash", ToolInput: mustRaw(t, map[string]any{"command": fmt.Sprintf("make %d", lines)}), ToolOutput: wire.Null, DurationMs: new(int64(2100))},
			})
		case lines%5 == 0:
			p.add("r1", "coder", exec, &wire.AgentText{Content: fmt.Sprintf("Line %d: an Error (again).", lines)})
		default:
			p.add("r1", "coder", exec, &wire.AgentText{Content: fmt.Sprintf("Line %d.", lines)})
		}
	}
	return p
}

func codeOf(err error) wire.ErrorCode {
	if e, ok := errors.AsType[*wire.APIError](err); ok {
		return e.Code
	}
	return ""
}

// TestLogOf247Lines is case A11 of the detectors' suite.
// Events that can't be read are an error, not missing.
func TestUnreadableEvents(t *testing.T) {
	p := newTape(t)
	p.start("r1", "coder", nil)
	path := newTarget(t)
	s := openAt(t, path)
	defer closed(t, s)
	p.store(s, 100)
	db := openDB(t, path)
	defer db.Close()
	mustExec(t, db, `ALTER TABLE tail RENAME TO elsewhere`)
	if r, err := s.Answers.Events(t.Context(), wire.EventsRequest{Run: "r1"}, false, 1<<20); err == nil {
		t.Errorf("they are %d", len(r.Events))
	}
	mustExec(t, db, `ALTER TABLE elsewhere RENAME TO tail`)
	if r, err := s.Answers.Events(t.Context(), wire.EventsRequest{Run: "r1"}, false, 1<<20); err != nil || len(r.Events) == 0 {
		t.Errorf("they are %d, %v", len(r.Events), err)
	}
}

func TestLogOf247Lines(t *testing.T) {
	p := log247(t)
	s := openStore(t)
	p.store(s, 50)
	now := time.UnixMilli(p.clock)
	ask := func(q wire.LogRequest) wire.LogResponse {
		t.Helper()
		q.AgentID = "sentinella"
		r, err := s.Answers.Log(t.Context(), q, now, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if r.ReturnedLines != len(r.Lines) || r.BufferLines != 247 {
			t.Errorf("%+v: returnedLines %d of %d, bufferLines %d", q, r.ReturnedLines, len(r.Lines), r.BufferLines)
		}
		return r
	}
	all := ask(wire.LogRequest{Limit: new(1000)})
	if all.TotalLines != 247 || all.Offset != 0 || len(all.Lines) != 247 {
		t.Fatalf("total %d, offset %d, %d lines", all.TotalLines, all.Offset, len(all.Lines))
	}

	r := ask(wire.LogRequest{})
	if r.TotalLines != 247 || r.Offset != 197 || len(r.Lines) != 50 || r.Lines[49] != all.Lines[246] {
		t.Errorf("nothing asked: total %d, offset %d, %d lines", r.TotalLines, r.Offset, len(r.Lines))
	}
	r = ask(wire.LogRequest{Offset: new(int64(0)), Limit: new(5)})
	if diff := cmp.Diff(all.Lines[:5], r.Lines); diff != "" || r.Offset != 0 || r.TotalLines != 247 {
		t.Errorf("offset 0, limit 5: offset %d, total %d (-want +got):\n%s", r.Offset, r.TotalLines, diff)
	}
	r = ask(wire.LogRequest{Offset: new(int64(240)), Limit: new(50)})
	if diff := cmp.Diff(all.Lines[240:], r.Lines); diff != "" || r.Offset != 240 {
		t.Errorf("offset 240: offset %d (-want +got):\n%s", r.Offset, diff)
	}
	r = ask(wire.LogRequest{Offset: new(int64(1000))})
	if len(r.Lines) != 0 || r.Offset != 1000 || r.TotalLines != 247 {
		t.Errorf("offset 1000: %+v", r)
	}

	var matches []wire.LogLine
	for _, l := range all.Lines {
		if strings.Contains(l.Text, "Error") {
			matches = append(matches, l)
		}
	}
	r = ask(wire.LogRequest{Grep: "error|fail", Limit: new(10)})
	if diff := cmp.Diff(matches[len(matches)-10:], r.Lines); diff != "" || r.TotalLines != int64(len(matches)) || r.Offset != int64(len(matches)-10) {
		t.Errorf("grep, limit 10: total %d, offset %d (-want +got):\n%s", r.TotalLines, r.Offset, diff)
	}
	r = ask(wire.LogRequest{Grep: `an error \(again\)`, Offset: new(int64(2)), Limit: new(3)})
	if diff := cmp.Diff(matches[2:5], r.Lines); diff != "" || r.Offset != 2 {
		t.Errorf("grep, offset 2: offset %d (-want +got):\n%s", r.Offset, diff)
	}

	r = ask(wire.LogRequest{Since: 300_000, Limit: new(1000)})
	if diff := cmp.Diff(all.Lines[96:], r.Lines); diff != "" || r.TotalLines != 151 || r.Offset != 0 {
		t.Errorf("since 5m: total %d, offset %d (-want +got):\n%s", r.TotalLines, r.Offset, diff)
	}

	r = ask(wire.LogRequest{Type: wire.LineTool, Limit: new(1000)})
	for _, l := range r.Lines {
		if l.Type != wire.LineTool || !strings.HasPrefix(l.Text, "✅ Bash (2.1s)\nmake ") {
			t.Errorf("type tool: %+v", l)
		}
	}
	if len(r.Lines) != 61 || r.TotalLines != 61 {
		t.Errorf("type tool: %d lines of %d, want 61", len(r.Lines), r.TotalLines)
	}
	if tools := ask(wire.LogRequest{Grep: "tool_use", Limit: new(10)}); tools.TotalLines != 61 || cmp.Diff(r.Lines[51:], tools.Lines) != "" {
		t.Errorf("grep tool_use: %d of %d lines", len(tools.Lines), tools.TotalLines)
	}
	r = ask(wire.LogRequest{Type: wire.LineTool, Since: 40_000, Grep: "make 2.*[02468]$", Limit: new(2)})
	if diff := cmp.Diff([]string{"tool ✅ Bash (2.1s)\nmake 240", "tool ✅ Bash (2.1s)\nmake 244"}, texts(r.Lines)); diff != "" || r.TotalLines != 5 || r.Offset != 3 {
		t.Errorf("all filters: total %d, offset %d (-want +got):\n%s", r.TotalLines, r.Offset, diff)
	}
	if r = ask(wire.LogRequest{Limit: new(0)}); len(r.Lines) != 0 || r.TotalLines != 247 || r.Offset != 247 {
		t.Errorf("limit 0: %+v", r)
	}
}

func TestLogRefusesWhatItCannotRead(t *testing.T) {
	p := log247(t)
	s := openStore(t)
	p.store(s, 500)
	for name, tt := range map[string]struct {
		q    wire.LogRequest
		want wire.ErrorCode
	}{
		"bad regex":      {wire.LogRequest{Run: "r1", Grep: "("}, wire.CodeBadRegex},
		"two groups":     {wire.LogRequest{Run: "r1", Grep: "a)(b"}, wire.CodeBadRegex},
		"backreference":  {wire.LogRequest{Run: "r1", Grep: `(a)\1`}, wire.CodeBadRegex},
		"huge repeat":    {wire.LogRequest{Run: "r1", Grep: "(a{1000}){1000}"}, wire.CodeBadRegex},
		"not UTF-8":      {wire.LogRequest{Run: "r1", Grep: "\xff"}, wire.CodeBadRegex},
		"long regex":     {wire.LogRequest{Run: "r1", Grep: strings.Repeat("a", 1001)}, wire.CodeBadRequest},
		"type":           {wire.LogRequest{Run: "r1", Type: "tools"}, wire.CodeBadRequest},
		"negative limit": {wire.LogRequest{Run: "r1", Limit: new(-1)}, wire.CodeBadRequest},
		"limit":          {wire.LogRequest{Run: "r1", Limit: new(wire.MaxLogLimit + 1)}, wire.CodeBadRequest},
		"offset":         {wire.LogRequest{Run: "r1", Offset: new(int64(-1))}, wire.CodeBadRequest},
		"no run":         {wire.LogRequest{}, wire.CodeBadRequest},
		"two runs":       {wire.LogRequest{Run: "r1", AgentID: "r2"}, wire.CodeBadRequest},
		"unknown run":    {wire.LogRequest{Run: "r9"}, wire.CodeRunNotFound},
		"unknown node":   {wire.LogRequest{Run: "r1", Node: "code"}, wire.CodeNodeNotFound},
	} {
		_, err := s.Answers.Log(t.Context(), tt.q, time.UnixMilli(p.clock), 1<<20)
		if codeOf(err) != tt.want {
			t.Errorf("%s: got %v, want %s", name, err, tt.want)
		}
	}
}

// TestGrepShortcutChangesNothing compares patterns that are tested by words
// first with what the expression alone says.
func TestGrepShortcutChangesNothing(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	for _, content := range []string{
		"an ERROR here", "nothing", "fail", "FAILED", "\x1b[31mer\x1b[0mror in colours", "K\u212Aelvin k", "stra\u017Fe", "Straße", "foo bar", "foobar",
		"err\nor", "❌ Fail\u200bure of ſtrings", "a.b", "axb", "exit code 1", "exit code 12",
	} {
		p.add("r1", "coder", exec, &wire.AgentText{Content: content})
	}
	s := openStore(t)
	p.store(s, 100)
	for pattern, want := range map[string][]string{
		"error":           {"an ERROR here", "error in colours"},
		"error|fail":      {"an ERROR here", "fail", "FAILED", "error in colours", "❌ Failure of ſtrings"},
		"(error)|FAILURE": {"an ERROR here", "error in colours", "❌ Failure of ſtrings"},
		"strings":         {"❌ Failure of ſtrings"},
		"(?-i)fail":       {"fail"},
		"kkelvin":         {"K\u212Aelvin k"},
		"strasse|STRASE":  {"stra\u017Fe"},
		"foo.*bar":        {"foo bar", "foobar"},
		"(foo)+ ?(bar)":   {"foo bar", "foobar"},
		"fo{2}bar":        {"foobar"},
		"x{0,2}foobar":    {"foobar"},
		`a\.b`:            {"a.b"},
		"a.b$":            {"a.b", "axb"},
		`exit code 1\b`:   {"exit code 1"},
		"^err$":           {},
		"(?m)^or$":        {"err\nor"},
		"(?s)err.or":      {"err\nor"},
		"no(thing|where)": {"nothing"},
	} {
		r, err := s.Answers.Log(t.Context(), wire.LogRequest{Run: "r1", Type: wire.LineText, Grep: pattern}, time.UnixMilli(p.clock), 1<<20)
		if err != nil {
			t.Errorf("%s: %v", pattern, err)
			continue
		}
		got := []string{}
		for _, l := range r.Lines {
			got = append(got, l.Text)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", pattern, diff)
		}
	}
}

func TestRunsAreFoundByAllTheirNames(t *testing.T) {
	p := newTape(t)
	p.start("alpha-1", "coder", map[string]string{"name": "sentinella", "team": "blue"})
	p.start("alpha-2", "judge", map[string]string{"name": "sentinella"})
	p.add("alpha-1.f", wire.RunNode, "", &wire.RunClaimed{Runner: "a", Nonce: "n"}) // which alpha-1 has begun
	p.add("alpha-1.f", wire.RunNode, "", &wire.FlowStart{FlowName: "f", Definition: wire.Null, DefinitionHash: "h", ParentRun: "alpha-1", Labels: map[string]string{"name": "sentinella", "team": "blue"}})
	p.start("beta", "coder/0", map[string]string{"name": "100%", "x": "'; DROP TABLE runs; --"})
	p.start("alpha", "plan", nil)
	p.start("we/ird %_*", "plan/b", nil)
	p.add(wire.NoRun, wire.RunNode, "", &wire.CommandReceived{Command: mustRaw(t, map[string]any{"type": "send"}), Reason: "no run"})
	s := openStore(t)
	p.store(s, 100)
	for _, tt := range []struct {
		ref, agent, want string
		code             wire.ErrorCode
		matches          []string
	}{
		{ref: "alpha", want: "alpha"}, // exact before prefix
		{ref: "alpha-1", want: "alpha-1"},
		{ref: "b", want: "beta"},
		{ref: "alpha-", code: wire.CodeAmbiguousID, matches: []string{"alpha-2", "alpha-1"}},
		{ref: "a", code: wire.CodeAmbiguousID, matches: []string{"alpha", "alpha-2", "alpha-1"}},
		{ref: "sentinella", code: wire.CodeAmbiguousID, matches: []string{"alpha-2", "alpha-1"}},
		{ref: "blue", want: "alpha-1"},
		{ref: "alpha-1.", want: "alpha-1.f"},
		{ref: "team=blue", want: "alpha-1"},
		{ref: "team=", code: wire.CodeRunNotFound},
		{ref: "session-beta", want: "beta"},
		{ref: "session-be", want: "beta"},
		{ref: "session-alpha-", code: wire.CodeAmbiguousID, matches: []string{"alpha-2", "alpha-1"}},
		{ref: "session_", code: wire.CodeRunNotFound},
		{ref: "@last", want: "we/ird %_*"},
		{ref: "100%", want: "beta"},
		{ref: "we/ird %", want: "we/ird %_*"},
		{ref: "_", want: "_"},
		{ref: "%", code: wire.CodeRunNotFound},
		{ref: "alpha_1", code: wire.CodeRunNotFound},
		{ref: "*", code: wire.CodeRunNotFound},
		{ref: "' OR 1=1 --", code: wire.CodeRunNotFound},
		{ref: "'; DROP TABLE runs; --", want: "beta"},
		{ref: "a\x00", code: wire.CodeRunNotFound},
		{ref: "\xff\xfe", code: wire.CodeRunNotFound},
		{ref: "\x1b[31m", code: wire.CodeRunNotFound},
		{ref: "\U0010ffff", code: wire.CodeRunNotFound},
		{agent: "beta", want: "beta"},
		{agent: "blue", want: "alpha-1"},
		{agent: "judge", want: "alpha-2"},
		{agent: "coder", want: "alpha-1"},
		{agent: "beta/coder/0", want: "beta"},
		{agent: "alpha-1/coder", want: "alpha-1"},
		{agent: "alpha-1/judge", code: wire.CodeNodeNotFound},
		{agent: "plan", want: "alpha"},
		{agent: "nobody", code: wire.CodeRunNotFound},
		{agent: "sentinella", code: wire.CodeAmbiguousID, matches: []string{"alpha-2", "alpha-1"}},
	} {
		r, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: tt.ref, AgentID: tt.agent}, time.UnixMilli(p.clock), 1<<20)
		if r.RunID != tt.want && err == nil || codeOf(err) != tt.code {
			t.Errorf("%q %q: got %q, %v, want %q %s", tt.ref, tt.agent, r.RunID, err, tt.want, tt.code)
		}
		if e, ok := errors.AsType[*wire.APIError](err); ok {
			if diff := cmp.Diff(tt.matches, e.Matches); diff != "" {
				t.Errorf("%q: matches (-want +got):\n%s", tt.ref, diff)
			}
			if strings.ContainsAny(e.Message, "\x1b\x00") {
				t.Errorf("%q: the message isn't safe: %q", tt.ref, e.Message)
			}
		}
	}
}

func TestAnAmbiguousListIsShort(t *testing.T) {
	p := newTape(t)
	for i := range 40 {
		p.add(fmt.Sprintf("run-%02d", i), wire.RunNode, "", &wire.RunClaimed{Runner: "a", Nonce: "n"})
	}
	s := openStore(t)
	p.store(s, 100)
	_, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "run-"}, time.UnixMilli(0), 1<<20)
	e, ok := errors.AsType[*wire.APIError](err)
	if !ok || len(e.Matches) != 20 || e.Matches[0] != "run-39" || !strings.Contains(e.Message, "more than 20") {
		t.Errorf("got %v", err)
	}
}

func TestLogOfANodeAndItsItems(t *testing.T) {
	p := newTape(t)
	p.start("r1", "each", nil)
	for _, node := range []string{"each/0", "each/1", "each0", "eac"} {
		p.add("r1", node, node+"#1", &wire.AgentText{Content: "of " + node})
	}
	p.add("r1", wire.RunNode, "each#1", &wire.NodeSkipped{Target: "each", Reason: "edge"})
	s := openStore(t)
	p.store(s, 100)
	for node, want := range map[string][]string{
		"each":   {"system each started (agent)", "user [prompt] Do it.", "text of each/0", "text of each/1", "system each skipped (edge)"},
		"each/1": {"text of each/1"},
	} {
		r, err := s.Answers.Log(t.Context(), wire.LogRequest{Run: "r1", Node: node, Details: true}, time.UnixMilli(p.clock), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, texts(r.Lines)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", node, diff)
		}
		for _, l := range r.Lines {
			if l.Pos == 0 || !strings.HasPrefix(l.Node, "each") || l.Exec == "" {
				t.Errorf("%s: details are missing: %+v", node, l)
			}
		}
		if got, err := s.Answers.Log(t.Context(), wire.LogRequest{AgentID: "r1/" + node}, time.UnixMilli(p.clock), 1<<20); err != nil || cmp.Diff(want, texts(got.Lines)) != "" || got.Lines[0].Pos != 0 {
			t.Errorf("as agentId %s: %v, %v", node, texts(got.Lines), err)
		}
	}
}

func TestLinesAreSafeForATerminal(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	p.add("r1", "coder", exec, &wire.AgentTextDelta{Content: "\x1b]52;c;ZXZpbA=="})
	p.add("r1", "coder", exec, &wire.AgentTextDelta{Content: "\x07owned \u202egnp.exe"})
	s := openStore(t)
	p.store(s, 1)
	r, err := s.Answers.Log(t.Context(), wire.LogRequest{Run: "r1", Type: wire.LineText}, time.UnixMilli(p.clock), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"text owned \ufffdgnp.exe"}, texts(r.Lines)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAnAnswerFits(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	for i := range 20 {
		p.add("r1", "coder", exec, &wire.AgentText{Content: strings.Repeat(fmt.Sprint(i%10, "\n"), 5000)})
	}
	p.add("r1", "coder", exec, &wire.AgentText{Content: "small"})
	s := openStore(t)
	p.store(s, 100)
	const limit = 64 << 10
	for name, tt := range map[string]struct {
		q             wire.LogRequest
		offset, lines int64
	}{
		"tail": {wire.LogRequest{Run: "r1", Type: wire.LineText}, 16, 5},
		"page": {wire.LogRequest{Run: "r1", Type: wire.LineText, Offset: new(int64(2))}, 2, 4},
	} {
		r, err := s.Answers.Log(t.Context(), tt.q, time.UnixMilli(p.clock), limit)
		if err != nil {
			t.Fatal(err)
		}
		if r.Offset != tt.offset || int64(r.ReturnedLines) != tt.lines || r.TotalLines != 21 {
			t.Errorf("%s: offset %d, %d lines of %d, want offset %d, %d lines", name, r.Offset, r.ReturnedLines, r.TotalLines, tt.offset, tt.lines)
		}
		if n := len(encoded(t, r)); n > limit {
			t.Errorf("%s: %d bytes", name, n)
		}
	}
	r, err := s.Answers.Log(t.Context(), wire.LogRequest{Run: "r1", Type: wire.LineText, Offset: new(int64(3)), Limit: new(1)}, time.UnixMilli(p.clock), 8<<10)
	if err != nil || len(r.Lines) != 1 || !strings.HasSuffix(r.Lines[0].Text, " more bytes)") || len(encoded(t, r)) > 8<<10 {
		t.Errorf("a line that is too large: %v, %.100q", err, texts(r.Lines))
	}
}

func encoded(t testing.TB, v any) []byte {
	t.Helper()
	text, err := wire.AppendJSON(nil, mustRaw(t, v))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestStatus(t *testing.T) {
	p := story(t)
	s := openStore(t)
	p.store(s, 100)
	now := time.UnixMilli(p.clock + 12*60_000)
	r, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "sentinella"}, now, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	want := wire.AgentStatus{
		AgentID: "sentinella", State: "waiting", Runtime: "12m", SessionID: "session-r1b", CostUsd: 0.34, CostBasis: "reported",
		TokensIn: 1000, TokensOut: 50, ToolsUsed: 1, LastActivity: "waiting for an answer: Deploy?", LastActivityAge: "12m ago",
		RuntimeMs: 12*60_000 + 36_000, LastActivityAt: p.clock, LastActivityAgeMs: 12 * 60_000, StartedAt: 1767400002000, ToolErrors: 1,
		WaitedMs: 720_000, WaitsSince: p.clock, WaitingFor: "judge: an answer to p1: Deploy?",
	}
	if diff := cmp.Diff(want, r.AgentStatus); diff != "" {
		t.Errorf("run (-want +got):\n%s", diff)
	}
	if r.FlowName != "review" || r.Status != wire.RunRunning || r.Labels["team"] != "a" || r.Position.Seq != p.pos || r.Position.Incarnation != incarnation {
		t.Errorf("run: %+v", r)
	}
	agents := []wire.AgentStatus{
		{
			AgentID: "coder", State: "complete", Runtime: "30s", SessionID: "session-r1b", CostUsd: 0.34, CostBasis: "reported", TokensIn: 1000, TokensOut: 50,
			ToolsUsed: 1, ToolErrors: 1, LastActivity: "done", LastActivityAge: "12m ago",
			RuntimeMs: 30_000, LastActivityAt: p.clock - 3000, LastActivityAgeMs: 12*60_000 + 3000, StartedAt: p.clock - 33_000, EndedAt: p.clock - 3000,
			NodeType: "agent", Attempt: 1, Model: "opus", ContextPct: 25,
		},
		{
			AgentID: "judge", State: "waiting", Runtime: "12m", LastActivity: "waiting for an answer: Deploy?", LastActivityAge: "12m ago",
			RuntimeMs: 12*60_000 + 1000, LastActivityAt: p.clock, LastActivityAgeMs: 12 * 60_000, StartedAt: p.clock - 1000,
			NodeType: "ask", Reason: "waiting", Attempt: 1, WaitsSince: p.clock, WaitingFor: "an answer to p1: Deploy?",
		},
	}
	if diff := cmp.Diff(agents, r.Agents); diff != "" {
		t.Errorf("agents (-want +got):\n%s", diff)
	}
	one, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "r1", Node: "judge"}, now, 1<<20)
	if err != nil || len(one.Agents) != 1 || one.Agents[0].AgentID != "judge" {
		t.Errorf("of one node: %+v, %v", one.Agents, err)
	}
}

// TestStatusOfALongText has a run in which nothing happens but text: its state
// is found without reading all of that.
func TestStatusOfALongText(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	for i := range 30_000 {
		p.add("r1", "coder", exec, &wire.AgentTextDelta{Content: "x", Block: 1 + i/1000})
	}
	target := newTarget(t)
	s := openAt(t, target)
	defer closed(t, s)
	p.store(s, 1000)
	r, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "r1"}, time.UnixMilli(p.clock), 1<<20)
	if err != nil || r.State != "active" || len(r.Agents) != 1 || r.Agents[0].Model != "opus" {
		t.Errorf("%+v, %v", r, err)
	}
	db := openDB(t, target)
	defer db.Close()
	var kept uint64
	if err := db.QueryRow(`SELECT pos FROM folds`).Scan(&kept); err != nil || kept+4096+1000 < p.pos {
		t.Errorf("the state is kept as of %d, %v: %d events have to be read after it", kept, err, p.pos-kept)
	}
	if v, err := s.Checker.Verify(t.Context(), ""); err != nil || len(v.Damages) > 0 {
		t.Errorf("%v, %v", v.Damages, err)
	}
}

// Of a node that a crash interrupted somebody has to know, to decide.
func TestStatusOfAnInterruptedNode(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "deploy", nil)
	p.add("r1", "deploy", exec, &wire.NodeError{Error: "the runner died", ErrorType: wire.ErrorInterrupted})
	p.add("r1", wire.RunNode, "", &wire.FlowPaused{Reason: wire.PauseRequiresAction})
	s := openStore(t)
	p.store(s, 100)
	r, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "r1"}, time.UnixMilli(p.clock), 1<<20)
	if err != nil || r.State != "paused" || r.Reason != wire.PauseRequiresAction {
		t.Fatalf("run: %q (%s), %v", r.State, r.Reason, err)
	}
	if a := r.Agents[0]; a.State != "failed" || a.Reason != wire.ErrorInterrupted || a.Error != "the runner died" {
		t.Errorf("node: %q (%s): %s", a.State, a.Reason, a.Error)
	}
}

// TestStatusOfUnread: a message that no agent has read is told of once the run has ended.
func TestStatusOfUnread(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	for _, text := range []string{"hurry", "stop"} {
		command := mustRaw(t, map[string]any{"type": "send", "nodeId": "coder", "message": text})
		p.add("r1", wire.RunNode, "", &wire.CommandReceived{Command: command, CommandID: "c-" + text, Accepted: true})
	}
	p.add("r1", "coder", exec, &wire.UserMessage{Content: "hurry", Source: "command", CommandID: "c-hurry"})
	p.add("r1", "coder", exec, &wire.NodeComplete{Output: wire.RawString("done")})
	s := openStore(t)
	unread := func() []string {
		p.store(s, 100)
		r, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "r1"}, time.UnixMilli(p.clock), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		return r.Unread
	}
	if got := unread(); got != nil {
		t.Errorf("while it goes on: %q", got)
	}
	p.add("r1", wire.RunNode, "", &wire.FlowComplete{Status: wire.FlowStatusComplete})
	if diff := cmp.Diff([]string{"stop"}, unread()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestStatusOfALimit: a node that waits until a limit of its model is over hasn't failed.
func TestStatusOfALimit(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	p.add("r1", "coder", exec, &wire.NodeError{Error: "resets 3pm", ErrorType: wire.ErrorRateLimit, RetryAt: 1795676400000})
	s := openStore(t)
	p.store(s, 100)
	r, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "r1"}, time.UnixMilli(p.clock), 1<<20)
	if err != nil || r.State != "active" {
		t.Fatalf("run: %q, %v", r.State, err)
	}
	const doing = "waiting until 2026-11-26 07:00:00 UTC: resets 3pm"
	if a := r.Agents[0]; a.State != "idle" || a.Reason != "limit" || a.Error != "" || a.LastActivity != doing {
		t.Errorf("node: %q (%s): %s, %q", a.State, a.Reason, a.Error, a.LastActivity)
	}
}

// TestStatusOfARetry: a node that is going to be tried again hasn't failed; after its last try it has.
func TestStatusOfARetry(t *testing.T) {
	p := newTape(t)
	definition, err := wire.RawFromJSON([]byte(`{"name":"f","nodes":[{"id":"coder","type":"agent","policy":{"retry":{"maxAttempts":2,"backoffMs":60000}}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	p.add("r1", wire.RunNode, "", &wire.RunClaimed{Runner: "runner", Nonce: "n"})
	p.add("r1", wire.RunNode, "", &wire.FlowStart{FlowName: "f", Definition: definition, DefinitionHash: "h"})
	s := openStore(t)
	for attempt, want := range []string{"idle", "failed"} {
		exec := fmt.Sprintf("coder#%d", attempt+1)
		p.add("r1", wire.RunNode, exec, &wire.NodeScheduled{Target: "coder", Attempt: attempt + 1})
		if attempt == 0 {
			p.add("r1", "coder", exec, &wire.NodeClaimed{Runner: "runner", Nonce: "n"})
		}
		p.add("r1", "coder", exec, &wire.NodeStart{NodeType: "agent", Attempt: attempt + 1})
		p.add("r1", "coder", exec, &wire.NodeError{Error: "exit 1", ErrorType: "exit"})
		p.store(s, 100)
		r, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "r1"}, time.UnixMilli(p.clock), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		a := r.Agents[0]
		if waits := strings.HasPrefix(a.LastActivity, "waiting for try 2, at "); a.State != want || waits != (want == "idle") || a.Error != "exit 1" || waits != (a.Reason == "retry") {
			t.Errorf("after try %d: %q (%s): %s, %q", attempt+1, a.State, a.Reason, a.Error, a.LastActivity)
		}
	}
}

func TestStatusOfAWideRunFits(t *testing.T) {
	p := newTape(t)
	p.start("r1", "coder", nil)
	for i := range 400 {
		p.add("r1", fmt.Sprintf("each/%d", i), "", &wire.AgentText{Content: "x"})
	}
	s := openStore(t)
	p.store(s, 1000)
	r, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "r1"}, time.UnixMilli(p.clock), 256<<10)
	if err != nil || r.Omitted == 0 || len(r.Agents)+r.Omitted != 401 || r.Agents[0].AgentID != "coder" || len(encoded(t, r)) > 256<<10 {
		t.Errorf("%d agents, %d omitted, %d bytes, %v", len(r.Agents), r.Omitted, len(encoded(t, r)), err)
	}
}

func TestStates(t *testing.T) {
	for want, end := range map[string]func(p *tape, exec string){
		"active":   func(*tape, string) {},
		"complete": func(p *tape, _ string) { finish(p, wire.FlowStatusComplete) },
		"failed":   func(p *tape, _ string) { finish(p, wire.FlowStatusFailed) },
		"aborted":  func(p *tape, _ string) { p.add("r1", wire.RunNode, "", &wire.FlowAborted{Reason: "operator"}) },
		"paused":   func(p *tape, _ string) { p.add("r1", wire.RunNode, "", &wire.FlowPaused{Reason: "operator"}) },
		"waiting": func(p *tape, exec string) {
			p.add("r1", "coder", exec, &wire.CCMessage{Text: "Install it?", Priority: wire.PriorityQuestion})
		},
	} {
		p := newTape(t)
		exec := p.start("r1", "coder", nil)
		end(p, exec)
		s := openStore(t)
		p.store(s, 100)
		r, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "r1"}, time.UnixMilli(p.clock), 1<<20)
		if err != nil || r.State != want {
			t.Errorf("got %q, %v, want %q", r.State, err, want)
		}
	}
}

func finish(p *tape, status wire.FlowStatus) {
	p.add("r1", "coder", "coder#1", &wire.NodeComplete{Output: wire.RawString("ok")})
	p.add("r1", wire.RunNode, "", &wire.FlowComplete{FlowName: "review", Status: status, Error: "why"})
}

func TestRuns(t *testing.T) {
	p := newTape(t)
	p.start("r1", "coder", map[string]string{"name": "sentinella"})
	finish(p, wire.FlowStatusFailed)
	p.clock += 3_600_000
	p.start("r2", "coder", map[string]string{"name": "sentinella", "team": "blue"})
	p.start("r3", "coder", nil)
	p.add("r3", wire.RunNode, "", &wire.FlowAborted{Reason: "operator"})
	p.add(wire.NoRun, wire.RunNode, "", &wire.CommandReceived{Command: mustRaw(t, map[string]any{"type": "send"}), Reason: "no run"})
	s := openStore(t)
	p.store(s, 100)
	now := time.UnixMilli(p.clock)
	ids := func(q wire.RunsRequest) []string {
		t.Helper()
		r, err := s.Answers.Runs(t.Context(), q, now, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		list := []string{}
		for _, i := range r.Runs {
			list = append(list, i.RunID)
		}
		return list
	}
	for _, tt := range []struct {
		q    wire.RunsRequest
		want []string
	}{
		{wire.RunsRequest{}, []string{"r3", "r2", "r1"}},
		{wire.RunsRequest{Limit: 2}, []string{"r3", "r2"}},
		{wire.RunsRequest{Status: []string{"active"}}, []string{"r2"}},
		{wire.RunsRequest{Status: []string{"failed", "aborted"}}, []string{"r3", "r1"}},
		{wire.RunsRequest{Status: []string{"complete"}}, []string{}},
		{wire.RunsRequest{Label: "sentinella"}, []string{"r2", "r1"}},
		{wire.RunsRequest{Label: "team=blue"}, []string{"r2"}},
		{wire.RunsRequest{Label: "team"}, []string{}},
		{wire.RunsRequest{Label: "' OR 1=1 --"}, []string{}},
		{wire.RunsRequest{Flow: "review", Since: 600_000}, []string{"r3", "r2"}},
		{wire.RunsRequest{Flow: "other"}, []string{}},
	} {
		if diff := cmp.Diff(tt.want, ids(tt.q)); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", tt.q, diff)
		}
	}
	for _, q := range []wire.RunsRequest{{Status: []string{"done"}}, {Limit: -1}, {Limit: 1001}, {Limit: 1_000_000_000}, {Cursor: "x"}, {Cursor: "5"}, {Cursor: "5.01234567"}} {
		if _, err := s.Answers.Runs(t.Context(), q, now, 1<<20); codeOf(err) != wire.CodeBadRequest {
			t.Errorf("%+v: got %v", q, err)
		}
	}
	r, err := s.Answers.Runs(t.Context(), wire.RunsRequest{Label: "name=sentinella", Status: []string{"failed"}}, now, 1<<20)
	if err != nil || len(r.Runs) != 1 {
		t.Fatal(r, err)
	}
	want := wire.RunInfo{
		RunID: "r1", FlowName: "review", Status: wire.RunComplete, Result: wire.FlowStatusFailed, Error: "why",
		Labels: map[string]string{"name": "sentinella"}, StartedAt: 1767400002000, EndedAt: 1767400008000,
		LastActivity: "done", LastActiveAt: 1767400008000, Events: 8,
	}
	if diff := cmp.Diff(want, r.Runs[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPages(t *testing.T) {
	p := newTape(t)
	for i := range 25 {
		p.start(fmt.Sprintf("r%02d", i), "coder", nil)
	}
	s := openStore(t)
	p.store(s, 100)
	var runs []string
	for q := (wire.RunsRequest{Limit: 10}); ; {
		r, err := s.Answers.Runs(t.Context(), q, time.UnixMilli(p.clock), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range r.Runs {
			runs = append(runs, i.RunID)
		}
		if q.Cursor = r.Cursor; q.Cursor == "" {
			break
		}
	}
	slices.Reverse(runs)
	if len(runs) != 25 || !slices.IsSorted(runs) {
		t.Errorf("runs %v", runs)
	}
	for _, limit := range []int{1 << 20, 4000} { // by number, by size
		var got []uint64
		pages := 0
		for q := (wire.EventsRequest{Limit: 100}); ; pages++ {
			r, err := s.Answers.Events(t.Context(), q, limit < 5000, limit)
			if err != nil {
				t.Fatal(err)
			}
			if n := len(encoded(t, r)); n > limit {
				t.Errorf("a page of %d bytes, at most %d", n, limit)
			}
			for _, e := range r.Events {
				got = append(got, e.Pos)
			}
			if q.Cursor = r.Cursor; q.Cursor == "" {
				break
			}
		}
		if len(got) != 150 || got[0] != 1 || got[149] != 150 || !slices.IsSorted(got) || pages == 0 {
			t.Errorf("limit %d: %d pages with positions %v", limit, pages, got)
		}
	}
}

func TestEvents(t *testing.T) {
	p := story(t)
	p.entries = append(p.entries, poison(p.pos+1))
	s := openStore(t)
	p.store(s, 100)
	for _, tt := range []struct {
		q    wire.EventsRequest
		want int
	}{
		{wire.EventsRequest{}, len(p.entries) - 1},
		{wire.EventsRequest{Void: true}, len(p.entries)},
		{wire.EventsRequest{Run: "r2"}, 8},
		{wire.EventsRequest{Run: "r2", Node: "judge"}, 5},
		{wire.EventsRequest{Run: "r2", Kinds: []wire.Kind{wire.KindDelta}}, 2},
		{wire.EventsRequest{Kinds: []wire.Kind{wire.KindTool, "' OR 1=1 --"}}, 2},
		{wire.EventsRequest{From: 3, To: 5}, 3},
		{wire.EventsRequest{From: 1 << 63}, 0},
		{wire.EventsRequest{To: 1<<64 - 1}, len(p.entries) - 1},
	} {
		r, err := s.Answers.Events(t.Context(), tt.q, false, 1<<20)
		if err != nil || len(r.Events) != tt.want || r.Cursor != "" {
			t.Errorf("%+v: %d events, %v, want %d", tt.q, len(r.Events), err, tt.want)
		}
	}
	for _, q := range []wire.EventsRequest{{Limit: -1}, {Limit: 1001}, {Limit: 1_000_000_000}, {Cursor: "-1"}, {Cursor: "5.01234567"}, {Node: "coder"}} {
		if _, err := s.Answers.Events(t.Context(), q, false, 1<<20); codeOf(err) != wire.CodeBadRequest {
			t.Errorf("%+v: got %v", q, err)
		}
	}
	bytes, err := s.Answers.Events(t.Context(), wire.EventsRequest{From: p.pos, Void: true}, false, 1<<20)
	if err != nil || string(bytes.Events[0].Data) != string(p.entries[len(p.entries)-2].Data) || bytes.Events[0].Event != nil {
		t.Errorf("bytes: %+v, %v", bytes, err)
	}
	json, err := s.Answers.Events(t.Context(), wire.EventsRequest{From: p.pos, Void: true}, true, 1<<20)
	if err != nil || json.Events[0].Data != nil || json.Events[1].Mark != "bad" || string(json.Events[1].Data) != "\xc1 no event" {
		t.Fatalf("JSON: %+v, %v", json, err)
	}
	if prompt := json.Events[0].Event.TextAt("prompt"); prompt != "Deploy?" {
		t.Errorf("JSON: prompt %q", prompt)
	}
}

func TestQuestionsWhileRecording(t *testing.T) {
	p := long(t, "r1", 400)
	s := openStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		last := int64(0)
		for ctx.Err() == nil {
			r, err := s.Answers.Log(ctx, wire.LogRequest{Run: "r1"}, time.UnixMilli(p.clock), 1<<20)
			if codeOf(err) == wire.CodeRunNotFound || errors.Is(err, context.Canceled) {
				continue
			}
			if err != nil || r.TotalLines < last || r.TotalLines != r.BufferLines || int64(len(r.Lines)) != min(50, r.TotalLines) {
				done <- fmt.Errorf("%d of %d lines after %d, %d shown: %w", r.TotalLines, r.BufferLines, last, len(r.Lines), err)
				return
			}
			last = r.TotalLines
		}
		done <- nil
	}()
	p.store(s, 20)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAQuestionEndsWithItsContext(t *testing.T) {
	p := long(t, "r1", 2000)
	s := openStore(t)
	p.store(s, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Answers.Log(ctx, wire.LogRequest{Run: "r1", Grep: "x"}, time.UnixMilli(p.clock), 1<<20); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestPagesOfALongLog: a page far from the beginning has the same lines, however often it was asked for, and also when lines
// before it were hidden meanwhile, or others came.
func TestPagesOfALongLog(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	s := openStore(t)
	var texts []string
	say := func(n int) {
		for range n {
			text := fmt.Sprint("line ", len(texts))
			texts = append(texts, text)
			p.add("r1", "coder", exec, &wire.AgentText{Content: text, Block: len(texts)})
		}
	}
	look := func(what string) {
		t.Helper()
		p.store(s, 5000)
		p.entries = nil
		var before int64
		for _, offset := range []int64{0, 16_000, 16_384, 39_000, 35_000, 50_000, 20_000} {
			r, err := s.Answers.Log(t.Context(), wire.LogRequest{Run: "r1", Offset: &offset, Limit: new(100)}, time.UnixMilli(p.clock), 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			if offset == 0 {
				before = int64(slices.IndexFunc(r.Lines, func(l wire.LogLine) bool { return l.Text == texts[0] }))
			}
			for i, l := range r.Lines {
				if at := int(offset-before) + i; at >= 0 && at < len(texts) && texts[at] != "" && l.Text != texts[at] {
					t.Fatalf("%s: line %d behind %d is %q, want %q", what, i, offset, l.Text, texts[at])
				}
			}
			if want := min(100, max(0, r.TotalLines-offset)); int64(len(r.Lines)) != want {
				t.Errorf("%s: %d lines behind %d of %d", what, len(r.Lines), offset, r.TotalLines)
			}
		}
	}
	say(30_000)
	keep := p.entries[len(p.entries)-1].Event.Seq - 10_000
	look("at first")
	say(10_000)
	look("more came")
	texts = texts[:20_000]
	p.add("r1", "coder", exec, &wire.LogTruncated{AtSeq: keep, Reason: "rollback"})
	texts = append(texts, "") // which says so
	say(30_000)
	look("some were hidden")
}
