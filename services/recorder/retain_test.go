package recorder_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// whole is a run from its beginning to its end, with a text.
func (p *tape) whole(id, said string) {
	exec := p.start(id, "coder", map[string]string{"name": id})
	p.add(id, "coder", exec, &wire.AgentText{Content: said})
	p.add(id, "coder", exec, &wire.Usage{MessageID: "m", Model: "opus", InputTokens: 5, OutputTokens: 7})
	p.add(id, "coder", exec, &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.RawString("ok")})
	p.end(id)
}

func (p *tape) end(id string) {
	p.add(id, "coder", "coder#1", &wire.NodeComplete{Output: wire.RawString("ok")})
	p.add(id, wire.RunNode, "", &wire.FlowComplete{FlowName: "review", Status: wire.FlowStatusComplete})
}

// large appends an event with a field that is a blob of its own.
func (p *tape) large(id, content string, blobs map[string][]byte) {
	p.t.Helper()
	p.seqs[id+"/coder"]++
	e := &wire.Event{RunID: id, NodeID: "coder", ExecID: "coder#1", Seq: p.seqs[id+"/coder"], Epoch: 1, Timestamp: p.clock, Payload: &wire.AgentText{Content: content}}
	data, err := wire.Encode(e)
	if err != nil {
		p.t.Fatal(err)
	}
	small, fields, err := wire.Externalize(data, 2000)
	if err != nil || len(fields) != 1 {
		p.t.Fatal(err, len(fields))
	}
	maps.Copy(blobs, fields)
	if e, err = wire.Decode(small); err != nil {
		p.t.Fatal(err)
	}
	p.put(e)
}

