package recorder_test

import (
	"context"
	"crypto/ed25519"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/table"
	"code.wake.dev/wake/services/recorder/verify"
)

// recorded writes a store that has segments and a tail of two runs, and messages
// that are no events.
func recorded(t testing.TB, target string, more ...func(p *tape)) string {
	p := story(t)
	for _, add := range more {
		add(p)
	}
	for i := range 400 {
		p.add("r1", "coder", "coder#1", &wire.AgentText{Content: fmt.Sprintf("a line, number %d", i)})
		p.add("r2", "judge", "judge#1", &wire.Usage{MessageID: fmt.Sprint(i), InputTokens: 5, OutputTokens: 7})
	}
	p.put(&wire.Event{RunID: "r2", NodeID: "judge", ExecID: "judge#1", Seq: 1, Epoch: 1, Timestamp: p.clock, Payload: &wire.AgentText{Content: "its place is taken"}})
	p.entries = append(p.entries, poison(p.pos+1))
	p.pos += 4 // two are lost
	p.add("r2", "judge", "judge#1", &wire.AgentText{Content: "after the loss"})
	s := openAt(t, target)
	for rest := p.entries; len(rest) > 0; {
		batch := *p
		batch.entries = rest[:min(max(len(rest)-50, 25), 265, len(rest))] // the last two are too few for a segment
		batch.store(s, len(batch.entries))
		rest = rest[len(batch.entries):]
	}
	closed(t, s)
	return target
}

