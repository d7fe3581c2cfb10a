package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/client"
	"code.wake.dev/wake/pkg/subjects"
)

type forkOptions struct {
	at, id, message string
	sets            []string
	follow          bool
	bare            bool
}

func (a runVerbs) forkCommand() *cobra.Command {
	var o forkOptions
	cmd := &cobra.Command{
		Use:   "fork RUN",
		Short: "Make a new run that begins where another one was",
		Long: `Make a new run that begins with the state that another one had at a point, and
goes its own way from there; agents that were at work continue copies of their
sessions, and the folder is as of the last snapshot at or before the point. (In a
flow with workspace: node each execution has a folder of its own: in the new run
it is empty, or a clone anew, and the agents are told.) The other run isn't touched.
Prints the id of the new run.

    wake fork @last                                where it is now
    wake fork @last --at sfp-7 -m "try it in Go"   behind the seventh message or tool result
    wake fork @last --at reviewed --set model=opus
    wake fork @last --at deploy#1:start            where the node deploy began for the first time
    wake fork @last --at plan#1:end                behind the node plan; with -m its agent goes on with that`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.forkRun(cmd.Context(), args[0], o)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&o.at, "at", "", "the `point`: a label, sfp-N, NODE#N:start, NODE#N:end or a position of the log (default: the present; of a run that has ended, its last sfp-N)")
	flags.StringVarP(&o.message, "message", "m", "", "the `text` that the agents that were at work are told (default: continue; native agents go on without a word)")
	flags.StringArrayVar(&o.sets, "set", nil, "change a setting of the agents, `key=value`: model, permissionMode, maxTurns, maxBudgetUsd, workspace …, or NODE.model for one")
	flags.StringVar(&o.id, "id", "", "`id` of the new run (default: a new ULID)")
	flags.BoolVar(&o.bare, "without-workspace", false, "begin with an empty folder")
	flags.BoolVar(&o.follow, "follow", false, "follow the new run until it is complete")
	completeFlag(cmd, "at", a.completeBookmark)
	return cmd
}

func (a runVerbs) forkRun(ctx context.Context, ref string, o forkOptions) error {
	if o.id != "" {
		if err := subjects.CheckNewRun(o.id); err != nil {
			return usageError("", "--id: %w", err)
		}
	}
	s, err := a.openSession(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if o.id != "" {
		if err := a.checkUnused(ctx, s.conn, o.id); err != nil {
			return err
		}
	}
	r := client.ForkRequest{At: o.at, NewID: o.id, Message: o.message, By: senderName(), WithoutWorkspace: o.bare}
	if r.RunID, err = s.Find(ctx, ref); err != nil {
		return err
	}
	if r.Overrides, err = s.overridesOf(ctx, r.RunID, o.sets); err != nil {
		return err
	}
	fork, err := s.Fork(ctx, r)
	if err != nil {
		return err
	}
	if o.follow {
		return a.followFork(ctx, s, fork.RunID)
	}
	if a.json {
		return a.printJSON(fork)
	}
	from := cmp.Or(fork.Label, fmt.Sprintf("position %d", fork.Position))
	a.printNote("forked from %s at %s: what came after it there is done again here\n", timeline.Line(fork.Parent, 120), timeline.Line(from, 120))
	if !fork.Recorded {
		a.printNote("queued: no runner has begun it yet; `wake doctor` says whether there is one\n")
	}
	_, err = fmt.Fprintln(a.out, fork.RunID)
	return err
}

// followFork shows a new run until it ends.
func (a runVerbs) followFork(ctx context.Context, s *verbSession, id string) error {
	log, err := a.readerOn(ctx, s.conn)
	if err != nil {
		return err
	}
	if !a.json {
		a.printNote("run %s\n", id)
	}
	last, err := a.watchRun(ctx, log, id, 0)
	if err != nil {
		return err
	}
	if a.json {
		if err := a.printResult(id, last); err != nil {
			return err
		}
	}
	return outcomeError(id, last)
}
