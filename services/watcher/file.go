package watcher

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/agent/workdir"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/pkg/wire"
)

// file is a session file. It is a node of the run of its session.
type file struct {
	path, name string // name is that in its folder projects
	size       int64  // as last seen
	changed    time.Time
	due        time.Time // when it is to be read, if it is

	tale     *tale
	node     string
	known    bool // what the log has of it was looked up
	mark     *wire.TranscriptRead
	cursor   *fileCursor // nil: it is at rest
	refused  bool        // its session is none of ours
	troubled bool        // it couldn't be read, which was said
}

// fileCursor is a file that is being read.
type fileCursor struct {
	identity string
	offset   int64
	changed  time.Time // of the file, when it was read to its end
	sum      hash.Hash // of what comes before
	tail     []byte    // the end of it
	lines    *session.Index
	events   *claude.Normalizer
	writer   *eventlog.Writer // nil: nothing is to be written yet

	silent int64  // what is before was told, unless its digest is another
	digest string // of that
	anew   bool   // lines that were told come in between

	printed map[string]bool // keys of lines that were told since the program had printed them
	counted map[string]bool // messages of which the usage was told by then, if there are such lines
}

// The bounds of what is told at once.
const (
	maxBytes  = 1 << 20
	maxEvents = 300
	maxTail   = 512
)

// readFile tells some of what is new in a file. What doesn't go is tried again.
func (w *Watcher) readFile(ctx context.Context, f *file) {
	delete(w.live, f)
	if n := len(w.history); n > 0 && w.history[n-1] == f {
		w.history = w.history[:n-1]
		defer func() {
			w.past.DoneFiles++
			w.past.DoneBytes += f.size
			w.tellProgress()
		}()
	}
	more, err := w.advanceFile(ctx, f)
	var trouble *fs.PathError
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, fs.ErrNotExist):
		f.close(ctx)
		delete(w.files, f.path)
		if f.tale != nil {
			f.tale.forgetFile(f)
		}
	case errors.As(err, &trouble):
		if f.close(ctx); !f.troubled {
			w.logger.Warn("a session file can't be read", "file", f.path, "error", err)
		}
		f.troubled = true
	case errors.Is(err, eventlog.ErrFenced):
		w.logger.Warn("another process tells of the file", "file", f.path, "error", err)
		f.forget()
		w.look(f, retryTime) // it may have told of a part only
	case errors.Is(err, errForeign):
		f.forget()
	case errors.Is(err, errEarly):
		f.forget()
		w.look(f, settleTime/2)
	case err != nil:
		f.forget()
		w.logger.Warn("a session file isn't told; it is tried again", "file", f.name, "error", err)
		w.look(f, retryTime)
	case more:
		w.look(f, 0)
	}
}

// errEarly is returned for a file while its session isn't clear, errForeign for a file of a session that others record.
var (
	errEarly   = errors.New("too early")
	errForeign = errors.New("of others")
)

// advanceFile tells the next lines, and reports whether there may be more.
func (w *Watcher) advanceFile(ctx context.Context, f *file) (more bool, err error) {
	if f.refused {
		return false, nil
	}
	in, err := workdir.OpenFile(f.path)
	if err != nil {
		return false, err
	}
	defer func() { _ = in.Close() }() // it was only read
	info, err := in.Stat()
	if err != nil || info.Size() == 0 {
		return false, err
	}
	f.size, f.changed = info.Size(), info.ModTime()
	if f.tale == nil {
		if err := w.placeFile(ctx, f); err != nil || f.refused {
			return false, err
		}
	}
	if !f.known {
		if err := w.findMark(ctx, f); err != nil {
			return false, err
		}
	}
	if f.refused = f.isStored(); f.refused {
		f.tale.foreign = true
		return false, nil
	}
	other := f.cursor != nil && !f.cursor.isOf(in, info)
	if other {
		f.cursor = nil
	}
	if f.cursor == nil {
		rests := f.tale.resting || f.mark != nil && len(f.mark.Lines)+len(f.mark.Removed) == 0 // else what waits for another line is still to be told
		if !other && rests && f.mark != nil && f.mark.Offset == info.Size() && f.mark.Identity == session.Identity(info) {
			return false, nil
		}
		if f.cursor, err = w.beginReading(ctx, f, info); err != nil {
			return false, err
		}
	}
	return w.readLines(ctx, f, in)
}

