package main

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// completionWait bounds what a shell waits for completions.
const completionWait = 500 * time.Millisecond

// askCompletions asks the services for completions, which keep their order.
// Without a server there are none.
func (a *app) askCompletions(cmd *cobra.Command, list func(context.Context, *nats.Conn) ([]cobra.Completion, error)) ([]cobra.Completion, cobra.ShellCompDirective) {
	if a.prepareSettings(cmd) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
	defer cancel()
	a.server.Timeout = completionWait / 4
	nc, err := a.connectServer(ctx)
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

// completionOf completes a value with texts that agents and flows wrote into runs.
func completionOf(word, about string) cobra.Completion {
	return cobra.CompletionWithDesc(timeline.Line(word, maxCell), timeline.Line(about, maxCell))
}

// completeRun completes ids of runs, the newest first.
func (a *app) completeRun(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.askCompletions(cmd, func(ctx context.Context, nc *nats.Conn) ([]cobra.Completion, error) {
		runs, err := api.Call[wire.RunsResponse](ctx, nc, a.names, wire.VerbRuns, wire.RunsRequest{Limit: 100})
		ids := []cobra.Completion{"@last"}
		for _, r := range runs.Runs {
			ids = append(ids, completionOf(r.RunID, r.FlowName+" "+statusText(r.Status, r.Result, r.Reason)))
		}
		return ids, err
	})
}

// completeNode completes the nodes of the run that is named.
func (a *app) completeNode(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.askCompletions(cmd, func(ctx context.Context, nc *nats.Conn) ([]cobra.Completion, error) {
		status, err := api.Call[wire.StatusResponse](ctx, nc, a.names, wire.VerbStatus, wire.StatusRequest{Run: args[0]})
		var ids []cobra.Completion
		for _, n := range status.Agents {
			ids = append(ids, completionOf(n.AgentID, n.NodeType+" "+n.State))
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
