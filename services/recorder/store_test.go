package recorder_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// dump returns what the file says: all events, and all rows of what is derived
// from them, except for the folds, which are a cache. How the events are cut into
// segments doesn't count.
func dump(t testing.TB, path string) map[string][]string {
	t.Helper()
	s, err := recorder.OpenReadOnly(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, s)
	tables := map[string][]string{}
	for e, err := range s.Answers.Read(t.Context(), recorder.Query{Marked: true}) {
		if err != nil {
			t.Fatal(err)
		}
		tables["events"] = append(tables["events"], fmt.Sprintf("%+v", e))
	}
	db := openDB(t, path)
	defer db.Close()
	for _, table := range []string{"streams", "runs", "labels", "nodes", "blobs", "bindings", "lines", "tool_calls", "spend", "usage_seen", "chat_messages", "chat_errors", "chat_checkpoints"} {
		columns := "*"
		if table == "runs" {
			cut := []string{"segments", "tail_events", "tail_bytes"}
			columns = strings.Join(slices.DeleteFunc(columnsOf(t, db, path, table), func(c string) bool { return slices.Contains(cut, c) }), ", ")
		}
		order := " ORDER BY 1, 2"
		if table == "spend" {
			order += ", 3, 4" // several days of a node
		}
		tables[table] = rowsOf(t, db, "SELECT "+columns+" FROM "+table+order)
	}
	return tables
}

// eventMarks returns the positions of the events of a store, the runs that have them, their marks and the bytes of their data.
func eventMarks(t testing.TB, path string) (list []string) {
	t.Helper()
	s, err := recorder.OpenReadOnly(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, s)
	for e, err := range s.Answers.Read(t.Context(), recorder.Query{Marked: true}) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, fmt.Sprintf("pos=%d run=%s mark=%s bytes=%d", e.Pos, e.Run, e.Mark, len(e.Data)))
	}
	return list
}

