package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"wake/pkg/wire"
)

// drainService is whose keys in WAKE_STATE the lists of what was running are.
const drainService = "drain"

// drained is what a runner was doing when it was told to end.
type drained struct {
	At    int64    `json:"at"` // Unix ms
	Runs  []string `json:"runs"`
	Nodes []string `json:"nodes"` // "<run>/<execution>"
}

// isDraining reports whether the runner was told to end.
func (r *Runner) isDraining() bool {
	select {
	case <-r.draining:
		return true
	default:
		return false
	}
}

// running is what the runner is doing.
func (r *Runner) running() drained {
	return drained{At: time.Now().UnixMilli(), Runs: r.owned.list(), Nodes: r.working.list()}
}

// keepList keeps a list of what was running, for whoever wants to know what was
// interrupted.
func (r *Runner) keepList(ctx context.Context, list drained) {
	r.logger.Info("ending: what is running comes to a safe point", "runs", list.Runs, "nodes", list.Nodes, "within", r.cfg.DrainTimeout)
	if len(list.Runs)+len(list.Nodes) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
	defer cancel()
	value, err := wire.Marshal(list)
	if err == nil {
		_, err = r.active.kv.Put(ctx, r.names.StateKey(drainService, r.cfg.ID), value)
	}
	if err != nil {
		r.logger.Warn("list of what was running not kept", "error", err)
	}
}

// clearList says what was running when this runner was last told to end, and
// clears the list: from here on the log says what becomes of it.
func (r *Runner) clearList(ctx context.Context) error {
	key := r.names.StateKey(drainService, r.cfg.ID)
	e, err := r.active.kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("runner: list of what was running: %w", err)
	}
	var list drained
	if wire.Unmarshal(e.Value(), &list) == nil {
		r.logger.Info("was running when this runner last ended", "at", time.UnixMilli(list.At), "runs", list.Runs, "nodes", list.Nodes)
	}
	if err := r.active.kv.Delete(ctx, key); err != nil {
		return fmt.Errorf("runner: list of what was running: %w", err)
	}
	return nil
}

// handOver asks for another owner of a run. It is a hint: who sweeps finds the
// run too.
func (r *Runner) handOver(ctx context.Context, run string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
	defer cancel()
	request, err := wire.Marshal(wire.RunRequest{V: wire.Version, RunID: run})
	if err != nil {
		return err
	}
	if _, err := r.log.Send(ctx, r.names.QueueRun(), request); err != nil {
		r.logger.Warn("run not handed over, whoever sweeps next finds it", "run", run, "error", err)
	}
	return nil
}
