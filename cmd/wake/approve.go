package main

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"wake/internal/api"
	"wake/internal/timeline"
	"wake/pkg/wire"
)

func (a *app) approveCommand() *cobra.Command {
	cmd := a.decisionVerb("approve", "approved")
	cmd.Use = "approve RUN CALL"
	cmd.Short = "Allow a tool call that waits for a decision"
	return cmd
}

func (a *app) denyCommand() *cobra.Command {
	cmd := a.decisionVerb("deny", "denied")
	cmd.Use = "deny RUN CALL"
	cmd.Short = "Refuse a tool call that waits for a decision"
	return cmd
}

// decisionVerb is a verb that decides about a call.
func (a *app) decisionVerb(kind, done string) *cobra.Command {
	c := wire.Command{Type: kind}
	cmd := &cobra.Command{
		Long: `Decide about a tool call that waits for it. CALL is the id of the call, or the
beginning of one; wake approvals lists them.

` + runHelp,
		Args:              arguments,
		ValidArgsFunction: a.completeCall,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.decide(cmd.Context(), args[0], args[1], c, done)
		},
	}
	cmd.Flags().StringVar(&c.Note, "note", "", "`why`, for the agent and the log")
	return cmd
}

func (a *app) decide(ctx context.Context, ref, call string, c wire.Command, done string) error {
	s, err := a.openSession(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if c.RunID, err = s.Find(ctx, ref); err != nil {
		return err
	}
	state, err := s.State(ctx, c.RunID)
	if err != nil {
		return err
	}
	if c.CallID, err = waitingCall(state, call); err != nil {
		return err
	}
	return s.order(ctx, c, done+" "+c.CallID+" of")
}

// waitingCall returns the id of the call that waits and is meant. One that is
// unknown is left to the run's owner, whose record says so.
func waitingCall(s *wire.State, call string) (string, error) {
	var matches []string
	for _, w := range waitingCalls(s) {
		if w.CallID == call {
			return call, nil
		}
		if strings.HasPrefix(w.CallID, call) && !slices.Contains(matches, w.CallID) {
			matches = append(matches, w.CallID)
		}
	}
	switch len(matches) {
	case 0:
		return call, nil
	case 1:
		return matches[0], nil
	}
	return "", &wire.APIError{Code: wire.CodeAmbiguousID, Message: "several calls begin with " + call, Matches: matches}
}

// approval is a call that waits for a decision.
type approval struct {
	RunID     string   `json:"runId"`
	NodeID    string   `json:"nodeId"`
	CallID    string   `json:"callId"`
	ToolName  string   `json:"toolName"`
	ToolInput wire.Raw `json:"toolInput,omitempty"`
	Since     int64    `json:"since"` // Unix ms
}

// waitingCalls lists the calls of a run that wait, the longest first.
func waitingCalls(s *wire.State) []approval {
	var all []approval
	for _, c := range s.Tools {
		if c.State == wire.ToolApprovalRequired {
			all = append(all, approval{RunID: s.RunID, NodeID: c.Node, CallID: c.CallID, ToolName: c.Tool, ToolInput: c.Input, Since: c.Since})
		}
	}
	slices.SortFunc(all, func(x, y approval) int {
		return cmp.Or(cmp.Compare(x.Since, y.Since), cmp.Compare(x.NodeID, y.NodeID), cmp.Compare(x.CallID, y.CallID))
	})
	return all
}

func (a *app) approvalsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "approvals [RUN]",
		Short: "List the tool calls that wait for a decision",
		Long: `List the tool calls that wait for a decision, of one run or of all. wake approve
and wake deny decide.

` + runHelp,
		Args:              arguments,
		ValidArgsFunction: a.completeRun,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.approvals(cmd.Context(), args)
		},
	}
}

func (a *app) approvals(ctx context.Context, refs []string) error {
	s, err := a.openSession(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	runs, err := s.approvalRuns(ctx, refs)
	if err != nil {
		return err
	}
	all := []approval{}
	for _, run := range runs {
		state, err := s.State(ctx, run)
		if err != nil {
			return err
		}
		all = append(all, waitingCalls(state)...)
	}
	if a.json {
		return a.printJSON(struct {
			Approvals []approval `json:"approvals"`
		}{all})
	}
	return printApprovals(a.out, all, time.Now())
}

// approvalRuns are the runs to look at: the named one, or those that haven't
// ended.
func (s *session) approvalRuns(ctx context.Context, refs []string) ([]string, error) {
	if len(refs) > 0 {
		run, err := s.Find(ctx, refs[0])
		return []string{run}, err
	}
	return s.activeRuns(ctx)
}

// activeRuns lists the runs that haven't ended, the newest first.
func (s *session) activeRuns(ctx context.Context) ([]string, error) {
	var ids []string
	q := wire.RunsRequest{Status: []string{"active"}, Limit: 1000}
	for {
		page, err := api.Call[wire.RunsResponse](ctx, s.conn, s.app.names, wire.VerbRuns, q)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Runs {
			ids = append(ids, r.RunID)
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return ids, nil
		}
	}
}

func printApprovals(w io.Writer, all []approval, now time.Time) error {
	if len(all) == 0 {
		_, err := io.WriteString(w, "nothing waits for a decision\n")
		return err
	}
	t := newTable(w, "RUN", "NODE", "CALL", "TOOL", "WAITS", "INPUT")
	for _, c := range all {
		t.row(c.RunID, c.NodeID, c.CallID, c.ToolName, timeline.Span(now.UnixMilli()-c.Since), timeline.Input(c.ToolInput))
	}
	return t.flush()
}

// completeCall completes a run and, behind it, the calls that wait in it.
func (a *app) completeCall(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return a.completeRun(cmd, args, word)
	}
	return a.completions(cmd, func(ctx context.Context, nc *nats.Conn) ([]cobra.Completion, error) {
		s, err := a.sessionOn(ctx, nc)
		if err != nil {
			return nil, err
		}
		run, err := s.Find(ctx, args[0])
		if err != nil {
			return nil, err
		}
		state, err := s.State(ctx, run)
		if err != nil {
			return nil, err
		}
		var calls []cobra.Completion
		for _, c := range waitingCalls(state) {
			calls = append(calls, described(c.CallID, c.ToolName+" "+timeline.Input(c.ToolInput)))
		}
		return calls, nil
	})
}
