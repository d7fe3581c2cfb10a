package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/services/recorder"
)

// What is recorded in one transaction of an exported database.
const (
	sqliteEvents = 1000
	sqliteBytes  = 8 << 20
)

// exportSQLite records the run into a database of its own, as the recorder does.
func (a fileVerbs) exportSQLite(ctx context.Context, src source, m *meter, out *exportOutput) (export.Result, error) {
	path := out.file.Name()
	if err := errors.Join(out.file.Close(), os.Remove(path)); err != nil { // the store makes it
		return export.Result{}, fmt.Errorf("export: %w", err)
	}
	store, err := recorder.Open(ctx, path)
	if err != nil {
		return export.Result{}, err
	}
	r := export.Result{RunID: src.query.Run}
	err = recordEvents(ctx, store, src, m, &r)
	for more := err == nil; more && err == nil; {
		more, err = store.Index.IndexLines(ctx)
	}
	err = errors.Join(err, store.Close())
	for _, beside := range []string{"-wal", "-shm"} {
		_ = os.Remove(path + beside) // of a store that failed
	}
	if err != nil {
		return r, errors.Join(err, os.Remove(path))
	}
	if out.file, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		return r, fmt.Errorf("export: %w", err)
	}
	return r, out.file.Chmod(0o600)
}

// recordEvents records the events in transactions of bounded size.
func recordEvents(ctx context.Context, store *recorder.Store, src source, m *meter, r *export.Result) error {
	batch, size := recorder.Batch{Incarnation: src.log.Incarnation(), Part: true, Blobs: map[string][]byte{}}, 0
	flush := func() error {
		if len(batch.Entries) == 0 {
			return nil
		}
		report, err := store.Index.Record(ctx, batch)
		r.Events += report.Events - report.Bad
		r.Skipped += report.Bad
		r.Written = r.Events
		batch.Entries, size = batch.Entries[:0], 0
		clear(batch.Blobs)
		return err
	}
	for e, err := range m.countEvents(src.readEvents(ctx)) {
		if err != nil {
			return err
		}
		n, err := addBlobs(src.blobFetcher(ctx), e, batch.Blobs, r)
		if err != nil {
			return err
		}
		batch.Entries, size = append(batch.Entries, e), size+len(e.Data)+n
		if len(batch.Entries) == sqliteEvents || size >= sqliteBytes {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// addBlobs adds the large fields of an event and returns their size.
func addBlobs(fetch export.Fetch, e eventlog.Entry, blobs map[string][]byte, r *export.Result) (size int, err error) {
	if e.Event == nil {
		return 0, nil
	}
	for _, b := range e.Event.Blobs {
		data, err := fetch(b.SHA256)
		if errors.Is(err, eventlog.ErrBlobMissing) {
			r.Missing++
			continue
		}
		if err != nil {
			return size, err
		}
		blobs[b.SHA256], size = data, size+len(data)
	}
	return size, nil
}
