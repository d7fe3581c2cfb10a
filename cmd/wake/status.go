package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

func (a viewVerbs) statusCommand() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use:   "status RUN",
		Short: "Say how a run and its nodes are doing",
		Long:  "Say how a run and its nodes are doing.",
		RunE: func(cmd *cobra.Command, args []string) error {
			q := wire.StatusRequest{Run: args[0], Node: node}
			return showAnswer(cmd.Context(), a.app, wire.VerbStatus, q, func(status wire.StatusResponse) error {
				return printStatus(a.out, status)
			})
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "only this `node`")
	return cmd
}

func printStatus(w io.Writer, s wire.StatusResponse) error {
	p := printer{w: w}
	p.printFacts([][2]string{
		{"run", s.RunID},
		{"flow", s.FlowName},
		{"labels", labelsText(s.Labels)},
		{"asked by", s.By},
		{"status", statusText(s.Status, s.Result, s.Reason)},
		{"error", s.Error},
		{"waits for", s.WaitingFor},
		{"unread", strings.Join(s.Unread, "; ")},
		{"to do", nextStep(s)},
		{"took", s.Runtime},
		{"waited", waitedText(s.WaitedMs)},
		{"cost", costText(s.CostUsd, s.CostBasis)},
		{"tokens", tokensText(s.TokensIn, s.TokensOut)},
		{"context", percentText(s.ContextPct)},
		{"tools", callsText(s.ToolsUsed, s.ToolErrors)},
		{"session", s.SessionID},
		{"feeds", s.Feeds},
		{"last", joinTexts(s.LastActivity, s.LastActivityAge)},
		{"alerts", joinTexts(numberText(s.Alerts), s.LastAlert)},
		{"position", fmt.Sprint(s.Position.Seq)},
	})
	if len(s.Agents) == 0 {
		return p.err
	}
	p.printLine("")
	t := newTable(w, "NODE", "TYPE", "STATE", "TOOK", "COST", "TOKENS", "CONTEXT", "TOOLS", "OPEN", "ALERTS", "SESSION", "WAITS FOR, OR DOES")
	for _, n := range s.Agents {
		state := n.State
		if n.Reason != "" && n.Reason != state {
			state += " (" + n.Reason + ")"
		}
		activity := joinTexts(cmp.Or(n.WaitingFor, n.LastActivity), n.LastActivityAge)
		if n.Error != "" {
			activity = n.Error
		}
		t.addRow(n.AgentID, n.NodeType, state, n.Runtime, costText(n.CostUsd, n.CostBasis), tokensText(n.TokensIn, n.TokensOut), percentText(n.ContextPct),
			callsText(n.ToolsUsed, n.ToolErrors), n.OpenTool, numberText(n.Alerts), n.SessionID, activity)
	}
	p.printTable(t)
	if s.Omitted > 0 {
		p.printLine("… %d more nodes are left out, complete ones first: --node NODE shows one, with its items", s.Omitted)
	}
	return p.err
}

// waitedText is how long people have been waited for, "" if they weren't.
func waitedText(ms int64) string {
	if ms < 1000 {
		return ""
	}
	return timeline.Span(ms) + " for people"
}

// joinTexts is what there is of two texts.
func joinTexts(a, b string) string {
	if a == "" || b == "" {
		return a
	}
	return a + ", " + b
}

// interruptedNodes are those about which the operator has to decide.
func interruptedNodes(nodes []wire.AgentStatus) []string {
	var ids []string
	for _, n := range nodes {
		if n.Reason == wire.ErrorInterrupted || n.Reason == wire.ErrorSessionNotFound {
			ids = append(ids, n.AgentID)
		}
	}
	return ids
}

// nextStep says how the run of a status goes on, as [toDo] does. A copy of a run isn't executed.
func nextStep(s wire.StatusResponse) string {
	if s.Imported == wire.ImportedCopy && s.Result == "" && s.Status != wire.RunAborted {
		return "nothing: it is a copy of a run; wake fork " + ask.ShellWord(s.RunID) + " goes on from it"
	}
	return toDo(s.RunID, s.Status, s.Reason, interruptedNodes(s.Agents))
}

// toDo says how a run that is paused goes on; of any other run it is "".
func toDo(run string, status wire.RunStatus, reason string, interrupted []string) string {
	run = ask.ShellWord(run)
	resume := "wake resume " + run
	switch {
	case status != wire.RunPaused:
		return ""
	case reason == wire.PauseRequiresAction && len(interrupted) > 0:
		nodes := ask.ShellWord(strings.Join(interrupted, ","))
		return resume + " --rerun " + nodes + " runs again what was interrupted, --fail " + nodes + " gives it up"
	case reason == wire.PauseParent:
		return "nothing: it goes on with its parent run"
	case reason == wire.PauseIdle:
		return "wake adopt " + run + " goes on with the session as a run that wake executes"
	case reason == wire.PauseEndedItsRunner:
		return "see what its runners wrote last; " + resume + " once the cause is mended"
	case reason == wire.PauseBudget:
		return resume + " grants as much again, --budget-usd and --budget-tokens another amount in all; wake abort " + run + " ends it"
	case reason == wire.PauseSharedBudget:
		return "wake budget list says what is spent, wake budget set grants more: the run goes on by itself then; wake abort " + run + " ends it"
	case reason == wire.PauseWorkspaceLost:
		return "start the runner that has its folder; " + resume + " once the folder is there"
	}
	return resume
}