func rowsOf(t testing.TB, db *sql.DB, query string, args ...any) []string {
	t.Helper()
	rows, err := db.Query(query, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for rows.Next() {
		values, into := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for i, v := range values {
			if data, ok := v.([]byte); ok {
				v = fmt.Sprintf("%x", data)
			}
			fmt.Fprintf(&b, "%s=%v ", columns[i], v)
		}
		list = append(list, b.String())
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return list
}

func openAt(t testing.TB, path string) *recorder.Store {
	t.Helper()
	s, err := recorder.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closed(t testing.TB, s *recorder.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func mustRaw(t testing.TB, v any) wire.Raw {
	t.Helper()
	raw, err := wire.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// never is an execution that was never scheduled.
const never = "coder#9"

// story is two runs with everything that the file derives something from.
func story(t testing.TB) *tape {
	p := newTape(t)
	exec := p.start("r1", "coder", map[string]string{"name": "sentinella", "team": "a"})
	other := p.start("r2", "judge", nil)
	p.add("r1", "coder", exec, &wire.AgentInit{Model: "opus", Cwd: "/w"})
	p.add("r1", "coder", exec, &wire.AgentThinkingDelta{Content: "Let me ", Block: 1})
	p.add("r2", "judge", other, &wire.AgentTextDelta{Content: "Loose "})
	p.add("r1", "coder", exec, &wire.AgentThinkingDelta{Content: "see.", Block: 1})
	p.add("r2", "judge", other, &wire.AgentTextDelta{Content: "talk"})
	p.add("r1", "coder", never, &wire.TurnStart{}) // refused
	for i := range 12 {
		p.add("r1", "coder", exec, &wire.AgentTextDelta{Content: fmt.Sprintf("piece %d, ", i), Block: 2})
	}
	input := mustRaw(t, map[string]any{"file_path": "/w/src/bridge.ts"})
	intent := p.add("r1", "coder", exec, &wire.ToolIntent{ToolName: "Edit", ToolInput: input})
	done := &wire.Event{
		RunID: "r1", NodeID: "coder", ExecID: exec, Seq: intent.Seq + 1, Epoch: 1, CallID: intent.CallID, Timestamp: p.clock + 2100,
		Payload: &wire.AgentTool{ToolName: "Edit", ToolInput: input, ToolOutput: wire.RawString("no such file"), Error: "no such file", DurationMs: new(int64(2100))},
	}
	p.seqs["r1/coder"]++
	p.put(done)
	p.add("r1", "coder", exec, &wire.Usage{MessageID: "m1", Model: "opus", InputTokens: 100, OutputTokens: 50, CacheReadInputTokens: new(int64(900)), ContextTokens: 1000, ContextWindow: 4000})
	p.add("r1", "coder", exec, &wire.TurnEnd{StopReason: "end_turn", TurnCostUsd: new(0.34)})
	p.add("r1", "coder", exec, &wire.SessionBound{OldSession: "session-r1", NewSession: "session-r1b"})
	p.add("r1", "coder", exec, &wire.NodeComplete{Output: wire.RawString("ok"), DurationMs: 9000})
	p.add("r1", wire.RunNode, "judge#1", &wire.NodeScheduled{Target: "judge", Attempt: 1})
	p.add("r1", wire.RunNode, "judge#1", &wire.NodeStart{Target: "judge", NodeType: "ask"})
	p.add("r1", wire.RunNode, "judge#1", &wire.InputRequested{Target: "judge", PromptID: "p1", Prompt: "Deploy?"})
	return p
}

func TestTheSameStreamMakesTheSameRows(t *testing.T) {
	p := story(t)
	path := newTarget(t)
	s := openAt(t, path)
	p.store(s, len(p.entries))
	closed(t, s)
	want := dump(t, path)
	for table, rows := range want {
		if len(rows) == 0 && table != "blobs" && table != "chat_errors" {
			t.Errorf("%s is empty: the story tells too little", table)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		path := newTarget(t)
		s := openAt(t, path)
		for at := 0; at < len(p.entries); {
			from := at - rapid.IntRange(0, min(at, 5)).Draw(rt, "again")
			to := min(len(p.entries), at+rapid.IntRange(1, 25).Draw(rt, "batch"))
			later := rapid.Bool().Draw(rt, "later")
			r, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: p.entries[from:to], Later: later})
			if err != nil || r.Events != to-at || r.Position.Seq != uint64(to) || r.Derived > uint64(to) || later && r.Derived > uint64(at) {
				rt.Fatalf("entries %d to %d after %d: %+v, %v", from, to, at, r, err)
			}
			at = to
			if n := rapid.IntRange(0, 30).Draw(rt, "derive"); n > 0 {
				if _, err := s.Index.Derive(t.Context(), n); err != nil {
					rt.Fatal(err)
				}
			}
			if rapid.Bool().Draw(rt, "restart") {
				closed(t, s)
				s = openAt(t, path)
			}
		}
		derived(t, s)
		closed(t, s)
		if diff := cmp.Diff(want, dump(t, path)); diff != "" {
			rt.Fatalf("(-whole +cut):\n%s", diff)
		}
	})
}

// derived derives all that was left for later.
func derived(t testing.TB, s *recorder.Store) {
	t.Helper()
	for {
		r, err := s.Index.Derive(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		if r.Derived == r.Position.Seq {
			return
		}
	}
}

func TestABatchThatFailsLeavesNoTrace(t *testing.T) {
	p := story(t)
	clean, dirty := newTarget(t), newTarget(t)
	s := openAt(t, clean)
	p.store(s, 10)
	closed(t, s)

	s = openAt(t, dirty)
	half := slices.IndexFunc(p.entries, func(e eventlog.Entry) bool { return e.Event.ExecID == never })
	p2 := *p
	p2.entries = p.entries[:half]
	p2.store(s, half)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Index.Record(ctx, recorder.Batch{Incarnation: incarnation, Entries: p.entries[half:]}); !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
	p2.entries = p.entries[half:]
	p2.store(s, 7)
	closed(t, s)
	if diff := cmp.Diff(dump(t, clean), dump(t, dirty)); diff != "" {
		t.Errorf("(-clean +after the failure):\n%s", diff)
	}
}

// A row that can't be written, of whatever table, fails its batch: nothing of it is recorded, and all of it later.
func TestRowsThatFail(t *testing.T) {
	p := story(t)
	clean := filepath.Join(t.TempDir(), "clean.db")
	s := openAt(t, clean)
	p.store(s, len(p.entries))
	closed(t, s)
	want := dump(t, clean)
	for table, rows := range want {
		if len(rows) == 0 || table == "events" { // a view
			continue
		}
		path := filepath.Join(t.TempDir(), "failing.db")
		s := openAt(t, path)
		db := openDB(t, path)
		mustExec(t, db, `CREATE TRIGGER broken_insert BEFORE INSERT ON `+table+` BEGIN SELECT RAISE(FAIL, 'broken'); END`)
		if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: p.entries}); err == nil {
			t.Errorf("recorded, though %s takes no row", table)
		}
		mustExec(t, db, `DROP TRIGGER broken_insert`)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		p.store(s, len(p.entries))
		closed(t, s)
		if diff := cmp.Diff(want, dump(t, path)); diff != "" {
			t.Errorf("after %s took no row (-clean +after):\n%s", table, diff)
		}
	}
}

func TestTheStateIsTheFoldAtEveryCut(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	for i := range 600 { // more than the file's folds are apart
		p.add("r1", "coder", exec, &wire.Usage{MessageID: fmt.Sprint("m", i), InputTokens: 1, OutputTokens: 2})
		p.add("r1", "coder", exec, &wire.AgentText{Content: "x"})
	}
	p.add("r1", "coder", exec, &wire.NodeComplete{Output: wire.RawString("ok")})
	path := newTarget(t)
	want := run.New("r1")
	for at := 0; at < len(p.entries); at += 97 {
		to := min(at+97, len(p.entries))
		for _, e := range p.entries[at:to] {
			if err := run.Apply(want, wire.Position{Incarnation: incarnation, Seq: e.Pos}, e.Event); err != nil {
				t.Fatal(err)
			}
		}
		s := openAt(t, path)
		if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: p.entries[at:to]}); err != nil {
			t.Fatal(err)
		}
		got, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "r1"}, time.UnixMilli(p.clock), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if got.TokensIn != want.Usage.InputTokens || got.TokensOut != want.Usage.OutputTokens || got.Status != want.Status {
			t.Fatalf("at %d: status %+v, the fold has %+v", to, got.AgentStatus, want.Usage)
		}
		closed(t, s)
	}
	if want.Usage.OutputTokens != 1200 {
		t.Errorf("the fold counted %d tokens: nothing was compared", want.Usage.OutputTokens)
	}
}

