package ingest_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/pkg/wire"
)

const (
	codexThread = `{"type":"thread.started","thread_id":"t1"}` + "\n"
	codexTurn   = `{"type":"turn.started"}` + "\n" + `{"type":"item.completed","item":{"id":"item_0","type":"agent_message","text":"Done."}}` + "\n"
	codexEnd    = `{"type":"turn.completed","usage":{"input_tokens":20,"cached_input_tokens":5,"output_tokens":3}}` + "\n"
	codexFailed = `{"type":"turn.failed","error":{"message":"unexpected status 429 Too Many Requests"}}` + "\n"
	codexBegun  = `{"type":"item.started","item":{"id":"item_1","type":"command_execution","command":"make","status":"in_progress"}}` + "\n"
)

// What Codex has printed becomes a run by itself, with its thread, calls, exit codes and tokens; what it printed last decides how it
// ended, and what is no line of its is kept.
func TestCodex(t *testing.T) {
	recorded, err := os.ReadFile("../agent/codex/testdata/recorded.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	again, err := os.ReadFile("testdata/codex-0.169.jsonl") // a thread and its resumption, one call
	if err != nil {
		t.Fatal(err)
	}
	log := openLog(t)
	for name, test := range map[string]struct {
		input, failed, session string
		raw                    int
		turns, tokens          int64
	}{
		"recorded": {string(recorded), "", "01a1fb89-2d65-78b1-805f-dc83b0ca437a", 0, 1, 2040},
		"again":    {string(again), "", "01a21158-fe7f-75c3-8c03-6aca1ae0f886", 0, 2, 330},
		"resumed":  {codexThread + codexTurn + codexFailed + codexThread + codexTurn + codexEnd, "", "t1", 0, 2, 23},
		"failed":   {codexThread + codexTurn + codexFailed, "unexpected status 429 Too Many Requests", "t1", 0, 1, 0},
		"cut":      {codexThread + codexTurn + codexBegun, "what Codex has printed ends before its turn does", "t1", 0, 1, 0},
		"garbage":  {codexThread + "\x1b[31mwarn\n[]\n" + `{"type":"thread.started"}` + "\n" + codexTurn + codexEnd, "", "t1", 3, 1, 23},
		"long":     {codexThread + strings.Repeat("x", 17<<20) + "\n" + codexTurn + codexEnd, "", "t1", 1, 1, 23},
	} {
		t.Run(name, func(t *testing.T) {
			res, err := ingest.Run(t.Context(), log, strings.NewReader(test.input), ingest.Options{RunID: "codex-" + name, Runner: "test"})
			if err != nil {
				t.Fatal(err)
			}
			if res.Format != ingest.Codex || res.Error != test.failed || res.Raw != test.raw {
				t.Errorf("%+v", res)
			}
			state, events := fold(t, log, res.RunID)
			if state.AgentSessions["agent"] != test.session || len(state.Tools) != 0 || state.Usage.Turns != test.turns {
				t.Errorf("session %q, %d turns, open calls %v", state.AgentSessions["agent"], state.Usage.Turns, state.Tools)
			}
			u := state.Usage
			if got := u.InputTokens + u.CacheReadInputTokens + u.CacheCreationInputTokens + u.OutputTokens; got != test.tokens {
				t.Errorf("%d tokens, want %d", got, test.tokens)
			}
			for _, e := range events {
				if e.Type() == wire.TypeSessionBound {
					t.Error("the session is bound though nobody has chosen another one")
				}
			}
		})
	}
}

// What Codex has printed is told, also where its first line is missing.
func TestCodexTail(t *testing.T) {
	log := openLog(t)
	in := `{"type":"turn.started"}
{"type":"item.completed","item":{"id":"item_0","type":"agent_message","text":"hello"}}
{"type":"turn.completed","usage":{"input_tokens":1,"cached_input_tokens":0,"output_tokens":1}}
`
	if _, err := ingest.Run(t.Context(), log, strings.NewReader(in), ingest.Options{RunID: "n", Runner: "w", Format: ingest.Codex}); err != nil {
		t.Fatal(err)
	}
	if s, events := fold(t, log, "n"); s.Result != wire.FlowStatusComplete || !slices.ContainsFunc(events, func(e *wire.Event) bool {
		p, is := e.Payload.(*wire.AgentText)
		return is && p.Content == "hello"
	}) {
		t.Errorf("%s %s", s.Status, s.Error)
	}
}
