package main

import (
	"context"

	"github.com/spf13/cobra"

	"wake/pkg/wire"
)

func (a *app) replyCommand() *cobra.Command {
	var prompt string
	cmd := &cobra.Command{
		Use:   "reply RUN ANSWER",
		Short: "Answer a question that a run asks",
		Long: `Answer a question that an ask node of a run asks. ANSWER is JSON, or else taken
as a text. Without --prompt it answers the one question that is open.

` + runHelp,
		Args:              arguments,
		ValidArgsFunction: a.completeRun,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.reply(cmd.Context(), args[0], args[1], prompt)
		},
	}
	cmd.Flags().StringVar(&prompt, "prompt", "", "`id` of the question, as status and the log tell it (default: the one that is open)")
	return cmd
}

func (a *app) reply(ctx context.Context, ref, answer, prompt string) error {
	s, err := a.openSession(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	runID, err := s.Find(ctx, ref)
	if err != nil {
		return err
	}
	state, err := s.State(ctx, runID)
	if err != nil {
		return err
	}
	if prompt, err = openPrompt(state, prompt); err != nil {
		return err
	}
	content, err := wire.RawFromJSON([]byte(answer))
	if err != nil {
		content = wire.RawString(answer)
	}
	c := wire.Command{Type: "reply", RunID: runID, PromptID: prompt, Content: content}
	return s.order(ctx, c, "answered "+prompt+" of")
}

// openPrompt returns the question to answer: the named one, or the only one.
func openPrompt(s *wire.State, named string) (string, error) {
	var open []string
	for _, n := range s.Nodes {
		if n.PromptID == "" {
			continue
		}
		if n.PromptID == named {
			return named, nil
		}
		open = append(open, n.PromptID)
	}
	switch {
	case named != "":
		return "", usage("wake log "+s.RunID, "run %s asks no question %q", s.RunID, named)
	case len(open) == 0:
		return "", usage("wake status "+s.RunID, "run %s asks nothing", s.RunID)
	case len(open) > 1:
		return "", usage("name one with --prompt", "run %s asks %d questions: %v", s.RunID, len(open), open)
	}
	return open[0], nil
}
