package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"wake/internal/api"
	"wake/internal/timeline"
	"wake/pkg/wire"
)

func (a *app) statusCommand() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use:               "status RUN",
		Short:             "Say how a run and its nodes are doing",
		Long:              "Say how a run and its nodes are doing.\n\n" + runHelp,
		Args:              arguments,
		ValidArgsFunction: a.completeRun,
		RunE: func(cmd *cobra.Command, args []string) error {
			nc, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer nc.Close()
			q := wire.StatusRequest{Run: args[0], Node: node}
			status, err := api.Call[wire.StatusResponse](cmd.Context(), nc, a.names, wire.VerbStatus, q)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(status)
			}
			return printStatus(a.out, status)
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "only this `node`")
	return cmd
}

const runHelp = "RUN is an id, the beginning of one, the value of a label, a session id, or @last."

func printStatus(w io.Writer, s wire.StatusResponse) error {
	facts := [][2]string{
		{"run", s.RunID},
		{"flow", s.FlowName},
		{"labels", labels(s.Labels)},
		{"status", statusText(s.Status, s.Result, s.Reason)},
		{"error", s.Error},
		{"took", s.Runtime},
		{"cost", dollars(s.CostUsd)},
		{"tokens", tokens(s.TokensIn, s.TokensOut)},
		{"position", fmt.Sprint(s.Position.Seq)},
	}
	if err := printFacts(w, facts); err != nil || len(s.Agents) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	t := newTable(w, "NODE", "TYPE", "STATE", "TOOK", "COST", "TOKENS", "TOOLS", "LAST ACTIVITY")
	for _, n := range s.Agents {
		state := n.State
		if n.Reason != "" {
			state += " (" + n.Reason + ")"
		}
		activity := n.LastActivity
		if n.Error != "" {
			activity = n.Error
		} else if n.LastActivityAge != "" && activity != "" {
			activity += ", " + n.LastActivityAge
		}
		t.row(n.AgentID, n.NodeType, state, n.Runtime, dollars(n.CostUsd), tokens(n.TokensIn, n.TokensOut), fmt.Sprint(n.ToolsUsed), activity)
	}
	return t.flush()
}

// printFacts writes those facts that there are.
func printFacts(w io.Writer, facts [][2]string) error {
	for _, f := range facts {
		if f[1] == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "%-10s%s\n", f[0], timeline.Line(f[1], 400)); err != nil {
			return err
		}
	}
	return nil
}

// completionWait bounds what a shell waits for completions of run ids.
const completionWait = 500 * time.Millisecond

// completeRun completes ids of runs, the newest first. Without a server there
// are none.
func (a *app) completeRun(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 || a.prepare(cmd) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
	defer cancel()
	a.server.Timeout = completionWait / 4
	nc, err := a.connect(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer nc.Close()
	runs, err := api.Call[wire.RunsResponse](ctx, nc, a.names, wire.VerbRuns, wire.RunsRequest{Limit: 100})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ids := []cobra.Completion{"@last"}
	for _, r := range runs.Runs {
		about := timeline.Line(r.FlowName+" "+statusText(r.Status, r.Result, r.Reason), maxCell)
		ids = append(ids, cobra.CompletionWithDesc(timeline.Line(r.RunID, maxCell), about))
	}
	return ids, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}
