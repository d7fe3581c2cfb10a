package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// messages is the table of seeds/001 that holds one row per message of an agent.
const messages = `CREATE TABLE messages (
	id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, agent_id TEXT NOT NULL, turn INTEGER NOT NULL,
	role TEXT NOT NULL, content TEXT NOT NULL, tool_call_id TEXT, tool_name TEXT, tool_args TEXT, created_at INTEGER NOT NULL)`

// SQLite is a database as an agent keeps one for itself: a row per event, each
// in a transaction of its own that is on disk before the next.
type SQLite struct {
	db     *sql.DB
	insert *sql.Stmt
}

// NewSQLite makes one in a folder, in WAL mode with synchronous=FULL.
func NewSQLite(ctx context.Context, dir string) (*SQLite, error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "messages.db")+"?_pragma=journal_mode(wal)&_pragma=synchronous(full)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(ctx, messages); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	insert, err := db.PrepareContext(ctx, "INSERT INTO messages (session_id, agent_id, turn, role, content, created_at) VALUES (?, ?, ?, 'assistant', ?, ?)")
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &SQLite{db: db, insert: insert}, nil
}

// Insert inserts n rows and returns the rows per second.
func (s *SQLite) Insert(ctx context.Context, content string, n int) (float64, error) {
	began := time.Now()
	for i := range n {
		if _, err := s.insert.ExecContext(ctx, "bench-run-000000", "coder", i, content, 1767400000000); err != nil {
			return 0, fmt.Errorf("bench: insert: %w", err)
		}
	}
	return perSecond(n, began), nil
}

// Close closes the database.
func (s *SQLite) Close() error { return errors.Join(s.insert.Close(), s.db.Close()) }

// JSONLines appends n lines to a file, each on disk before the next, and returns
// the lines per second.
func JSONLines(ctx context.Context, dir string, line []byte, n int) (rate float64, err error) {
	f, err := os.CreateTemp(dir, "*.jsonl")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	began := time.Now()
	for range n {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if _, err := f.Write(append(line, '\n')); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
	}
	return perSecond(n, began), nil
}