func TestWritersThatWereFencedAreVoid(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil) // claimed with epoch 1
	at := func(seq, epoch uint64, payload wire.Payload) {
		p.put(&wire.Event{RunID: "r1", NodeID: "coder", ExecID: exec, Seq: seq, Epoch: epoch, Timestamp: p.clock, Payload: payload})
	}
	at(4, 1, &wire.AgentText{Content: "before"})
	at(5, 2, &wire.NodeClaimed{Runner: "other", Nonce: "o"})
	at(5, 1, &wire.AgentText{Content: "zombie"}) // a fenced writer that came in another way
	at(6, 1, &wire.AgentText{Content: "zombie that counted on"})
	at(6, 2, &wire.AgentText{Content: "after"})
	at(6, 2, &wire.AgentText{Content: "its place is taken"})
	at(9, 2, &wire.AgentText{Content: "after a gap"})
	s := openStore(t)
	r := p.store(s, 100)
	if r.Void != 3 || r.Gaps != 2 {
		t.Errorf("void %d, gaps %d, want 3 and 2", r.Void, r.Gaps)
	}
	log, err := s.Answers.Log(t.Context(), wire.LogRequest{Run: "r1", Type: wire.LineText}, time.UnixMilli(p.clock), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"text before", "text after", "text after a gap"}, texts(log.Lines)); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	marks := map[string]int{}
	events, err := s.Answers.Events(t.Context(), wire.EventsRequest{Run: "r1", Void: true}, false, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events.Events {
		marks[e.Mark]++
	}
	if diff := cmp.Diff(map[string]int{"": len(p.entries) - 3, "void": 3}, marks); diff != "" {
		t.Errorf("marks (-want +got):\n%s", diff)
	}
	runs, err := s.Answers.Runs(t.Context(), wire.RunsRequest{}, time.UnixMilli(p.clock), 1<<20)
	if err != nil || runs.Runs[0].VoidEvents != 3 || runs.Runs[0].Gaps != 2 || runs.Runs[0].Events != int64(len(p.entries)) {
		t.Errorf("runs: %+v, %v", runs, err)
	}
}

