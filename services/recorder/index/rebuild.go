package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"code.wake.dev/wake/internal/chain"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// Rebuild derives everything again from the recorded events, of which the store
// has more than the stream: of one run after the other, each in one transaction, so
// that readers get whole answers meanwhile. Progress is told of the events. An
// order that was obeyed isn't obeyed again; one that was cut off begins anew. It
// fails at a run with events that aren't as they were recorded, and leaves that run
// as it is.
func (x *Index) Rebuild(ctx context.Context, order string, progress func(done, of int64)) error {
	var obeyed bool
	var of int64
	runs, err := archive.Ask(ctx, x.Archive, func(t *archive.Tx) (runs []request.Target, err error) {
		if err := t.Row(ctx, `SELECT EXISTS (SELECT 1 FROM rebuilds WHERE id = ?1)`, order).Scan(&obeyed); err != nil || obeyed {
			return nil, err
		}
		runs, of, err = keptRuns(ctx, t)
		return runs, err
	})
	if err == nil && !obeyed {
		done := int64(0)
		err = x.rebuildRuns(ctx, order, runs, func(n int) {
			done += int64(n)
			progress(done, max(done, of)) // some have come since
		})
	}
	if err != nil {
		return fmt.Errorf("recorder: rebuild: %w", err)
	}
	return nil
}

// rebuildRuns derives all runs again, and notes that the order was obeyed.
func (x *Index) rebuildRuns(ctx context.Context, order string, runs []request.Target, count func(events int)) error {
	for _, of := range runs {
		if err := x.rebuildRun(ctx, of, count); err != nil {
			return fmt.Errorf("run %s: %w", request.Shown(of.Run), err)
		}
	}
	return x.Change(ctx, func(t *archive.Tx) error {
		return t.Put(ctx, "rebuilds", &table.Rebuild{ID: order, At: time.Now().UnixMilli()}, ` ON CONFLICT DO NOTHING`)
	})
}

// keptRuns returns all runs that aren't removed, or being removed, and how many events they have.
func keptRuns(ctx context.Context, t *archive.Tx) (runs []request.Target, all int64, err error) {
	var of request.Target
	var events int64
	text := `SELECT id, run, events FROM runs WHERE run NOT IN (SELECT run FROM retired) ORDER BY first_pos`
	for err := range t.Each(ctx, text, nil, &of.ID, &of.Run, &events) {
		if err != nil {
			return nil, 0, err
		}
		runs, all = append(runs, of), all+events
	}
	return runs, all, nil
}

// errUnsound is returned for a run with events that aren't as they were recorded.
var errUnsound = errors.New("its events aren't as they were recorded: `wake verify` says where")

// rebuildRun derives everything again of one run. Its events stay untouched.
func (x *Index) rebuildRun(ctx context.Context, of request.Target, count func(events int)) error {
	again := &Index{Archive: x.Archive, answers: x.answers, stmts: x.stmts, folds: newFolds(), scratch: true}
	err := x.Change(ctx, func(t *archive.Tx) error {
		if at, err := request.RetiredAt(ctx, t, of.Run); err != nil || at > 0 {
			return err // it was removed meanwhile
		}
		return again.rederiveRun(ctx, t, of, count)
	})
	x.answers.Forget(of.Run)
	return err
}

func (x *Index) rederiveRun(ctx context.Context, t *archive.Tx, of request.Target, count func(events int)) error {
	at, derived, err := t.Reached(ctx)
	if err != nil {
		return err
	}
	head, err := clearDerived(ctx, t, of, at.Incarnation)
	if err != nil {
		return err
	}
	indexed, err := holdIndex(ctx, t)
	if err != nil {
		return err
	}
	for from, more := uint64(0), true; more; {
		var list []archive.Event
		if list, more, err = t.Chunk(ctx, of.ID, from, 1<<63-1); err != nil {
			return err
		}
		if len(list) == 0 {
			break
		}
		if err := x.replayChunk(ctx, t, Batch{Incarnation: at.Incarnation, Part: true}, derived, list); err != nil {
			return err
		}
		from = list[len(list)-1].Pos + 1
		count(len(list))
	}
	var now []byte
	if err := t.Row(ctx, `SELECT head FROM runs WHERE id = ?1`, of.ID).Scan(&now); err != nil {
		return err
	}
	if !bytes.Equal(now, head) {
		return errUnsound
	}
	if _, err := t.Do(ctx, `UPDATE streams SET position = ?1`, at.Seq); err != nil {
		return err
	}
	return fillIndex(ctx, t, of, indexed)
}

