package main

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/pkg/wire"
)

func (a orderVerbs) replyCommand() *cobra.Command {
	var prompt, node string
	cmd := &cobra.Command{
		Use:   "reply RUN ANSWER",
		Short: "Answer a question that a run asks",
		Long: `Answer a question that a run asks: an agent (AskUserQuestion, or a question or
blocker of notify_parent) or an ask node. ANSWER is JSON, or else taken as a text.
Without --prompt it answers the one question that is open; wake approvals lists them.

Where options are to be chosen from, a text that is the label or the number of one
chooses it (several with commas in between, where that is allowed), and any other text
is an answer of one's own. Several questions at once are answered by an object:

    wake reply RUN '{"Indent": "Tabs", "Checks": ["vet", "lint"]}'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.answerQuestion(cmd.Context(), args[0], args[1], prompt, node)
		},
	}
	cmd.Flags().StringVar(&prompt, "prompt", "", "`id` of the question, as wake approvals tells it (default: the one that is open)")
	cmd.Flags().StringVar(&node, "node", "", "the `node` that asks")
	_ = cmd.RegisterFlagCompletionFunc("prompt", func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.completeWaiting(cmd, args[0], openQuestions)
	})
	return cmd
}

func (a orderVerbs) answerQuestion(ctx context.Context, ref, answer, prompt, node string) error {
	s, runID, err := a.openRun(ctx, ref)
	if err != nil {
		return err
	}
	defer s.close()
	state, err := s.State(ctx, runID)
	if err != nil {
		return err
	}
	asked, err := openQuestion(state, prompt, node)
	if err != nil {
		return err
	}
	c := replyTo(asked, answer)
	c.RunID = runID
	return s.sendOrder(ctx, c, "answered "+cmp.Or(asked.CallID, asked.NodeID)+" of")
}

// replyTo is the command that answers a question; one that can't be named is answered by a message.
func replyTo(asked wire.Approval, answer string) wire.Command {
	if asked.CallID == "" {
		return wire.Command{Type: "steer", RunID: asked.RunID, NodeID: asked.NodeID, Message: answer}
	}
	content, err := wire.RawFromJSON([]byte(answer))
	if err != nil {
		content = wire.RawString(answer)
	}
	return wire.Command{Type: "reply", RunID: asked.RunID, NodeID: asked.NodeID, PromptID: asked.CallID, Content: content}
}

// openQuestions lists what waits for an answer in a run.
func openQuestions(s *wire.State) []wire.Approval { return onlyQuestions(ask.Pending(s)) }

// onlyQuestions leaves out what waits for a decision.
func onlyQuestions(open []wire.Approval) []wire.Approval {
	return slices.DeleteFunc(open, func(a wire.Approval) bool { return a.Kind == wire.ApprovalCall })
}

// openQuestion returns the question to answer: the named one, or the only one. If it has its answer the run's owner says so.
func openQuestion(s *wire.State, named, node string) (wire.Approval, error) {
	open := openQuestions(s)
	if named != "" || len(open) == 0 {
		open = onlyQuestions(ask.Open(s))
	}
	if named != "" {
		found, err := waitingUnder(open, "question", named, node)
		if err == nil && found == nil {
			err = usageError("wake approvals "+ask.ShellWord(s.RunID), "run %s asks no question %q", s.RunID, named)
		}
		if err != nil {
			return wire.Approval{}, err
		}
		return *found, nil
	}
	open = slices.DeleteFunc(open, func(a wire.Approval) bool { return node != "" && a.NodeID != node })
	switch len(open) {
	case 0:
		return wire.Approval{}, usageError("wake approvals "+ask.ShellWord(s.RunID)+" lists what it and the runs that it has begun ask", "run %s itself asks nothing", s.RunID)
	case 1:
		return open[0], nil
	}
	ids := make([]string, len(open))
	for i, a := range open {
		ids[i] = a.CallID
	}
	return wire.Approval{}, usageError("name one with --prompt; wake approvals "+s.RunID+" lists them", "run %s asks %d questions: %s", s.RunID, len(open), strings.Join(ids, ", "))
}
