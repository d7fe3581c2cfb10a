package work

import (
	"context"
	"time"

	"code.wake.dev/wake/pkg/wire"
)

// Workers has a worker for each execution that its runner works on.
type Workers struct {
	cfg     Config
	folders folders
}

// New returns the workers of a runner: none yet.
func New(cfg Config) *Workers {
	cfg.begun, cfg.alone = time.Now(), make(chan struct{}, 1)
	return &Workers{cfg: cfg}
}

// Execute executes the node of an offer, if it is still wanted, in a seat. It calls onSettle
// when the offer has served its purpose; first says that no worker of this process has
// taken the execution before. It fails with [lease.ErrHeld] if another worker has the node.
func (ws *Workers) Execute(ctx context.Context, offer wire.NodeOffer, seat *Seat, onSettle func(first bool)) error {
	id := offer.RunID + "/" + offer.ExecID
	first := false // else another offer's worker is at work
	w := &worker{cfg: &ws.cfg, folders: &ws.folders, offer: offer, seat: seat, onSettle: func() {
		entered := ws.cfg.Working.Enter(id)
		first = first || entered
		onSettle(entered)
	}}
	defer func() {
		if first {
			ws.cfg.Working.Leave(id)
		}
	}()
	return w.run(ctx)
}
