package owner

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/command"
	"code.wake.dev/wake/services/runner/internal/view"
)

// A run that has ended has no owner. What is said to it gives it one again, which claims it, answers, and
// leaves, or goes on with it. It is registered before it is claimed, so a runner that finds a run that has ended
// and is registered looks whether a command waits, as this owner may have died before it answered.

// isAsked reports whether a command waits for an answer of a run that has ended.
func (o *owner) isAsked(ctx context.Context) (bool, error) {
	s := o.view.State
	if !view.Ended(s.Status) || s.Imported != "" {
		return false, nil
	}
	waiting, err := o.cfg.Commands.Read(ctx, o.runID, s.CommandPos)
	if err != nil || len(waiting) == 0 {
		return false, err
	}
	recorded, err := o.cfg.Commands.RecordsOfNone(ctx) // which former versions kept there
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(waiting, func(e eventlog.Entry) bool { return !recorded[e.Pos] }), nil
}

// answerEnded obeys the commands that wait for a run that has ended. It reports whether the run is
// over all the same. What its former owner may not have come to end is ended first: it isn't on
// record any more once the run goes on.
func (o *owner) answerEnded(ctx context.Context) (over bool, err error) {
	if o.def, err = o.cfg.Runs.Definition(o.view.State.Definition); err != nil {
		return false, fmt.Errorf("definition of run %s: %w", o.runID, err)
	}
	kids := newChildren(o)
	defer kids.close()
	if err := kids.abortLeft(ctx); err != nil {
		return false, err
	}
	waiting, err := o.waitingCommands(ctx)
	if err != nil {
		return false, err
	}
	if err := o.obeyAll(ctx, waiting); err != nil {
		return false, err
	}
	if err := o.view.Wait(ctx, o.written); err != nil {
		return false, err
	}
	if view.Ended(o.view.State.Status) {
		return true, o.finishRun(ctx)
	}
	o.cfg.Logger.Info("run goes on that had failed", "run", o.runID)
	return false, nil
}

// rerunAll stands for all nodes that failed.
const rerunAll = "*"

// judgeRerun lets a run that has failed go on: what failed, and what was withdrawn beside it, is executed again.
// Naming nodes says what the sender takes to have failed.
func (j *judge) judgeRerun() ([]*wire.Event, error) {
	s, cmd := j.state, j.cmd
	def, err := flow.FromRaw(s.Definition)
	if err != nil {
		return nil, command.Reject(wire.CodeNotResumable, "run %s has no flow that could go on: %v", s.RunID, err)
	}
	again := flow.Unfinished(def, s)
	switch {
	case len(again) == 0:
		return nil, command.Reject(wire.CodeNotResumable, "run %s has failed, but none of its nodes has: %s", s.RunID, s.Error)
	case len(cmd.Fail) > 0, cmd.AutoRun != nil && !*cmd.AutoRun:
		return nil, command.Reject(wire.CodeBadRequest, "run %s has failed: it is given up already, and there is nothing to hold", s.RunID)
	case cmd.Strategy != "" && cmd.Strategy != command.StrategyCrash && cmd.Strategy != command.StrategyManual:
		return nil, command.Reject(wire.CodeBadRequest, "strategy is %q, not crash or manual", cmd.Strategy)
	}
	for _, node := range cmd.Rerun {
		if node != rerunAll && !slices.Contains(again, node) {
			return nil, command.Reject(wire.CodeCommandRejected, "node %s did not end run %s: %s did", node, s.RunID, strings.Join(again, ","))
		}
	}
	if err := checkOverrides(cmd.Overrides, s); err != nil {
		return nil, err
	}
	if err := checkLimits(cmd.Limits, s); err != nil {
		return nil, err
	}
	return []*wire.Event{{Payload: &wire.FlowResumed{
		Message: cmd.Message, Strategy: command.StrategyCrash, Rerun: again, Overrides: cmd.Overrides, Limits: cmd.Limits,
	}}}, nil
}
