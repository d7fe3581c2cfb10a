package recorder_test

import (
	"database/sql"
	"fmt"
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

// What agents say changes no state: no answer about that reads it.
func TestAnswersReadNoWords(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	p.add("r1", "coder", exec, &wire.CCMessage{Text: "Which one?", Priority: wire.PriorityQuestion})
	asked := p.pos
	for range 3000 {
		p.add("r1", "coder", exec, &wire.AgentText{Content: "some words"})
	}
	target := newTarget(t)
	s := openAt(t, target)
	p.store(s, 500)
	now := time.UnixMilli(p.clock)
	closed(t, s)
	db := openDB(t, target)
	defer db.Close()
	mustExec(t, db, `DELETE FROM folds`)
	mustExec(t, db, `DELETE FROM keyframes`)
	unreadable(t, db, target, fmt.Sprintf(`first_pos > %d`, asked))
	s = openAt(t, target)
	defer closed(t, s)
	if _, err := answersAll(t, s, now); err != nil {
		t.Error(err)
	}
	for _, run := range []string{"", "r1"} {
		r, err := s.Answers.Approvals(t.Context(), wire.ApprovalsRequest{Run: run}, now, 1<<20)
		if err != nil || len(r.Approvals) != 1 {
			t.Errorf("%q: %+v, %v", run, r, err)
		}
	}
	state, err := s.Answers.StateAt(t.Context(), wire.StateRequest{Run: "r1"})
	if err != nil || state.Position.Seq != asked {
		t.Errorf("position %d, %v", state.Position.Seq, err)
	}
}

// A batch of more runs than states are held of keeps that of each as its events have it.
func TestStatesOfManyRuns(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	for range 4200 {
		p.add("r1", "coder", exec, &wire.AgentTextDelta{Content: "word "})
	}
	p.add("r1", "coder", exec, &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.RawString("make")})
	for i := range 300 {
		p.start(fmt.Sprint("other", i), "coder", nil)
	}
	s := openStore(t)
	p.store(s, len(p.entries))
	if v, err := s.Checker.Verify(t.Context(), ""); err != nil || len(v.Damages) > 0 {
		t.Errorf("%v, %v", err, v.Damages)
	}
}
