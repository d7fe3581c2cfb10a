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

// Take takes an offer, if its node is still wanted, and has its work begin, in a seat. The worker that it returns is to be had
// work; nil: nothing is left to be done. It calls onSettle when the offer has served its purpose; first says that no worker of
// this process has taken the execution before. It fails with [lease.ErrHeld] if another worker has the node.
func (ws *Workers) Take(ctx context.Context, offer *wire.NodeOffer, seat *Seat, onSettle func(first bool)) (*Worker, error) {
	w := &Worker{cfg: &ws.cfg, folders: &ws.folders, offer: offer, seat: seat, onSettle: onSettle}
	err := w.begin(ctx)
	w.onSettle = nil
	if w.exec != nil {
		return w, nil
	}
	w.close()
	return nil, err
}
