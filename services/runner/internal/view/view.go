// Package view has the runs as this process has folded them, and feeds it the events.
package view

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/pkg/wire"
)

// Runs opens views of runs. All of them live on one follower of the log.
type Runs struct {
	log    *eventlog.Log
	logger *slog.Logger
	events *Feed
	flows  flow.Library
}

// NewRuns returns the runs of a log. Their views see what [Runs.Follow] feeds them.
func NewRuns(log *eventlog.Log, logger *slog.Logger) *Runs {
	return &Runs{log: log, logger: logger, events: NewFeed()}
}

// Definition reads the definition of a flow, which is kept for other readers of the same.
func (r *Runs) Definition(raw wire.Raw) (*flow.Definition, error) { return r.flows.Read(raw) }

// Follow feeds the events of all runs from a position on, which it moves, until ctx ends.
// Behind it, note is called with each.
func (r *Runs) Follow(ctx context.Context, from *uint64, note func(eventlog.Entry)) error {
	for e, err := range r.log.Follow(ctx, eventlog.Query{Kinds: snapshot.Kinds, From: *from}) {
		if err != nil {
			return err
		}
		r.events.Deliver(e)
		note(e)
		*from = e.Pos + 1
	}
	return nil
}

// Subscribe begins to collect the events of a run, see [Feed.SubscribeInto].
func (r *Runs) Subscribe(run string, more chan struct{}) *Subscription {
	return r.events.SubscribeInto(run, more)
}

// View is the state of a run as far as this process has folded it. It belongs to one
// goroutine.
type View struct {
	Unknown bool // the log surely had nothing of the run when it was opened

	runs   *Runs
	sub    *Subscription
	state  *wire.State // nil: it is packed
	packed *packed
	seen   uint64 // position of the last event that came, folded or refused
}

// Of returns a view of a state that the log has nothing to add to.
func Of(s *wire.State) *View { return &View{state: s} }

// State is the state up to what was folded last. The view changes it, until [View.Pack].
func (v *View) State() *wire.State {
	if v.state == nil {
		s, err := v.packed.unpackState()
		if err != nil {
			panic(err) // packState has unpacked it
		}
		v.state, v.packed = s, nil
	}
	return v.state
}

// Open subscribes to a run and folds it: its snapshot, if there is one, and the
// tail of the log. Everything up to the call is folded.
func (r *Runs) Open(ctx context.Context, runID string) (*View, error) {
	v := &View{runs: r, sub: r.events.Subscribe(runID)}
	state, found, err := snapshot.Load(ctx, r.log, runID)
	if err != nil && !errors.Is(err, snapshot.ErrUnusable) {
		v.Close()
		return nil, err
	}
	fold := snapshot.Fold
	if err != nil {
		fold = history.Fold // the snapshot would have had what the stream has dropped
	}
	if err != nil || !found {
		state = run.New(runID)
	}
	v.state = state
	if v.Unknown = err == nil && !found && r.log.IsUnknown(ctx, runID); v.Unknown {
		return v, nil
	}
	if err := fold(ctx, r.log, state, 0); err != nil {
		v.Close()
		return nil, fmt.Errorf("fold run %s: %w", runID, err)
	}
	return v, nil
}

// Share has views that join the run begin with the state, see [Runs.Join].
func (v *View) Share() {
	if !v.sub.isShared() && !v.sub.HasMore() {
		v.sub.shareState(run.Clone(v.State()))
	}
}

// Unshare has no view begin with the state any more.
func (v *View) Unshare() { v.sub.dropShared() }

// Join opens a view with what another one of this process has shared and what has come since then, which needs no server; nil: none has, or too
// much has come. It has folded what [Runs.Follow] has delivered: the log may have more.
func (r *Runs) Join(ctx context.Context, runID string) *View {
	sub, shared := r.events.SubscribeBehind(runID)
	if sub == nil {
		return nil
	}
	v := &View{runs: r, sub: sub, state: run.Clone(shared)}
	if v.Follow(ctx) != nil {
		v.Close()
		return nil
	}
	return v
}

// Close ends the view.
func (v *View) Close() { v.sub.Close() }

// More is ready when there are events to fold.
func (v *View) More() <-chan struct{} { return v.sub.More() }

// HasMore reports whether there are.
func (v *View) HasMore() bool { return v.sub.HasMore() }

// OnMore has a function called when there are events to fold, at once if there are; nil: none. It must take no time.
func (v *View) OnMore(call func()) { v.sub.OnMore(call) }

// Follow folds what has come. It fails only if ctx ends.
func (v *View) Follow(ctx context.Context) error {
	for _, e := range v.sub.Take() {
		if err := v.foldEntry(ctx, e); err != nil {
			return err
		}
		v.seen = max(v.seen, e.Pos)
	}
	return nil
}

