package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"modernc.org/sqlite"
)

// openSQLite opens the file at a path.
func (s *DB) openSQLite(ctx context.Context, path string, readOnly bool) (err error) {
	s.Name, s.D = path, sqliteDialect()
	if s.Path, err = filepath.Abs(path); err != nil {
		return err
	}
	if readOnly {
		return s.openRead(ctx)
	}
	return s.openBoth(ctx)
}

// Sizes of SQLite's own memory.
const (
	writeCache = "_pragma=cache_size(-16384)"        // KiB
	spacious   = "_pragma=auto_vacuum(2)"            // of a new file: it can give space back bit by bit
	journal    = "_pragma=temp_store(MEMORY)"        // where a statement notes what it may have to undo
	readCache  = "_pragma=cache_size(-4096)"         // KiB, per reader
	checkpoint = "_pragma=wal_autocheckpoint(16384)" // pages that the log may grow to before a commit waits until the file has them

	checkpointPages = 4096 // pages that the file lacks when [DB.Checkpoint] takes them over
)

// openBoth opens the file for writing and reading.
func (s *DB) openBoth(ctx context.Context) error {
	err := os.MkdirAll(filepath.Dir(s.Path), 0o700)
	if err != nil {
		return err
	}
	options := []string{"_txlock=immediate", "_pragma=synchronous(NORMAL)", writeCache, journal, checkpoint}
	if _, err := os.Stat(s.Path); errors.Is(err, fs.ErrNotExist) {
		options = append(options, spacious)
	}
	if err := s.makePrivate(); err != nil {
		return err
	}
	if s.Writer, err = openLists(DSN(s.Path, options...)); err != nil {
		return err
	}
	s.Writer.SetMaxOpenConns(1)
	if err := s.migrateSchema(ctx); err != nil {
		return err
	}
	if err := s.writeAhead(ctx); err != nil {
		return err
	}
	if s.Reader, err = sql.Open("sqlite", DSN(s.Path, "_pragma=query_only(1)", readCache)); err != nil {
		return err
	}
	s.Reader.SetMaxOpenConns(Readers + 1) // one for checkpoints
	return nil
}

// Sync waits until all that is committed is on disk. SQLite itself syncs when it takes its log over into the file, which
// is why the log is all that has to be; a database of a server has synced what it has committed.
func (s *DB) Sync() error {
	if s.Path == "" {
		return nil
	}
	log, err := os.OpenFile(s.Path+"-wal", os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) { // the file has it all
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(log.Sync(), log.Close())
}

// Checkpoint takes the log over into the file if that lacks much of it. Meanwhile there may be commits, none of which waits for that,
// and questions. A commit does the same only when this is too slow.
func (s *DB) Checkpoint(ctx context.Context) error {
	if s.Path == "" {
		return nil
	}
	var busy, log, done int
	err := s.Reader.QueryRowContext(ctx, `PRAGMA wal_checkpoint(NOOP)`).Scan(&busy, &log, &done)
	if err == nil && log-done >= checkpointPages {
		err = s.Reader.QueryRowContext(ctx, `PRAGMA wal_checkpoint(PASSIVE)`).Scan(&busy, &log, &done)
	}
	return err
}

// fileHeader is what a file of SQLite begins with; see its documentation, "Database File Format".
const fileHeader = "SQLite format 3\x00"

// makePrivate creates the file, if need be, and lets only its owner read it and its logs, to
// which SQLite gives the rights of the file. A file that isn't SQLite's stays as it is: it may have been named by mistake.
func (s *DB) makePrivate() error {
	f, err := os.OpenFile(s.Path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	begin := make([]byte, len(fileHeader))
	n, err := io.ReadFull(f, begin)
	if err := f.Close(); err != nil {
		return err
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	if n > 0 && string(begin[:n]) != fileHeader {
		return ErrForeign // SQLite takes a short one for a new one
	}
	for _, end := range []string{"", "-wal", "-shm"} {
		err := os.Chmod(s.Path+end, 0o600)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) { // else another user owns it and lets us write
			return err
		}
	}
	return nil
}

// writeAhead gives the file a log that is written ahead, which it keeps. If another
// process opens a new file meanwhile, SQLite doesn't wait for that: it says at once that
// the file is busy.
func (s *DB) writeAhead(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, busyWait)
	defer cancel()
	for {
		_, err := s.Writer.ExecContext(ctx, "PRAGMA journal_mode = WAL")
		if e, ok := errors.AsType[*sqlite.Error](err); !ok || e.Code() != busy {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// openRead opens the file for reading.
func (s *DB) openRead(ctx context.Context) error {
	if _, err := os.Stat(s.Path); err != nil {
		return err
	}
	var err error
	if s.Reader, err = sql.Open("sqlite", DSN(s.Path, "mode=ro", "_pragma=query_only(1)", readCache)); err != nil {
		return err
	}
	s.Reader.SetMaxOpenConns(Readers)
	return s.checkCurrent(ctx)
}

// DSN names the file whatever characters its path has.
func DSN(path string, options ...string) string {
	options = append(options, fmt.Sprintf("_pragma=busy_timeout(%d)", busyWait.Milliseconds()))
	return (&url.URL{Scheme: "file", Path: path}).String() + "?" + strings.Join(options, "&")
}

// busyWait is how long a process waits for others that use the file.
const busyWait = 10 * time.Second

// Codes of SQLite: of a file that another process uses, and of a file that isn't SQLite's.
const (
	busy        = 5
	notDatabase = 26
)

// Passing reports whether an error of SQLite may go away while the file stays open: the disk is
// full or fails, or another process uses the file.
func Passing(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return false
	}
	switch e.Code() & 0xff {
	case busy, 6, 7, 10, 13: // locked, out of memory, disk I/O error, disk full
		return true
	}
	return false
}

// Damaged reports whether SQLite has found a file damaged.
func Damaged(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && e.Code()&0xff == 11
}

func foreignError(err error) error {
	if e, ok := errors.AsType[*sqlite.Error](err); ok && e.Code() == notDatabase {
		return ErrForeign
	}
	return err
}
