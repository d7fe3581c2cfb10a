package recorder_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// longWork is a run that goes on and whose agent does something and talks much.
func longWork(t *testing.T) *tape {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	for range 500 {
		p.add("r1", "coder", exec, &wire.AgentTool{ToolName: "Bash", ToolInput: mustRaw(t, map[string]any{"command": "make"}), ToolOutput: wire.Null})
		for range 9 {
			p.add("r1", "coder", exec, &wire.AgentTextDelta{Content: "some words "})
		}
	}
	return p
}

// answersAll asks a store for all that needs the state of a run.
func answersAll(t *testing.T, s *recorder.Store, now time.Time) (all []any, failed error) {
	t.Helper()
	status, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "r1"}, now, 1<<20)
	if err != nil {
		return nil, err
	}
	top, err := s.Answers.Top(t.Context(), wire.TopRequest{}, now, 1<<20)
	if err != nil {
		return nil, err
	}
	state, err := s.Answers.StateAt(t.Context(), wire.StateRequest{Run: "r1"})
	return []any{status, top, state}, err
}

// unreadable makes the segments of a run unreadable that a condition is true of, and
// returns what makes them readable again.
func unreadable(t *testing.T, db *sql.DB, target, where string) (mend func()) {
	t.Helper()
	if onPostgres(target) {
		mustExec(t, db, `ALTER TABLE segments DISABLE TRIGGER ALL`)
	} else {
		mustExec(t, db, `DROP TRIGGER IF EXISTS segments_keep`)
	}
	mustExec(t, db, `UPDATE segments SET codec = codec + 100 WHERE `+where)
	return func() { mustExec(t, db, `UPDATE segments SET codec = codec - 100 WHERE `+where) }
}

// Who asked early in a long run and asks again later gets the answer from the nearest
// state there is: what lies before that isn't read again.
func TestLateQuestionReadsNoBeginning(t *testing.T) {
	p := longWork(t)
	target := newTarget(t)
	s := openAt(t, target)
	defer closed(t, s)
	now := time.UnixMilli(p.clock)
	early := &tape{t: t, entries: p.entries[:50]}
	early.store(s, 50)
	if _, err := answersAll(t, s, now); err != nil {
		t.Fatal(err)
	}
	p.store(s, 500)
	cold := openAt(t, target)
	want, err := answersAll(t, cold, now)
	closed(t, cold)
	if err != nil {
		t.Fatal(err)
	}
	db := openDB(t, target)
	defer db.Close()
	unreadable(t, db, target, `last_pos <= (SELECT max(pos) FROM folds)`)
	got, err := answersAll(t, s, now)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-cold +warm):\n%s", err, diff)
	}
}

// A question that fails half way leaves what it has folded to the next one: else what
// once took too long would for ever.
func TestFailedQuestionKeepsItsWork(t *testing.T) {
	p := longWork(t)
	target := newTarget(t)
	s := openAt(t, target)
	defer closed(t, s)
	p.store(s, 500)
	now := time.UnixMilli(p.clock)
	cold := openAt(t, target)
	want, err := answersAll(t, cold, now)
	closed(t, cold)
	if err != nil {
		t.Fatal(err)
	}
	db := openDB(t, target)
	defer db.Close()
	mustExec(t, db, `DELETE FROM folds`)
	mustExec(t, db, `DELETE FROM keyframes`)
	mend := unreadable(t, db, target, `n = (SELECT max(n) FROM segments)`)
	if _, err := answersAll(t, s, now); err == nil {
		t.Fatal("a segment that can't be read was passed over")
	}
	mend()
	unreadable(t, db, target, `n < (SELECT max(n) FROM segments)`)
	got, err := answersAll(t, s, now)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-cold +warm):\n%s", err, diff)
	}
}
