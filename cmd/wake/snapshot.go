package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

func (a viewVerbs) snapshotCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "snapshot RUN",
		Short: "Print the stored snapshot of a run",
		Long: `Print the stored snapshot of a run: the state that its events up to a position
add up to. With --json it is whole.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			log, run, err := a.openRecord(ctx, args[0])
			if err != nil {
				return err
			}
			defer log.Conn().Close()
			s, err := a.askSnapshot(ctx, log.Conn(), run)
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

func (a *app) askSnapshot(ctx context.Context, nc *nats.Conn, runID string) (wire.SnapshotResponse, error) {
	return api.Call[wire.SnapshotResponse](ctx, nc, a.names, wire.VerbSnapshot, wire.SnapshotRequest{Run: runID})
}

func printSnapshot(w io.Writer, s wire.SnapshotResponse) error {
	var state wire.State
	if err := wire.Unmarshal(s.State, &state); err != nil {
		return err
	}
	return printState(w, &state, fmt.Sprintf("revision %d, %s", s.Revision, bytesText(uint64(s.Bytes))))
}

// printState writes the state of a run; about says what else is known of it.
func printState(w io.Writer, state *wire.State, about string) error {
	position := fmt.Sprintf("%d, %d events", state.Position.Seq, state.EventCount)
	if about != "" {
		position += ", " + about
	}
	u := state.Usage
	p := printer{w: w}
	p.printFacts([][2]string{
		{"run", state.RunID},
		{"flow", state.FlowName},
		{"status", statusText(state.Status, state.Result, state.Reason)},
		{"forked", lineageText(state.Lineage)},
		{"error", state.Error},
		{"position", position},
		{"usage", fmt.Sprintf("%s, %s tokens, %d turns, %d tool calls, %d failed", costText(u.CostUsd, ledger.Basis(u.CostUsd, u.ComputedUsd, u.Unpriced)), tokensText(tokensIn(u), u.OutputTokens), u.Turns, u.ToolCalls, u.ToolErrors)},
		{"sessions", fmt.Sprint(len(state.AgentSessions))},
		{"loops", loopsText(state.LoopCounters)},
		{"edges", edgesText(state.EdgeStatus)},
		{"calls", openCalls(state.Tools)},
		{"inbox", inboxText(state.Inbox)},
		{"overrides", briefText(state.Overrides)},
		{"bookmarks", bookmarkLabels(state)},
	})
	p.printLine("")
	t := newTable(w, "NODE", "STATUS", "EXECS", "EPOCH", "SEQ", "OUTPUT")
	for _, node := range slices.Sorted(maps.Keys(state.NodeStatus)) {
		n := state.Nodes[node]
		status := string(state.NodeStatus[node])
		if n.Reason != "" && n.Reason != status {
			status += " (" + n.Reason + ")"
		}
		t.addRow(node, status, fmt.Sprint(n.Execs), fmt.Sprint(n.Epoch), fmt.Sprint(n.Seq), briefText(state.Outputs[node]))
	}
	p.printTable(t)
	return p.err
}

func loopsText(counters map[string]int) string {
	var all []string
	for _, edge := range slices.Sorted(maps.Keys(counters)) {
		all = append(all, fmt.Sprintf("%s ×%d", edge, counters[edge]))
	}
	return strings.Join(all, ", ")
}

func edgesText(status map[string]wire.EdgeStatus) string {
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

// lineageText names the runs that a run was forked from, the nearest first.
func lineageText(ancestors []wire.Ancestor) string {
	var all []string
	for _, a := range ancestors {
		all = append(all, fmt.Sprintf("from %s at %s", a.RunID, cmp.Or(a.Label, fmt.Sprint(a.Position))))
	}
	return strings.Join(all, ", ")
}

// inboxText names the commands that wait to be delivered.
func inboxText(entries []wire.InboxEntry) string {
	var all []string
	for _, e := range entries {
		kind := e.Command.TextAt("type")
		if e.Node != "" {
			kind += " to " + e.Node
		}
		all = append(all, kind)
	}
	return strings.Join(all, ", ")
}

// bookmarkLabels names the points that have a label, and the newest of the others.
func bookmarkLabels(s *wire.State) string {
	var all []string
	for _, b := range s.Bookmarks {
		all = append(all, b.Label)
	}
	if s.ForkPoints > 0 {
		all = append(all, fmt.Sprintf("sfp-%d", s.ForkPoints))
	}
	return strings.Join(all, ", ")
}

// briefText is a value cut to one cell: text as it is, anything else as JSON.
func briefText(value wire.Raw) string {
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
