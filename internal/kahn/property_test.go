package kahn_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/kahn"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/pkg/wire"
)

// TestAnyHistory: whatever agents do, in whatever order, its lines are valid, their
// life cycle is kept, strictly so if asked, and each line stands as soon as it is
// written.
func TestAnyHistory(t *testing.T) {
	const definition = `{"name":"f","nodes":[{"id":"a","type":"agent","input":{"provider":"claude","prompt":"x"},"goal":"a.ok","scope":{"tools":["Read"]}},` +
		`{"id":"B","type":"agent","input":{"provider":"claude","prompt":"x"}}]}`
	rapid.Check(t, func(rt *rapid.T) {
		s := newStory(t, definition)
		begun := map[string]bool{}
		calls := 0
		for range rapid.IntRange(1, 60).Draw(rt, "length") {
			node := rapid.SampledFrom([]string{"a", "B"}).Draw(rt, "node")
			if !begun[node] || rapid.IntRange(0, 20).Draw(rt, "again") == 0 {
				begun[node] = true
				s.do("start " + node)
				continue
			}
			calls++
			s.do(node + " " + strings.NewReplacer(
				"CALL", fmt.Sprint("c", rapid.IntRange(max(0, calls-3), calls).Draw(rt, "call")),
				"TURN", fmt.Sprint(rapid.IntRange(0, 3).Draw(rt, "turn")),
				"PARENT", rapid.SampledFrom([]string{"", "", "c1", "c2"}).Draw(rt, "parent"),
			).Replace(rapid.SampledFrom(actions).Draw(rt, "action")))
		}
		all, _, _ := project(t, s.log, kahn.Projection{})
		check(t, all, false)
		strict, _, _ := project(t, s.log, kahn.Projection{Strict: true, AuditScore: true})
		check(t, strict, true)
		n := rapid.IntRange(0, len(s.log)).Draw(rt, "cut")
		if some, _, _ := project(t, s.log[:n], kahn.Projection{}); !strings.HasPrefix(joined(all), joined(some)) {
			rt.Fatalf("after %d events other lines", n)
		}
		if t.Failed() {
			rt.FailNow()
		}
	})
}

var actions = []string{
	`turn:start {"turn":TURN}`,
	`turn:end {"turn":TURN}`,
	`agent:text {"turn":TURN,"content":"x","parent":"PARENT"}`,
	`agent:text:delta {"turn":TURN,"content":"y"}`,
	`agent:thinking {"turn":TURN,"content":"x","parent":"PARENT"}`,
	`tool:intent {"turn":TURN,"callId":"CALL","toolName":"Read","toolInput":{"subagent_type":"Explore"},"parent":"PARENT"}`,
	`tool:intent {"turn":TURN,"callId":"CALL","toolName":"AskUserQuestion","toolInput":null}`,
	`agent:tool {"turn":TURN,"callId":"CALL","toolName":"Read","toolInput":"in","toolOutput":"out","parent":"PARENT"}`,
	`agent:tool {"turn":TURN,"callId":"CALL","toolName":"Bash","toolInput":{},"toolOutput":[1],"error":"no","durationMs":-5}`,
	`permission:required {"callId":"CALL","toolName":"Read"}`,
	`permission:decided {"callId":"CALL","decision":"allow"}`,
	`cc_message {"text":"?","priority":"question"}`,
	`user:message {"content":"!","source":"command"}`,
	`audit:checkpoint {"agentId":"a","checkpointId":"audit:x","result":"pass","durationMs":1}`,
	`audit:checkpoint {"agentId":"a","checkpointId":"audit:y","result":"fail","durationMs":1,"evidence":{"a":1}}`,
	`agent:complete {"result":"","usage":{"inputTokens":0,"outputTokens":0},"durationMs":1,"numTurns":1}`,
	`agent:aborted {"reason":"x"}`,
	`node:complete {"output":{"ok":true},"durationMs":1}`,
	`node:error {"error":"x","errorType":"timeout","durationMs":1}`,
	`node:error {"error":"x","errorType":"error_max_turns","durationMs":1}`,
}

// TestRecordings projects what real agents did.
func TestRecordings(t *testing.T) {
	log := logtest.Start(t)
	files, err := filepath.Glob("../agent/claude/testdata/*/*.jsonl")
	if err != nil || len(files) < 12 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	for _, file := range files {
		name := filepath.Base(filepath.Dir(file)) + "-" + strings.TrimSuffix(filepath.Base(file), ".jsonl")
		t.Run(name, func(t *testing.T) {
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			if _, err := ingest.Run(t.Context(), log, f, ingest.Options{RunID: name, Runner: "test"}); err != nil {
				t.Fatal(err)
			}
			events := history(t, log, name)
			lines, _, _ := project(t, events, kahn.Projection{})
			agents := check(t, lines, false).Agents()
			strict, _, _ := project(t, events, kahn.Projection{Strict: true})
			check(t, strict, true)
			if len(agents) == 0 {
				t.Fatal("no agent")
			}
			tools := 0
			for _, e := range events {
				if e.Type() == wire.TypeAgentTool {
					tools++
				}
			}
			told := 0
			for _, a := range agents {
				if told += int(a.ToolCalls); !a.Ended || a.Outcome == kahn.OutcomeUnknown {
					t.Errorf("%s has no end", a.AgentID)
				}
			}
			if told != tools {
				t.Errorf("%d calls of %d", told, tools)
			}
		})
	}
}

