package queries

import (
	"context"
	"database/sql"
	"errors"
	"iter"
	"slices"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// rowsAtOnce is how many rows are asked for by their ids in one statement.
const rowsAtOnce = 200

// Stored yields the events of a run as the log does, those of the kinds alone taken apart. Of a run that isn't here there are none.
func (a *Answers) Stored(ctx context.Context, q eventlog.Query) iter.Seq2[eventlog.Entry, error] {
	return func(yield func(eventlog.Entry, error) bool) {
		of, err := a.exactRun(ctx, q.Run)
		if err == nil && of.ID != 0 {
			err = a.yieldStored(ctx, of, q, func(e eventlog.Entry) bool { return yield(e, nil) })
		}
		if err != nil {
			yield(eventlog.Entry{}, request.Wrap("stored events", err))
		}
	}
}

func (a *Answers) yieldStored(ctx context.Context, of request.Target, q eventlog.Query, yield func(eventlog.Entry) bool) (err error) {
	if q.To == 0 {
		q.To = 1<<63 - 1
	}
	for more := true; more && err == nil && q.From <= q.To; {
		var list []archive.Event
		list, err = archive.Ask(ctx, a.Archive, func(t *archive.Tx) (list []archive.Event, err error) {
			list, more, err = t.Chunk(ctx, of.ID, q.From, q.To)
			return list, err
		})
		for i := range list {
			kept := &list[i]
			q.From = kept.Pos + 1
			if kept.Mark != "" || len(q.Kinds) > 0 && !slices.Contains(q.Kinds, kept.Kind()) {
				continue
			}
			e := eventlog.Entry{Pos: kept.Pos, Time: time.UnixMilli(kept.Time), RunID: of.Run, Data: kept.Data}
			if e.Event, e.Err = wire.Decode(kept.Data); e.Err == nil {
				e.NodeID, e.Kind = e.Event.NodeID, e.Event.Type().Kind()
			}
			if (q.Node == "" || q.Node == e.NodeID) && !yield(e) {
				return nil
			}
		}
	}
	return err
}

// exactRun finds a run by its id alone: no prefix, label or session counts. The run's number is 0 if the store doesn't have it, or not
// any more.
func (a *Answers) exactRun(ctx context.Context, id string) (request.Target, error) {
	of := request.Target{Run: id}
	err := a.Reader.QueryRowContext(ctx, a.D.Bind(`SELECT id FROM runs WHERE run = ?1 AND run NOT IN (SELECT run FROM retired)`), id).Scan(&of.ID)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return of, err
}

// StateOf returns the state of a run behind a position, 0 for the present, which is its caller's to change. Before its first event,
// and of a run that isn't here, it is the empty one.
func (a *Answers) StateOf(ctx context.Context, id string, pos uint64) (*wire.State, error) {
	of, err := a.exactRun(ctx, id)
	if err != nil || of.ID == 0 {
		return run.New(id), err
	}
	return askArchive(ctx, a, "state", func(t *archive.Tx) (*wire.State, error) {
		_, to, changed, err := boundsOf(ctx, t, of, pos)
		if err != nil {
			return nil, err
		}
		s, err := a.views.stateUpTo(ctx, t, of, changed, to)
		if err != nil {
			return nil, err
		}
		return run.Clone(s), nil
	})
}

// boundsOf returns the first position of a run, the last one up to a position, if that isn't 0, and up to where its state changes before that,
// as far as it is known.
func boundsOf(ctx context.Context, t *archive.Tx, of request.Target, at uint64) (first, to, changed uint64, err error) {
	text := `SELECT first_pos, last_pos, CASE WHEN last_pos > derived THEN last_pos ELSE state_pos END FROM runs, streams WHERE runs.id = ?1`
	err = t.Row(ctx, text, of.ID).Scan(&first, &to, &changed)
	if at > 0 && at < to {
		to, changed = at, min(at, changed)
	}
	return first, to, changed, err
}