// beginReading begins at the beginning: the events of a line depend on those before it.
func (w *Watcher) beginReading(ctx context.Context, f *file, info os.FileInfo) (*fileCursor, error) {
	r := &fileCursor{
		identity: session.Identity(info), sum: sha256.New(), lines: session.NewIndex(nil), events: w.newNormalizer(),
	}
	if f.mark != nil {
		r.silent, r.digest = f.mark.Offset, f.mark.Digest
	}
	joined, err := history.HasNode(ctx, w.log, f.tale.run, session.StreamNode)
	if err != nil || !joined {
		return r, err
	}
	if _, r.printed, err = w.toldLines(ctx, f); err == nil && len(r.printed) > 0 {
		r.counted, err = w.countedMessages(ctx, f)
	}
	return r, err
}

func (w *Watcher) newNormalizer() *claude.Normalizer {
	return claude.NewNormalizer(claude.NormalizerOptions{Format: claude.Transcript, Provider: "watch", PriceOf: w.cfg.Prices.Of})
}

// isOf reports whether a file is the one that was read so far: the same, not shorter, with the same last bytes that were read,
// and not written to without growing.
func (r *fileCursor) isOf(in io.ReaderAt, info os.FileInfo) bool {
	if session.Identity(info) != r.identity || info.Size() < r.offset || info.Size() == r.offset && !r.changed.IsZero() && !info.ModTime().Equal(r.changed) {
		return false
	}
	tail := make([]byte, len(r.tail))
	_, err := in.ReadAt(tail, r.offset-int64(len(tail)))
	return (err == nil || errors.Is(err, io.EOF)) && bytes.Equal(tail, r.tail)
}

// readLines tells the next lines.
func (w *Watcher) readLines(ctx context.Context, f *file, in *os.File) (more bool, err error) {
	r := f.cursor
	if r.offset == 0 && (r.silent == 0 && f.mark != nil && !r.anew || r.silent > f.size) {
		return w.readAnew(ctx, f)
	}
	if _, err := in.Seek(r.offset, io.SeekStart); err != nil {
		return false, err
	}
	r.changed = time.Time{}
	c := chunk{mark: &wire.TranscriptRead{File: strings.ToValidUTF8(f.name, "?"), Identity: r.identity}}
	lines := claude.NewLineReader(in, claude.MaxLine)
	for began := r.offset; r.offset-began < maxBytes && len(c.events) < maxEvents; {
		line, size, err := lines.Next()
		var long *claude.LineTooLongError
		if errors.Is(err, io.EOF) {
			if c.ended = true; r.offset < r.silent {
				return w.readAnew(ctx, f)
			}
			if info, err := in.Stat(); err == nil {
				r.changed = info.ModTime()
			}
			break
		} else if err != nil && !errors.As(err, &long) {
			return false, err
		}
		r.takeLine(&c, line, long)
		r.offset += size
		if r.offset == r.silent && hex.EncodeToString(r.sum.Sum(nil)) != r.digest || r.offset-size < r.silent && r.offset > r.silent {
			return w.readAnew(ctx, f)
		}
		if r.offset == r.silent {
			rest, err := w.untoldRest(ctx, f)
			if err != nil {
				return false, err
			}
			c.events = append(c.events, rest...)
		}
	}
	return !c.ended, w.tellChunk(ctx, f, &c)
}

// untoldRest returns what waits for another line where an earlier reading of the file stopped, and what the log lacks of it: that reading may
// have told it, see [Watcher.tellRest].
func (w *Watcher) untoldRest(ctx context.Context, f *file) ([]*wire.Event, error) {
	if len(f.mark.Lines) > 0 {
		return nil, nil // the last message may go on
	}
	rest := f.cursor.events.Rest()
	if len(rest) == 0 {
		return nil, nil
	}
	counted, err := w.countedMessages(ctx, f)
	return dropCounted(rest, counted), err
}

