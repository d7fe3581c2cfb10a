package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
	"code.wake.dev/wake/services/recorder/queries"
)

// VerifyAgainst is [Checker.Verify] and compares the events with those of the
// stream besides, as far as that still has them. It fails with
// [eventlog.ErrIncarnation] if the store is of another incarnation of it.
func (c *Checker) VerifyAgainst(ctx context.Context, run string, log *eventlog.Log) (Verification, error) {
	v := c.newVerifier()
	err := v.checkStore(ctx, run)
	if err == nil && v.Position.Seq > 0 {
		err = v.compareServer(ctx, run, log)
	}
	if err != nil {
		return Verification{}, request.Wrap("verify", err)
	}
	return v.Verification, nil
}

// compareServer compares with the streams of events and of alerts, and with snapshots.
func (v *verifier) compareServer(ctx context.Context, run string, log *eventlog.Log) (err error) {
	if run != "" {
		if run, err = v.s.Find(ctx, run); err != nil {
			return err
		}
	}
	v.progress("stream", 0, 0)
	if err = v.checkAgainst(ctx, run, log); err == nil {
		err = v.compareAlerts(ctx, run, log)
	}
	if err == nil {
		v.progress("snapshots", 0, 0)
		err = v.compareSnapshots(ctx, run, log)
	}
	return err
}

// checkAgainst compares with the stream of events.
func (v *verifier) checkAgainst(ctx context.Context, run string, log *eventlog.Log) error {
	if log.Incarnation() != v.Position.Incarnation {
		return fmt.Errorf("%w: it is %q, the store is of %q", eventlog.ErrIncarnation, log.Incarnation(), v.Position.Incarnation)
	}
	first, _, err := log.Bounds(ctx)
	if err != nil {
		return err
	}
	next, stop := iter.Pull2(v.s.Read(ctx, queries.Query{Run: run, From: first, To: v.Position.Seq, Marked: true}))
	defer stop()
	is, err, more := next()
	for e, streamErr := range log.Read(ctx, eventlog.Query{Run: run, From: first, To: v.Position.Seq}) {
		if streamErr != nil {
			return streamErr
		}
		if run != "" && e.Err != nil {
			continue // it is in the run that is none
		}
		for more && err == nil && is.Pos < e.Pos {
			v.noteStray(is)
			is, err, more = next()
		}
		if err != nil {
			return v.noteFailure(ctx, Damage{Run: run}, err)
		}
		if (!more || is.Pos > e.Pos) && v.isGone(ctx, e.RunID) {
			continue
		}
		if v.Compared++; v.Compared%1024 == 0 {
			v.progress("stream", v.Compared, 0)
		}
		at := Damage{Run: e.RunID, From: e.Pos}
		switch {
		case !more || is.Pos > e.Pos:
			at.Problem = "the stream has an event here, the store doesn't"
			v.addDamage(at)
			continue
		case !bytes.Equal(is.Data, e.Data):
			at.Problem = "the stream has another event here"
			v.addDamage(at)
		case is.Time != e.Time.UnixMilli():
			at.Problem = fmt.Sprintf("the stream stored it at %d, the store says %d", e.Time.UnixMilli(), is.Time)
			v.addDamage(at)
		}
		is, err, more = next()
	}
	for more && err == nil {
		v.noteStray(is)
		is, err, more = next()
	}
	return v.noteFailure(ctx, Damage{Run: run}, err)
}

// isGone reports whether a run is without its events: it was removed, which may have begun since the store was checked.
func (v *verifier) isGone(ctx context.Context, run string) bool {
	if v.gone[run] {
		return true
	}
	at, err := archive.Ask(ctx, v.s.Archive, func(t *archive.Tx) (int64, error) { return request.RetiredAt(ctx, t, run) })
	if at > 0 && err == nil {
		v.gone[run] = true
	}
	return v.gone[run]
}

// noteStray takes an event that the stream doesn't have.
func (v *verifier) noteStray(e archive.Event) {
	if e.Mark != archive.Recorder {
		v.addDamage(Damage{Run: e.Run, From: e.Pos, Problem: "the stream has no event here"})
	}
}

// bucket is what damages of snapshots are named with.
const bucket = "WAKE_SNAPSHOTS"

// compareSnapshots checks that the server's snapshots of runs are what the recorded events fold into.
func (v *verifier) compareSnapshots(ctx context.Context, only string, log *eventlog.Log) error {
	names, err := archive.Ask(ctx, v.s.Archive, func(t *archive.Tx) (names []string, err error) {
		var name string
		for err := range t.Each(ctx, `SELECT run FROM runs WHERE run NOT IN (SELECT run FROM retired) ORDER BY first_pos`, nil, &name) {
			if err != nil {
				return nil, err
			}
			if only == "" || name == only {
				names = append(names, name)
			}
		}
		return names, nil
	})
	if err != nil {
		return v.noteFailure(ctx, Damage{Table: "runs"}, err)
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
		if err != nil && v.isGone(ctx, is.RunID) {
			return nil
		}
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
	a, errA := wire.Marshal(is)
	b, errB := wire.Marshal(want)
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	if !bytes.Equal(a, b) && !v.isGone(ctx, is.RunID) {
		v.addDamage(Damage{Table: bucket, Run: is.RunID, From: is.Position.Seq, Problem: "the snapshot isn't what the events up to its position say: it was changed, forged, or folded by another version"})
	}
	return nil
}