func TestWhatTheStreamLostLeavesAMark(t *testing.T) {
	p := story(t)
	p.entries = p.entries[10:] // aged out before anybody looked
	p.entries = append(p.entries[:5:5], p.entries[8:]...)
	s := openStore(t)
	r := p.store(s, 4)
	if r.Lost != 13 {
		t.Errorf("lost %d, want 13", r.Lost)
	}
	events, err := s.Answers.Events(t.Context(), wire.EventsRequest{Void: true}, true, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	marks := map[uint64]string{}
	for _, e := range events.Events {
		if e.Mark != "" {
			text, err := wire.AppendJSON(nil, e.Event)
			if err != nil {
				t.Fatal(err)
			}
			marks[e.Pos] = e.Mark + string(text)
		}
	}
	for pos, want := range map[uint64]string{10: `"lost":10`, 18: `"lost":3`} {
		if !strings.HasPrefix(marks[pos], "recorder{") || !strings.Contains(marks[pos], want) || !strings.Contains(marks[pos], "log:truncated") {
			t.Errorf("at %d: %q, want %s", pos, marks[pos], want)
		}
	}
	if len(marks) != 2 {
		t.Errorf("marks %v", marks)
	}
}

func TestAnotherIncarnationIsRefused(t *testing.T) {
	p := story(t)
	s := openStore(t)
	p.store(s, 100)
	_, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: "another", Entries: p.entries})
	if !errors.Is(err, eventlog.ErrIncarnation) {
		t.Errorf("got %v", err)
	}
}

