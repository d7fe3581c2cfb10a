package main

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"wake/internal/api"
	"wake/internal/timeline"
	"wake/pkg/wire"
)

// completionWait bounds what a shell waits for completions.
const completionWait = 500 * time.Millisecond

// completions asks the services for completions, which keep their order.
// Without a server there are none.
func (a *app) completions(cmd *cobra.Command, list func(context.Context, *nats.Conn) ([]cobra.Completion, error)) ([]cobra.Completion, cobra.ShellCompDirective) {
	if a.prepare(cmd) != nil {
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
	all, err := list(ctx, nc)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// described is a completion whose texts come from runs.
func described(word, about string) cobra.Completion {
	return cobra.CompletionWithDesc(timeline.Line(word, maxCell), timeline.Line(about, maxCell))
}

// completeRun completes ids of runs, the newest first.
func (a *app) completeRun(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completions(cmd, func(ctx context.Context, nc *nats.Conn) ([]cobra.Completion, error) {
		runs, err := api.Call[wire.RunsResponse](ctx, nc, a.names, wire.VerbRuns, wire.RunsRequest{Limit: 100})
		ids := []cobra.Completion{"@last"}
		for _, r := range runs.Runs {
			ids = append(ids, described(r.RunID, r.FlowName+" "+statusText(r.Status, r.Result, r.Reason)))
		}
		return ids, err
	})
}

// completeNode completes the nodes of the run that is named.
func (a *app) completeNode(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completions(cmd, func(ctx context.Context, nc *nats.Conn) ([]cobra.Completion, error) {
		status, err := api.Call[wire.StatusResponse](ctx, nc, a.names, wire.VerbStatus, wire.StatusRequest{Run: args[0]})
		var ids []cobra.Completion
		for _, n := range status.Agents {
			ids = append(ids, described(n.AgentID, n.NodeType+" "+n.State))
		}
		return ids, err
	})
}

// completeFlag completes the values of a flag. That the command has no such flag is a
// mistake in this program.
func completeFlag(cmd *cobra.Command, name string, complete cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(name, complete); err != nil {
		panic(err)
	}
}
