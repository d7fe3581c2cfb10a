package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

func (a orderVerbs) approveCommand() *cobra.Command {
	c, choose := wire.Command{Type: "approve"}, []string(nil)
	cmd := a.decisionVerb(&c, &choose, "approved")
	cmd.Use = "approve RUN CALL"
	cmd.Short = "Allow a tool call that waits for a decision"
	cmd.Long = `Allow a tool call that waits for a decision. CALL is the id of the call, as wake
approvals tells it. A call that asks a question (AskUserQuestion) is approved by its
answer: --choose takes options by their label or number, and --note says anything else.

    wake approve RUN CALL --choose Tabs
    wake approve RUN CALL --choose Indent=Tabs --choose Checks=vet,lint`
	cmd.Flags().StringArrayVar(&choose, "choose", nil, "of a question, choose this `option`; QUESTION=OPTION where there are several; may be repeated")
	return cmd
}

func (a orderVerbs) denyCommand() *cobra.Command {
	c := wire.Command{Type: "deny"}
	cmd := a.decisionVerb(&c, nil, "denied")
	cmd.Use = "deny RUN CALL"
	cmd.Short = "Refuse a tool call that waits for a decision"
	cmd.Long = `Refuse a tool call that waits for a decision, also one that asks a question: the
agent is told so, and goes on without it. CALL is the id of the call, as wake approvals
tells it.`
	return cmd
}

// decisionVerb is a verb that decides about a call.
func (a orderVerbs) decisionVerb(c *wire.Command, choose *[]string, done string) *cobra.Command {
	cmd := &cobra.Command{
		ValidArgsFunction: a.completeCall,
		RunE: func(cmd *cobra.Command, args []string) error {
			var options []string
			if choose != nil {
				options = *choose
			}
			return a.decideCall(cmd.Context(), args[0], args[1], *c, options, done)
		},
	}
	cmd.Flags().StringVar(&c.NodeID, "node", "", "the `node` whose call it is, where calls of several have the same id")
	cmd.Flags().StringVar(&c.Note, "note", "", "`why`, for the agent and the log; of a question, the answer")
	return cmd
}

func (a orderVerbs) decideCall(ctx context.Context, ref, call string, c wire.Command, options []string, done string) error {
	s, run, err := a.openRun(ctx, ref)
	if err != nil {
		return err
	}
	defer s.close()
	state, err := s.State(ctx, run)
	if err != nil {
		return err
	}
	c.RunID, c.CallID = run, call
	waits, err := waitingUnder(waitingCalls(state), "call", call, c.NodeID)
	if err != nil {
		return err
	}
	if len(options) > 0 {
		if waits == nil || waits.Kind != wire.ApprovalQuestion {
			return usageError("wake approvals "+c.RunID, "--choose: call %s asks nothing", c.CallID)
		}
		if c.Note != "" {
			return usageError("to say more than an option does, say it all with --note", "--choose and --note are both the answer: give one of them")
		}
		if c.Content, err = ask.Chosen(waits.Questions, options); err != nil {
			return usageError("wake approvals "+c.RunID+" --json tells the questions", "--choose: %w", err)
		}
	}
	return s.sendOrder(ctx, c, done+" "+c.CallID+" of")
}

// waitingCalls lists the calls of a run that wait, the longest first.
func waitingCalls(s *wire.State) []wire.Approval {
	return slices.DeleteFunc(ask.Pending(s), func(a wire.Approval) bool {
		return a.Kind != wire.ApprovalCall && a.Kind != wire.ApprovalQuestion
	})
}

// waitingUnder returns what waits under an id, of a node if one is given; nil if nothing does: the run's owner says so, on record. The
// beginning of an id isn't enough: what a user has seen may have got its answer, and another call begin so.
func waitingUnder(waits []wire.Approval, what, id, node string) (*wire.Approval, error) {
	var found, begin []wire.Approval
	for _, w := range waits {
		switch {
		case node != "" && w.NodeID != node:
		case w.CallID == id:
			found = append(found, w)
		case strings.HasPrefix(w.CallID, id):
			begin = append(begin, w)
		}
	}
	problem := &wire.APIError{Code: wire.CodeAmbiguousID}
	switch {
	case len(found) == 1:
		return &found[0], nil
	case len(found) > 1:
		problem.Message, problem.Hint = fmt.Sprintf("%ss of several nodes are called %s", what, id), "name one by --node"
		for _, w := range found {
			problem.Matches = append(problem.Matches, w.NodeID)
		}
	case len(begin) > 0:
		problem.Message, problem.Hint = fmt.Sprintf("no %s %s waits; there are some that begin so", what, id), "give the whole id"
		for _, w := range begin {
			problem.Matches = append(problem.Matches, w.CallID)
		}
	default:
		return nil, nil //nolint:nilnil // nothing waits under it
	}
	return nil, problem
}

