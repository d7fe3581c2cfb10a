package work

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/shell"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// commandInput is the input of an exec node.
type commandInput struct {
	Command wire.Raw          `json:"command"`
	Cwd     string            `json:"cwd"`
	Env     map[string]string `json:"env"`
}

// holdCommand finds the keeper of the node's command. If the node hasn't begun it opens one, before the log says that it does: by a
// keeper without a program the worker that comes after a runner that was killed knows that the command never began.
func (x *execution) holdCommand(ctx context.Context) (err error) {
	x.hold, err = graspKeeper(x.outer, x) //nolint:contextcheck // the end of a command that is withdrawn by now is told
	switch {
	case err != nil || x.hold.hasProgram(commandProgram):
		return err
	case x.hold.keeper != nil:
		x.unbegun = true
		return nil
	case x.entry.Started != 0:
		return nil
	}
	x.unbegun = true
	if err = x.hold.replaceKeeper(ctx); process.IsFull(err) {
		return nil // the command waits for room, when the log says that its node has begun
	}
	return err
}

// runCommand runs the command of the node and returns the events that end the
// execution.
func (x *execution) runCommand(ctx context.Context) ([]*wire.Event, error) {
	c, err := x.parseCommand(x.entry.Input)
	if err != nil {
		return nil, &failure{message: err.Error(), kind: wire.ErrorStartFailed}
	}
	var outcome shell.Outcome
	switch {
	case x.hold.hasProgram(commandProgram):
		if c.Begin, err = x.recallCommand(x.outer, &outcome); err != nil { //nolint:contextcheck // as above
			if x.leaveForced(ctx) {
				err = errLeft
			}
			return nil, err
		}
	case x.isHalted() && !x.isHoldOnly():
		return nil, x.endHalted()
	case x.hold.keeper != nil: // which hasn't begun it
	case x.entry.Started != 0 && !x.node.Idempotent && !x.unbegun:
		return nil, interruptedError()
	default:
		if err := x.hold.renewKeeper(ctx); err != nil {
			return nil, err
		}
	}
	last, err := x.driveCommand(ctx, c, &outcome)
	for lost := 1; errors.Is(err, agent.ErrLost) && !x.hold.isLeft() && x.node.Idempotent && lost < maxLost; lost++ {
		if err := x.hold.renewKeeper(ctx); err != nil {
			return nil, err
		}
		c.Begin = time.Time{}
		last, err = x.driveCommand(ctx, c, &outcome)
	}
	switch {
	case errors.Is(err, agent.ErrLost) && x.hold.isLeft():
		return nil, errLeft
	case errors.Is(err, agent.ErrLost):
		return nil, interruptedError()
	case err != nil:
		return last, err
	}
	return x.commandEnd(ctx, &outcome, last)
}

// commandEnd returns the events that end the execution of a command.
func (x *execution) commandEnd(ctx context.Context, outcome *shell.Outcome, last []*wire.Event) ([]*wire.Event, error) {
	output, err := outcome.Output()
	if err != nil {
		return last, err
	}
	problem, late := outcome.Problem(), errors.Is(context.Cause(ctx), errTimeLimit)
	if problem == "" && !late { // one that was ended for its time may say that all is well
		return append(last, x.completeEvent(output)), nil
	}
	x.output = output
	select {
	case <-ctx.Done(): // it was ended, whatever it says: what it has done isn't known
		return last, nil
	default:
		return append(last, x.errorEvent(&failure{message: problem, kind: "exit"})), nil
	}
}

