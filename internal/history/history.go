// Package history reads what is recorded of a run, wherever it still is: the
// stream has the newest events, the recorder has all of them. All that is here
// reads, but [Claim].
package history

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/pkg/wire"
)

// Read yields what q selects of one run, which it has to name, in the order of
// the log. What the stream has dropped the recorder is asked for; if that has
// never heard of the run, it is what the stream has. An error ends it: a
// [*wire.APIError] if the recorder is needed and doesn't answer.
func Read(ctx context.Context, log eventlog.Reader, q eventlog.Query) iter.Seq2[eventlog.Entry, error] {
	return func(yield func(eventlog.Entry, error) bool) {
		for {
			first, err := droppedBefore(ctx, log, q)
			if err != nil {
				yield(eventlog.Entry{}, err)
				return
			}
			if first == 0 {
				break
			}
			dropped := q
			if dropped.To = first - 1; q.To > 0 {
				dropped.To = min(dropped.To, q.To)
			}
			for e, err := range Recorded(ctx, log, dropped) {
				if wire.HasCode(err, wire.CodeRunNotFound, wire.CodeAmbiguousID) {
					break // it has no run of exactly this id
				}
				if !yield(e, err) || err != nil {
					return
				}
			}
			if q.From = first; q.To > 0 && q.From > q.To {
				return
			}
		}
		for e, err := range log.Read(ctx, q) {
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// ReadStored is [Read], or what the stream has, if the recorder is needed and doesn't answer.
func ReadStored(ctx context.Context, log eventlog.Reader, q eventlog.Query) iter.Seq2[eventlog.Entry, error] {
	return func(yield func(eventlog.Entry, error) bool) {
		away := false
		for e, err := range Read(ctx, log, q) {
			if _, away = errors.AsType[*wire.APIError](err); away {
				break
			}
			if !yield(e, err) || err != nil {
				return
			}
			q.From = e.Pos + 1
		}
		if !away || q.To > 0 && q.From > q.To {
			return
		}
		for e, err := range log.Read(ctx, q) {
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// ReadSession is [Read] of a run that may be new, as those of sessions are that wake doesn't drive: of one of which neither the stream nor
// a snapshot tells it yields nothing, and doesn't ask the recorder.
func ReadSession(ctx context.Context, log eventlog.Reader, q eventlog.Query) iter.Seq2[eventlog.Entry, error] {
	return func(yield func(eventlog.Entry, error) bool) {
		past, err := droppedState(ctx, log, q.Run)
		if err != nil {
			yield(eventlog.Entry{}, err)
			return
		}
		events := log.Read(ctx, q)
		if past != nil {
			events = Read(ctx, log, q)
		}
		for e, err := range events {
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// HasNode reports whether anything of a node was ever stored, as far as the stream or the run's snapshot tells.
func HasNode(ctx context.Context, log *eventlog.Log, runID, node string) (bool, error) {
	if _, found, err := log.LastMessage(ctx, runID, node); found || err != nil {
		return found, err
	}
	past, err := droppedState(ctx, log, runID)
	return past != nil && past.Nodes[node].Seq > 0, err
}

// Claim is [eventlog.Log.Claim] for a writer of a node whose events the stream may have dropped, even all of them: the claim's epoch and seq
// follow those that the run's snapshot has of the node. The recorder is needed only where that snapshot can't be used.
func Claim(ctx context.Context, log *eventlog.Log, runID, node string, c eventlog.Claim) (*eventlog.Writer, error) {
	past, err := droppedState(ctx, log, runID)
	if err != nil {
		return nil, err
	}
	if past != nil {
		n := past.Nodes[node]
		c.MinEpoch, c.AtSeq = max(c.MinEpoch, n.Epoch+1), max(c.AtSeq, n.Seq)
	}
	return log.Claim(ctx, runID, node, c)
}

// droppedState returns what is known of a run of which the stream may have dropped events, nil if it has all of them.
func droppedState(ctx context.Context, log eventlog.Reader, runID string) (*wire.State, error) {
	first, err := droppedBefore(ctx, log, eventlog.Query{Run: runID})
	if err != nil || first == 0 {
		return nil, err
	}
	past, found, err := snapshot.Load(ctx, log, runID)
	switch {
	case errors.Is(err, snapshot.ErrUnusable):
		return StateAt(ctx, log, runID, 0)
	case err != nil || !found:
		return nil, err
	}
	return past, nil
}

// Fold folds the events of a run that follow its state up to a position, 0 for the present, those that the stream has
// dropped too. Events that are refused are left out.
func Fold(ctx context.Context, log eventlog.Reader, s *wire.State, to uint64) error {
	q := eventlog.Query{Run: s.RunID, Kinds: snapshot.Kinds, From: s.Position.Seq + 1, To: to}
	for e, err := range ReadStored(ctx, log, q) {
		if err == nil {
			err = snapshot.Apply(ctx, log, s, e)
		}
		if err != nil && !snapshot.Refused(err) {
			return fmt.Errorf("history: state of run %s: %w", s.RunID, err)
		}
	}
	return nil
}

// droppedBefore returns the first position of the stream if it may have dropped events
// that q selects, else 0.
func droppedBefore(ctx context.Context, log eventlog.Reader, q eventlog.Query) (uint64, error) {
	first, _, err := log.Bounds(ctx)
	if err != nil || max(q.From, 1) >= first {
		return 0, err
	}
	for e, err := range log.Read(ctx, eventlog.Query{Run: q.Run}) {
		if err != nil {
			return 0, err
		}
		if e.Event != nil && e.NodeID == wire.RunNode && e.Event.Seq == 1 {
			return 0, nil // that is how runs begin
		}
		break
	}
	return first, nil
}

// Recorded yields what the recorder has of what q selects of one run, which it has to name, in the order of the log. Events of a whole
// run know how many follow. An error ends it: a [*wire.APIError] if the recorder doesn't answer, or has no such run.
func Recorded(ctx context.Context, log eventlog.Reader, q eventlog.Query) iter.Seq2[eventlog.Entry, error] {
	ask := wire.EventsRequest{Run: q.Run, From: q.From, To: q.To, Kinds: q.Kinds}
	return func(yield func(eventlog.Entry, error) bool) {
		behind := int64(0)
		for {
			page, err := api.Call[wire.EventsResponse](ctx, log.Conn(), log.Names(), wire.VerbEvents, ask)
			if err != nil {
				yield(eventlog.Entry{}, err)
				return
			}
			behind = max(behind, page.Total)
			for _, kept := range page.Events {
				behind = max(0, behind-1)
				e := entryOf(q.Run, kept)
				e.Behind = uint64(behind)
				if e.Event != nil && e.Event.RunID != q.Run || q.Node != "" && e.NodeID != q.Node {
					continue
				}
				if !yield(e, nil) {
					return
				}
			}
			if ask.Cursor = page.Cursor; ask.Cursor == "" {
				return
			}
		}
	}
}

func entryOf(runID string, kept wire.StoredEvent) eventlog.Entry {
	e := eventlog.Entry{Pos: kept.Pos, Time: kept.When(), RunID: runID, Data: kept.Data}
	if e.Event, e.Err = wire.Decode(kept.Data); e.Err == nil {
		e.NodeID, e.Kind = e.Event.NodeID, e.Event.Type().Kind()
	}
	return e
}

// StateAt returns the state of a run behind a position of the log, 0 for the
// present: the nearest one that is kept, and what the log has beyond it. The
// position of a run that had not begun is 0.
func StateAt(ctx context.Context, log eventlog.Reader, runID string, pos uint64) (*wire.State, error) {
	s, err := nearestState(ctx, log, runID, pos)
	if err != nil || pos != 0 && s.Position.Seq == pos {
		return s, err
	}
	q := eventlog.Query{Run: runID, Kinds: snapshot.Kinds, From: s.Position.Seq + 1, To: pos}
	for e, err := range Read(ctx, log, q) {
		if err == nil {
			err = snapshot.Apply(ctx, log, s, e)
		}
		if err != nil && !snapshot.Refused(err) {
			return nil, fmt.Errorf("history: state of run %s: %w", runID, err)
		}
	}
	return s, nil
}

// nearestState returns a state of the run that isn't beyond pos: the snapshot, else
// what the recorder has, else that of a bookmark, else the empty one.
func nearestState(ctx context.Context, log eventlog.Reader, runID string, pos uint64) (*wire.State, error) {
	s, found, err := snapshot.Load(ctx, log, runID)
	switch {
	case err != nil && !errors.Is(err, snapshot.ErrUnusable):
		return nil, err
	case err == nil && found && (pos == 0 || s.Position.Seq <= pos):
		return s, nil
	}
	var marks []wire.Bookmark
	if err == nil && found {
		marks = s.Bookmarks
	}
	asked, err := api.Call[wire.StateResponse](ctx, log.Conn(), log.Names(), wire.VerbState, wire.StateRequest{Run: runID, At: pos})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err == nil { // else the recorder isn't needed
		if s, err := run.Decode(asked.State); err == nil && isUsable(log, s, runID, pos) {
			return s, nil
		}
	}
	for _, b := range slices.Backward(marks) {
		if b.Run != "" || pos != 0 && b.Position > pos {
			continue
		}
		if s, err := snapshot.Kept(ctx, log, runID, b.Label); err == nil && isUsable(log, s, runID, pos) {
			return s, nil
		}
	}
	return run.New(runID), nil
}

func isUsable(log eventlog.Reader, s *wire.State, runID string, pos uint64) bool {
	return s.RunID == runID && s.Position.Incarnation == log.Incarnation() && (pos == 0 || s.Position.Seq <= pos)
}