func listed(t *testing.T, s *recorder.Store, q wire.RunsRequest) []string {
	t.Helper()
	r, err := s.Answers.Runs(t.Context(), q, time.Now(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{}
	for _, i := range r.Runs {
		ids = append(ids, i.RunID)
	}
	return ids
}

func found(t *testing.T, s *recorder.Store, word string) []string {
	t.Helper()
	indexed(t, s)
	r, err := s.Answers.Search(t.Context(), wire.SearchRequest{Text: word}, time.Now(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{}
	for _, h := range r.Hits {
		ids = append(ids, h.RunID)
	}
	return ids
}

func sound(t *testing.T, s *recorder.Store, when string) recorder.Verification {
	t.Helper()
	v, err := s.Checker.Verify(t.Context(), "")
	if err != nil {
		t.Fatal(when, err)
	}
	if len(v.Damages) > 0 {
		t.Fatalf("%s: %d damages, the first: %s", when, len(v.Damages), v.Damages[0])
	}
	return v
}

// A run that was deleted is in no list, but can be read and restored until its time
// is over. Then it is removed step by step, whatever ends the process between two
// of them, and nothing else is; what comes late of it isn't recorded.
func TestDeletedRuns(t *testing.T) {
	p := newTape(t)
	blobs := map[string][]byte{}
	p.whole("r1", "alpha one")
	p.start("r2", "coder", nil)
	p.large("r2", strings.Repeat("shared ", 1000), blobs)
	p.large("r2", strings.Repeat("own ", 1000), blobs)
	for i := range 2500 {
		p.add("r2", "coder", "coder#1", &wire.AgentText{Content: fmt.Sprint("alpha two ", i)})
	}
	p.end("r2")
	p.start("r3", "coder", nil)
	p.large("r3", strings.Repeat("shared ", 1000), blobs)
	p.put(&wire.Event{RunID: wire.NoRun, NodeID: wire.RunNode, Seq: 1, Epoch: 1, Payload: &wire.CommandReceived{Command: wire.Null}})
	path := newTarget(t)
	s := openAt(t, path)
	defer func() { closed(t, s) }()
	if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: p.entries, Blobs: blobs}); err != nil {
		t.Fatal(err)
	}
	found(t, s, "alpha")
	now := time.Now()
	ask := func(q wire.DeleteRequest, code wire.ErrorCode) {
		t.Helper()
		if _, err := s.Retention.Delete(t.Context(), q, time.Hour, now); codeOf(err) != code {
			t.Errorf("%+v: %v, want %q", q, err, code)
		}
	}
	ask(wire.DeleteRequest{Run: "r3"}, wire.CodeCommandRejected)
	ask(wire.DeleteRequest{Run: "r2", Undo: true}, wire.CodeCommandRejected)
	ask(wire.DeleteRequest{Run: wire.NoRun}, wire.CodeBadRequest)
	ask(wire.DeleteRequest{Run: "r2"}, "")
	if diff := cmp.Diff([]string{"r3", "r1"}, listed(t, s, wire.RunsRequest{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"r2"}, listed(t, s, wire.RunsRequest{Deleted: true})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"r1"}, found(t, s, "alpha")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if log, err := s.Answers.Log(t.Context(), wire.LogRequest{Run: "r2"}, now, 1<<20); err != nil || log.TotalLines < 2500 {
		t.Errorf("%d lines, %v: a deleted run can still be read", log.TotalLines, err)
	}
	if _, more, err := s.Retention.Remove(t.Context(), now.Add(59*time.Minute)); more || err != nil {
		t.Error("removed too early", err)
	}
	ask(wire.DeleteRequest{Run: "r2", Undo: true}, "")
	if got := listed(t, s, wire.RunsRequest{}); !slices.Contains(got, "r2") {
		t.Errorf("not restored: %v", got)
	}
	ask(wire.DeleteRequest{Run: "r2"}, "")
	sound(t, s, "deleted")
	steps, gone := 0, []string{}
	for more := true; more; steps++ {
		var run string
		var err error
		if run, more, err = s.Retention.Remove(t.Context(), now.Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if run != "" {
			gone = append(gone, run)
		}
		if steps%2 == 0 { // as after a kill -9
			closed(t, s)
			s = openAt(t, path)
			sound(t, s, fmt.Sprint("step ", steps))
		}
		if steps == 1 {
			ask(wire.DeleteRequest{Run: "r2", Undo: true}, wire.CodeRunNotFound)
			late := newTape(t)
			late.pos, late.seqs["r2/_run"] = p.pos, 10
			late.add("r2", wire.RunNode, "", &wire.CommandReceived{Command: wire.Null})
			late.whole("r4", "gamma")
			p.entries = append(p.entries, late.entries...)
			late.store(s, 3)
		}
	}
	if !slices.Equal(gone, []string{"r2"}) || steps < 8 {
		t.Errorf("removed %v in %d steps", gone, steps)
	}
	if v := sound(t, s, "removed"); v.Deleted != 1 || v.Runs != 4 {
		t.Errorf("%d deleted of %d", v.Deleted, v.Runs)
	}
	p.store(s, 100) // the stream still has it
	sound(t, s, "read again")
	_, err := s.Answers.Log(t.Context(), wire.LogRequest{Run: "r2"}, now, 1<<20)
	if codeOf(err) != wire.CodeRunNotFound || !strings.Contains(err.Error(), "was deleted") {
		t.Error(err)
	}
	db := openDB(t, path)
	defer db.Close()
	if got := rowsOf(t, db, `SELECT count(*) AS n FROM blobs`); got[0] != "n=1 " {
		t.Errorf("large fields: %v, one is another run's", got)
	}
	if diff := cmp.Diff([]string{"r1"}, found(t, s, "alpha")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for more := true; more; {
		if more, err = s.Retention.Shrink(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if !onPostgres(path) {
		if got := rowsOf(t, db, `PRAGMA freelist_count`); got[0] != "freelist_count=0 " {
			t.Errorf("%v: the space is given back", got)
		}
	}
}

// What was removed is the newest run: the next one has its number, and nothing
// else of it.
func TestARunThatWasRemovedLeavesNothing(t *testing.T) {
	p := newTape(t)
	p.whole("r1", "one")
	s := openStore(t)
	p.store(s, 100)
	if _, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "r1"}, time.Now(), 1<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Retention.Delete(t.Context(), wire.DeleteRequest{Run: "r1", Now: true}, time.Hour, time.Now()); err != nil {
		t.Fatal(err)
	}
	for more, err := true, error(nil); more; {
		if _, more, err = s.Retention.Remove(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	p.start("r2", "coder", nil)
	p.store(s, 100)
	r, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "r2"}, time.Now(), 1<<20)
	if err != nil || r.Status != wire.RunRunning {
		t.Errorf("%+v, %v", r.Status, err)
	}
	sound(t, s, "in the end")
}

// A run stays that a live one descends from, however far, or that has a labelled
// bookmark; neither age nor size nor a user without --force removes it.
func TestRunsThatAreNeededStay(t *testing.T) {
	p := newTape(t)
	forked := func(id, parent string) {
		state := run.New(parent)
		state.Status = wire.RunRunning
		p.add(id, wire.RunNode, "", &wire.RunClaimed{Runner: "runner", Nonce: "n"})
		p.add(id, wire.RunNode, "", &wire.RunForked{ParentRun: parent, ParentPos: 1, State: mustRaw(t, state)})
	}
	p.whole("parent", "one")
	forked("child", "parent")
	p.add("child", wire.RunNode, "", &wire.FlowAborted{Reason: "operator"})
	forked("grandchild", "child")
	p.start("marked", "coder", nil)
	p.add("marked", wire.RunNode, "", &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: "here"})
	p.end("marked")
	p.whole("free", "two")
	s := openStore(t)
	p.store(s, 5)
	now := time.UnixMilli(p.clock).Add(time.Hour)
	for id, why := range map[string]string{"parent": "run grandchild, which goes on", "child": "run grandchild", "marked": "bookmark here", "grandchild": "hasn't ended"} {
		if _, err := s.Retention.Delete(t.Context(), wire.DeleteRequest{Run: id}, time.Hour, now); codeOf(err) != wire.CodeCommandRejected || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", id, err, why)
		}
	}
	for _, r := range []recorder.Retention{{Age: 2 * time.Hour}, {Size: 1 << 40}} {
		if n, err := s.Retention.Expire(t.Context(), r, now); n != 0 || err != nil {
			t.Errorf("%+v: %d, %v", r, n, err)
		}
	}
	for _, r := range []recorder.Retention{{Age: 30 * time.Minute}, {Size: 1}} {
		if n, err := s.Retention.Expire(t.Context(), r, now); n != 1 || err != nil {
			t.Errorf("%+v: deleted %d, %v", r, n, err)
		}
		if diff := cmp.Diff([]string{"free"}, listed(t, s, wire.RunsRequest{Deleted: true})); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", r, diff)
		}
		if _, err := s.Retention.Delete(t.Context(), wire.DeleteRequest{Run: "free", Undo: true}, 0, now); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Retention.Delete(t.Context(), wire.DeleteRequest{Run: "marked", Force: true, Now: true}, time.Hour, now); err != nil {
		t.Error(err)
	}
	if _, more, err := s.Retention.Remove(t.Context(), now); !more || err != nil {
		t.Error(more, err)
	}
	if _, err := s.Answers.Find(t.Context(), "marked"); codeOf(err) != wire.CodeRunNotFound {
		t.Error(err)
	}
}

// A run that was forked after it was deleted stays as long as the fork goes on.
func TestAForkOfADeletedRunKeepsIt(t *testing.T) {
	p := newTape(t)
	p.whole("parent", "one")
	s := openStore(t)
	p.store(s, 100)
	now := time.UnixMilli(p.clock)
	if _, err := s.Retention.Delete(t.Context(), wire.DeleteRequest{Run: "parent"}, time.Hour, now); err != nil {
		t.Fatal(err)
	}
	p.add("fork", wire.RunNode, "", &wire.RunClaimed{Runner: "runner", Nonce: "n"})
	state := run.New("parent")
	state.Status = wire.RunRunning
	p.add("fork", wire.RunNode, "", &wire.RunForked{ParentRun: "parent", ParentPos: 1, State: mustRaw(t, state)})
	p.store(s, 100)
	remove := func(at time.Time) {
		t.Helper()
		for more, err := true, error(nil); more; {
			if _, more, err = s.Retention.Remove(t.Context(), at); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove(now.Add(2 * time.Hour))
	if _, err := s.Answers.Find(t.Context(), "parent"); err != nil {
		t.Error(err)
	}
	p.add("fork", wire.RunNode, "", &wire.FlowAborted{Reason: "operator"})
	p.store(s, 100)
	remove(now.Add(4 * time.Hour))
	if _, err := s.Answers.Find(t.Context(), "parent"); codeOf(err) != wire.CodeRunNotFound {
		t.Error(err)
	}
}

// A run that retention has deleted, and that was forked before its time was over, stays until the fork is gone, also where that has ended.
func TestForkOfExpiredRunKeepsIt(t *testing.T) {
	p := newTape(t)
	p.whole("parent", "one")
	s := openStore(t)
	p.store(s, 100)
	now := time.UnixMilli(p.clock).Add(100 * time.Hour)
	expire := func(want int) {
		t.Helper()
		if n, err := s.Retention.Expire(t.Context(), recorder.Retention{Age: time.Hour, Grace: time.Minute}, now); n != want || err != nil {
			t.Fatal(n, err)
		}
		now = now.Add(2 * time.Hour)
	}
	remove := func() {
		t.Helper()
		for more, err := true, error(nil); more; {
			if _, more, err = s.Retention.Remove(t.Context(), now); err != nil {
				t.Fatal(err)
			}
		}
	}
	expire(1)
	p.add("fork", wire.RunNode, "", &wire.RunClaimed{Runner: "runner", Nonce: "n"})
	state := run.New("parent")
	state.Status = wire.RunRunning
	p.add("fork", wire.RunNode, "", &wire.RunForked{ParentRun: "parent", ParentPos: 1, State: mustRaw(t, state)})
	p.add("fork", wire.RunNode, "", &wire.FlowAborted{Reason: "operator"})
	p.store(s, 100)
	remove()
	if _, err := s.Answers.Find(t.Context(), "parent"); err != nil {
		t.Errorf("the points of its fork are gone: %v", err)
	}
	expire(1) // the fork
	remove()
	now = now.Add(2 * time.Hour)
	remove()
	for _, id := range []string{"fork", "parent"} {
		if _, err := s.Answers.Find(t.Context(), id); codeOf(err) != wire.CodeRunNotFound {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// Retention leaves a run that has a fork, also one that has ended, until that is gone. A child is none.
func TestRetentionLeavesWhatAForkNeeds(t *testing.T) {
	p := newTape(t)
	p.whole("parent", "one")
	p.whole("caller", "one")
	for id, first := range map[string]wire.Payload{
		"fork":  &wire.RunForked{ParentRun: "parent", ParentPos: 1, State: mustRaw(t, &wire.State{V: wire.Version, RunID: "parent", Status: wire.RunRunning})},
		"child": &wire.FlowStart{FlowName: "f", Definition: mustRaw(t, map[string]any{"name": "f"}), DefinitionHash: "h", ParentRun: "caller", ParentNode: "n"},
	} {
		p.add(id, wire.RunNode, "", &wire.RunClaimed{Runner: "runner", Nonce: id})
		p.add(id, wire.RunNode, "", first)
		p.add(id, wire.RunNode, "", &wire.FlowAborted{Reason: "operator"})
	}
	s := openStore(t)
	p.store(s, 100)
	now := time.UnixMilli(p.clock).Add(100 * time.Hour)
	for _, want := range []struct {
		left    []string
		deleted int
	}{{[]string{"parent"}, 3}, {nil, 1}} {
		deleted := 0
		for range 3 {
			n, err := s.Retention.Expire(t.Context(), recorder.Retention{Age: time.Hour, Grace: time.Minute}, now)
			if err != nil {
				t.Fatal(err)
			}
			deleted += n
			if diff := cmp.Diff(want.left, listed(t, s, wire.RunsRequest{})); diff != "" && want.left != nil {
				t.Errorf("left (-want +got):\n%s", diff)
			}
		}
		if deleted != want.deleted {
			t.Errorf("%d runs are said to be deleted, want %d", deleted, want.deleted)
		}
		now = now.Add(time.Hour)
		for more, err := true, error(nil); more; {
			if _, more, err = s.Retention.Remove(t.Context(), now); err != nil {
				t.Fatal(err)
			}
		}
	}
	if left := listed(t, s, wire.RunsRequest{}); len(left) > 0 {
		t.Errorf("left when the fork is gone: %v", left)
	}
}

// Size takes the runs that ended first, and no more than it has to.
func TestSizeTakesTheOldest(t *testing.T) {
	p := newTape(t)
	for i := range 8 {
		id := fmt.Sprint("r", i)
		p.start(id, "coder", nil)
		for j := range 400 {
			p.add(id, "coder", "coder#1", &wire.AgentText{Content: fmt.Sprintf("%d %x", j, int64(i+1)*int64(j+7)*7919)})
		}
		p.end(id)
	}
	path := newTarget(t)
	s := openAt(t, path)
	defer closed(t, s)
	p.store(s, 100)
	total, err := s.Archive.Size(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	r := recorder.Retention{Size: total * 3 / 4, Grace: time.Hour}
	for range 2 { // what is deleted and still there counts as gone
		if _, err := s.Retention.Expire(t.Context(), r, now); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"r2", "r1", "r0"}, listed(t, s, wire.RunsRequest{Deleted: true})); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// What removed runs had in the full text is given back, however often others come and go: else the store would have ever less room for those
// that are kept.
func TestFullTextShrinks(t *testing.T) {
	p := newTape(t)
	path := newTarget(t)
	if onPostgres(path) {
		t.Log("its index looks after that itself")
		return
	}
	s := openAt(t, path)
	defer closed(t, s)
	db := openDB(t, path)
	defer db.Close()
	size := func() (bytes int64) {
		t.Helper()
		if err := db.QueryRowContext(t.Context(), `SELECT coalesce(sum(length(block)), 0) FROM lines_fts_data`).Scan(&bytes); err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	var sizes []int64
	for round := range 4 {
		for i := range 40 {
			id := fmt.Sprint("r", round, "-", i)
			p.start(id, "coder", nil)
			for j := range 60 {
				p.add(id, "coder", "coder#1", &wire.AgentText{Content: fmt.Sprintf("%d %x %x", j, int64(i+1)*int64(j+7)*7919, int64(j+1)*int64(i+round)*104729)})
			}
			p.end(id)
		}
		p.store(s, 500)
		p.entries = nil
		indexed(t, s)
		sizes = append(sizes, size())
		now := time.Now()
		for i := range 36 {
			if _, err := s.Retention.Delete(t.Context(), wire.DeleteRequest{Run: fmt.Sprint("r", round, "-", i), Now: true, Force: true}, 0, now); err != nil {
				t.Fatal(err)
			}
		}
		for more := true; more; {
			var err error
			if _, more, err = s.Retention.Remove(t.Context(), now.Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Retention.Merge(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if left := size(); left > sizes[0]*2/3 || sizes[3] > sizes[0]*2 {
		t.Errorf("the full text of 40 runs had %d bytes, with 40 more each, of which 4 stayed, %d, and at last, of 16 runs, %d", sizes[0], sizes[1:], left)
	}
}

// Every table is accounted for: what has rows of runs loses them with the run.
func TestNoTableIsForgotten(t *testing.T) {
	path := newTarget(t)
	s := openAt(t, path)
	defer closed(t, s)
	known := []string{"streams", "runs", "retired", "remains", "deleted", "blobs", "blob_uses", "usage_seen", "lines_open", "lines_indexed", "alerts", "alerts_read", "alert_counts", "rebuilds", "wake_schema"}
	for _, held := range table.All().OfRuns() {
		known = append(known, held.Name)
	}
	db := openDB(t, path)
	defer db.Close()
	query := `SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'lines_fts%' AND name NOT LIKE 'sqlite_%'`
	if onPostgres(path) {
		query = `SELECT table_name AS name FROM information_schema.tables WHERE table_schema = current_schema() AND table_type = 'BASE TABLE'`
	}
	for _, row := range rowsOf(t, db, query) {
		if name := strings.TrimSuffix(strings.TrimPrefix(row, "name="), " "); !slices.Contains(known, name) {
			t.Errorf("table %s: say in its declaration that it has rows of runs, or here how a run's rows are removed", name)
		}
	}
}

// A session that is watched never says that it has ended: it goes when it has been idle for long, and stays if it goes on until then.
func TestIdleSessionsAreDeleted(t *testing.T) {
	p := newTape(t)
	for _, id := range []string{"left", "taken up", "paused"} {
		p.start(id, "coder", nil)
		reason := wire.PauseIdle
		if id == "paused" {
			reason = "operator"
		}
		p.add(id, wire.RunNode, "", &wire.FlowPaused{Reason: reason})
	}
	s := openStore(t)
	p.store(s, 100)
	now := time.UnixMilli(p.clock).Add(2 * time.Hour)
	if n, err := s.Retention.Expire(t.Context(), recorder.Retention{Age: time.Hour, Grace: time.Hour}, now); n != 2 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	for range 3 { // a day later
		p.clock = now.Add(24 * time.Hour).UnixMilli()
		p.add("taken up", "coder", "coder#1", &wire.AgentText{Content: "Welcome back."})
	}
	p.store(s, 100)
	for more := true; more; {
		var err error
		if _, more, err = s.Retention.Remove(t.Context(), now.Add(48*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"paused", "taken up"}, listed(t, s, wire.RunsRequest{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A run that failed, was deleted and goes on again is there again, and loses nothing.
func TestDeletedRunGoesOn(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	p.add("r1", "coder", exec, &wire.NodeError{Error: "no luck"})
	p.add("r1", wire.RunNode, "", &wire.FlowComplete{FlowName: "review", Status: wire.FlowStatusFailed, Error: "no luck"})
	s := openStore(t)
	p.store(s, 100)
	now := time.UnixMilli(p.clock)
	if _, err := s.Retention.Delete(t.Context(), wire.DeleteRequest{Run: "r1"}, time.Hour, now); err != nil {
		t.Fatal(err)
	}
	p.add("r1", wire.RunNode, "", &wire.FlowResumed{Strategy: "crash", Rerun: []string{"coder"}})
	p.store(s, 100)
	if _, err := s.Retention.Expire(t.Context(), recorder.Retention{}, now); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"r1"}, listed(t, s, wire.RunsRequest{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if run, _, err := s.Retention.Remove(t.Context(), now.Add(2*time.Hour)); run != "" || err != nil {
		t.Errorf("removed %q, %v", run, err)
	}
}

// A run whose events are of the future is deleted for good all the same: what counts is when they were stored.
func TestFutureRunIsDeleted(t *testing.T) {
	p := newTape(t)
	p.whole("r1", "one")
	for _, e := range p.entries {
		e.Event.Timestamp += 10 * 365 * 24 * time.Hour.Milliseconds()
	}
	s := openStore(t)
	p.store(s, 100)
	now := time.UnixMilli(p.clock).Add(2 * time.Hour)
	for range 2 {
		if _, err := s.Retention.Expire(t.Context(), recorder.Retention{Age: time.Hour, Grace: time.Hour}, now); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"r1"}, listed(t, s, wire.RunsRequest{Deleted: true})); diff != "" {
			t.Errorf("deleted (-want +got):\n%s", diff)
		}
	}
	for more := true; more; {
		var err error
		if _, more, err = s.Retention.Remove(t.Context(), now.Add(2*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	if left := listed(t, s, wire.RunsRequest{}); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// What a run has begun stays as long as that one: its points may need what the other left in the folder. Where they say of each other that they
// have begun it, an operator can delete them.
func TestChildrenStayWithTheirParent(t *testing.T) {
	p := newTape(t)
	whole := func(id, parent string) {
		p.add(id, wire.RunNode, "", &wire.RunClaimed{Runner: "runner", Nonce: "n"})
		p.add(id, wire.RunNode, "", &wire.FlowStart{FlowName: "part", Definition: wire.Null, DefinitionHash: "h", ParentRun: parent, ParentNode: "kid"})
		p.add(id, wire.RunNode, "", &wire.FlowComplete{FlowName: "part", Status: wire.FlowStatusComplete})
	}
	whole("kept.kid#1", "kept")
	p.start("kept", "coder", nil)
	p.add("kept", wire.RunNode, "", &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: "here"})
	p.end("kept")
	whole("free.kid#1.kid#1", "free.kid#1")
	whole("free.kid#1", "free")
	whole("free", "")
	whole("one", "other")
	whole("other", "one")
	s := openStore(t)
	p.store(s, 5)
	now := time.UnixMilli(p.clock).Add(time.Hour)
	if _, err := s.Retention.Delete(t.Context(), wire.DeleteRequest{Run: "kept.kid#1"}, time.Hour, now); codeOf(err) != wire.CodeCommandRejected || !strings.Contains(err.Error(), "run kept has begun it") {
		t.Error(err)
	}
	idle := map[string]bool{}
	for _, id := range []string{"kept.kid#1", "free.kid#1.kid#1", "one"} {
		var err error
		if idle[id], err = s.Retention.IsIdle(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff(map[string]bool{"kept.kid#1": false, "free.kid#1.kid#1": true, "one": false}, idle); diff != "" {
		t.Errorf("idle (-want +got):\n%s", diff)
	}
	for i, want := range []string{"free", "free.kid#1", "free.kid#1.kid#1", ""} {
		n, err := s.Retention.Expire(t.Context(), recorder.Retention{Age: 30 * time.Minute}, now)
		if err != nil || n > 1 || n == 1 && want == "" {
			t.Errorf("round %d: deleted %d, %v", i, n, err)
		}
		if got := listed(t, s, wire.RunsRequest{Deleted: true}); want != "" && !slices.Contains(got, want) {
			t.Errorf("round %d: deleted are %v, want %s among them", i, got, want)
		}
	}
	if _, err := s.Retention.Delete(t.Context(), wire.DeleteRequest{Run: "one", Force: true}, time.Hour, now); err != nil {
		t.Error(err)
	}
	// Restored, a run has what it has begun, at any distance, though that is marked.
	if _, err := s.Retention.Delete(t.Context(), wire.DeleteRequest{Run: "free", Undo: true}, 0, now); err != nil {
		t.Fatal(err)
	}
	for later := now.Add(24 * time.Hour); ; {
		if _, more, err := s.Retention.Remove(t.Context(), later); err != nil {
			t.Fatal(err)
		} else if !more {
			break
		}
	}
	for _, id := range []string{"free", "free.kid#1", "free.kid#1.kid#1"} {
		if _, err := s.Answers.Find(t.Context(), id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}
