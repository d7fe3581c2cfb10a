package recorder_test

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/index"
	"code.wake.dev/wake/services/recorder/internal/table"
)

var updateDerivation = flag.Bool("update", false, "rewrite testdata/derivation.golden")

// Rows that come out otherwise than in the last release have another version, by which verify tells them from damaged ones.
func TestDerivation(t *testing.T) {
	files := recordedSessions(t)
	var got strings.Builder
	fmt.Fprintf(&got, "version %d\n%x story\n", index.Derivation, rowsSum(t, story(t)))
	for _, file := range files {
		p := newTape(t)
		p.playSession("r1", file)
		fmt.Fprintf(&got, "%x %s/%s\n", rowsSum(t, p), filepath.Base(filepath.Dir(file)), filepath.Base(file))
	}
	golden := filepath.Join("testdata", "derivation.golden")
	if *updateDerivation {
		if err := os.WriteFile(golden, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("rows come out otherwise: raise index.Derivation, unless only recordings are new or it was raised since the last release, and run with -update (-want +got):\n%s", diff)
	}
}

// recordedSessions are the files of the sessions of agents that are in the repository.
func recordedSessions(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("../../internal/agent/claude/testdata/*/*.jsonl")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	return files
}

// playSession appends the events of a recording, as those of a run, at times of its own.
func (p *tape) playSession(run, file string) {
	p.t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		p.t.Fatal(err)
	}
	o := claude.NormalizerOptions{Format: claude.Stream}
	if filepath.Base(filepath.Dir(file)) == "transcript" {
		o.Format = claude.Transcript
	}
	n := claude.NewNormalizer(o)
	var events []*wire.Event
	for line := range bytes.Lines(data) {
		events = append(events, n.Line(p.clock, bytes.TrimSpace(line))...)
	}
	for _, e := range append(events, n.Finish(p.clock, claude.Exit{Unknown: true})...) {
		e.RunID, e.NodeID, e.ExecID, e.Epoch = run, "agent", "agent#1", 1
		p.seqs[run+"/agent"]++
		e.Seq = p.seqs[run+"/agent"]
		p.put(e)
	}
}

// rowsSum is a hash of all rows that are derived from a tape.
func rowsSum(t *testing.T, p *tape) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "recorder.db")
	s := openAt(t, path)
	p.store(s, 1000)
	closed(t, s)
	db := openDB(t, path)
	defer func() { _ = db.Close() }()
	sum := sha256.New()
	for _, of := range table.All().Of(table.SQLite) {
		if of.Origin != table.Derived {
			continue
		}
		rows := rowsOf(t, db, `SELECT * FROM `+of.Name)
		slices.Sort(rows)
		for _, row := range rows {
			sum.Write([]byte(row + "\n"))
		}
	}
	return sum.Sum(nil)[:8]
}

// What another version has derived is told apart from what was changed, until it is derived anew.
func TestDerivedByAnother(t *testing.T) {
	path := recorded(t, newTarget(t))
	execAt(t, path, `UPDATE lines SET text = 'in other words' WHERE text LIKE 'a line, number 7%'`)
	if v := verified(t, path, ""); len(v.Damages) == 0 {
		t.Error("lines were changed, and nothing was found")
	}
	execAt(t, path, fmt.Sprintf(`UPDATE runs SET derivation = %d WHERE run = 'r1'`, index.Derivation-1))
	for run, want := range map[string]int{"": 1, "r1": 1, "r2": 0} {
		if v := verified(t, path, run); len(v.Damages) > 0 || v.Other != want {
			t.Errorf("of %q: %d runs of another version, %v", run, v.Other, v.Damages)
		}
	}
	s := openAt(t, path)
	if err := s.Index.Rebuild(t.Context(), "again", func(int64, int64) {}); err != nil {
		t.Fatal(err)
	}
	closed(t, s)
	if v := verified(t, path, ""); len(v.Damages) > 0 || v.Other != 0 {
		t.Errorf("derived anew: %d of another version, %v", v.Other, v.Damages)
	}
}
