package recorder_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	_ "github.com/jackc/pgx/v5/stdlib" // the tables are looked at by it

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// testPostgres names a database whose user may make schemas. If it is set, stores
// of tests are in there, each in a schema of its own; otherwise they are files.
const testPostgres = "WAKE_TEST_POSTGRES"

// newTarget names a store that isn't there yet.
func newTarget(t testing.TB) string {
	t.Helper()
	base := os.Getenv(testPostgres)
	if base == "" {
		return filepath.Join(t.TempDir(), "recorder.db")
	}
	schema := fmt.Sprintf("t%016x", rand.Uint64())
	execAt(t, base, `CREATE SCHEMA `+schema)
	t.Cleanup(func() { execAt(t, base, `DROP SCHEMA `+schema+` CASCADE`) })
	return withParam(t, base, "search_path", schema)
}

func withParam(t testing.TB, base, name, value string) string {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String()
}

func execAt(t testing.TB, target, text string) {
	t.Helper()
	db := openDB(t, target)
	defer db.Close()
	if _, err := db.ExecContext(context.WithoutCancel(t.Context()), text); err != nil {
		t.Fatal(err)
	}
}

func onPostgres(target string) bool { return strings.HasPrefix(target, "postgres") }

// openDB opens a store's tables.
func openDB(t testing.TB, target string) *sql.DB {
	t.Helper()
	driver := "sqlite"
	if onPostgres(target) {
		driver = "pgx"
	}
	db, err := sql.Open(driver, target)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// columnsOf returns the names of a table's columns.
func columnsOf(t testing.TB, db *sql.DB, target, table string) []string {
	t.Helper()
	query := `SELECT name FROM pragma_table_info('` + table + `')`
	if onPostgres(target) {
		query = `SELECT column_name AS name FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = '` + table + `' ORDER BY ordinal_position`
	}
	return strings.Fields(strings.ReplaceAll(strings.Join(rowsOf(t, db, query), ""), "name=", ""))
}

// Both back ends have the same tables.
func TestTheTablesAreTheSame(t *testing.T) {
	file := filepath.Join(t.TempDir(), "recorder.db")
	target := newTarget(t)
	closed(t, openAt(t, file))
	closed(t, openAt(t, target))
	a, b := openDB(t, file), openDB(t, target)
	defer a.Close()
	defer b.Close()
	tables := rowsOf(t, a, `SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'lines_%' ORDER BY name`)
	if len(tables) < 10 {
		t.Fatalf("tables %q", tables)
	}
	for _, table := range tables {
		table = strings.TrimSpace(strings.TrimPrefix(table, "name="))
		if diff := cmp.Diff(columnsOf(t, a, file, table), columnsOf(t, b, target, table)); diff != "" {
			t.Errorf("%s (-SQLite +%s):\n%s", table, target, diff)
		}
	}
}

// Both back ends make the same rows of the same events, and the same hashes.
func TestTheBackEndsSayTheSame(t *testing.T) {
	p := story(t)
	p.add("r1", "coder", "coder#1", &wire.AgentText{Content: "Zürich, 東京 and 🚀 'quoted' \"twice\" ?1 $1"})
	p.entries = append(p.entries, poison(p.pos+1))
	file, target := filepath.Join(t.TempDir(), "recorder.db"), newTarget(t)
	for _, at := range []string{"sqlite:" + file, target} {
		s := openAt(t, at)
		p.store(s, 10)
		closed(t, s)
	}
	if diff := cmp.Diff(dump(t, file), dump(t, target)); diff != "" {
		t.Errorf("(-SQLite +%s):\n%s", target, diff)
	}
}

// What agents write may hold anything that is UTF-8, and more of it than an index
// takes. It never stops the recorder.
func TestHostileTextIsRecorded(t *testing.T) {
	random := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte('!' + rand.IntN(90))
		}
		return string(b)
	}
	p := newTape(t)
	exec := p.start("r1", "co\x00der", map[string]string{"na\x00me": "va\x00lue", "long": random(20_000), random(9_000): "x"})
	p.add("r1", "co\x00der", exec, &wire.AgentInit{Model: "op\x00us", Cwd: "/w\x00"})
	p.add("r1", "co\x00der", exec, &wire.SessionBound{OldSession: "s\x00", NewSession: random(10_000)})
	p.add("r1", "co\x00der", exec, &wire.AgentTextDelta{Content: "a\x00", Block: 1})
	p.add("r1", "co\x00der", exec, &wire.AgentTextDelta{Content: "\x00b", Block: 1})
	p.add("r1", "co\x00der", exec, &wire.AgentText{Content: "\x00"})
	p.add("r1", random(8_000), exec, &wire.AgentText{Content: "of a node that nobody may name so"})
	p.add("r1", "co\x00der", exec, &wire.TurnEnd{StopReason: "no\x00"})
	p.add("r1", "co\x00der", exec, &wire.Usage{MessageID: random(9_000), Model: random(9_000), InputTokens: 1})
	p.add("r1", "co\x00der", exec, &wire.AgentTool{ToolName: random(9_000), ToolInput: wire.Null, ToolOutput: wire.Null, Error: random(9_000)})
	p.add("r1", "co\x00der", exec, &wire.AgentText{Content: random(200_000)})
	bad := poison(p.pos + 1)
	bad.Subject, bad.Err = "wake.events.\xff.x", errors.New("bad: \x00\xff")
	p.entries = append(p.entries, bad)
	for _, size := range []int{1, 100} {
		target := newTarget(t)
		s := openAt(t, target)
		p.store(s, size)
		log, err := s.Answers.Log(t.Context(), wire.LogRequest{Run: "r1", Node: "co\x00der", Type: wire.LineText}, time.UnixMilli(p.clock), 1<<20)
		if err != nil || len(log.Lines) != 3 || log.Lines[0].Text != "a␀␀b" {
			t.Errorf("lines %q, %v", texts(log.Lines), err)
		}
		if _, err := s.Answers.Runs(t.Context(), wire.RunsRequest{Label: "na\x00me=va\x00lue"}, time.UnixMilli(p.clock), 1<<20); err != nil {
			t.Error(err)
		}
		if _, err := s.Answers.Search(t.Context(), wire.SearchRequest{Text: "a\x00b 'c'* \"d\\\" -½ ½* :& | ! <-> e"}, time.UnixMilli(p.clock), 1<<20); err != nil {
			t.Error(err)
		}
		for e, err := range s.Answers.Read(t.Context(), recorder.Query{Marked: true}) {
			if err != nil || !bytes.Equal(e.Data, p.entries[e.Pos-1].Data) {
				t.Errorf("at %d: %v: what was stored isn't kept as it was", e.Pos, err)
			}
		}
		v, err := s.Checker.Verify(t.Context(), "")
		if err != nil || len(v.Damages) > 0 {
			t.Errorf("verify: %v, %v", v.Damages, err)
		}
		closed(t, s)
	}
}

