package export_test

import (
	"bytes"
	"flag"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

func TestMain(m *testing.M) { natstest.Main(m) }

var update = flag.Bool("update", false, "write the golden files anew")

// began is when the made-up runs begin, Unix ms.
const began = 1_795_220_000_000

// history is a run that is made up of what agents did.
type history struct {
	t       testing.TB
	run     export.Run
	entries []eventlog.Entry
	seq     map[string]uint64
	at      int64
}

func newHistory(t testing.TB) *history {
	h := &history{t: t, run: export.Run{ID: "r1", Incarnation: "2026-11-21T00:00:00Z"}, seq: map[string]uint64{}, at: began}
	h.add(wire.RunNode, "", &wire.RunClaimed{Runner: "test", Nonce: "n"})
	return h
}

// add appends an event that happens 100 ms after the one before, or at its own
// time.
func (h *history) add(node, exec string, p wire.Payload) *wire.Event {
	return h.event(node, &wire.Event{ExecID: exec, Payload: p})
}

func (h *history) event(node string, e *wire.Event) *wire.Event {
	h.t.Helper()
	h.seq[node]++
	h.at += 100
	e.RunID, e.NodeID, e.Seq, e.Epoch = h.run.ID, node, h.seq[node], 1
	if e.Timestamp == 0 {
		e.Timestamp = h.at
	}
	h.at = max(h.at, e.Timestamp)
	data, err := wire.Encode(e)
	if err != nil {
		h.t.Fatalf("%s: %v", e.Type(), err)
	}
	h.entries = append(h.entries, eventlog.Entry{
		Pos: uint64(2*len(h.entries) + 1), Time: time.UnixMilli(h.at), RunID: h.run.ID, NodeID: node,
		Kind: e.Type().Kind(), Data: data, Event: e,
	})
	return e
}

// record adds what an agent printed, or its session file, as a node of its own.
func (h *history) record(node, file string, blocks agent.Blocks) {
	h.t.Helper()
	h.recordFile(node, filepath.Join("../agent/claude/testdata", file), strings.HasPrefix(file, "transcript"), blocks)
}

func (h *history) recordFile(node, file string, transcript bool, blocks agent.Blocks) {
	h.t.Helper()
	f, err := os.Open(file)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	exec := run.ExecID(node, 1)
	o := claude.NormalizerOptions{Blocks: blocks, Prompt: wire.RawString("Do it.")}
	if transcript {
		o.Format, o.Prompt = claude.Transcript, nil
	}
	n := claude.NewNormalizer(o)
	outcome := &agent.Outcome{}
	add := func(events []*wire.Event) {
		for _, e := range events {
			e.ExecID = exec
			outcome.Observe(e)
			h.event(node, e)
		}
	}
	h.add(wire.RunNode, exec, &wire.NodeScheduled{Target: node, Attempt: 1})
	h.add(node, exec, &wire.NodeClaimed{Runner: "test", Nonce: "n"})
	h.add(node, exec, &wire.NodeStart{NodeType: "agent", Attempt: 1})
	for line, err := range claude.Lines(f, claude.MaxLine) {
		if err != nil {
			h.t.Fatal(err)
		}
		h.at += 100
		add(n.Line(h.at, bytes.Clone(line)))
	}
	add(n.Finish(h.at, claude.Exit{Unknown: true}))
	if failed := outcome.Error(); failed != nil {
		h.add(node, exec, &wire.NodeError{Error: failed.Message, ErrorType: failed.ErrorType})
		return
	}
	output, err := outcome.Output()
	if err != nil {
		h.t.Fatal(err)
	}
	h.add(node, exec, &wire.NodeComplete{Output: output})
}

func (h *history) start(imported string) {
	h.add(wire.RunNode, "", &wire.FlowStart{
		FlowName: "review", Definition: must(wire.Marshal(map[string]any{"name": "review", "nodes": []any{}})), DefinitionHash: strings.Repeat("0", 64),
		Labels: map[string]string{"team": "core"}, Imported: imported,
	})
}

func (h *history) complete() {
	h.add(wire.RunNode, "", &wire.FlowComplete{FlowName: "review", Status: wire.FlowStatusComplete, DurationMs: h.at - began})
}

// recorded is a whole run of one agent.
func recorded(t testing.TB, file string) *history {
	h := newHistory(t)
	h.start("ingest")
	h.record("coder", file, agent.BlocksFallback)
	h.complete()
	return h
}

func (h *history) events() export.Events { return entries(h.entries...) }

func entries(all ...eventlog.Entry) iter.Seq2[eventlog.Entry, error] {
	return func(yield func(eventlog.Entry, error) bool) {
		for _, e := range all {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// noBlobs is the object store of runs that have no large fields.
func noBlobs(string) ([]byte, error) { return nil, eventlog.ErrBlobMissing }

// recordings are the recordings that the agent's own tests have.
func recordings(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("../agent/claude/testdata/*/*.jsonl")
	if err != nil || len(files) < 12 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	for i, f := range files {
		files[i] = filepath.ToSlash(must(filepath.Rel("../agent/claude/testdata", f)))
	}
	return files
}

// golden compares what was written with a file.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("%s differs (-want +got):\n%.3000s", name, diff)
	}
}
