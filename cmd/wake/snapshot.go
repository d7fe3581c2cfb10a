package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"wake/internal/api"
	"wake/internal/timeline"
	"wake/pkg/wire"
)

func (a *app) snapshotCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "snapshot RUN",
		Short: "Print the stored snapshot of a run",
		Long: `Print the stored snapshot of a run: the state that its events up to a position
add up to. With --json it is whole.

` + runHelp,
		Args:              arguments,
		ValidArgsFunction: a.completeRun,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			log, err := a.openLog(ctx)
			if err != nil {
				return err
			}
			defer log.Conn().Close()
			runID, err := a.runID(ctx, log, args[0])
			if err != nil {
				return err
			}
			s, err := a.snapshot(ctx, log.Conn(), runID)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(s)
			}
			return printSnapshot(a.out, s)
		},
	}
}

func (a *app) snapshot(ctx context.Context, nc *nats.Conn, runID string) (wire.SnapshotResponse, error) {
	return api.Call[wire.SnapshotResponse](ctx, nc, a.names, wire.VerbSnapshot, wire.SnapshotRequest{Run: runID})
}

func printSnapshot(w io.Writer, s wire.SnapshotResponse) error {
	var state wire.State
	if err := wire.Unmarshal(s.State, &state); err != nil {
		return err
	}
	u := state.Usage
	facts := [][2]string{
		{"run", s.RunID},
		{"flow", state.FlowName},
		{"status", statusText(state.Status, state.Result, state.Reason)},
		{"error", state.Error},
		{"position", fmt.Sprintf("%d, %d events, revision %d, %s", state.Position.Seq, state.EventCount, s.Revision, bytesText(uint64(s.Bytes)))},
		{"usage", fmt.Sprintf("%s, %s tokens, %d turns, %d tool calls, %d failed", dollars(u.CostUsd), tokens(u.InputTokens, u.OutputTokens), u.Turns, u.ToolCalls, u.ToolErrors)},
		{"sessions", fmt.Sprint(len(state.AgentSessions))},
		{"loops", loops(state.LoopCounters)},
		{"edges", edges(state.EdgeStatus)},
		{"open calls", openCalls(state.Tools)},
	}
	if err := printFacts(w, facts); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	t := newTable(w, "NODE", "STATUS", "EXECS", "EPOCH", "SEQ", "OUTPUT")
	for _, node := range slices.Sorted(maps.Keys(state.NodeStatus)) {
		n := state.Nodes[node]
		status := string(state.NodeStatus[node])
		if n.Reason != "" {
			status += " (" + n.Reason + ")"
		}
		t.row(node, status, fmt.Sprint(n.Execs), fmt.Sprint(n.Epoch), fmt.Sprint(n.Seq), brief(state.Outputs[node]))
	}
	return t.flush()
}

func loops(counters map[string]int) string {
	var all []string
	for _, edge := range slices.Sorted(maps.Keys(counters)) {
		all = append(all, fmt.Sprintf("%s ×%d", edge, counters[edge]))
	}
	return strings.Join(all, ", ")
}

// edges counts edges by status.
func edges(status map[string]wire.EdgeStatus) string {
	counts := map[wire.EdgeStatus]int{}
	for _, s := range status {
		counts[s]++
	}
	var all []string
	for _, s := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%d %s", counts[s], s))
	}
	return strings.Join(all, ", ")
}

func openCalls(calls map[string]wire.ToolCall) string {
	var all []string
	for _, id := range slices.Sorted(maps.Keys(calls)) {
		all = append(all, calls[id].Node+": "+calls[id].Tool)
	}
	return strings.Join(all, ", ")
}

// brief is a value cut to one cell: text as it is, anything else as JSON.
func brief(value wire.Raw) string {
	if value == nil {
		return ""
	}
	if text, ok := value.Get("text").Text(); ok {
		return text
	}
	if text, ok := value.Text(); ok {
		return text
	}
	b, err := wire.AppendJSON(nil, value)
	if err != nil {
		return err.Error()
	}
	return timeline.Line(string(b), maxCell)
}