// foldEntry folds an event, however long the object store is away. An event that no
// fold takes is no reason to stop: the snapshotter moves it to the dead letters.
func (v *View) foldEntry(ctx context.Context, e eventlog.Entry) error {
	for ctx.Err() == nil {
		err := snapshot.Apply(ctx, v.runs.log, v.State(), e)
		if err == nil {
			return nil
		}
		v.runs.logger.Warn("event not folded", "subject", e.Subject, "position", e.Pos, "error", err)
		if snapshot.Refused(err) {
			return nil
		}
		pull.Sleep(ctx, time.Second)
	}
	return ctx.Err()
}

// Whole returns the state with the values that the object store keeps, for
// callers that read them.
func (v *View) Whole(ctx context.Context) (*wire.State, error) {
	return v.runs.Whole(ctx, v.State())
}

// Whole is [View.Whole] for any state.
func (r *Runs) Whole(ctx context.Context, s *wire.State) (*wire.State, error) {
	return run.Inline(s, func(sha256 string) ([]byte, error) {
		b, err := r.log.Blob(ctx, sha256)
		if errors.Is(err, eventlog.ErrBlobMissing) {
			return nil, fs.ErrNotExist
		}
		return b, err
	})
}

// ErrMissing is the fault of an input that was stored and is gone.
var ErrMissing = errors.New("its content is missing in the object store")

// Input returns the input of a node's execution with what the object store
// keeps of it.
func (v *View) Input(ctx context.Context, node string) (wire.Raw, error) {
	one := run.New(v.State().RunID)
	one.Nodes[node] = v.State().Nodes[node]
	whole, err := v.runs.Whole(ctx, one)
	if err != nil {
		return nil, err
	}
	input := whole.Nodes[node].Input
	if run.Ref(input) != "" {
		return nil, ErrMissing
	}
	return input, nil
}

// CatchUp folds what the log has up to pos. Other than for Wait, what stands there
// may be nothing that can be folded, or that ever comes.
func (v *View) CatchUp(ctx context.Context, pos uint64) error {
	if max(v.seen, v.State().Position.Seq) >= pos {
		return nil
	}
	if err := snapshot.Fold(ctx, v.runs.log, v.State(), pos); err != nil {
		return err
	}
	v.seen = max(v.seen, pos)
	return nil
}

// Wait folds until the event at pos has been folded.
func (v *View) Wait(ctx context.Context, pos uint64) error {
	defer v.sub.dropMore()
	for max(v.seen, v.State().Position.Seq) < pos {
		select {
		case <-v.More():
			if err := v.Follow(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Inline returns a value of a run that may be in the object store; a reference stays one if
// its content is gone.
func (r *Runs) Inline(ctx context.Context, id string, v wire.Raw) (wire.Raw, error) {
	if run.Ref(v) == "" {
		return v, nil
	}
	const node = "value"
	one := run.New(id)
	one.Nodes[node] = wire.NodeState{Input: v}
	whole, err := r.Whole(ctx, one)
	if err != nil {
		return nil, err
	}
	return whole.Nodes[node].Input, nil
}

// Decision returns the last permission:decided of a node's call; nil if there is none.
func (r *Runs) Decision(ctx context.Context, run, node, call string) (decided *wire.Event, err error) {
	for e, err := range r.log.Read(ctx, eventlog.Query{Run: run, Node: node, Kinds: []wire.Kind{wire.KindTool}}) {
		if err != nil {
			return nil, err
		}
		if e.Event != nil && e.Event.CallID == call && e.Event.Type() == wire.TypePermissionDecided {
			decided = e.Event
		}
	}
	return decided, nil
}

// State folds a run. "" is a run with an id that can't be known.
func (r *Runs) State(ctx context.Context, run string) (*wire.State, error) {
	if run == "" {
		return &wire.State{Status: wire.RunIdle}, nil
	}
	v, err := r.Open(ctx, run)
	if err != nil {
		return nil, err
	}
	v.Close()
	return v.state, nil
}

// Uncancelled folds a run as if its owner hadn't cancelled a node at a position: with what the node itself has recorded since.
func (r *Runs) Uncancelled(ctx context.Context, runID, node string, at uint64) (*wire.State, error) {
	s, err := history.StateAt(ctx, r.log, runID, at-1)
	if err != nil {
		return nil, err
	}
	for e, err := range r.log.Read(ctx, eventlog.Query{Run: runID, Node: node, Kinds: snapshot.Kinds, From: at}) {
		if err == nil {
			err = snapshot.Apply(ctx, r.log, s, e)
		}
		if err != nil && !snapshot.Refused(err) {
			return nil, err
		}
	}
	return s, nil
}

// Over reports whether a run needs no owner any more.
func Over(s *wire.State) bool { return s.Status.Ended() || s.Imported != "" }

// Interrupts returns why agents at work are to be interrupted, "" if they may go
// on: the run isn't paused, or for something that they needn't wait for.
func Interrupts(s *wire.State) string {
	if s.Status != wire.RunPaused {
		return ""
	}
	switch s.Reason {
	case wire.PauseRequiresAction, wire.PauseWorkspaceLost:
		return ""
	case "":
		return wire.PauseOperator
	}
	return s.Reason
}
