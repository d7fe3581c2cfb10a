package verify

import (
	"bytes"
	"context"
	"fmt"
	"iter"

	"code.wake.dev/wake/internal/eventlog"
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
	if err = v.checkAgainst(ctx, run, log); err == nil {
		err = v.compareAlerts(ctx, run, log)
	}
	if err == nil {
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
		if v.gone[e.RunID] && (!more || is.Pos > e.Pos) {
			continue
		}
		v.Compared++
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

// noteStray takes an event that the stream doesn't have.
func (v *verifier) noteStray(e archive.Event) {
	if e.Mark != archive.Recorder {
		v.addDamage(Damage{Run: e.Run, From: e.Pos, Problem: "the stream has no event here"})
	}
}