func (a orderVerbs) approvalsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "approvals [RUN]",
		Short: "List what waits for a person: calls for a decision, questions for an answer",
		Long: `List what waits for a person, the longest waiting first, of all runs or of one and
those that it has started and waits for: tool calls that somebody has to allow (wake
approve, wake deny), and questions of agents and of ask nodes (wake reply). The commands that answer are below,
and the runs that have paused by themselves until somebody decides how they go on.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var q wire.ApprovalsRequest
			if len(args) > 0 {
				q.Run = args[0]
			}
			return showAnswer(cmd.Context(), a.app, wire.VerbApprovals, q, func(waits wire.ApprovalsResponse) error {
				return printApprovals(a.out, waits, time.Now())
			})
		},
	}
}

func printApprovals(w io.Writer, waits wire.ApprovalsResponse, now time.Time) error {
	if len(waits.Approvals) == 0 && len(waits.Paused) == 0 {
		_, err := io.WriteString(w, "nothing waits for a decision or an answer\n")
		return err
	}
	var below strings.Builder
	if len(waits.Approvals) > 0 {
		t := newTable(w, "RUN", "NODE", "CALL", "KIND", "WAITS", "WHAT")
		below.WriteByte('\n')
		for _, x := range waits.Approvals {
			t.addRow(x.RunID, x.NodeID, x.CallID, kindOf(x), timeline.Span(now.UnixMilli()-x.Since), asksWhat(x))
			if asked := wholeCall(x); len(asked) > maxAsked || strings.Contains(asked, "\n") {
				below.WriteString("  " + strings.ReplaceAll(asked, "\n", "\n  ") + "\n")
			}
			below.WriteString(timeline.Line(x.Answer, maxMessage) + "\n")
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	for _, r := range waits.Paused { // no approval has them go on
		fmt.Fprintf(&below, "%s is paused and waits for %s: wake status %s\n", timeline.Line(r.RunID, maxMessage), r.WaitingFor, ask.ShellWord(r.RunID))
	}
	if waits.Omitted > 0 {
		fmt.Fprintf(&below, "… %d more: name a run\n", waits.Omitted)
	}
	_, err := io.WriteString(w, below.String())
	return err
}

// kindOf says what waits; of a message, how urgent it is.
func kindOf(x wire.Approval) string {
	if x.Kind == wire.ApprovalMessage {
		return string(x.Priority)
	}
	return string(x.Kind)
}

// maxAsked is how much of what a call is given stands in its row, in bytes: of more, all of it stands below.
const maxAsked = 60

// wholeCall is all that a call is given which waits for a decision, such as its command and its other fields; safe for a terminal.
func wholeCall(x wire.Approval) string {
	if x.Kind != wire.ApprovalCall {
		return ""
	}
	return timeline.WholeInput(x.ToolName, x.ToolInput)
}

// asksWhat is what the user has to decide or to answer: of a call what it does, not what its agent says of it.
func asksWhat(x wire.Approval) string {
	if x.Text != "" && x.Kind != wire.ApprovalCall {
		return x.Text
	}
	return strings.TrimSpace(x.ToolName + " " + timeline.WholeInput(x.ToolName, x.ToolInput))
}

// completeCall completes a run and, behind it, the calls that wait in it.
func (a orderVerbs) completeCall(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return a.completeRun(cmd, args, word)
	}
	return a.completeWaiting(cmd, args[0], waitingCalls)
}

// completeWaiting completes what waits in a run.
func (a orderVerbs) completeWaiting(cmd *cobra.Command, ref string, which func(*wire.State) []wire.Approval) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.askCompletions(cmd, func(ctx context.Context, nc *nats.Conn) ([]cobra.Completion, error) {
		s, err := a.sessionOn(ctx, nc)
		if err != nil {
			return nil, err
		}
		run, err := s.Find(ctx, ref)
		if err != nil {
			return nil, err
		}
		state, err := s.State(ctx, run)
		if err != nil {
			return nil, err
		}
		var ids []cobra.Completion
		for _, x := range which(state) {
			ids = append(ids, completionOf(x.CallID, asksWhat(x)))
		}
		return ids, nil
	})
}
