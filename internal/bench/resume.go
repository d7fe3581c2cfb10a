package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"code.wake.dev/wake/internal/bookmark"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/replay"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/pkg/wire"
)

// tail is the number of events behind the snapshot of a run that is resumed.
const tail = 100

// Prepare stores a run of the given number of events, of which the last hundred
// are behind its snapshot.
func Prepare(ctx context.Context, log *eventlog.Log, runID string, events int) error {
	if _, err := Fill(ctx, log, []string{runID}, max(events-tail, beginEvents)); err != nil {
		return err
	}
	store, err := snapshot.Open(ctx, log)
	if err != nil {
		return err
	}
	state := run.New(runID)
	if err := snapshot.Fold(ctx, log, state, 0); err != nil {
		return err
	}
	if _, err := store.Save(ctx, state, snapshot.Stored{}); err != nil {
		return err
	}
	node, err := log.Claim(ctx, runID, "coder", eventlog.Claim{Runner: "bench", ExecID: "coder#1"})
	if err != nil {
		return err
	}
	for i := range min(tail, max(events-beginEvents, 0)) {
		e, err := Work(i)
		if err != nil {
			return err
		}
		if err := node.Enqueue(ctx, e); err != nil {
			return err
		}
	}
	return node.Close(ctx)
}

// Resume claims a run, loads its snapshot and folds what follows: what a runner
// does before it can decide anything. It returns milliseconds.
func Resume(ctx context.Context, log *eventlog.Log, runID string) (float64, error) {
	began := time.Now()
	w, err := log.Claim(ctx, runID, wire.RunNode, eventlog.Claim{Runner: "bench"})
	if err != nil {
		return 0, err
	}
	state, found, err := snapshot.Load(ctx, log, runID)
	if err != nil {
		return 0, err
	}
	if !found {
		return 0, errors.New("bench: the run has no snapshot")
	}
	if err := snapshot.Fold(ctx, log, state, 0); err != nil {
		return 0, err
	}
	took := MillisSince(began)
	if _, claimed := w.Last(); state.Position.Seq < claimed {
		return 0, fmt.Errorf("bench: resumed run %s at %d, before its claim at %d", runID, state.Position.Seq, claimed)
	}
	return took, w.Close(ctx)
}

// Fork finds the point behind the last event of a run, which is where a fork
// without further ado begins, or the one behind its first message, and the state
// there. It returns milliseconds.
func Fork(ctx context.Context, log *eventlog.Log, runID, at string) (float64, error) {
	began := time.Now()
	_, state, err := bookmark.Find(ctx, log, runID, at)
	if err != nil {
		return 0, err
	}
	if state == nil {
		return 0, fmt.Errorf("bench: run %s has no state at %q", runID, at)
	}
	return MillisSince(began), nil
}

// Replay plays a run as fast as possible and returns the events per second.
func Replay(ctx context.Context, log *eventlog.Log, runID string) (float64, error) {
	began, n := time.Now(), 0
	for _, err := range replay.Play(ctx, log.Read(ctx, eventlog.Query{Run: runID}), replay.Options{}) {
		if err != nil {
			return 0, err
		}
		n++
	}
	return perSecond(n, began), nil
}

// Sizes are the mean bytes of an event of [Work].
type Sizes struct {
	Wire, JSON float64
}

// EventSizes encodes n events both ways.
func EventSizes(n int) (Sizes, error) {
	var s Sizes
	for i := range n {
		e, err := Work(i)
		if err != nil {
			return s, err
		}
		e.RunID, e.NodeID, e.Seq, e.Epoch, e.Timestamp = "bench"+strconv.Itoa(n), "coder", uint64(i)+1, 1, 1767400000000
		data, err := wire.Encode(e)
		if err != nil {
			return s, err
		}
		text, err := wire.EncodeJSON(e)
		if err != nil {
			return s, err
		}
		s.Wire += float64(len(data)) / float64(n)
		s.JSON += float64(len(text)) / float64(n)
	}
	return s, nil
}

// StoredSize returns the mean bytes that the stream of events takes per event.
func (s *Scratch) StoredSize(ctx context.Context) (float64, error) {
	stream, err := s.JS.Stream(ctx, s.Names.EventsStream())
	if err != nil {
		return 0, err
	}
	state := stream.CachedInfo().State
	return float64(state.Bytes) / float64(state.Msgs), nil
}

// MillisSince is the time since then, in milliseconds.
func MillisSince(since time.Time) float64 {
	return float64(time.Since(since)) / float64(time.Millisecond)
}
