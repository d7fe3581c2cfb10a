package eventlog

import (
	"context"
	"errors"
	"fmt"

	"code.wake.dev/wake/pkg/wire"
)

// ErrGapped is returned for an event that doesn't follow the last one of its
// node.
var ErrGapped = errors.New("the event doesn't follow the last one of its node")

// Copier adds to a run the events that were recorded elsewhere, byte for byte:
// seq, epoch and time are theirs. It claims nothing; what another writer adds to
// one of the nodes at the same time ends it with [ErrFenced]. One goroutine may
// use it.
type Copier struct {
	log     *Log
	run     string
	writers map[string]*Writer // by node
	unit    []*frame
	size    int64
	last    uint64 // position of the event that was stored last; 0: none was
}

// What is stored together at most; less than a batch.
const (
	copyEvents = 500
	copyBytes  = batchBytes / 2
)

// Copy returns a copier of the run. The log's Run must be running.
func (l *Log) Copy(run string) *Copier {
	return &Copier{log: l, run: run, writers: map[string]*Writer{}}
}

// Add takes the next event of the run, encoded and within the log's limit (see
// [Log.StoredForm]), and the content of blobs that it refers to and that may not
// be there yet. Events are stored in the order of the calls, many at once, so
// that after a failure the log has the first ones; [Copier.Flush] waits for the
// rest.
func (c *Copier) Add(ctx context.Context, data []byte, blobs map[string][]byte) error {
	if err := c.addEvent(ctx, data, blobs); err != nil {
		return fmt.Errorf("eventlog: copy %s: %w", c.run, err)
	}
	return nil
}

func (c *Copier) addEvent(ctx context.Context, data []byte, blobs map[string][]byte) error {
	e, err := wire.Decode(data)
	if err != nil {
		return err
	}
	if e.RunID != c.run {
		return fmt.Errorf("the event is of run %s", e.RunID)
	}
	w, err := c.writerFor(ctx, e)
	if err != nil {
		return err
	}
	if e.Seq != w.next {
		return fmt.Errorf("%w: %s/%s has seq %d, not %d", ErrGapped, e.RunID, e.NodeID, e.Seq, w.next)
	}
	if data, blobs, err = c.log.sealEvent(data, blobs); err != nil {
		return err
	}
	w.next++
	f := &frame{
		run: c.run, node: e.NodeID, epoch: e.Epoch, seq: e.Seq,
		subject: c.log.names.Event(c.run, e.NodeID, string(e.Type().Kind())),
		data:    data, blobs: blobs, more: true, w: w.writerState,
	}
	if len(c.unit) > 0 && (len(c.unit) == copyEvents || c.size+f.byteSize() > copyBytes) {
		if err := c.storeUnit(ctx); err != nil {
			return err
		}
	}
	c.unit, c.size = append(c.unit, f), c.size+f.byteSize()
	return nil
}

// writerFor returns the writer of the event's node. A node that the log doesn't
// have begins with the event, whatever its seq: older events may have aged out of
// the log that recorded it.
func (c *Copier) writerFor(ctx context.Context, e *wire.Event) (*Writer, error) {
	if w := c.writers[e.NodeID]; w != nil {
		return w, nil
	}
	last, found, err := c.log.Last(ctx, c.run, e.NodeID)
	if err != nil {
		return nil, err
	}
	seq := e.Seq - 1
	if found {
		t, err := c.log.nodeTail(ctx, c.run, e.NodeID, Message{Pos: last.Pos, Time: last.Time, Subject: last.Subject, Data: last.Data})
		if err != nil {
			return nil, err
		}
		seq = t.seq
	}
	w := newWriter(c.log, c.log.laneOf(c.run), c.run, e.NodeID, e.Epoch, seq, last.Pos)
	c.writers[e.NodeID] = w
	return w, nil
}

// Flush waits until everything that was added is stored.
func (c *Copier) Flush(ctx context.Context) error {
	if err := c.storeUnit(ctx); err != nil {
		return fmt.Errorf("eventlog: copy %s: %w", c.run, err)
	}
	return nil
}

// Last is the position of the last event that was added and is stored; 0: none is.
func (c *Copier) Last() uint64 { return c.last }

// storeUnit stores the unit as one batch: its order in the stream is that of the
// calls, across nodes too.
func (c *Copier) storeUnit(ctx context.Context) error {
	unit := c.unit
	c.unit, c.size = nil, 0
	if len(unit) == 0 {
		return nil
	}
	last := unit[len(unit)-1]
	last.more = false
	done := make(chan appendOutcome, 1)
	ends := map[string]uint64{} // of nodes
	for _, f := range unit {
		ends[f.node] = f.seq
	}
	if _, err := c.writers[last.node].lane.queueUnit(ctx, unit, false, last.w); err != nil {
		return err
	}
	for node, seq := range ends {
		w := c.writers[node]
		w.awaitStored(seq, done)
		pos, err := w.waitStored(ctx, "copy", done)
		if err != nil {
			return err
		}
		c.last = max(c.last, pos)
	}
	return nil
}
