package recorder_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// What a loss of power takes of a file is the end of its log, wherever that breaks off, or a hole in it. What is left is a
// prefix of the stream, sound, and from there on the same is recorded again, with the same hashes.
func TestPowerCut(t *testing.T) {
	p := story(t)
	path := filepath.Join(t.TempDir(), "recorder.db")
	s := openAt(t, path)
	for list := range slices.Chunk(p.entries, 7) {
		if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: list}); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	closed(t, s)
	whole := dump(t, path)
	seen := map[uint64]bool{}
	for i := range 24 {
		cut := append([]byte(nil), log...)
		at := len(log) * i / 24
		if i%2 == 0 {
			cut = cut[:at]
		} else { // its pages got to disk out of order
			copy(cut[at:], bytes.Repeat([]byte{0}, min(4096, len(cut)-at)))
		}
		again := filepath.Join(t.TempDir(), "recorder.db")
		for name, data := range map[string][]byte{again: file, again + "-wal": cut} {
			if err := os.WriteFile(name, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s := openAt(t, again)
		reached, err := s.Archive.Position(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen[reached.Seq] = true
		if v, err := s.Checker.Verify(t.Context(), ""); err != nil || len(v.Damages) > 0 {
			t.Errorf("cut at %d: %v, %v", at, v.Damages, err)
		}
		for list := range slices.Chunk(p.entries, 11) {
			if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: list}); err != nil {
				t.Fatal(err)
			}
		}
		closed(t, s)
		if diff := cmp.Diff(whole, dump(t, again)); diff != "" {
			t.Errorf("cut at %d, position %d (-whole +again):\n%.3000s", at, reached.Seq, diff)
		}
	}
	if len(seen) < 5 {
		t.Errorf("only the positions %v were reached", seen)
	}
}

// Commits leave the log of the file to a checkpoint beside them, which takes it over when it is large.
func TestCheckpoint(t *testing.T) {
	path := filepath.Join(t.TempDir(), "recorder.db")
	s := openAt(t, path)
	defer closed(t, s)
	db := openDB(t, path)
	defer db.Close()
	lacking := func() (pages int) {
		t.Helper()
		var busy, log, done int
		if err := errors.Join(s.Archive.Checkpoint(t.Context()), db.QueryRow(`PRAGMA wal_checkpoint(NOOP)`).Scan(&busy, &log, &done)); err != nil {
			t.Fatal(err)
		}
		return log - done
	}
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	p.store(s, 100)
	if lacking() == 0 {
		t.Error("little was taken over: that costs as many syncs as much does")
	}
	p.entries = nil
	for range 20 {
		p.add("r1", "coder", exec, &wire.AgentText{Content: strings.Repeat("0123456789abcdef", 60_000)})
	}
	p.store(s, 1)
	var busy, log, done int
	if err := db.QueryRow(`PRAGMA wal_checkpoint(NOOP)`).Scan(&busy, &log, &done); err != nil || log < 4096 || done > 0 {
		t.Errorf("commits have taken over %d of %d pages, %v", done, log, err)
	}
	if n := lacking(); n > 0 {
		t.Errorf("the file lacks %d pages", n)
	}
}