func history(t testing.TB, log *eventlog.Log, id string) []*wire.Event {
	t.Helper()
	var events []*wire.Event
	for e, err := range log.Read(t.Context(), eventlog.Query{Run: id}) {
		if err != nil || e.Err != nil {
			t.Fatal(err, e.Err)
		}
		events = append(events, e.Event)
	}
	return events
}

// TestARecordedCall: an agent that calls one tool and answers goes the way of the
// specification.
func TestARecordedCall(t *testing.T) {
	log := logtest.Start(t)
	f, err := os.Open("../agent/claude/testdata/stream/hugeout.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := ingest.Run(t.Context(), log, f, ingest.Options{RunID: "r", Runner: "test"}); err != nil {
		t.Fatal(err)
	}
	lines, _, dropped := project(t, history(t, log, "r"), kahn.Projection{})
	path := string(kahn.Thinking)
	for _, line := range lines {
		e, err := kahn.Parse([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		switch b := e.Body.(type) {
		case *kahn.Transition:
			path += "→" + string(b.To)
		case *kahn.RunEnd:
			if b.TotalToolCalls != 1 || b.TotalSteps != 1 || b.Outcome != kahn.OutcomeConverged {
				t.Errorf("%+v", b)
			}
		}
	}
	if path != "thinking→tool_call→tool_result→response→reflect→converged" || dropped > 0 {
		t.Errorf("the way is %s", path)
	}
}

// Sub-agents are at work once, and end as they have ended: those that their calls wait for
// (CLI 2.0), and those in the background, whose end only a report tells (CLI 2.1.329).
func TestSubAgents(t *testing.T) {
	log := logtest.Start(t)
	converged := func(t *testing.T, name string, in io.Reader) {
		t.Helper()
		if _, err := ingest.Run(t.Context(), log, in, ingest.Options{RunID: name, Runner: "test"}); err != nil {
			t.Fatal(err)
		}
		lines, _, _ := project(t, history(t, log, name), kahn.Projection{})
		agents := check(t, lines, false).Agents()
		if begun := strings.Count(joined(lines), `"agent_run_start"`); len(agents) != 3 || begun != 3 {
			t.Errorf("%d agents have begun %d times", len(agents), begun)
		}
		for _, a := range agents {
			if a.Outcome != kahn.OutcomeConverged {
				t.Errorf("%s ended %s", a.AgentID, a.Outcome)
			}
		}
	}
	for name, file := range map[string]string{
		"foreground": "testdata/stream/old20-subagents.jsonl",
		"background": "../agent/claude/testdata/stream/v329-subagents.jsonl",
	} {
		t.Run(name, func(t *testing.T) {
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			converged(t, name, f)
		})
	}
	t.Run("background, in session files", func(t *testing.T) {
		line := func(typ, at, agent, id, content, more string) string {
			return fmt.Sprintf(`{"type":%q,"sessionId":"s","isSidechain":%v,"agentId":%q,"timestamp":"2026-01-01T00:00:%sZ","message":{"id":%q,"model":"m","content":%s}%s}`+"\n",
				typ, agent != "", agent, at, id, content, more)
		}
		call := func(id string) string {
			return fmt.Sprintf(`[{"type":"tool_use","id":%q,"name":"Agent","input":{"prompt":"Look."}}]`, id)
		}
		begun := func(id, at string) string {
			return line("user", at, "", "", fmt.Sprintf(`[{"type":"tool_result","tool_use_id":%q,"content":"It works."}]`, id), `,"toolUseResult":{"isAsync":true}`)
		}
		report := func(id, at string) string {
			return line("user", at, "", "", fmt.Sprintf(`"<task-notification>\n<task-id>a</task-id>\n<tool-use-id>%s</tool-use-id>\n<status>completed</status>\n<result><status>failed</status></result>\n</task-notification>"`, id), "")
		}
		main := line("user", "00", "", "", `"Go."`, "") + line("assistant", "01", "", "m1", call("c1"), "") + begun("c1", "02") +
			line("assistant", "03", "", "m2", call("c2"), "") + begun("c2", "04") + report("c1", "07") + report("c2", "08") +
			line("assistant", "09", "", "m3", `[{"type":"text","text":"Both have looked."}]`, "")
		sub := func(id, begun, said string) agent.SubAgent { // both have the same prompt
			return agent.SubAgent{Content: []byte(line("user", begun, id, "", `"Look."`, "") + line("assistant", said, id, "m"+id, `[{"type":"text","text":"Seen."}]`, ""))}
		}
		converged(t, "files", claude.MergeLines(strings.NewReader(main), []agent.SubAgent{sub("a", "02", "05"), sub("b", "04", "06")}))
	})
}
