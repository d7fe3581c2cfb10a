package ingest_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"testing"
	"testing/iotest"

	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// FuzzIngest imports anything as a session file or a stream: it becomes a run that
// folds without a refusal and has ended, with no call left open, or is refused as
// empty and leaves nothing. Read byte by byte, it is told to be of the same format.
func FuzzIngest(f *testing.F) {
	for _, s := range []string{
		`{"type":"system","subtype":"init","session_id":"s1","model":"m"}` + "\n" + `{"type":"result","subtype":"success","result":"ok","session_id":"s1"}`,
		`{"type":"user","uuid":"u1","sessionId":"s1","timestamp":"2026-01-01T00:00:00.000Z","message":{"role":"user","content":"go"}}` + "\n" +
			`{"type":"assistant","uuid":"u2","parentUuid":"u1","sessionId":"s1","timestamp":"2026-01-01T00:00:01.000Z","message":{"id":"m1","content":[{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"ls"}}]}}`,
		"not json\n{\"type\":\"unknown\"}\n42\n[1]\n", "\n\n", "", "{", "\xff\xfe\n", `{"sessionId":7,"timestamp":"0000-01-01T00:00:00Z"}`, `{"type":"summary","leafUuid":"x"}` + "\r\n",
		`{"isSidechain":true,"type":"assistant","timestamp":"9999-12-31T23:59:59Z","message":{"content":[{"type":"tool_use","id":"","name":""}]}}`,
	} {
		f.Add([]byte(s))
	}
	for _, name := range []string{"codex-0.169.jsonl", "codex-session-0.169.jsonl", "gemini-0.61.jsonl", "gemini-session-0.61.jsonl", "opencode-1.18.jsonl", "opencode-session-1.18.json"} {
		b, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	log := logtest.Start(f)
	f.Fuzz(func(t *testing.T, input []byte) {
		id := "r-" + rand.Text()
		res, err := ingest.Run(t.Context(), log, bytes.NewReader(input), ingest.Options{RunID: id, Runner: "test"})
		slow, slowErr := ingest.Run(t.Context(), log, iotest.OneByteReader(bytes.NewReader(input)), ingest.Options{RunID: id + "b", Runner: "test"})
		if errors.Is(err, ingest.ErrEmpty) != errors.Is(slowErr, ingest.ErrEmpty) || res.Lines != slow.Lines {
			t.Fatalf("%q: %+v, %v, and byte by byte %+v, %v", input, res, err, slow, slowErr)
		}
		state, events := fold(t, log, id)
		if errors.Is(err, ingest.ErrEmpty) {
			if len(bytes.TrimSpace(input)) > 0 || len(events) > 0 {
				t.Fatalf("%q is empty, and makes %d events", input, len(events))
			}
			return
		}
		if len(bytes.TrimSpace(input)) == 0 {
			t.Fatalf("%q isn't empty: %v", input, err)
		}
		if errors.Is(err, ingest.ErrDatabase) {
			return
		}
		if err != nil {
			t.Fatalf("%q: %v", input, err)
		}
		if state.Status != wire.RunComplete || len(state.Tools) > 0 || (state.Result == wire.FlowStatusFailed) != res.Failed || state.VoidEvents > 0 {
			t.Fatalf("%q: the run is %s, %s; result %+v; open %v", input, state.Status, state.Result, res, state.Tools)
		}
		if n := state.Nodes["agent"]; n.Exec != run.ExecID("agent", 1) || len(events) < res.Events {
			t.Fatalf("%q: %+v, %d events of %d", input, n, len(events), res.Events)
		}
	})
}
