package run_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

var update = flag.Bool("update", false, "rewrite the expectations in testdata")

// A history is a file of testdata/*.txtar: events, one JSON object a line, and
// what they fold to. Of an event's envelope may be left out what follows from
// its place: runId r1, nodeId _run, the next seq of its node, the epoch of the
// node's last claim, a timestamp 1000 ms after the line before, and the position,
// which is the number of the line. "pos" and "incarnation" set the position.
type history struct {
	events []entry
}

type entry struct {
	line int
	pos  wire.Position
	e    *wire.Event
}

func parseHistory(t testing.TB, src []byte) history {
	t.Helper()
	var h history
	seq, s := map[string]uint64{}, run.New("r1")
	for i, line := range strings.Split(string(src), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("events.jsonl:%d: %v", i+1, err)
		}
		ev := fill(t, m, i+1, uint64(len(h.events)+1), seq, s)
		_ = run.Apply(s, ev.pos, ev.e) // for the envelope of the next line only
		h.events = append(h.events, ev)
	}
	return h
}

// fill adds what a line leaves out: seq are the last ones, s is what the lines
// before have folded to.
func fill(t testing.TB, m map[string]any, line int, at uint64, seq map[string]uint64, s *wire.State) entry {
	t.Helper()
	set := func(key string, v any) {
		if _, ok := m[key]; !ok {
			m[key] = v
		}
	}
	set("v", 1)
	set("runId", "r1")
	set("nodeId", wire.RunNode)
	node := fmt.Sprint(m["nodeId"])
	set("seq", seq[node]+1)
	epoch := s.Nodes[node].Epoch
	if typ := m["type"]; typ == "run:claimed" || typ == "node:claimed" {
		set("epoch", epoch+1)
		set("runner", "w1")
		set("nonce", "n1")
	}
	set("epoch", max(epoch, 1))
	set("timestamp", 1000*at)
	set("pos", at)
	pos := wire.Position{Seq: number(m["pos"])}
	pos.Incarnation, _ = m["incarnation"].(string)
	delete(m, "pos")
	delete(m, "incarnation")
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	e, err := wire.DecodeJSON(b)
	if err != nil {
		t.Fatalf("events.jsonl:%d: %v", line, err)
	}
	seq[node] = max(seq[node], e.Seq)
	return entry{line, pos, e}
}

func number(v any) uint64 {
	switch v := v.(type) {
	case float64:
		return uint64(v)
	case uint64:
		return v
	}
	return 0
}

// fold folds a history and returns the state and the refusals.
func (h history) fold(t testing.TB, s *wire.State) (*wire.State, string) {
	t.Helper()
	var refused strings.Builder
	var accounts ledger.Accounts
	spent, own := wire.Spending{CostUsd: s.Usage.CostUsd}, s.Position.Seq == 0
	for _, ev := range h.events {
		before := encode(t, s)
		err := run.Apply(s, ev.pos, ev.e)
		if err == nil && own && s.Imported == "" { // the state tells what the ledger does
			for _, x := range accounts.Apply(ev.e) {
				spent = ledger.Add(spent, x.Spending)
			}
			if s.Usage.CostUsd != spent.CostUsd {
				t.Errorf("line %d: the state's cost is %v, the ledger's %v", ev.line, s.Usage.CostUsd, spent.CostUsd)
			}
		}
		if err != nil {
			fmt.Fprintf(&refused, "line %d: %v\n", ev.line, err)
			if _, ok := errors.AsType[*run.HistoryError](err); !ok {
				t.Errorf("line %d: %T is no HistoryError", ev.line, err)
			}
			if after := encode(t, s); !bytes.Equal(before, after) {
				t.Errorf("line %d was refused and changed the state", ev.line)
			}
		}
	}
	return s, refused.String()
}

func encode(t testing.TB, s *wire.State) wire.Raw {
	t.Helper()
	b, err := wire.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// show is the state as indented JSON.
func show(t testing.TB, s *wire.State) string {
	t.Helper()
	text, err := wire.AppendJSON(nil, encode(t, s))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		t.Fatal(err)
	}
	return out.String() + "\n"
}

func TestHistories(t *testing.T) {
	eachHistory(t, func(t *testing.T, file string, a *txtar.Archive) {
		s, refused := parseHistory(t, section(a, "events.jsonl")).fold(t, run.New("r1"))
		got := &txtar.Archive{Comment: a.Comment, Files: []txtar.File{
			{Name: "events.jsonl", Data: section(a, "events.jsonl")},
			{Name: "state.json", Data: []byte(show(t, s))},
		}}
		if refused != "" {
			got.Files = append(got.Files, txtar.File{Name: "refused", Data: []byte(refused)})
		}
		if *update {
			if err := os.WriteFile(file, txtar.Format(got), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		if diff := cmp.Diff(string(txtar.Format(a)), string(txtar.Format(got))); diff != "" {
			t.Errorf("fold differs (-want +got); run with -update to accept:\n%s", diff)
		}
	})
}

// eachHistory runs a test with each history.
func eachHistory(t *testing.T, test func(t *testing.T, file string, a *txtar.Archive)) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no histories: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			test(t, file, a)
		})
	}
}

func section(a *txtar.Archive, name string) []byte {
	for _, f := range a.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

// TestCopiesFoldAlike shows that the events of a run that was exported make the same state where they are imported, but for what only a
// run that goes on has. Events that its fold refuses count as none, as they do in the log.
func TestCopiesFoldAlike(t *testing.T) {
	eachHistory(t, func(t *testing.T, _ string, a *txtar.Archive) {
		all := parseHistory(t, section(a, "events.jsonl"))
		s := run.New("r1")
		var h history
		for _, ev := range all.events {
			if run.Apply(s, ev.pos, ev.e) == nil {
				h.events = append(h.events, ev)
			}
		}
		if s.Imported != "" {
			return
		}
		for _, ev := range h.events {
			switch p := ev.e.Payload.(type) {
			case *wire.FlowStart:
				p.Imported = wire.ImportedCopy
			case *wire.RunForked:
				parent, err := run.Decode(p.State)
				if err != nil {
					t.Fatal(err)
				}
				parent.Imported = wire.ImportedCopy
				p.State = encode(t, parent)
			}
		}
		copied, refused := h.fold(t, run.New("r1"))
		if refused != "" {
			t.Errorf("the copy refuses:\n%s", refused)
		}
		copied.Imported, copied.Deadline, copied.TimeLeftMs = s.Imported, s.Deadline, s.TimeLeftMs
		if diff := cmp.Diff(show(t, s), show(t, copied)); diff != "" {
			t.Errorf("the copy differs (-run +copy):\n%s", diff)
		}
	})
}
