package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/pkg/wire"
)

// resumeOptions are the settings of a resumption.
type resumeOptions struct {
	command wire.Command
	autoRun bool
	sets    []string
	budget  budgetOptions
}

func (o *resumeOptions) addFlags(cmd *cobra.Command) {
	flags, c := cmd.Flags(), &o.command
	flags.StringVarP(&c.Message, "message", "m", "", "the `text` that the agents that were at work are told (default: continue; native agents go on without a word)")
	flags.StringVar(&c.Strategy, "strategy", "crash", "`crash` closes tool calls that were interrupted and tells the agents so, manual leaves them as they are")
	flags.BoolVar(&o.autoRun, "auto-run", true, "go on; without, only calls that were interrupted are closed")
	flags.StringArrayVar(&o.sets, "set", nil, "change a setting of the agents, `key=value`: model, permissionMode, maxTurns, maxBudgetUsd, workspace …, or NODE.model for one")
	flags.StringSliceVar(&c.Rerun, "rerun", nil, "execute this `node` again, which failed or was interrupted; without one, all that did")
	flags.StringSliceVar(&c.Fail, "fail", nil, "give this interrupted `node` up")
	o.budget.addFlags(cmd)
}

// checkFlags checks what needs no run to be checked, and takes the budget over.
func (o *resumeOptions) checkFlags(flags *pflag.FlagSet) (err error) {
	if o.command.Limits, err = o.budget.limits(flags); err != nil {
		return err
	}
	if s := o.command.Strategy; s != "crash" && s != "manual" {
		return usageError("crash and manual are known", "--strategy: %q is unknown", s)
	}
	for _, again := range o.command.Rerun {
		for _, given := range o.command.Fail {
			if again == given {
				return usageError("give one of them", "--rerun %s and --fail %s contradict each other", again, given)
			}
		}
	}
	return nil
}

func (a orderVerbs) resumeCommand() *cobra.Command {
	var o resumeOptions
	cmd := &cobra.Command{
		Use:   "resume RUN",
		Short: "Wake a run that is paused, was interrupted or has failed",
		Long: `Wake a run that is paused or was interrupted: agents continue their sessions, nothing
that completed is done again. A run whose runner died needs no resume: another
runner, or the next one to start, goes on with it. A run that has failed goes on
with --rerun: what failed, and what was withdrawn beside it, is executed again.

    wake resume @last -m "the API is back"     tell the agents why
    wake resume @last --rerun                  once more from what failed
    wake resume @last --rerun deploy           decide about a command whose outcome is unknown
    wake resume @last --set model=opus         with other settings from here on
    wake resume @last --budget-usd 10          which may now cost $10 in all

A run that has spent its budget may spend as much again if no other one is given.`,
		Args: func(cmd *cobra.Command, args []string) error {
			return checkArguments(cmd, o.takeRun(args))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.checkFlags(cmd.Flags()); err != nil {
				return err
			}
			args = o.takeRun(args)
			return a.resumeRun(cmd.Context(), o, func(s *verbSession) (string, error) {
				return s.Find(cmd.Context(), args[0])
			})
		},
	}
	cmd.Flags().SortFlags = false
	o.addFlags(cmd)
	completeFlag(cmd, "rerun", a.completeNode)
	completeFlag(cmd, "fail", a.completeNode)
	completeFlag(cmd, "strategy", cobra.FixedCompletions([]string{"crash", "manual"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// rerunAll is what --rerun alone means: all nodes that failed.
const rerunAll = "*"

// completeRerun gives a --rerun without a node what it stands for.
func completeRerun(args []string) []string {
	args = slices.Clone(args)
	for i, arg := range args {
		if arg == "--" {
			break
		}
		if last := i+1 == len(args); arg == "--rerun" && (last || strings.HasPrefix(args[i+1], "-")) {
			args[i] = "--rerun=" + rerunAll
		}
	}
	return args
}

// takeRun returns the arguments of the verb. Of `wake resume --rerun RUN`, the flag has taken the run.
func (o *resumeOptions) takeRun(args []string) []string {
	if c := &o.command; len(args) == 0 && len(c.Rerun) == 1 && c.Rerun[0] != rerunAll {
		args, c.RunID, c.Rerun = c.Rerun, c.Rerun[0], []string{rerunAll}
	} else if len(args) == 0 && c.RunID != "" {
		args = []string{c.RunID}
	}
	return args
}

// resumeRun resumes the run that find finds.
func (a orderVerbs) resumeRun(ctx context.Context, o resumeOptions, find func(*verbSession) (string, error)) error {
	s, err := a.openSession(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	c := o.command
	c.Type = "resume"
	if c.RunID, err = find(s); err != nil {
		return err
	}
	if c.Overrides, err = s.overridesOf(ctx, c.RunID, o.sets); err != nil {
		return err
	}
	done := "resumed"
	if !o.autoRun {
		c.AutoRun = new(false)
		if done = "closed open calls of"; c.Strategy == "manual" {
			done = "left calls open of"
		}
	}
	err = s.sendOrder(ctx, c, done)
	if e, ok := errors.AsType[*wire.APIError](err); ok && e.Code == wire.CodeLeaseHeld {
		hint := "wake tail " + c.RunID + " follows it, wake send " + c.RunID + " MSG talks to its agents"
		return serviceError(string(e.Code), hint, "%s already", e.Message)
	}
	return err
}
