package owner

import (
	"context"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

// Owners has an owner for each run that its runner owns.
type Owners struct{ cfg Config }

// New returns the owners of a runner: none yet.
func New(cfg Config) *Owners {
	cfg.alone = make(chan struct{}, 1)
	return &Owners{cfg}
}

// Request is what the owner of a run is asked for. That of a run that has begun needs no
// more than its id.
type Request struct {
	wire.RunRequest

	Definition *flow.Definition // nil: the request has none
	Queued     bool             // by a message of the queue; else the run was found without an owner
	OnBegin    func()           // called when the log says that the run has begun, once
}

// Own owns a run until it has ended, ctx ends, or somebody else owns it. It fails, if the
// run hasn't begun, with [lease.ErrHeld], [ErrNothing], [capacity.ErrFull],
// [capacity.ErrBehind], a [NoFolderError], or an error that [command.Rejected] knows.
func (o *Owners) Own(ctx context.Context, r Request) error {
	if r.OnBegin == nil {
		r.OnBegin = func() {}
	}
	one := &owner{cfg: &o.cfg, runID: r.RunID, request: r.RunRequest, def: r.Definition, queued: r.Queued, onBegin: r.OnBegin}
	return one.ownRun(ctx)
}

// ForkEnded obeys the command to fork a run that has ended, and adds to its record.
func (o *Owners) ForkEnded(ctx context.Context, s *wire.State, cmd wire.Command, record *wire.CommandReceived) error {
	return o.cfg.newForks().askEnded(ctx, s, cmd, record)
}