// countedMessages returns the messages whose usage the log has.
func (w *Watcher) countedMessages(ctx context.Context, f *file) (map[string]bool, error) {
	counted := map[string]bool{}
	for e, err := range history.ReadSession(ctx, w.log, eventlog.Query{Run: f.tale.run, Node: f.node, Kinds: []wire.Kind{wire.TypeUsage.Kind()}}) {
		if err != nil {
			return nil, err
		}
		if e.Err != nil {
			continue
		}
		if told, is := e.Event.Payload.(*wire.Usage); is && told.MessageID != "" {
			counted[told.MessageID] = true
		}
	}
	return counted, nil
}

// dropCounted leaves out the usage of messages.
func dropCounted(events []*wire.Event, counted map[string]bool) []*wire.Event {
	return slices.DeleteFunc(events, func(e *wire.Event) bool {
		p, is := e.Payload.(*wire.Usage)
		return is && counted[p.MessageID]
	})
}

// readAnew begins again: the file isn't what it was when its lines were told.
func (w *Watcher) readAnew(ctx context.Context, f *file) (bool, error) {
	told, printed, err := w.toldLines(ctx, f)
	if err != nil {
		return false, err
	}
	w.logger.Info("a session file was rewritten", "file", f.name, "run", f.tale.run)
	f.cursor.lines, f.cursor.printed = session.NewIndex(told), printed
	f.cursor.events = w.newNormalizer()
	f.cursor.sum, f.cursor.offset, f.cursor.silent, f.cursor.tail, f.cursor.anew = sha256.New(), 0, 0, nil, true
	return true, nil
}

// chunk is what is told at once.
type chunk struct {
	events []*wire.Event
	mark   *wire.TranscriptRead
	ended  bool // there is no more at the moment
}

// takeLine takes a line: that of the file, or one that is too long.
func (r *fileCursor) takeLine(c *chunk, line []byte, long *claude.LineTooLongError) {
	text := line
	if long != nil {
		text = long.Head
	}
	r.sum.Write(text)
	r.tail = append(r.tail[:0], text[max(0, len(text)-maxTail):]...)
	text = bytes.TrimRight(text, "\r\n")
	if len(text) == 0 {
		return
	}
	l := r.lines.Add(text)
	if l.Omitted {
		c.mark.Omitted++
		return
	}
	var events []*wire.Event
	now := time.Now().UnixMilli()
	if long != nil {
		r.tail = nil // it isn't the end of the line
		events = r.events.TooLong(now, long)
	} else {
		events = r.events.Line(now, text)
	}
	if r.offset >= r.silent && l.Fresh && !r.printed[l.Key] {
		c.mark.Lines = append(c.mark.Lines, l.Key)
		if !l.Back {
			c.events = append(c.events, dropCounted(events, r.counted)...)
		}
	}
}

// tellChunk stores a chunk, and how far it goes, as one.
func (w *Watcher) tellChunk(ctx context.Context, f *file, c *chunk) error {
	r := f.cursor
	if c.mark.Digest = hex.EncodeToString(r.sum.Sum(nil)); r.anew && !c.ended {
		c.mark.Offset, c.mark.Digest = 0, hex.EncodeToString(sha256.New().Sum(nil)) // until it is whole, it is to be read from its beginning
	} else {
		c.mark.Offset = r.offset
	}
	ended := r.anew && c.ended
	if ended {
		c.mark.Removed = slices.DeleteFunc(r.lines.Removed(), func(key string) bool { return r.printed[key] })
	}
	if len(c.mark.Lines) == 0 && len(c.events) == 0 && !ended {
		return nil // a reading that begins again reads these lines once more
	}
	if err := w.wakeTale(ctx, f); err != nil {
		return err
	}
	exec := run.ExecID(f.node, 1)
	events := c.events
	if r.writer == nil {
		if err := w.claimNode(ctx, f, exec); err != nil {
			return err
		}
		if f.mark == nil {
			events = append([]*wire.Event{{Timestamp: f.tale.at, Payload: &wire.NodeStart{NodeType: "agent", Attempt: 1}}}, events...)
		}
	}
	for _, e := range events {
		e.ExecID = exec
		f.tale.at = max(f.tale.at, e.Timestamp)
	}
	events = append(events, &wire.Event{Timestamp: f.tale.at, ExecID: exec, Payload: c.mark})
	if _, err := r.writer.Append(ctx, events...); err != nil {
		return err
	}
	f.mark, f.troubled = c.mark, false
	r.anew = r.anew && !ended
	if ended {
		r.silent, r.digest = r.offset, c.mark.Digest
	}
	return nil
}