func TestEventsStayAsTheyAre(t *testing.T) {
	p := story(t)
	for _, run := range []string{"r1", "r3"} {
		for i := range 130 { // a segment's worth at once
			p.add(run, "talker", "talker#1", &wire.AgentText{Content: fmt.Sprint(i)})
		}
	}
	path := filepath.Join(t.TempDir(), "r.db")
	s := openAt(t, path)
	p.store(s, 1000)
	for _, run := range []string{"r1", "r3"} {
		p.add(run, "talker", "talker#1", &wire.AgentText{Content: "one more"})
	}
	p.store(s, 1000)
	closed(t, s)
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if got := rowsOf(t, db, `SELECT (SELECT count(*) > 0 FROM segments) AS segments, (SELECT count(*) > 0 FROM tail) AS tail`); got[0] != "segments=1 tail=1 " {
		t.Fatalf("%s: not everything is tried", got[0])
	}
	events := func() []string {
		return append(rowsOf(t, db, `SELECT * FROM segments`), rowsOf(t, db, `SELECT * FROM tail`)...)
	}
	before := events()
	const segment, tail = "run, n, first_pos, last_pos, first_time, last_time, events, prev, hash, codec", "run, first_pos, last_pos, last_time, events, hash"
	for _, statement := range []string{
		`DELETE FROM segments`,
		`DELETE FROM segments WHERE run = 1 AND n = 1`,
		`UPDATE segments SET data = x'00'`,
		`UPDATE segments SET last_pos = last_pos + 1`,
		`REPLACE INTO segments SELECT ` + segment + `, x'00' FROM segments`,
		`REPLACE INTO segments (rowid, ` + segment + `, data) SELECT 1, run, 99` + strings.TrimPrefix(segment, "run, n") + `, x'00' FROM segments LIMIT 1`,
		`INSERT INTO segments SELECT * FROM segments WHERE true ON CONFLICT DO UPDATE SET data = x'00'`,
		`DELETE FROM tail`,
		`DELETE FROM tail WHERE first_pos = (SELECT max(first_pos) FROM tail)`,
		`UPDATE tail SET last_pos = last_pos + 1`,
		`UPDATE tail SET data = x'00' WHERE first_pos = (SELECT max(first_pos) FROM tail)`,
		`REPLACE INTO tail (` + tail + `, data) SELECT ` + tail + `, x'00' FROM tail`,
		`REPLACE INTO tail (rowid, ` + tail + `, data) SELECT rowid, run, 99999` + strings.TrimPrefix(tail, "run, first_pos") + `, x'00' FROM tail LIMIT 1`,
		`INSERT INTO tail SELECT * FROM tail WHERE true ON CONFLICT DO UPDATE SET data = x'00'`,
	} {
		if _, err := db.Exec(statement); err == nil {
			t.Errorf("%s: was allowed", statement)
		}
	}
	if diff := cmp.Diff(before, events()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	if _, err := db.Exec(`INSERT INTO retired (run, at, events, head) VALUES ('r1', 0, 0, x'')`); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"segments", "tail"} {
		if _, err := db.Exec(`DELETE FROM ` + table + ` WHERE run = (SELECT id FROM runs WHERE run = 'r1')`); err != nil {
			t.Errorf("of a retired run: %v", err)
		}
		if _, err := db.Exec(`DELETE FROM ` + table + ` WHERE run = (SELECT id FROM runs WHERE run = 'r3')`); err == nil {
			t.Errorf("%s of a run that isn't retired could be deleted", table)
		}
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	statement := func(name, sql string) string {
		path := filepath.Join(dir, name)
		if name != "foreign.db" {
			closed(t, openAt(t, path))
		}
		db := openDB(t, path)
		if _, err := db.Exec(sql); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		return path
	}
	garbage := filepath.Join(dir, "garbage.db")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("not a database ", 500)), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		statement("newer.db", `PRAGMA user_version = 99`):          recorder.ErrNewer,
		statement("unreleased.db", `PRAGMA user_version = 6`):      recorder.ErrUnreleased,
		statement("foreign.db", `CREATE TABLE accounts (id TEXT)`): recorder.ErrForeign,
		garbage:                      recorder.ErrForeign,
		filepath.Join(dir, "new.db"): nil,
		filepath.Join(dir, "a #?%20&'\"; folder", "ü?mode=memory&x=%41.db"): nil,
	} {
		before, _ := os.ReadFile(path)
		s, err := recorder.Open(t.Context(), path)
		if !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", path, err, want)
		}
		if want != nil {
			if after, _ := os.ReadFile(path); string(after) != string(before) {
				t.Errorf("%s: was changed although it was refused", path)
			}
			continue
		}
		if s != nil {
			closed(t, s)
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("the file isn't where it should be: %v", err)
		}
	}
}

