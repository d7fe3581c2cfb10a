package owner

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/command"
)

// Owners has an owner for each run that its runner owns.
type Owners struct {
	cfg  Config
	live sync.WaitGroup // owners of runs
}

// New returns the owners of a runner: none yet.
func New(cfg Config) *Owners {
	cfg.alone = make(chan struct{}, 1)
	return &Owners{cfg: cfg}
}

// Request is what the owner of a run is asked for. That of a run that has begun needs no
// more than its id.
type Request struct {
	wire.RunRequest

	Definition *flow.Definition // nil: the request has none
	Queued     bool             // by a message of the queue; else the run was found without an owner
	First      bool             // the queue gives that message out for the first time
	OnBegin    func()           // called when the log says that the run has begun, once
}

// Own owns a run until it has ended, ctx ends, or another owner has it. It returns before, as soon as the owner waits for
// something to happen: see [Owners.Wait]. It fails, if the run hasn't begun, with [lease.ErrHeld], [ErrNothing], [capacity.ErrFull],
// [capacity.ErrBehind], a [NoFolderError], or an error that [command.Rejected] knows.
func (o *Owners) Own(ctx context.Context, r *Request) error {
	if r.OnBegin == nil {
		r.OnBegin = func() {}
	}
	one := &owner{cfg: &o.cfg, runID: r.RunID, request: &r.RunRequest, def: r.Definition, queued: r.Queued, first: r.First, onBegin: r.OnBegin}
	if !o.cfg.Owned.Enter(r.RunID) {
		return one.judgeHeld(ctx)
	}
	return one.ownRun(ctx, &o.live)
}

// Wait waits until no run has an owner here. Own must have returned.
func (o *Owners) Wait() { o.live.Wait() }

// ForkEnded obeys the command to fork a run that has ended, and adds to its record.
func (o *Owners) ForkEnded(ctx context.Context, s *wire.State, cmd wire.Command, record *wire.CommandReceived) error {
	return o.cfg.newForks().askEnded(ctx, s, cmd, record)
}

// IsDecision reports whether a command may decide about a call.
func IsDecision(cmd wire.Command) bool {
	return cmd.Type == "approve" || cmd.Type == "deny" || cmd.Type == "reply"
}

// DecideImported judges a decision about a call of an imported run, and returns the call. Its record names what it decides:
// the asking hook obeys it.
func (o *Owners) DecideImported(ctx context.Context, s *wire.State, cmd wire.Command, record *wire.CommandReceived) (call string, err error) {
	j := judge{runs: o.cfg.Runs, state: s, cmd: cmd, id: record.CommandID, fields: map[string]any{"runId": s.RunID}}
	call = cmp.Or(cmd.CallID, cmd.PromptID)
	waits := slices.ContainsFunc(ask.Open(s), func(a wire.Approval) bool { return a.NodeID == wire.HooksNode && a.CallID == call })
	if !waits {
		decided, err := o.cfg.Runs.Decision(ctx, s.RunID, wire.HooksNode, call)
		if err != nil || decided == nil {
			return "", cmp.Or(err, RejectEnded(s, cmd))
		}
		return "", command.RejectAnswered(call, decided.Payload.(*wire.PermissionDecided).By, time.UnixMilli(decided.Timestamp)) // it is one
	}
	if j.cmd.NodeID = wire.HooksNode; cmd.Type == "reply" {
		err = j.judgeReply(ctx)
	} else {
		err = j.judgeDecision(ctx)
	}
	if err != nil {
		return "", err
	}
	record.Command, err = j.recordedCommand(record.Command)
	return j.cmd.CallID, err
}
