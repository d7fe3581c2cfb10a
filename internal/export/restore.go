package export

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// ErrAnother is returned for a run that the log has with other events.
var ErrAnother = errors.New("the log has another run of this id")

// Import says what was read and written.
type Import struct {
	RunID  string `json:"runId"`
	Events int    `json:"events"` // of the file
	Added  int    `json:"added"`  // to the log; the others were there
	Hash   string `json:"hash"`   // of the file's chain
}

// Restore adds the run of a JSONL file to the log. The whole file is verified
// before anything is written. Its events are written as they are, seq, epoch and
// time included; the first ones say that the run was imported, so that no runner
// goes on with it. What the log has of the run from an earlier call stays, and a
// whole run is left alone. The log's Run must be running.
//
// It fails with a [*FileError] for a file that isn't what was exported, and with
// [ErrAnother]. progress, which may be nil, is called with the number of events
// that were dealt with and that there are.
func Restore(ctx context.Context, log *eventlog.Log, r io.ReadSeeker, progress func(done, of int)) (Import, error) {
	im, marked, err := verifyFile(r)
	if err != nil {
		return im, err
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return im, err
	}
	f, err := Open(r)
	if err != nil {
		return im, err
	}
	existing, stop := iter.Pull2(log.Read(ctx, eventlog.Query{Run: im.RunID}))
	defer stop()
	a := adder{log: log, copier: log.Copy(im.RunID), existing: existing, result: &im, marked: marked, here: map[uint64]uint64{}, theirs: eventlog.LastEpochs{}, ours: eventlog.LastEpochs{}}
	done := 0
	for item, err := range f.All() {
		if err == nil {
			err = a.addItem(ctx, item)
		}
		if err != nil {
			return im, err
		}
		if done++; progress != nil {
			progress(done, im.Events)
		}
	}
	return im, a.copier.Flush(ctx)
}

// verifyFile reads a file to its end, and returns the positions that its checkpoints mark, in order.
func verifyFile(r io.Reader) (_ Import, marked []uint64, _ error) {
	f, err := Open(r)
	if err != nil {
		return Import{}, nil, err
	}
	im := Import{RunID: f.Run.ID}
	begun := false
	for item, err := range f.All() {
		if err != nil {
			return im, nil, err
		}
		begun = begun || isBeginning(item.Event)
		if p, ok := item.Event.Payload.(*wire.Checkpoint); ok && p.AtPos > 0 {
			marked = append(marked, p.AtPos)
		}
	}
	im.Events, im.Hash = f.Events, f.Hash
	if !begun {
		return im, nil, &FileError{1, "begins a file without the beginning of the run: export it without --from"}
	}
	slices.Sort(marked)
	return im, slices.Compact(marked), nil
}

// isBeginning reports whether e begins a run.
func isBeginning(e *wire.Event) bool {
	return e.Type() == wire.TypeFlowStart || e.Type() == wire.TypeRunForked
}

// adder compares the events of a file with those that the log has, and adds the
// rest.
type adder struct {
	log      *eventlog.Log
	copier   *eventlog.Copier
	existing func() (eventlog.Entry, error, bool)
	result   *Import
	over     bool // the log has no more
	native   bool // what the log has wasn't imported

	marked []uint64          // positions where the file was exported that its checkpoints mark, in order, from the next one on
	last   uint64            // position of the last event, if the log had it
	here   map[uint64]uint64 // where what they mark is in this log

	theirs, ours eventlog.LastEpochs
}