func verified(t testing.TB, path, run string) recorder.Verification {
	t.Helper()
	s, err := recorder.OpenReadOnly(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, s)
	v, err := s.Checker.Verify(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A recorder that is at work meanwhile is no damage: it has recorded, derived or
// neither.
func TestVerifyWhileRecording(t *testing.T) {
	p := story(t)
	for i := range 300 {
		p.add("r1", "coder", "coder#1", &wire.AgentText{Content: fmt.Sprintf("a line, number %d", i)})
	}
	path := newTarget(t)
	writer := openAt(t, path)
	defer closed(t, writer)
	p.split(writer, 200)
	p.entries = p.entries[200:]
	for i := range 3000 {
		p.add("r2", "judge", "judge#1", &wire.TurnStart{Model: fmt.Sprint(i)})
	}
	s, err := recorder.OpenReadOnly(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	recorded := make(chan error, 1)
	go func() {
		defer cancel()
		recorded <- func() error {
			for batch := range slices.Chunk(p.entries, 20) {
				b := recorder.Batch{Incarnation: incarnation, Entries: batch, Later: true}
				if _, err := writer.Index.Record(t.Context(), b); err != nil {
					return err
				}
				if _, err := writer.Index.Derive(t.Context(), 15); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	for ctx.Err() == nil {
		v, err := s.Checker.Verify(t.Context(), "")
		if err != nil || len(v.Damages) > 0 {
			t.Errorf("%v, at position %d, derived %d: %v", err, v.Position.Seq, v.Derived, v.Damages)
			break
		}
	}
	if err := <-recorded; err != nil {
		t.Fatal(err)
	}
}

// Two views are of the same moment, whatever a recorder commits meanwhile.
func TestTwoViews(t *testing.T) {
	path := newTarget(t)
	writer := openAt(t, path)
	defer closed(t, writer)
	s, err := recorder.OpenReadOnly(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, s)
	p := newTape(t)
	for i := range 2000 {
		p.add("r1", "coder", "coder#1", &wire.AgentText{Content: fmt.Sprint(i)})
	}
	over, recorded := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(over)
		recorded <- func() error {
			for batch := range slices.Chunk(p.entries, 2) {
				if _, err := writer.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: batch}); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	look := func() (moments [2]int64) {
		a, b, err := s.Archive.TwoViews(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, view := range []*archive.Tx{a, b} {
			err = errors.Join(err, view.Row(t.Context(), `SELECT coalesce(sum(last_pos), 0) FROM runs`).Scan(&moments[i]), view.Rollback())
		}
		if err != nil {
			t.Fatal(err)
		}
		return moments
	}
	seen := map[int64]bool{}
	for open := true; open; {
		select {
		case <-over:
			open = false
		default:
		}
		if m := look(); m[0] != m[1] {
			t.Errorf("one view is as of position %d, the other as of %d", m[0], m[1])
		} else {
			seen[m[0]] = true
		}
	}
	if err := <-recorded; err != nil || len(seen) < 3 {
		t.Errorf("%d moments were seen, %v", len(seen), err)
	}
}

// Checks that are asked for at once go one after the other: none waits for what the others hold.
func TestVerifyTogether(t *testing.T) {
	s, err := recorder.OpenReadOnly(t.Context(), recorded(t, newTarget(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, s)
	var checks sync.WaitGroup
	for range 6 {
		checks.Go(func() {
			if v, err := s.Checker.Verify(t.Context(), ""); err != nil || len(v.Damages) > 0 {
				t.Errorf("%v, %v", v.Damages, err)
			}
		})
	}
	checks.Wait()
}

func TestVerifyFindsNothing(t *testing.T) {
	path := recorded(t, newTarget(t))
	v := verified(t, path, "")
	if len(v.Damages) > 0 {
		t.Errorf("damages: %v", v.Damages)
	}
	if v.Runs != 3 || v.Segments < 3 || v.Events != int64(v.Position.Seq)-2 || v.Void != 1 {
		t.Errorf("%+v", v)
	}
	one := verified(t, path, "sentinella")
	if one.Runs != 1 || one.Events == 0 || one.Events >= v.Events || len(one.Damages) > 0 {
		t.Errorf("of one run: %+v", one)
	}
	empty := newTarget(t)
	closed(t, openAt(t, empty))
	if v := verified(t, empty, ""); len(v.Damages) > 0 || v.Runs != 0 {
		t.Errorf("of an empty file: %+v", v)
	}
	s := openAt(t, path)
	defer closed(t, s)
	if _, err := s.Checker.Verify(t.Context(), "nobody"); codeOf(err) != wire.CodeRunNotFound {
		t.Errorf("of no run: %v", err)
	}
}

// A check that goes on from an earlier one reads the runs in which something has happened since, and those that were damaged.
func TestVerifySince(t *testing.T) {
	p := story(t)
	path := filepath.Join(t.TempDir(), "recorder.db")
	var heads recorder.Heads
	check := func(known int, damaged string) {
		t.Helper()
		s, err := recorder.OpenReadOnly(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		defer closed(t, s)
		var v recorder.Verification
		if v, heads, err = s.Checker.VerifySince(t.Context(), heads); err != nil {
			t.Fatal(err)
		}
		found := fmt.Sprint(v.Damages)
		if v.Runs != 2 || v.Known != known || damaged == "" && len(v.Damages) > 0 || !strings.Contains(found, damaged) {
			t.Errorf("%d of %d runs were known, %d events were read, found %s: want %d, and %q", v.Known, v.Runs, v.Events, found, known, damaged)
		}
	}
	record := func() {
		t.Helper()
		s := openAt(t, path)
		defer closed(t, s)
		p.store(s, 100)
		p.entries = nil
	}
	change := func(text string) {
		t.Helper()
		db := openDB(t, path)
		defer db.Close()
		mustExec(t, db, text)
	}
	record()
	check(0, "")
	check(2, "")
	p.add("r2", "judge", "judge#1", &wire.AgentText{Content: "a further line"})
	record()
	change(`UPDATE lines SET text = 'another' WHERE text = 'a further line'`)
	check(1, "table lines, column text")
	check(1, "table lines, column text") // as long as it is so
	change(`UPDATE lines SET text = 'a further line' WHERE text = 'another'`)
	check(1, "")
	check(2, "")
	change(`UPDATE runs SET events = events - 1 WHERE run = 'r1'`)
	check(1, "runs have")
	heads.Incarnation = "another"
	change(`UPDATE runs SET events = events + 1 WHERE run = 'r1'`)
	check(0, "")
}

// tamper changes a copy of a file, whose triggers are gone, and returns what is
// found.
func tamper(t *testing.T, path string, change func(db *sql.DB)) recorder.Verification {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "damaged.db")
	if err := os.WriteFile(copied, data, 0o600); err != nil {
		t.Fatal(err)
	}
	db := openDB(t, copied)
	db.SetMaxOpenConns(1)
	var triggers []string // that a tamperer would put back
	for _, trigger := range []string{"segments_stay", "segments_once", "segments_keep", "tail_stay", "tail_once", "tail_keep"} {
		var text string
		if err := db.QueryRow(`SELECT sql FROM sqlite_schema WHERE name = ?`, trigger).Scan(&text); err != nil {
			t.Fatal(err)
		}
		triggers = append(triggers, text)
		mustExec(t, db, `DROP TRIGGER `+trigger)
	}
	change(db)
	for _, text := range triggers {
		mustExec(t, db, text)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return verified(t, copied, "")
}

// A store that is checked again and again while its full text is written anew is sound each time.
func TestVerifyAgain(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	s := openAt(t, newTarget(t))
	defer closed(t, s)
	for i := range 40 {
		before := len(p.entries)
		p.add("r1", "coder", exec, &wire.AgentText{Content: fmt.Sprintf("words of line %d, which go into the full text with the others", i)})
		if i == 0 {
			before = 0
		}
		if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: p.entries[before:]}); err != nil {
			t.Fatal(err)
		}
		indexed(t, s)
		sound(t, s, fmt.Sprint("time ", i))
	}
}

// What keeps the events from being changed, and what shows them, is looked at too.
func TestVerifyFindsAnotherSchema(t *testing.T) {
	path := recorded(t, filepath.Join(t.TempDir(), "recorder.db"))
	for change, want := range map[string]string{
		`DROP TRIGGER lines_removed`:                                                  "row trigger lines_removed: it isn't there",
		`DROP VIEW messages; CREATE VIEW messages AS SELECT 1 AS id`:                  "row view messages: it is another one",
		`DROP INDEX tool_calls_run`:                                                   "row index tool_calls_run: it isn't there",
		`CREATE TRIGGER mine AFTER INSERT ON labels BEGIN DELETE FROM labels; END`:    "row trigger mine: it isn't the recorder's",
		`CREATE TABLE mine (a); CREATE INDEX mine_a ON mine (a)`:                      "",
		`CREATE VIEW mine AS SELECT run FROM runs; CREATE INDEX own ON runs (status)`: "",
	} {
		v := tamper(t, path, func(db *sql.DB) { mustExec(t, db, change) })
		switch {
		case want == "" && len(v.Damages) == 0:
		case want == "" || len(v.Damages) != 1 || !strings.HasSuffix(v.Damages[0].String(), want):
			t.Errorf("after %s: found %v", change, v.Damages)
		}
	}
}

func mustExec(t testing.TB, db *sql.DB, text string, args ...any) {
	t.Helper()
	if _, err := db.Exec(text, args...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// Every column of what is checked is changed in every row of a table, one at a
// time.
func TestVerifyFindsAFlippedByteInAnyColumn(t *testing.T) {
	path := recorded(t, filepath.Join(t.TempDir(), "recorder.db"), func(p *tape) {
		p.call("r1", "call-a", "Bash")
		p.again(p.add("r1", "coder", "coder#1", &wire.Checkpoint{Kind: wire.CheckpointSubturn, SubIdx: new(0)}), func(e *wire.Event) { e.CallID = "call-a" })
		p.result("r1", "call-a", "Bash", "no", "failed")
		p.add("r1", "coder", "coder#1", &wire.AgentError{ErrorType: wire.ErrorOverloaded, Message: "529", Phase: "model", Attempt: new(int64(1))})
		exec := p.start("r3", "coder", nil)
		for i := range 1500 { // more than states are apart
			p.add("r3", "coder", exec, &wire.Usage{MessageID: fmt.Sprint(i), Model: "opus", InputTokens: 5, OutputTokens: 7})
		}
	})
	rare := []string{"blobs", "blob_uses", "lineage", "deleted", "retired", "remains", "rebuilds", "alerts", "alerts_read", "alert_counts", "lines_open", "lines_indexed"} // see other tests
	for _, declared := range table.All() {
		if slices.Contains(rare, declared.Name) {
			continue
		}
		columns := strings.Split(declared.List(), ", ")
		for i, column := range columns {
			if column == "derivation" { // see TestDerivedByAnother
				continue
			}
			if column == "id" { // of no meaning, except to those who refer to it
				continue
			}
			if testing.Short() && i%5 != 1 {
				continue
			}
			t.Run(declared.Name+"."+column, func(t *testing.T) { flip(t, path, declared, column) })
		}
	}
}

// flip changes a column of a row from the middle of a table.
func flip(t *testing.T, path string, declared table.Table, column string) {
	t.Parallel()
	table, key := declared.Name, strings.Join(declared.Key, ", ")
	var run any
	v := tamper(t, path, func(db *sql.DB) {
		mustExec(t, db, `PRAGMA foreign_keys = 0`)
		row := fmt.Sprintf(`(%s) = (SELECT %[1]s FROM %s ORDER BY %[1]s LIMIT 1 OFFSET (SELECT count(*) / 2 FROM %[2]s))`, key, table)
		if slices.Contains([]string{"cost_usd", "note", "content", "call", "tool", "args", "sub_idx", "sub_call", "duration_ms"}, column) || table == "tool_calls" && column == "error" { // where there is something
			row = fmt.Sprintf(`(%s) = (SELECT %[1]s FROM %s WHERE %s <> '' ORDER BY %[1]s LIMIT 1)`, key, table, column)
		}
		if table != "streams" && table != "runs" {
			_ = db.QueryRow(fmt.Sprintf(`SELECT (SELECT r.run FROM runs r WHERE r.id = x.run) FROM %s x WHERE %s`, table, row)).Scan(&run)
		}
		var kind string
		if err := db.QueryRow(fmt.Sprintf(`SELECT typeof(%s) FROM %s WHERE %s`, column, table, row)).Scan(&kind); err != nil {
			t.Fatal(err)
		}
		set := map[string]string{
			"integer": column + ` + 1000`, "real": column + ` + 0.5`, "text": column + ` || 'x'`,
			"blob": `CAST(substr(` + column + `, 1, length(` + column + `) / 2) || CASE WHEN substr(` + column + `, length(` + column + `) / 2 + 1, 1) = x'41' THEN x'42' ELSE x'41' END || substr(` + column + `, length(` + column + `) / 2 + 2) AS BLOB)`,
		}[kind]
		result, err := db.Exec(fmt.Sprintf(`UPDATE %s SET %s = %s WHERE %s`, table, column, set, row))
		if err != nil {
			t.Fatal(err)
		}
		if n, err := result.RowsAffected(); err != nil || n != 1 {
			t.Fatalf("%d rows were changed, %v", n, err)
		}
	})
	if len(v.Damages) == 0 {
		t.Fatal("nothing is found")
	}
	for _, d := range v.Damages {
		where := d.Table == table && (d.Column == column || d.Column == "" || table == "segments" || table == "tail" || column == "run" || column == "pos")
		if where && (run == nil || d.Run == run || column == "run") {
			return
		}
	}
	if column != "run" && table != "streams" { // a foreign run's rows are missing elsewhere
		t.Errorf("found elsewhere than in %s.%s of run %v: %v", table, column, run, v.Damages)
	}
}

func TestVerifyFindsWhatIsMissingOrElsewhere(t *testing.T) {
	path := recorded(t, filepath.Join(t.TempDir(), "recorder.db"))
	for name, c := range map[string]struct {
		change []string
		want   string // in one of the damages
	}{
		"a segment is gone":          {[]string{`DELETE FROM segments WHERE run = 1 AND n = 1`}, "run r1, segment 2, positions "},
		"the last segment is gone":   {[]string{`DELETE FROM segments WHERE run = 1 AND n = (SELECT max(n) FROM segments WHERE run = 1)`}, "run r1, table runs, column segments: it is 3, there are 2"},
		"a tail's event is gone":     {[]string{`DELETE FROM tail WHERE first_pos = (SELECT min(first_pos) FROM tail WHERE run = 1)`}, "table tail, column hash: the events don't have the hash"},
		"the last event is gone":     {[]string{`DELETE FROM tail WHERE first_pos = (SELECT max(first_pos) FROM tail)`}, "column head: it isn't the hash after the last event"},
		"a tail is gone":             {[]string{`DELETE FROM tail WHERE run = 2`}, "run r2, position "},
		"a run is gone":              {[]string{`PRAGMA foreign_keys = 0`, `DELETE FROM runs WHERE run = 'r2'`}, "rows of runs that table runs doesn't have"},
		"all of a run is gone":       {[]string{`PRAGMA foreign_keys = 0`, `DELETE FROM runs WHERE run = 'r2'`, `DELETE FROM segments WHERE run = 2`, `DELETE FROM tail WHERE run = 2`}, "the store says that everything is recorded, but there is nothing"},
		"a line is gone":             {[]string{`DELETE FROM lines WHERE pos = 100`}, "run r1, position 100, table lines: the row is missing"},
		"a node is gone":             {[]string{`PRAGMA foreign_keys = 0`, `DELETE FROM nodes WHERE node = 'coder'`}, "run r1, table nodes, row coder: the row is missing"},
		"a line too many":            {[]string{`INSERT INTO lines SELECT 99999, run, node, writer, seq, exec, parent, ts, type, hidden, text, message, cut, input, output FROM lines WHERE pos = 100`}, "position 99999, table lines: the row doesn't follow"},
		"two segments are swapped":   {[]string{`UPDATE segments SET n = -n WHERE run = 1 AND n <= 2`, `UPDATE segments SET n = 3 + n WHERE n < 0`}, "run r1, segment 1, positions "},
		"data is swapped":            {[]string{`UPDATE segments SET data = (SELECT data FROM segments o WHERE o.run = segments.run AND o.n = 3 - segments.n) WHERE run = 1 AND n <= 2`}, "column first_pos: it is"},
		"two of a tail are swapped":  {[]string{`CREATE TABLE two AS SELECT * FROM tail WHERE run = 1 ORDER BY first_pos LIMIT 2`, `UPDATE tail SET data = (SELECT data FROM two WHERE two.first_pos <> tail.first_pos) WHERE first_pos IN (SELECT first_pos FROM two)`}, "table tail, column hash: the events don't have the hash"},
		"positions are swapped":      {[]string{`CREATE TABLE two AS SELECT * FROM tail WHERE run = 1 ORDER BY first_pos LIMIT 2`, `DELETE FROM tail WHERE first_pos IN (SELECT first_pos FROM two)`, `INSERT INTO tail SELECT run, (SELECT o.first_pos FROM two o WHERE o.first_pos <> two.first_pos), last_pos, last_time, events, hash, data FROM two`}, "table tail, column hash: the events don't have the hash"},
		"an event is there twice":    {[]string{`INSERT INTO tail SELECT run, 99999, last_pos, last_time, events, hash, data FROM tail WHERE run = 1 ORDER BY first_pos DESC LIMIT 1`}, "table tail: the event comes after the one at "},
		"a segment is there twice":   {[]string{`INSERT INTO segments SELECT run, n + 1, first_pos, last_pos, first_time, last_time, events, prev, hash, codec, data FROM segments WHERE run = 1 ORDER BY n DESC LIMIT 1`}, "events are doubled or swapped"},
		"it is in the tail, too":     {[]string{`INSERT INTO tail SELECT run, first_pos - 1, last_pos, last_time, events, hash, (SELECT data FROM tail WHERE run = 1 LIMIT 1) FROM segments WHERE run = 1 AND n = 1`}, "events are doubled or swapped"},
		"a blob has another content": {[]string{`INSERT INTO blobs (sha256, size, data) VALUES ('` + strings.Repeat("0", 64) + `', 1, x'00')`}, "table blobs, row 0000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := tamper(t, path, func(db *sql.DB) {
				for _, statement := range c.change {
					mustExec(t, db, statement)
				}
			})
			for _, d := range v.Damages {
				if strings.Contains(d.String(), c.want) {
					return
				}
			}
			t.Errorf("want %q, found %v", c.want, v.Damages)
		})
	}
}

// Short runs are compared many at once. What is damaged is told of each as if it were the only one, and of no other.
func TestVerifyTellsRunsApart(t *testing.T) {
	p := newTape(t)
	for i := range 600 {
		run := fmt.Sprint("r", i)
		exec := p.start(run, "coder", map[string]string{"team": fmt.Sprint(i % 7)})
		p.add(run, "coder", exec, &wire.AgentText{Content: "Half of it is done."})
		p.add(run, "coder", exec, &wire.AgentComplete{Result: "done"})
		p.add(run, wire.RunNode, "", &wire.FlowComplete{FlowName: "review", Status: wire.FlowStatusComplete})
	}
	path := filepath.Join(t.TempDir(), "recorder.db")
	s := openAt(t, path)
	p.store(s, 500)
	closed(t, s)
	const ofRun = `(SELECT id FROM runs WHERE run = 'r%d')`
	of := func(text string, run int) string { return fmt.Sprintf(text+ofRun, run) }
	got := tamper(t, path, func(db *sql.DB) {
		mustExec(t, db, `PRAGMA foreign_keys = 0`)
		mustExec(t, db, of(`UPDATE lines SET text = 'x' WHERE type = 'text' AND run = `, 17))
		mustExec(t, db, of(`DELETE FROM nodes WHERE node = 'coder' AND run = `, 300))
		mustExec(t, db, of(`UPDATE lines SET node = node + 2 WHERE type = 'text' AND run = `, 350)) // of the next run, by the same name
		mustExec(t, db, of(`UPDATE labels SET run = run + 1, key = 'other' WHERE run = `, 400))
		mustExec(t, db, of(`DELETE FROM lines WHERE run = `, 599))
		mustExec(t, db, of(`UPDATE folds SET pos = pos + 1 WHERE run = `, 599))
		mustExec(t, db, of(`UPDATE runs SET status = 'lost' WHERE id = `, 0))
	})
	found := map[string]bool{}
	for _, d := range got.Damages {
		found[d.Run+" "+d.Table] = true
	}
	want := []string{"r0 runs", "r17 lines", "r300 bindings", "r300 chat_checkpoints", "r300 chat_messages", "r300 lines", "r300 nodes", "r350 lines", "r400 labels", "r401 labels", "r599 folds", "r599 lines"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(found))); diff != "" {
		t.Errorf("damages (-want +got):\n%s\n%v", diff, got.Damages)
	}
}

// An event that can't be recorded again is damage of its run, and hides none of the runs that are looked at with it.
func TestVerifyTellsRefusedRunsApart(t *testing.T) {
	p := newTape(t)
	blobs := map[string][]byte{}
	for _, run := range []string{"before", "refused", "behind"} {
		p.start(run, "coder", nil)
		if run == "refused" {
			p.large(run, strings.Repeat("All work and no play. ", 1000), blobs)
		}
		p.end(run)
	}
	path := filepath.Join(t.TempDir(), "recorder.db")
	s := openAt(t, path)
	if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: p.entries, Blobs: blobs}); err != nil {
		t.Fatal(err)
	}
	closed(t, s)
	execAt(t, path, `UPDATE folds SET data = x'00' WHERE run <> (SELECT id FROM runs WHERE run = 'refused')`)
	execAt(t, path, `UPDATE blobs SET data = x'00'`)
	found := map[string]bool{}
	v := verified(t, path, "")
	for _, d := range v.Damages {
		found[d.Run+" "+d.Table] = true
	}
	want := []string{" blobs", "before folds", "behind folds", "refused "}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(found))); diff != "" {
		t.Errorf("damages (-want +got):\n%s\n%v", diff, v.Damages)
	}
}

// What was found damaged is found again as long as it is.
func TestVerifySinceFindsDamageAgain(t *testing.T) {
	for name, change := range map[string]string{
		"a state":                 `UPDATE keyframes SET data = x'00'`,
		"the node of another run": `UPDATE bindings SET node = (SELECT id FROM nodes WHERE node = 'coder' AND run = 1) WHERE run = (SELECT id FROM runs WHERE run = 'r3')`,
	} {
		t.Run(name, func(t *testing.T) { findsDamageAgain(t, change) })
	}
}

func findsDamageAgain(t *testing.T, change string) {
	path := recorded(t, filepath.Join(t.TempDir(), "recorder.db"), func(p *tape) {
		exec := p.start("r3", "coder", nil)
		for i := range 1500 { // more than states are apart
			p.add("r3", "coder", exec, &wire.Usage{MessageID: fmt.Sprint(i), Model: "opus", InputTokens: 5, OutputTokens: 7})
		}
	})
	execAt(t, path, change)
	s, err := recorder.OpenReadOnly(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, s)
	var known verify.Heads
	var first []verify.Damage
	for i := range 3 {
		var v recorder.Verification
		if v, known, err = s.Checker.VerifySince(t.Context(), known); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = v.Damages
		}
		if len(v.Damages) == 0 || len(v.Damages) != len(first) {
			t.Errorf("the check number %d found %v, the first one %v", i+1, v.Damages, first)
		}
	}
}

// A byte anywhere in the file may flip. Not every one means something; none that
// does goes unnoticed: what is read from a file that passes is what was written.
func TestVerifyFindsFlippedBytesOfTheFile(t *testing.T) {
	path := recorded(t, filepath.Join(t.TempDir(), "recorder.db"))
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := dump(t, path)
	found := 0
	for at := 4096 + 7; at < len(data); at += len(data) / 24 {
		copied := filepath.Join(t.TempDir(), "flipped.db")
		flipped := append([]byte{}, data...)
		flipped[at] ^= 0x10
		if err := os.WriteFile(copied, flipped, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := recorder.OpenReadOnly(t.Context(), copied)
		if err != nil {
			found++
			continue
		}
		v, err := s.Checker.Verify(t.Context(), "")
		closed(t, s)
		if err != nil || len(v.Damages) > 0 {
			found++
			continue
		}
		got := dump(t, copied)
		for table := range want {
			if strings.Join(got[table], "\n") != strings.Join(want[table], "\n") && table != "blobs" {
				t.Errorf("byte %d: %s differs, and nothing is found", at, table)
			}
		}
	}
	if found < 4 { // many pages are empty, or the full text's
		t.Errorf("%d of 24 flipped bytes are found", found)
	}
}

// A sealed event that was changed is found although its packed form is sound.
func TestVerifyFindsARewrittenSegment(t *testing.T) {
	p := newTape(t)
	q := newTape(t)
	for i := range 300 {
		p.add("r1", "coder", "coder#1", &wire.AgentText{Content: fmt.Sprint("a line, number ", i)})
		q.add("r1", "coder", "coder#1", &wire.AgentText{Content: strings.ReplaceAll(fmt.Sprint("a line, number ", i), "250", "forged")})
	}
	dir := t.TempDir()
	true1, forged := filepath.Join(dir, "true.db"), filepath.Join(dir, "forged.db")
	for path, tape := range map[string]*tape{true1: p, forged: q} {
		s := openAt(t, path)
		tape.store(s, 150)
		closed(t, s)
	}
	v := tamper(t, true1, func(db *sql.DB) {
		mustExec(t, db, `ATTACH ? AS forged`, forged)
		mustExec(t, db, `UPDATE segments SET data = (SELECT data FROM forged.segments f WHERE f.run = segments.run AND f.n = segments.n) WHERE n = 2`)
	})
	if len(v.Damages) == 0 || !strings.HasPrefix(v.Damages[0].String(), "run r1, segment 2, positions 151 to 300, table segments, column hash: ") {
		t.Errorf("found %v", v.Damages)
	}
}

// swapped gives the words of two lines to each other.
const swapped = `
CREATE TEMP TABLE two AS SELECT pos, text, input, output, 199 - pos AS other FROM lines WHERE pos IN (99, 100);
INSERT INTO lines_fts (lines_fts, rowid, text, input, output) SELECT 'delete', pos, text, input, output FROM two;
INSERT INTO lines_fts (rowid, text, input, output) SELECT other, text, input, output FROM two;
`

// The full text is that of the lines.
func TestVerifyFindsAnotherFullText(t *testing.T) {
	path := recorded(t, filepath.Join(t.TempDir(), "recorder.db"))
	s := openAt(t, path)
	for more := true; more; {
		var err error
		if more, err = s.Index.IndexLines(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	closed(t, s)
	if v := verified(t, path, ""); len(v.Damages) > 0 {
		t.Fatalf("damages: %v", v.Damages)
	}
	for name, c := range map[string]struct{ change, want string }{
		"a word too many":               {`INSERT INTO lines_fts (rowid, text) VALUES (100, 'forged')`, `position 100, table lines_fts: the full text has the word "forged" here, the line doesn't`},
		"words are gone":                {`INSERT INTO lines_fts (lines_fts, rowid, text) SELECT 'delete', pos, text FROM lines WHERE pos = 100`, `position 100, table lines_fts: the line has the word "line" here, the full text doesn't`},
		"all are gone":                  {`INSERT INTO lines_fts (lines_fts) VALUES ('delete-all')`, `position 100, table lines_fts: the line has the word "line" here, the full text doesn't`},
		"a block is gone":               {`DELETE FROM lines_fts_data WHERE id = (SELECT max(id) FROM lines_fts_data)`, `table lines_fts`},
		"a word is another one":         {`UPDATE lines_fts_data SET block = unhex(replace(hex(block), hex('umber'), hex('umbed')))`, "table lines_fts"},
		"a block is zeroed":             {`UPDATE lines_fts_data SET block = zeroblob(length(block)) WHERE id = (SELECT max(id) FROM lines_fts_data)`, "table lines_fts"},
		"a block is cut":                {`UPDATE lines_fts_data SET block = substr(block, 1, length(block) - 1) WHERE id = (SELECT max(id) FROM lines_fts_data)`, "table lines_fts"},
		"a byte of a block is changed":  {`UPDATE lines_fts_data SET block = CAST(substr(block, 1, length(block) / 2) || x'7f' || substr(block, length(block) / 2 + 2) AS BLOB) WHERE id = (SELECT max(id) FROM lines_fts_data)`, "table lines_fts"},
		"the list of blocks is gone":    {`DELETE FROM lines_fts_data WHERE id = 10`, "table lines_fts"},
		"the list of blocks is zeroed":  {`UPDATE lines_fts_data SET block = zeroblob(length(block)) WHERE id = 10`, "table lines_fts"},
		"the averages are gone":         {`DELETE FROM lines_fts_data WHERE id = 1`, "table lines_fts"},
		"the averages are others":       {`UPDATE lines_fts_data SET block = x'01010101' WHERE id = 1`, "table lines_fts"},
		"the index is another one":      {`UPDATE lines_fts_idx SET pgno = pgno + 2`, "table lines_fts"},
		"the index has another word":    {`UPDATE lines_fts_idx SET term = x'307a7a' WHERE length(term) > 0`, "table lines_fts"},
		"it is of another version":      {`UPDATE lines_fts_config SET v = 99 WHERE k = 'version'`, "table lines_fts"},
		"its version is gone":           {`DELETE FROM lines_fts_config`, "table lines_fts"},
		"two lines are swapped":         {swapped, `position 100, table lines_fts: the line has the word "30" here, the full text doesn't`},
		"a line is there twice":         {`INSERT INTO lines_fts (rowid, text, input, output) SELECT pos, text, input, output FROM lines WHERE pos = 100`, "table lines_fts"},
		"its words are elsewhere in it": {`INSERT INTO lines_fts (lines_fts, rowid, text) SELECT 'delete', pos, text FROM lines WHERE pos = 100; INSERT INTO lines_fts (rowid, input) SELECT pos, text FROM lines WHERE pos = 100`, "position 100, table lines_fts"},
		"fewer lines are in it":         {`UPDATE lines_indexed SET pos = 100`, "table lines_fts: the full text has the word \"101\" here, the line doesn't"},
		"a line is said to grow":        {`INSERT INTO lines_open (pos, writer) SELECT pos, writer FROM lines WHERE pos = 100`, "position 100, table lines_fts"},
		"a line has another text":       {`DROP TRIGGER lines_changed; UPDATE lines SET text = 'forged' WHERE pos = 100`, "position 100, table lines, column text"},
		"a line and its words are":      {`UPDATE lines SET text = 'forged' WHERE pos = 100`, "position 100, table lines, column text"},
		"it isn't there":                {`DROP TABLE lines_fts`, "table lines_fts"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := tamper(t, path, func(db *sql.DB) { mustExec(t, db, c.change) })
			for _, d := range v.Damages {
				if strings.Contains(d.String(), c.want) {
					return
				}
			}
			t.Errorf("want %q, found %.2000v", c.want, v.Damages)
		})
	}
}

// TestAnchor shows events that were changed with their chain computed anew, which a store alone can't tell.
func TestAnchor(t *testing.T) {
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	public := key.Public().(ed25519.PublicKey)
	p := story(t)
	s := openStore(t)
	p.store(s, 100)
	anchor, err := s.Checker.MakeAnchor(t.Context(), "", key, time.Now())
	if err != nil || len(anchor.Runs) == 0 {
		t.Fatalf("%+v, %v", anchor, err)
	}
	if err := anchor.Check(public); err != nil {
		t.Error(err)
	}
	forged := anchor
	forged.Runs = slices.Clone(anchor.Runs)
	forged.Runs[0].Head = strings.Repeat("0", 64)
	if err := forged.Check(public); err == nil {
		t.Error("a forged anchor passes")
	}
	verified := func(s *recorder.Store, run string) recorder.Verification {
		v, err := s.Checker.VerifyAnchored(t.Context(), run, anchor)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	p.add("r1", "coder", "coder#1", &wire.AgentText{Content: "what comes later is no damage"})
	later := *p
	later.entries = p.entries[len(p.entries)-1:]
	later.store(s, 1)
	if v := verified(s, ""); len(v.Damages) > 0 || v.Anchored != int64(len(anchor.Runs)) {
		t.Errorf("%+v", v)
	}
	other := story(t) // another history of the same stream: sound in itself
	changed := *other.entries[2].Event
	changed.Timestamp++
	data, err := wire.Encode(&changed)
	if err != nil {
		t.Fatal(err)
	}
	other.entries[2].Event, other.entries[2].Data = &changed, data
	anew := openStore(t)
	other.store(anew, 100)
	if v, err := anew.Checker.Verify(t.Context(), ""); err != nil || len(v.Damages) > 0 {
		t.Fatalf("it isn't sound in itself: %v, %v", v.Damages, err)
	}
	if v := verified(anew, ""); len(v.Damages) != 1 || !strings.Contains(v.Damages[0].String(), "isn't the one that was anchored") {
		t.Errorf("%v", v.Damages)
	}
	gone := openStore(t)
	short := story(t)
	short.entries = short.entries[:len(short.entries)-1]
	short.store(gone, 100)
	if v := verified(gone, ""); len(v.Damages) == 0 {
		t.Error("the last event is missing, and nothing is found")
	}
}

// TestVerifyRoundsSums shows that sums of costs may have been added in other batches than verify adds them in: the last bit
// depends on that.
func TestVerifyRoundsSums(t *testing.T) {
	for name, source := range map[string]string{"told": "", "computed": wire.PricesOptions} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "recorder.db")
			p := newTape(t)
			exec := p.start("r1", "coder", nil)
			for i, usd := range []float64{0.1, 0.2, 0.3} { // 0.1 + (0.2 + 0.3) isn't (0.1 + 0.2) + 0.3
				p.add("r1", "coder", exec, &wire.Usage{MessageID: fmt.Sprint(i), Model: "opus", InputTokens: 1, CostUsd: &usd, CostSource: source})
			}
			s := openAt(t, path)
			for _, part := range [][]eventlog.Entry{p.entries[:len(p.entries)-2], p.entries[len(p.entries)-2:]} {
				if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: part}); err != nil {
					t.Fatal(err)
				}
			}
			closed(t, s)
			if v := verified(t, path, "r1"); len(v.Damages) > 0 {
				t.Error(v.Damages)
			}
		})
	}
}