// Two recorders may be started on one store: whatever the one has recorded, the
// other passes over.
func TestTwoRecordersOnOneStore(t *testing.T) {
	p := newTape(t)
	for run := range 3 {
		exec := p.start(fmt.Sprint("r", run), "coder", nil)
		for i := range 400 {
			p.add(fmt.Sprint("r", run), "coder", exec, &wire.Usage{MessageID: fmt.Sprint(i), InputTokens: 1, OutputTokens: 2})
			p.add(fmt.Sprint("r", run), "coder", exec, &wire.AgentTextDelta{Content: fmt.Sprint(i, " "), Block: i / 50})
		}
	}
	one, two := newTarget(t), newTarget(t)
	s := openAt(t, one)
	p.store(s, 100)
	closed(t, s)
	var recorders sync.WaitGroup
	var mu sync.Mutex
	events := 0
	for i := range 2 {
		recorders.Go(func() {
			s, err := recorder.Open(t.Context(), two)
			if err != nil {
				t.Error(err)
				return
			}
			for rest := p.entries; len(rest) > 0; rest = rest[min(7+4*i, len(rest)):] {
				r, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: rest[:min(7+4*i, len(rest))]})
				if err != nil {
					t.Error(err)
					break
				}
				mu.Lock()
				events += r.Events
				mu.Unlock()
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	recorders.Wait()
	if events != len(p.entries) {
		t.Errorf("%d events were recorded, there are %d", events, len(p.entries))
	}
	if diff := cmp.Diff(dump(t, one), dump(t, two)); diff != "" {
		t.Errorf("(-one recorder +two):\n%.3000s", diff)
	}
	if v := verified(t, two, ""); len(v.Damages) > 0 {
		t.Errorf("damages %v", v.Damages)
	}
}

// A database that can't be reached is waited for; the password is never shown.
func TestADatabaseThatIsAwayIsWaitedFor(t *testing.T) {
	p := newPlant(t)
	var said syncBuffer
	r, err := recorder.New(recorder.Config{Path: "postgres://wake:geheim@127.0.0.1:1/wake?sslmode=disable"}, p.log, slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := r.Run(ctx); err != nil || ctx.Err() == nil {
		t.Errorf("it ended with %v", err)
	}
	if text := said.String(); strings.Count(text, "goes on trying") != 1 || !strings.Contains(text, "connection refused") || strings.Contains(text, "geheim") {
		t.Errorf("it says %s", text)
	}
	for _, target := range []string{"postgres://wake:ge#he/im@[::1:5432/x", "postgres://wake:geheim@db:port/x", "postgresql://wake:geheim@127.0.0.1:1/wake?sslmode=disable"} {
		_, err := recorder.Open(t.Context(), target)
		if err == nil || strings.Contains(err.Error(), "he") && strings.Contains(err.Error(), "im@") || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v", target, err)
		}
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// postgresTests run where there is a database.
func TestPostgres(t *testing.T) {
	base := os.Getenv(testPostgres)
	if base == "" {
		t.Log("no database: " + testPostgres + " isn't set; see test/postgres/run")
		return
	}
	for name, test := range map[string]func(*testing.T, string){
		"what isn't ours is refused":     refusedDatabases,
		"events stay as they are":        eventsStay,
		"a lost connection is made anew": lostConnections,
		"damage is found":                damagedDatabases,
		"a wrong password is told":       wrongPasswords,
		"prefixes compare bytewise":      prefixes,
	} {
		t.Run(name, func(t *testing.T) { test(t, base) })
	}
}

func refusedDatabases(t *testing.T, base string) {
	newer, unreleased, foreign := newTarget(t), newTarget(t), newTarget(t)
	closed(t, openAt(t, newer))
	closed(t, openAt(t, unreleased))
	execAt(t, unreleased, `UPDATE wake_schema SET version = 4`)
	execAt(t, newer, `UPDATE wake_schema SET version = 99`)
	execAt(t, foreign, `CREATE TABLE accounts (id TEXT)`)
	for target, want := range map[string]error{newer: recorder.ErrNewer, unreleased: recorder.ErrUnreleased, foreign: recorder.ErrForeign} {
		if _, err := recorder.Open(t.Context(), target); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", target, err, want)
		}
		if _, err := recorder.OpenReadOnly(t.Context(), target); !errors.Is(err, want) {
			t.Errorf("%s, to read: got %v, want %v", target, err, want)
		}
	}
	if _, err := recorder.OpenReadOnly(t.Context(), newTarget(t)); !errors.Is(err, recorder.ErrOlder) {
		t.Errorf("an empty schema: got %v", err)
	}
	if _, err := recorder.Open(t.Context(), withParam(t, base, "search_path", "nowhere")); err == nil || !strings.Contains(err.Error(), "CREATE SCHEMA") {
		t.Errorf("no schema: got %v", err)
	}
}

func eventsStay(t *testing.T, _ string) {
	p := story(t)
	for i := range 130 { // a segment's worth at once
		p.add("r1", "talker", "talker#1", &wire.AgentText{Content: fmt.Sprint(i)})
	}
	target := newTarget(t)
	s := openAt(t, target)
	p.store(s, 1000)
	p.add("r1", "talker", "talker#1", &wire.AgentText{Content: "one more"})
	p.store(s, 1000)
	closed(t, s)
	db := openDB(t, target)
	defer db.Close()
	events := func() []string {
		return append(rowsOf(t, db, `SELECT * FROM segments ORDER BY 1, 2`), rowsOf(t, db, `SELECT * FROM tail ORDER BY 1`)...)
	}
	before := events()
	for _, statement := range []string{
		`DELETE FROM segments`,
		`DELETE FROM segments WHERE run = 1 AND n = 1`,
		`UPDATE segments SET data = ''`,
		`UPDATE segments SET last_pos = last_pos + 1 WHERE run = 1`,
		`INSERT INTO segments SELECT * FROM segments`,
		`INSERT INTO segments SELECT * FROM segments ON CONFLICT (run, n) DO UPDATE SET data = ''`,
		`TRUNCATE segments`,
		`DELETE FROM tail`,
		`DELETE FROM tail WHERE first_pos = (SELECT max(first_pos) FROM tail)`,
		`UPDATE tail SET last_pos = last_pos + 1`,
		`INSERT INTO tail SELECT * FROM tail ON CONFLICT (run, first_pos) DO UPDATE SET data = ''`,
		`TRUNCATE tail`,
	} {
		if _, err := db.Exec(statement); err == nil {
			t.Errorf("%s: was allowed", statement)
		}
	}
	if diff := cmp.Diff(before, events()); diff != "" || len(before) < 3 {
		t.Errorf("%d rows (-before +after):\n%s", len(before), diff)
	}
	mustExec(t, db, `INSERT INTO retired (run, at, events, head) VALUES ('r1', 0, 0, '')`)
	for _, table := range []string{"segments", "tail"} {
		mustExec(t, db, `DELETE FROM `+table+` WHERE run = (SELECT id FROM runs WHERE run = 'r1')`)
	}
	if _, err := db.Exec(`DELETE FROM tail WHERE run = (SELECT id FROM runs WHERE run = 'r2')`); err == nil {
		t.Error("events of a run that isn't retired could be deleted")
	}
}

// lostConnections ends the server's side of all connections while a recorder is
// at work.
func lostConnections(t *testing.T, base string) {
	p := newPlant(t)
	target := withParam(t, newTarget(t), "application_name", "lost")
	stop := p.record(recorder.Config{Path: target, Batch: 20})
	for range 5 {
		p.until(p.fill(10))
		execAt(t, base, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lost'`)
	}
	pos := p.fill(10)
	p.until(pos)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if v := verified(t, target, ""); len(v.Damages) > 0 || uint64(v.Events) != pos {
		t.Errorf("%+v, want %d events", v, pos)
	}
}

func damagedDatabases(t *testing.T, _ string) {
	for _, c := range []struct{ change, want string }{
		{`UPDATE segments SET data = set_byte(data, length(data) / 2, 255 - get_byte(data, length(data) / 2)) WHERE run = 1 AND n = 1`, "run r1, segment 1, positions "},
		{`UPDATE segments SET prev = set_byte(prev, 3, 255 - get_byte(prev, 3)) WHERE run = 1 AND n = 2`, "run r1, segment 2, positions "},
		{`DELETE FROM segments WHERE run = 1 AND n = 1`, "run r1, segment 2, positions "},
		{`UPDATE tail SET data = set_byte(data, 9, 255 - get_byte(data, 9)) WHERE first_pos = (SELECT max(first_pos) FROM tail)`, "table tail, column "},
		{`DELETE FROM tail WHERE first_pos = (SELECT max(first_pos) FROM tail)`, "column head: it isn't the hash after the last event"},
		{`UPDATE lines SET text = text || 'x' WHERE pos = 100`, "run r1, position 100, table lines, column text: it is"},
		{`DELETE FROM lines WHERE pos = 100`, "run r1, position 100, table lines: the row is missing"},
		{`UPDATE nodes SET tokens_in = tokens_in + 1 WHERE node = 'judge' AND run = 2`, "run r2, table nodes, row judge, column tokens_in: it is"},
		{`UPDATE runs SET cost_usd = cost_usd + 0.5 WHERE run = 'r1'`, "run r1, table runs, column cost_usd: it is"},
		{`DELETE FROM runs WHERE run = 'r2'`, "rows of runs that table runs doesn't have"},
		{`DELETE FROM labels WHERE key = 'team'`, "run r1, table labels, row team: the row is missing"},
	} {
		t.Run(c.want, func(t *testing.T) {
			target := recorded(t, newTarget(t))
			execAt(t, target, `ALTER TABLE segments DISABLE TRIGGER ALL; ALTER TABLE tail DISABLE TRIGGER ALL; `+c.change)
			v := verified(t, target, "")
			for _, d := range v.Damages {
				if strings.Contains(d.String(), c.want) {
					return
				}
			}
			t.Errorf("want %q, found %v", c.want, v.Damages)
		})
	}
}

func wrongPasswords(t *testing.T, base string) {
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	missing := *u
	missing.Path = "/nowhere"
	role := fmt.Sprintf("r%016x", rand.Uint64())
	locked := *u
	locked.User = url.UserPassword(role, "geheim")
	for target, want := range map[string]string{missing.String(): "createdb", locked.String(): "PGPASSWORD"} {
		var said syncBuffer
		r, err := recorder.New(recorder.Config{Path: target}, newPlant(t).log, slog.New(slog.NewTextHandler(&said, nil)))
		if err != nil {
			t.Fatal(err)
		}
		err = r.Run(t.Context()) // at once
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error()+said.String(), "geheim") {
			t.Errorf("got %v, it says %s", err, said.String())
		}
	}
}

// prefixes finds runs by prefixes that the order of a language would mix up.
func prefixes(t *testing.T, _ string) {
	p := newTape(t)
	for _, run := range []string{"a-1", "A-1", "a_1", "ab", "aB-x", "Ä1"} {
		p.start(run, "coder", nil)
	}
	s := openAt(t, newTarget(t))
	defer closed(t, s)
	p.store(s, 100)
	for ref, want := range map[string]string{"a-": "a-1", "A": "A-1", "a_": "a_1", "aB": "aB-x", "Ä": "Ä1"} {
		if got, err := s.Answers.Find(t.Context(), ref); got != want {
			t.Errorf("%s: got %q, %v; want %s", ref, got, err, want)
		}
	}
	if _, err := s.Answers.Find(t.Context(), "a"); codeOf(err) != wire.CodeAmbiguousID {
		t.Errorf("a: %v", err)
	}
}

// backup copies a store and returns what brings it back.
func backup(t testing.TB, target string) (restore func()) {
	t.Helper()
	if !onPostgres(target) {
		data, err := os.ReadFile(target)
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := os.WriteFile(target, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	db := openDB(t, target)
	defer db.Close()
	var copies, returns strings.Builder
	for _, row := range rowsOf(t, db, `SELECT tablename AS name FROM pg_catalog.pg_tables WHERE schemaname = current_schema() AND tablename <> 'wake_schema'`) {
		table := strings.TrimSpace(strings.TrimPrefix(row, "name="))
		fmt.Fprintf(&copies, "CREATE TABLE copy_of_%s AS SELECT * FROM %[1]s;", table)
		fmt.Fprintf(&returns, "ALTER TABLE %s DISABLE TRIGGER ALL; DELETE FROM %[1]s; INSERT INTO %[1]s SELECT * FROM copy_of_%[1]s; ALTER TABLE %[1]s ENABLE TRIGGER ALL;", table)
	}
	execAt(t, target, copies.String())
	return func() { execAt(t, target, returns.String()) }
}