func (a *adder) addItem(ctx context.Context, item Item) error {
	if a.theirs.IsVoid(item.Event) {
		return nil
	}
	for ; len(a.marked) > 0 && a.marked[0] < item.Pos; a.marked = a.marked[1:] {
		if err := a.copier.Flush(ctx); err != nil {
			return err
		}
		a.here[a.marked[0]] = max(a.copier.Last(), a.last)
	}
	data, blobs, err := a.storedForm(item)
	if err != nil {
		return &FileError{item.Line, err.Error()}
	}
	for !a.over {
		e, err, ok := a.existing()
		switch {
		case err != nil:
			return err
		case !ok:
			a.over = true
		case e.Event == nil || a.ours.IsVoid(e.Event):
			continue
		case bytes.Equal(e.Data, data):
			a.last = e.Pos
			return nil
		case bytes.Equal(e.Data, item.Data):
			a.last, a.native = e.Pos, true
			return nil
		default:
			return fmt.Errorf("%w: line %d of the file differs from position %d", ErrAnother, item.Line, e.Pos)
		}
	}
	if a.native {
		return fmt.Errorf("%w: it isn't imported, and the file goes on behind its end, at line %d", ErrAnother, item.Line)
	}
	a.result.Added++
	return a.copier.Add(ctx, data, blobs)
}

// storedForm returns an event as the log stores it.
func (a *adder) storedForm(item Item) (data []byte, blobs map[string][]byte, err error) {
	data, blobs = item.Data, item.Blobs
	if isBeginning(item.Event) {
		if data, blobs, err = markImported(item); err != nil {
			return nil, nil, err
		}
	} else if p, ok := item.Event.Payload.(*wire.Checkpoint); ok && p.AtPos > 0 {
		if data, err = a.moveMark(item.Data); err != nil {
			return nil, nil, err
		}
	}
	data, more, err := a.log.StoredForm(data)
	if err != nil {
		return nil, nil, err
	}
	if len(more) == 0 {
		return data, blobs, nil
	}
	maps.Copy(more, blobs)
	return data, more, nil
}

// moveMark returns a checkpoint that marks an earlier position, as of this log.
func (a *adder) moveMark(data []byte) ([]byte, error) {
	e, err := wire.Decode(data)
	if err != nil {
		return nil, err
	}
	if p, ok := e.Payload.(*wire.Checkpoint); ok {
		p.AtPos = a.here[p.AtPos] // 0: what it marked isn't in the file, and it marks its own
	}
	return wire.Encode(e)
}

// markImported returns the event that begins a run, saying that the run was imported.
func markImported(item Item) (data []byte, blobs map[string][]byte, err error) {
	e, err := wire.Decode(item.Data)
	if err != nil {
		return nil, nil, err
	}
	switch p := e.Payload.(type) {
	case *wire.FlowStart:
		if p.Imported != "" {
			return item.Data, item.Blobs, nil
		}
		p.Imported = wire.ImportedCopy
		data, err = wire.Encode(e)
		return data, item.Blobs, err
	case *wire.RunForked:
		return markedFork(e, item)
	}
	return item.Data, item.Blobs, nil
}

// markedFork changes the state that a fork carries: it is what its run is folded
// from.
func markedFork(e *wire.Event, item Item) (data []byte, blobs map[string][]byte, err error) {
	whole, err := inlineBlobs(e, func(sum string) ([]byte, error) {
		if b, ok := item.Blobs[sum]; ok {
			return b, nil
		}
		return nil, fmt.Errorf("the file doesn't have field %s", sum)
	})
	if err != nil {
		return nil, nil, err
	}
	p, is := whole.Payload.(*wire.RunForked)
	state, isMap := map[string]any(nil), false
	if is {
		state, isMap = p.State.Any().(map[string]any)
	}
	if !isMap {
		return nil, nil, errors.New("is a fork without the state of its parent")
	}
	if isMarked(p.State) {
		return item.Data, item.Blobs, nil
	}
	state["imported"] = wire.ImportedCopy
	if p.State, err = wire.Marshal(state); err != nil {
		return nil, nil, err
	}
	if !isMarked(p.State) {
		return nil, nil, errors.New("is a fork with a state that can't be read")
	}
	data, err = wire.Encode(whole)
	return data, nil, err
}

// isMarked reports whether runners that read a state take its run for one that is only recorded.
func isMarked(state wire.Raw) bool {
	var s wire.State
	return wire.Unmarshal(state, &s) == nil && s.Imported != ""
}
