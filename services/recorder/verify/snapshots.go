package verify

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/queries"
)

// bucket is what damages of snapshots are named with.
const bucket = "WAKE_SNAPSHOTS"

// compareSnapshots checks that the server's snapshots of runs are what the recorded events fold into.
func (v *verifier) compareSnapshots(ctx context.Context, only string, log *eventlog.Log) error {
	t, err := v.s.View(ctx)
	if err != nil {
		return err
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	var names []string
	for rows, err := range t.Rows(ctx, `SELECT run FROM runs WHERE run NOT IN (SELECT run FROM retired) ORDER BY first_pos`) {
		var name string
		if err == nil {
			err = rows.Scan(&name)
		}
		if err != nil {
			return v.noteFailure(ctx, Damage{Table: "runs"}, err)
		}
		if only == "" || name == only {
			names = append(names, name)
		}
	}
	for _, name := range names {
		is, found, err := snapshot.Load(ctx, log, name)
		switch {
		case errors.Is(err, snapshot.ErrUnusable) || err == nil && (!found || is.Position.Seq > v.Position.Seq):
			continue // no reader uses it, or it is of what isn't recorded yet
		case err != nil:
			return err
		}
		if err := v.compareSnapshot(ctx, log, is); err != nil {
			return err
		}
	}
	return nil
}

// compareSnapshot folds the events up to the position of a snapshot as its maker did.
func (v *verifier) compareSnapshot(ctx context.Context, log *eventlog.Log, is *wire.State) error {
	want := run.New(is.RunID)
	for kept, err := range v.s.Read(ctx, queries.Query{Run: is.RunID, To: is.Position.Seq, Marked: true}) {
		if err != nil {
			return v.noteFailure(ctx, Damage{Run: is.RunID}, err)
		}
		e := eventlog.Entry{Pos: kept.Pos, Time: time.UnixMilli(kept.Time), RunID: kept.Run, Data: kept.Data}
		if e.Event, e.Err = wire.Decode(kept.Data); e.Err != nil || kept.Mark == archive.Recorder || !slices.Contains(snapshot.Kinds, e.Event.Type().Kind()) {
			continue
		}
		if err := snapshot.Apply(ctx, log, want, e); err != nil && !snapshot.Refused(err) {
			return err
		}
	}
	a, err := wire.Marshal(is)
	if err != nil {
		return err
	}
	b, err := wire.Marshal(want)
	if err != nil {
		return err
	}
	if !bytes.Equal(a, b) {
		v.addDamage(Damage{Table: bucket, Run: is.RunID, From: is.Position.Seq, Problem: "the snapshot isn't what the events up to its position say: it was changed, or forged"})
	}
	return nil
}
