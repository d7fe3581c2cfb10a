package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/pkg/wire"
)

func (a viewVerbs) stateCommand() *cobra.Command {
	var at string
	cmd := &cobra.Command{
		Use:   "state RUN",
		Short: "Print the state of a run, now or at an earlier point",
		Long: `Print the state of a run, now or at an earlier point: what its events up to there
add up to, read from the log. With --json it is whole.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.showState(cmd.Context(), args[0], at)
		},
	}
	cmd.Flags().StringVar(&at, "at", "", "the `point`: a label, sfp-N or a position of the log (default: the present)")
	completeFlag(cmd, "at", a.completeBookmark)
	return cmd
}

func (a viewVerbs) showState(ctx context.Context, ref, at string) error {
	s, run, err := a.openRun(ctx, ref)
	if err != nil {
		return err
	}
	defer s.close()
	state, err := s.stateAt(ctx, run, at)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(state)
	}
	return printState(a.out, state, "")
}

// stateAt is the state of a run at a point, or now. A point of an ancestor has
// the ancestor's state.
func (s *verbSession) stateAt(ctx context.Context, run, at string) (*wire.State, error) {
	if at == "" {
		return s.State(ctx, run)
	}
	pos, err := strconv.ParseUint(at, 10, 64)
	if err != nil {
		_, state, err := s.Resolve(ctx, run, at)
		return state, err
	}
	state, err := s.StateAt(ctx, run, max(pos, 1)) // 0 would be the present
	if wire.HasCode(err, wire.CodeRunNotFound) {
		return nil, serviceError(string(wire.CodeNotFound), "wake bookmarks "+ask.ShellWord(run), "run %s had not begun at position %d", run, pos)
	}
	return state, err
}
