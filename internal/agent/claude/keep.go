package claude

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"sync"
	"time"
)

// fileSaver saves a session file while the program writes it.
type fileSaver struct {
	files  sessionFiles
	save   func(ctx context.Context, session string, offset int64, data []byte) error
	logger *slog.Logger
	// before reads what a former runner has kept of the session, nil once that is done: the store
	// takes nothing from a writer that hasn't read what is kept.
	before func(ctx context.Context, session string) ([]byte, error)

	grown chan struct{} // holds one token when there may be more
	stop  chan struct{}
	done  chan struct{} // closed when the goroutine is gone
	end   sync.Once

	mu      sync.Mutex
	session string

	// Of the goroutine, once it runs.
	saving string // session
	offset int64  // what is saved of it
	tail   []byte // the end of that
	failed bool
}

// keepEvery is the time between two saves; claimWait bounds the first one, finalWait the last one.
const (
	keepEvery = 150 * time.Millisecond
	claimWait = 2 * time.Second
	finalWait = 10 * time.Second
)

// maxTail is how much of what was saved is compared with the file, to find out
// that the program has rewritten its end.
const maxTail = 1 << 10

func newFileSaver(f sessionFiles, session string, save func(context.Context, string, int64, []byte) error, logger *slog.Logger) *fileSaver {
	return &fileSaver{
		files: f, save: save, logger: logger.With("session_id", session), session: session,
		grown: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
}

// run saves what has grown until finish: at once, and again a moment later,
// since the program may tell of a line before it has written it.
func (k *fileSaver) run(ctx context.Context) {
	defer close(k.done)
	for {
		select {
		case <-k.grown:
		case <-k.stop:
			return
		}
		for range 2 {
			k.trySave(ctx)
			select {
			case <-time.After(keepEvery):
			case <-k.stop:
				return
			}
		}
	}
}

// noteGrowth tells that the session's file has grown.
func (k *fileSaver) noteGrowth(session string) {
	k.mu.Lock()
	k.session = session
	k.mu.Unlock()
	select {
	case k.grown <- struct{}{}:
	default:
	}
}

// finish ends the goroutine and saves the rest. The program must be gone.
func (k *fileSaver) finish(ctx context.Context) {
	k.end.Do(func() {
		close(k.stop)
		<-k.done
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalWait)
		defer cancel()
		k.trySave(ctx)
	})
}

// claimSession begins to keep a new session before the program begins it: a watcher leaves the session files that are kept to their
// runners.
func (k *fileSaver) claimSession(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, claimWait)
	defer cancel()
	if err := k.save(ctx, k.session, 0, nil); err != nil && ctx.Err() == nil {
		k.logger.Warn("session not kept from its beginning", "error", err)
	}
}

// trySave saves what has grown. What fails is tried again the next time.
func (k *fileSaver) trySave(ctx context.Context) {
	k.mu.Lock()
	session := k.session
	k.mu.Unlock()
	if session != k.saving {
		k.saving, k.offset, k.tail = session, 0, nil
	}
	switch err := k.saveGrowth(ctx); {
	case err == nil:
		k.failed = false
	case ctx.Err() == nil && !k.failed:
		k.failed = true
		k.logger.Warn("session file not kept", "error", err)
	}
}

// saveGrowth saves the whole lines behind what is saved, or everything if that has
// changed.
func (k *fileSaver) saveGrowth(ctx context.Context) error {
	root, err := k.files.openRoot(false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	file, _, err := k.files.openSession(root, k.saving)
	if errors.Is(err, fs.ErrNotExist) { // not yet
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if k.before != nil {
		if _, err := k.before(ctx, k.saving); err != nil {
			return err
		}
		k.before = nil
	}
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Size() > maxSession {
		return errLargeSession
	}
	for more := true; more && err == nil && k.offset <= maxSession; { // it may grow meanwhile
		more, err = k.savePiece(ctx, file)
	}
	return err
}

// pieceSize is how much of a session file is read at once, in bytes: of a longer line as much as it has.
const pieceSize = 4 << 20

// savePiece saves the next lines. It reports whether there may be more.
func (k *fileSaver) savePiece(ctx context.Context, file io.ReaderAt) (more bool, err error) {
	for size := int64(pieceSize); ; size *= 2 {
		content, err := io.ReadAll(io.NewSectionReader(file, k.offset-int64(len(k.tail)), size))
		if err != nil {
			return false, err
		}
		more := int64(len(content)) == size
		if !bytes.HasPrefix(content, k.tail) { // it was rewritten
			k.offset, k.tail = 0, nil
			return true, nil
		}
		content = wholeLines(content)
		data := content[min(len(k.tail), len(content)):]
		switch {
		case len(data) == 0 && more && size < maxSession:
			continue
		case len(data) == 0:
			return false, nil
		}
		if err := k.save(ctx, k.saving, k.offset, data); err != nil {
			return false, fmt.Errorf("%d bytes at %d: %w", len(data), k.offset, err)
		}
		k.offset += int64(len(data))
		k.tail = bytes.Clone(content[max(0, len(content)-maxTail):])
		return more, nil
	}
}
