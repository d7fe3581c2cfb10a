package runner

import (
	"context"
	"errors"
	"fmt"

	"wake/internal/run"
	"wake/internal/snapshot"
	"wake/pkg/wire"
)

// view is the state of a run as far as this process has folded it.
type view struct {
	runner *Runner
	state  *wire.State
	sub    *subscription
	seen   uint64 // position of the last event that came, folded or refused
}

// open subscribes to a run and folds it: its snapshot, if there is one, and the
// tail of the log. Everything up to the call is folded.
func (r *Runner) open(ctx context.Context, runID string) (*view, error) {
	v := &view{runner: r, sub: r.events.subscribe(runID)}
	state, found, err := snapshot.Load(ctx, r.log, runID)
	if err != nil && !errors.Is(err, snapshot.ErrUnusable) {
		v.close()
		return nil, err
	}
	if err != nil || !found {
		state = run.New(runID)
	}
	v.state = state
	if err := snapshot.Fold(ctx, r.log, state, 0); err != nil {
		v.close()
		return nil, fmt.Errorf("fold run %s: %w", runID, err)
	}
	return v, nil
}

func (v *view) close() { v.sub.close() }

// more is ready when there are events to fold.
func (v *view) more() <-chan struct{} { return v.sub.more }

// follow folds what has come. An event that no fold takes is no reason to stop:
// the snapshotter moves it to the dead letters.
func (v *view) follow(ctx context.Context) error {
	for _, e := range v.sub.take() {
		v.seen = max(v.seen, e.Pos)
		err := snapshot.Apply(ctx, v.runner.log, v.state, e)
		if err != nil && !snapshot.Refused(err) {
			return fmt.Errorf("fold %s at %d: %w", e.Subject, e.Pos, err)
		}
		if err != nil {
			v.runner.logger.Warn("event not folded", "subject", e.Subject, "position", e.Pos, "error", err)
		}
	}
	return nil
}

// wait folds until the event at pos has been folded.
func (v *view) wait(ctx context.Context, pos uint64) error {
	for max(v.seen, v.state.Position.Seq) < pos {
		select {
		case <-v.more():
			if err := v.follow(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
