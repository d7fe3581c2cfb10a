package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"wake/internal/eventlog"
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

// follow folds what has come. It fails only if ctx ends.
func (v *view) follow(ctx context.Context) error {
	for _, e := range v.sub.take() {
		if err := v.fold(ctx, e); err != nil {
			return err
		}
		v.seen = max(v.seen, e.Pos)
	}
	return nil
}

// fold folds an event, however long the object store is away. An event that no
// fold takes is no reason to stop: the snapshotter moves it to the dead letters.
func (v *view) fold(ctx context.Context, e eventlog.Entry) error {
	for ctx.Err() == nil {
		err := snapshot.Apply(ctx, v.runner.log, v.state, e)
		if err == nil {
			return nil
		}
		v.runner.logger.Warn("event not folded", "subject", e.Subject, "position", e.Pos, "error", err)
		if snapshot.Refused(err) {
			return nil
		}
		sleep(ctx, time.Second)
	}
	return ctx.Err()
}

// whole returns the state with the values that the object store keeps, for
// those who look into them.
func (v *view) whole(ctx context.Context) (*wire.State, error) {
	return v.runner.whole(ctx, v.state)
}

func (r *Runner) whole(ctx context.Context, s *wire.State) (*wire.State, error) {
	return run.Inline(s, func(sha256 string) ([]byte, error) {
		b, err := r.log.Blob(ctx, sha256)
		if errors.Is(err, eventlog.ErrBlobMissing) {
			return nil, fs.ErrNotExist
		}
		return b, err
	})
}

// errMissing is the fault of an input that was stored and is gone.
var errMissing = errors.New("its content is missing in the object store")

// input returns the input of a node's execution with what the object store
// keeps of it.
func (v *view) input(ctx context.Context, node string) (wire.Raw, error) {
	one := run.New(v.state.RunID)
	one.Nodes[node] = v.state.Nodes[node]
	whole, err := v.runner.whole(ctx, one)
	if err != nil {
		return nil, err
	}
	input := whole.Nodes[node].Input
	if run.Ref(input) != "" {
		return nil, errMissing
	}
	return input, nil
}

// catchUp folds what the log has up to pos. Other than for wait, what stands there
// may be nothing that can be folded, or that ever comes.
func (v *view) catchUp(ctx context.Context, pos uint64) error {
	if max(v.seen, v.state.Position.Seq) >= pos {
		return nil
	}
	if err := snapshot.Fold(ctx, v.runner.log, v.state, pos); err != nil {
		return err
	}
	v.seen = max(v.seen, pos)
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