// Nobody else may read a store, also one that was there before.
func TestStoresArePrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "recorder.db")
	for range 2 {
		s := openAt(t, path)
		if _, err := s.Archive.Position(t.Context()); err != nil { // a new file has its logs from the first question on
			t.Fatal(err)
		}
		for _, end := range []string{"", "-wal", "-shm"} {
			info, err := os.Stat(path + end)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm() != 0o600 {
				t.Errorf("%s is %s", info.Name(), info.Mode())
			}
		}
		closed(t, s)
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// A file that isn't a store, and was named by mistake, stays as it is, with its rights.
func TestOtherFileStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "passwd")
	for _, content := range []string{"root:x:0:0:root:/root:/bin/sh\n", "x"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		s, err := recorder.Open(t.Context(), path)
		if err == nil {
			closed(t, s)
			t.Error("it was opened")
		} else if !errors.Is(err, recorder.ErrForeign) {
			t.Error(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content || info.Mode().Perm() != 0o644 {
			t.Errorf("it has become %q, %s: %v", got, info.Mode(), err)
		}
	}
}

// A store of a kind that there isn't becomes no file.
func TestStoreKinds(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, target := range []string{"mysql://ann:swordfish@h/x", "Postgres://h/x", "http://h", "://x"} {
		s, err := recorder.Open(t.Context(), target)
		if err == nil {
			closed(t, s)
			t.Errorf("%s was opened", target)
		} else if strings.Contains(err.Error(), "swordfish") || !strings.Contains(err.Error(), "postgres://USER@HOST/DATABASE") {
			t.Error(err)
		}
		if _, err := recorder.New(recorder.Config{Path: target}, nil, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("a recorder would try to open %s for ever", target)
		}
	}
	left, err := os.ReadDir(".")
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestReadIsWhatWasStored reads the events of one run and of all, in parts and
// as a whole.
func TestReadIsWhatWasStored(t *testing.T) {
	p := newTape(t)
	for i := range 3000 {
		p.add("r"+strconv.Itoa(i%3*(i/1500)), "a", "", &wire.AgentText{Content: fmt.Sprint(i)})
	}
	s := openStore(t)
	for at, size := 0, 1; at < len(p.entries); at, size = at+size, 1+(size*3)%400 {
		q := *p
		q.entries = p.entries[at:min(at+size, len(p.entries))]
		q.store(s, size)
	}
	for _, q := range []recorder.Query{
		{},
		{Run: "r0"},
		{Run: "r2"},
		{From: 900, To: 2500},
		{Run: "r0", From: 1200, To: 1201},
		{Run: "r1", From: 2990},
		{Run: "r0", To: 1700},
		{From: 1 << 62},
		{Run: "r1", To: 100},
		{To: 1},
	} {
		var want, got []string
		for _, e := range p.entries {
			if (q.Run == "" || e.RunID == q.Run) && e.Pos >= q.From && (q.To == 0 || e.Pos <= q.To) {
				want = append(want, fmt.Sprint(e.RunID, e.Pos, e.Time.UnixMilli(), string(e.Data)))
			}
		}
		for e, err := range s.Answers.Read(t.Context(), q) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprint(e.Run, e.Pos, e.Time, string(e.Data)))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", q, diff)
		}
		for _, err := range s.Answers.Read(t.Context(), q) {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	for _, err := range s.Answers.Read(t.Context(), recorder.Query{Run: "nobody"}) {
		if codeOf(err) != wire.CodeRunNotFound {
			t.Errorf("of no run: %v", err)
		}
	}
}

func TestBlobsAreCopied(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	large := strings.Repeat("All work and no play. ", 1000)
	put := func(payload wire.Payload) map[string][]byte {
		p.seqs["r1/coder"]++
		e := &wire.Event{RunID: "r1", NodeID: "coder", ExecID: exec, Seq: p.seqs["r1/coder"], Epoch: 1, Timestamp: p.clock, Payload: payload}
		data, err := wire.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		small, blobs, err := wire.Externalize(data, 2000)
		if err != nil || len(blobs) != 1 {
			t.Fatal(err, len(blobs))
		}
		stored, err := wire.Decode(small)
		if err != nil {
			t.Fatal(err)
		}
		p.put(stored)
		return blobs
	}
	blobs := put(&wire.AgentText{Content: large})
	put(&wire.AgentText{Content: large + "And once more."})
	path := newTarget(t)
	s := openAt(t, path)
	if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: p.entries, Blobs: blobs}); err != nil {
		t.Fatal(err)
	}
	log, err := s.Answers.Log(t.Context(), wire.LogRequest{Run: "r1", Type: wire.LineText}, time.UnixMilli(p.clock), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if len(log.Lines) != 2 || log.Lines[0].Text != large || !strings.HasPrefix(log.Lines[1].Text, "[content is missing: 22017 bytes, sha256 ") {
		t.Errorf("lines %.200q", texts(log.Lines))
	}
	closed(t, s)
	db := openDB(t, path)
	defer db.Close()
	if got := rowsOf(t, db, `SELECT CASE WHEN data IS NULL THEN 1 ELSE 0 END AS missing FROM blobs ORDER BY 1`); len(got) != 2 || got[0] != "missing=0 " || got[1] != "missing=1 " {
		t.Errorf("blobs %v", got)
	}
}

func TestATruncationHidesLines(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	keep := p.add("r1", "coder", exec, &wire.AgentText{Content: "kept"})
	p.add("r1", "coder", exec, &wire.AgentTextDelta{Content: "rolled ", Block: 3})
	p.add("r1", "coder", exec, &wire.LogTruncated{AtSeq: keep.Seq, Reason: "rollback"})
	p.add("r1", "coder", exec, &wire.AgentTextDelta{Content: "again", Block: 3})
	for _, size := range []int{1, 100} {
		s := openStore(t)
		p.store(s, size)
		log, err := s.Answers.Log(t.Context(), wire.LogRequest{Run: "r1", Limit: new(3)}, time.UnixMilli(p.clock), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"text kept", fmt.Sprintf("system Log hidden after %d: rollback", keep.Seq), "text again"}
		if diff := cmp.Diff(want, texts(log.Lines)); diff != "" {
			t.Errorf("batches of %d (-want +got):\n%s", size, diff)
		}
		events, err := s.Answers.Events(t.Context(), wire.EventsRequest{Run: "r1"}, false, 1<<20)
		if err != nil || len(events.Events) != len(p.entries) {
			t.Errorf("%d events, %v: those hidden are still there", len(events.Events), err)
		}
	}
}

// Several may open a new store at once: each waits for the others.
func TestStoresAreOpenedTogether(t *testing.T) {
	for range 20 {
		target := newTarget(t)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				s, err := recorder.Open(t.Context(), target)
				if err != nil {
					t.Error(err)
					return
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
}

// The rows of a run are found without looking at those of all: to verify, rebuild or remove runs would take as long as there are runs, for each.
func TestRowsOfRunsAreIndexed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "recorder.db") // PostgreSQL goes by what is in the tables
	closed(t, openAt(t, path))
	db := openDB(t, path)
	defer db.Close()
	for _, of := range table.All().Of(table.SQLite).OfRuns() {
		texts := []string{"SELECT 1 FROM " + of.Name + " WHERE " + of.RowsOf("?1")}
		if of.Origin == table.Derived {
			texts = append(texts, of.Compared().Query)
		}
		for _, text := range texts {
			if plan := strings.Join(rowsOf(t, db, "EXPLAIN QUERY PLAN "+text, []any{1, 2}[:strings.Count(text, "?")]...), "\n"); strings.Contains(plan, "SCAN") {
				t.Errorf("table %s: %s:\n%s", of.Name, text, plan)
			}
		}
	}
}

// TestSealedApart records runs that go on at the same pace: no transaction seals the tails of many, a run's tail has a row for each
// batch, and no segment is of the few events that were one too many for the one before.
func TestSealedApart(t *testing.T) {
	t.Parallel()
	const runs, each = 32, 14
	p := workTape(t, runs, 1100)
	path := filepath.Join(t.TempDir(), "r.db")
	s := openAt(t, path)
	p.store(s, runs*each)
	closed(t, s)
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	got := rowsOf(t, db, fmt.Sprintf(`SELECT max(n) <= 4 AS few, sum(n) >= %d AS all_sealed
		FROM (SELECT count(*) AS n FROM segments GROUP BY (last_pos - 1) / %d)`, runs, runs*each))
	if got[0] != "few=1 all_sealed=1 " {
		t.Errorf("%s: %v", got[0], rowsOf(t, db, fmt.Sprintf(`SELECT (last_pos - 1) / %d AS batch, count(*) AS n FROM segments GROUP BY batch`, runs*each)))
	}
	const parts = `SELECT (SELECT min(events) >= 200 AND max(events) <= 1000 FROM segments) AS segments_fit, (SELECT min(events) >= %d FROM tail) AS whole`
	if got := rowsOf(t, db, fmt.Sprintf(parts, each/2)); got[0] != "segments_fit=1 whole=1 " {
		t.Errorf("%s: %v", got[0], rowsOf(t, db, `SELECT run, events FROM segments UNION ALL SELECT run, events FROM tail`))
	}
}

// A store of the version before this one's schema is brought to it.
func TestStoreIsUpgraded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "recorder.db")
	closed(t, openAt(t, path))
	db := openDB(t, path)
	mustExec(t, db, `DROP TABLE remains`)
	mustExec(t, db, `PRAGMA user_version = 19`)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s := openAt(t, path)
	defer closed(t, s)
	sound(t, s, "brought to this version's schema")
}
