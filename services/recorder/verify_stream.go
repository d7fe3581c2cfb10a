package recorder

import (
	"bytes"
	"context"
	"fmt"
	"iter"

	"wake/internal/eventlog"
)

// VerifyAgainst is [Store.Verify] and compares the events with those of the
// stream besides, as far as that still has them. It fails with
// [eventlog.ErrIncarnation] if the store is of another incarnation of it.
func (s *Store) VerifyAgainst(ctx context.Context, run string, log *eventlog.Log) (Verification, error) {
	v := &verifier{s: s, Verification: Verification{Damages: []Damage{}}}
	err := v.verify(ctx, run)
	if err == nil && v.Position.Seq > 0 {
		err = v.against(ctx, run, log)
	}
	if err != nil {
		return Verification{}, wrap("verify", err)
	}
	return v.Verification, nil
}

// against compares with the stream.
func (v *verifier) against(ctx context.Context, run string, log *eventlog.Log) error {
	if log.Incarnation() != v.Position.Incarnation {
		return fmt.Errorf("%w: it is %q, the store is of %q", eventlog.ErrIncarnation, log.Incarnation(), v.Position.Incarnation)
	}
	first, _, err := log.Bounds(ctx)
	if err != nil {
		return err
	}
	if run != "" {
		if run, err = v.s.nameOf(ctx, run); err != nil {
			return err
		}
	}
	next, stop := iter.Pull2(v.s.Read(ctx, Query{Run: run, From: first, To: v.Position.Seq, Marked: true}))
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
			v.stray(is)
			is, err, more = next()
		}
		if err != nil {
			return v.failed(ctx, Damage{Run: run}, err)
		}
		if v.gone[e.RunID] && (!more || is.Pos > e.Pos) {
			continue
		}
		v.Compared++
		at := Damage{Run: e.RunID, From: e.Pos}
		switch {
		case !more || is.Pos > e.Pos:
			at.Problem = "the stream has an event here, the store doesn't"
			v.damage(at)
			continue
		case !bytes.Equal(is.Data, e.Data):
			at.Problem = "the stream has another event here"
			v.damage(at)
		case is.Time != e.Time.UnixMilli():
			at.Problem = fmt.Sprintf("the stream stored it at %d, the store says %d", e.Time.UnixMilli(), is.Time)
			v.damage(at)
		}
		is, err, more = next()
	}
	for more && err == nil {
		v.stray(is)
		is, err, more = next()
	}
	return v.failed(ctx, Damage{Run: run}, err)
}

// stray takes an event that the stream doesn't have.
func (v *verifier) stray(e Event) {
	if e.Mark != markRecorder {
		v.damage(Damage{Run: e.Run, From: e.Pos, Problem: "the stream has no event here"})
	}
}

// nameOf returns the id of the run that is meant.
func (s *Store) nameOf(ctx context.Context, run string) (string, error) {
	t, err := s.view(ctx)
	if err != nil {
		return "", err
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	found, err := resolve(ctx, t, run, "", "")
	return found.run, err
}