// replayChunk derives again what follows from some events of a run.
func (x *Index) replayChunk(ctx context.Context, t *archive.Tx, b Batch, derived uint64, list []archive.Event) error {
	p, err := x.Replay(ctx, t, b, derived)
	if err != nil {
		return err
	}
	for i := range list {
		e := list[i].Entry()
		if _, err := p.Add(&list[i], &e); err != nil {
			return err
		}
	}
	return p.Finish()
}

// clearDerived removes what is derived from the run's events and returns the end of their
// hash chain.
func clearDerived(ctx context.Context, t *archive.Tx, of request.Target, incarnation string) (head []byte, err error) {
	for _, text := range t.D.DeletesByNode() {
		if _, err := t.Do(ctx, text, of.ID); err != nil {
			return nil, err
		}
	}
	for _, held := range t.D.Tables.OfRuns() {
		if held.Origin == table.Kept {
			continue
		}
		if _, err := t.Do(ctx, `DELETE FROM `+held.Name+` WHERE `+held.RowsOf("?1"), of.ID); err != nil {
			return nil, err
		}
	}
	var kept table.Run
	if err := t.Row(ctx, t.Whole("runs")+` WHERE id = ?1`, of.ID).Scan(table.Fields(&kept)...); err != nil {
		return nil, err
	}
	first := chain.FirstLink(incarnation, of.Run)
	fresh := table.Run{
		RunID: kept.RunID, Status: string(wire.RunIdle), FirstPos: kept.FirstPos, Head: first[:],
		Segments: kept.Segments, TailEvents: kept.TailEvents, TailBytes: kept.TailBytes, Derivation: Derivation,
	}
	_, err = t.Do(ctx, t.D.Tables.Named("runs").Update(), append(table.Values(&fresh), of.ID)...)
	return kept.Head, err
}

// holdIndex has the full text take no part in what becomes of lines, until [fillIndex], and returns how far it is. A line that is
// derived again isn't in it, and what changes one would remove it from there: that damages the index.
func holdIndex(ctx context.Context, t *archive.Tx) (indexed uint64, err error) {
	if !t.D.Lags {
		return 0, nil
	}
	if err = t.Row(ctx, `SELECT pos FROM lines_indexed`).Scan(&indexed); err == nil {
		_, err = t.Do(ctx, `UPDATE lines_indexed SET pos = 0`)
	}
	return indexed, err
}

// fillIndex takes the lines into the full text that were in it, if they don't get
// there by themselves. One that grows is indexed anew when it does.
func fillIndex(ctx context.Context, t *archive.Tx, of request.Target, indexed uint64) error {
	if !t.D.Lags {
		return nil
	}
	_, err := t.Do(ctx, `INSERT INTO lines_fts (rowid, text, input, output) SELECT pos, text, input, output FROM lines WHERE run = ?1 AND pos <= ?2`, of.ID, indexed)
	if err == nil {
		_, err = t.Do(ctx, `UPDATE lines_indexed SET pos = ?1`, indexed)
	}
	return err
}

// Replay derives again, in a transaction, what follows from events of a run that are
// recorded. It keeps none of them.
type Replay struct{ w *writer }

// Replay begins to derive again what follows from events up to position derived. What
// the batch has besides its entries counts: large fields may be added to its Blobs until
// the event comes that refers to them.
func (x *Index) Replay(ctx context.Context, t *archive.Tx, b Batch, derived uint64) (*Replay, error) {
	w, err := x.beginWriter(ctx, t, b)
	if err != nil {
		return nil, err
	}
	w.derived = derived
	return &Replay{w}, nil
}

// Add takes the next event, decoded in its entry e, and returns the event as the recorder would keep it now. A link that the event
// has is believed.
func (p *Replay) Add(s *archive.Event, e *eventlog.Entry) (archive.Event, error) {
	p.w.pos, p.w.link = s.Pos, s.Link
	if s.Mark == archive.Bad || s.Mark == archive.Recorder {
		return *s, p.w.keepAside(*s)
	}
	if e.Err != nil {
		return *s, e.Err
	}
	if err := p.w.recordEvent(e); err != nil {
		return *s, err
	}
	r := p.w.runs[e.RunID]
	if r.gone {
		return *s, nil
	}
	return r.fresh[len(r.fresh)-1], nil
}

// Finish writes what the events came to.
func (p *Replay) Finish() error { return p.w.finishBatch() }

// State is the state of a run after the events so far, or nil if none of them changes it.
func (p *Replay) State(run string) *wire.State {
	if s := p.w.runs[run].state; s != nil {
		return s
	}
	if f := p.w.x.folds.byRun[p.w.runs[run].ID]; f != nil {
		return f.state
	}
	return nil
}