// claimNode claims the node of a file. It fails with [eventlog.ErrFenced] if the log has other lines of the file than when the reading of it
// began: another watcher has told of it meanwhile.
func (w *Watcher) claimNode(ctx context.Context, f *file, exec string) error {
	before := f.mark
	last, _, err := w.log.LastMessage(ctx, f.tale.run, f.node)
	if err == nil {
		err = w.findMark(ctx, f)
	}
	switch {
	case err != nil:
		return err
	case f.isStored():
		return errEarly // its program was faster
	case !reflect.DeepEqual(before, f.mark):
		return eventlog.ErrFenced
	}
	f.cursor.writer, err = history.Claim(ctx, w.log, f.tale.run, f.node, eventlog.Claim{Runner: w.cfg.ID, ExecID: exec, Last: &last})
	return err
}

// tellRest tells what waits for another line, which hasn't come for a while.
func (w *Watcher) tellRest(ctx context.Context, f *file) error {
	r := f.cursor
	if r == nil || r.anew || r.offset < r.silent {
		return nil
	}
	c := chunk{mark: &wire.TranscriptRead{File: strings.ToValidUTF8(f.name, "?"), Identity: r.identity}, events: dropCounted(r.events.Rest(), r.counted), ended: true}
	if len(c.events) == 0 {
		return nil
	}
	err := w.tellChunk(ctx, f, &c)
	if errors.Is(err, eventlog.ErrFenced) || errors.Is(err, errEarly) {
		f.forget() // another process reads it
		return nil
	}
	return err
}

// isStored reports whether the program of the session appends it to its store, and it is told by that.
func (f *file) isStored() bool {
	return f.mark != nil && strings.HasPrefix(f.mark.File, session.StoreFile)
}

// findMark finds what the log has of a file.
func (w *Watcher) findMark(ctx context.Context, f *file) error {
	last, found, err := w.log.Last(ctx, f.tale.run, f.node)
	if err != nil {
		return err
	}
	if found && last.Err == nil {
		if mark, is := last.Event.Payload.(*wire.TranscriptRead); is {
			f.mark, f.known = mark, true
			return nil
		}
	}
	if !found {
		found, err = history.HasNode(ctx, w.log, f.tale.run, f.node)
	}
	if found && err == nil {
		err = w.eachMark(ctx, f, func(mark *wire.TranscriptRead) { f.mark = mark })
	}
	f.known = err == nil
	return err
}

// toldLines returns the keys of the lines that were told, and whether they weren't removed since; and those of which the file may not have
// the line.
func (w *Watcher) toldLines(ctx context.Context, f *file) (told, printed map[string]bool, err error) {
	told, printed = map[string]bool{}, map[string]bool{}
	err = w.eachMark(ctx, f, func(mark *wire.TranscriptRead) {
		for _, key := range mark.Lines {
			told[key] = true
			if session.IsPrinted(mark) {
				printed[key] = true
			}
		}
		for _, key := range mark.Removed {
			told[key] = false
		}
	})
	return told, printed, err
}

func (w *Watcher) eachMark(ctx context.Context, f *file, take func(*wire.TranscriptRead)) error {
	for e, err := range history.ReadSession(ctx, w.log, eventlog.Query{Run: f.tale.run, Node: f.node, Kinds: []wire.Kind{wire.TypeTranscriptRead.Kind()}}) {
		if err != nil {
			return err
		}
		if e.Err != nil {
			continue
		}
		if mark, is := e.Event.Payload.(*wire.TranscriptRead); is {
			take(mark)
		}
	}
	return nil
}

// nodeOf returns the node of a file; that of a sub-agent is named as the file.
func nodeOf(name string) string {
	base := strings.TrimSuffix(path.Base(name), ".jsonl")
	if strings.HasPrefix(base, "agent-") {
		return base
	}
	return session.MainNode
}

// close lets go of what is needed to read on.
func (f *file) close(ctx context.Context) {
	if f.cursor != nil && f.cursor.writer != nil {
		_ = f.cursor.writer.Close(ctx) // what was appended is stored
	}
	f.cursor = nil
}

// forget has what the log has of a file looked up again.
func (f *file) forget() { f.cursor, f.mark, f.known = nil, nil, false }