// driveCommand runs the command, or goes on with it, and records what it says. It returns the event of its end.
func (x *execution) driveCommand(ctx context.Context, c shell.Command, outcome *shell.Outcome) (last []*wire.Event, err error) {
	live, end := context.WithCancelCause(context.WithoutCancel(ctx))
	c.Host, c.Name, c.Stored = x.hold.host, commandProgram, x.log.isStored
	c.Cut = func(stream string) { x.log.storeHeld(ctx, stream) }
	if errors.Is(context.Cause(ctx), errWithdrawn) { // by now: an end that wasn't seen is its end all the same
		end(errWithdrawn)
	}
	var leaving sync.WaitGroup
	leaving.Go(func() { x.leaveCommand(ctx, live, end) })
	defer leaving.Wait()
	defer end(nil)
	unbegun := x.unbegun
	x.unbegun = false // unless its host says so
	for e, err := range c.Run(live) {
		switch {
		case errors.Is(err, agent.ErrLost):
			return nil, err
		case errors.Is(err, errHalted): // while the command waited for room
			x.unbegun = unbegun
			return nil, errHalted
		case err != nil:
			return last, &failure{message: err.Error(), kind: wire.ErrorStartFailed}
		}
		if skipped, err := x.hold.skipRecorded(ctx, e); err != nil {
			return nil, err
		} else if skipped {
			continue
		}
		outcome.Observe(e)
		if e.Type() == wire.TypeExecExit {
			last = append(last, e)
			continue
		}
		if err := x.log.recordEvents(ctx, e); err != nil {
			return nil, err
		}
		x.span.End() // the command is at work
	}
	return last, nil
}

// commandProgram is the name of the command among the programs of an execution.
const commandProgram = "command"

// recallCommand observes what the log has of a command that is at work, and returns when it was
// begun.
func (x *execution) recallCommand(ctx context.Context, outcome *shell.Outcome) (begin time.Time, err error) {
	query := eventlog.Query{Run: x.offer.RunID, Node: x.offer.NodeID, From: x.entry.Started}
	for e, err := range x.cfg.Log.Read(ctx, query) {
		if err != nil {
			return begin, err
		}
		if e.Event == nil || e.Event.ExecID != x.offer.ExecID {
			continue
		}
		event, err := x.cfg.Log.Inline(ctx, e.Event)
		if err != nil {
			return begin, err
		}
		if event.Type() == wire.TypeExecStart {
			begin = time.UnixMilli(event.Timestamp)
		}
		outcome.Observe(event)
	}
	return begin, nil
}

// leaveCommand leaves the command to its keeper if it hasn't ended when the runner has to. A command that can't be left
// ends with ctx. It returns when live has ended.
func (x *execution) leaveCommand(ctx, live context.Context, end context.CancelCauseFunc) {
	order, drained := x.halt.orderGiven(), make(<-chan time.Time)
	for {
		select {
		case <-order:
			order = nil
			if x.halt.reason == run.CauseShutdown && x.hold.canLeave() {
				drained = time.After(x.cfg.DrainTimeout * 3 / 4)
			}
		case <-drained:
			x.hold.leaveKeeper()
			return
		case <-ctx.Done():
			if !x.leaveForced(ctx) {
				end(context.Cause(ctx))
			}
			return
		case <-live.Done():
			return
		}
	}
}

// interruptedError is the outcome of a command with an unseen end.
func interruptedError() error {
	return &failure{
		message: "the command was running when its runner ended, or at the point of the fork; what it has done isn't known",
		kind:    wire.ErrorInterrupted,
	}
}

func (x *execution) parseCommand(input wire.Raw) (shell.Command, error) {
	var in commandInput
	if err := wire.Unmarshal(input, &in); err != nil {
		return shell.Command{}, fmt.Errorf("input of the node: %w", err)
	}
	env, err := x.withSecrets(in.Env, x.node.Input.Get("env"))
	if err != nil {
		return shell.Command{}, fmt.Errorf("env: %w", err)
	}
	c := shell.Command{
		Host: process.Direct{Home: x.cfg.Home}, ExecID: x.offer.ExecID, Cwd: x.resolveDir(in.Cwd),
		Env: agent.Environment(os.Environ(), env), Limit: x.outputLimit(),
	}
	if text, ok := in.Command.Text(); ok {
		c.Command = text
		return c, nil
	}
	return c, wire.Unmarshal(in.Command, &c.Argv)
}

// outputLimit is how much is kept of the beginning of a command's output, and as much of its end, in bytes.
func (x *execution) outputLimit() int64 {
	if p := x.node.Policy; p != nil && p.OutputBytes > 0 {
		return max(p.OutputBytes/2, 1)
	}
	return flow.OutputBytes / 2
}

// resolveDir returns the folder to work in: the run's, or one below it.
func (x *execution) resolveDir(cwd string) string {
	if filepath.IsAbs(cwd) {
		return cwd
	}
	return filepath.Join(x.workdir.path, cwd)
}
