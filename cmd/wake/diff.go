package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/compare"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

func (a viewVerbs) diffCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "diff RUN1 RUN2",
		Short: "Say where two runs part and in what they differ",
		Long: `Say where two runs part and in what they differ: a fork and the run that it was
forked from, two forks, or two runs of a flow. Compared is what they did: calls of
tools with their results, messages, nodes, edges, outputs; not the words of agents.
Numbers count what lies behind the point that both have in common.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.diffRuns(cmd.Context(), args[0], args[1])
		},
	}
}

func (a viewVerbs) diffRuns(ctx context.Context, refA, refB string) error {
	log, err := a.openReader(ctx)
	if err != nil {
		return err
	}
	defer log.Conn().Close()
	d, err := a.compareRuns(ctx, log, refA, refB)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(d)
	}
	return printDifferences(a.out, d)
}

// differences are those of two runs and of their folders.
type differences struct {
	wire.DiffResponse

	Folder  *history.FolderChanges `json:"folder,omitempty"`        // nil: the same, or not kept
	Problem string                 `json:"folderProblem,omitempty"` // why the folders aren't compared
}

// compareRuns compares what two runs have done up to the moment.
func (a viewVerbs) compareRuns(ctx context.Context, log *feed.Reader, refA, refB string) (d differences, err error) {
	var runs [2]string
	for i, ref := range []string{refA, refB} {
		if runs[i], err = a.runID(ctx, log, ref); err != nil {
			return d, err
		}
	}
	var sideA, sideB compare.Side
	d.DiffResponse, sideA, sideB, err = history.Compare(ctx, log, runs[0], runs[1], history.Compared{})
	if err == nil && d.Missing > 0 {
		a.log.WarnContext(ctx, "steps are compared without their large fields, which can't be read", "steps", d.Missing)
	}
	if err != nil {
		return d, err
	}
	if d.Folder, err = a.compareFolders(ctx, log, sideA.State, sideB.State); err != nil && ctx.Err() == nil {
		d.Folder, d.Problem = nil, err.Error() // not every user may see files
	}
	return d, ctx.Err()
}

// maxDifferences bounds each list that people are shown; --json has them all.
const maxDifferences = 20

func printDifferences(w io.Writer, d differences) error {
	p := printer{w: w}
	p.printLine("a  %s", runTitle(d.A))
	p.printLine("b  %s", runTitle(d.B))
	p.printLine("")
	if c := d.Common; c == nil {
		p.printLine("common     nothing: neither was forked from the other")
	} else {
		p.printLine("common     run %s up to position %d%s", c.RunID, c.Position, timeline.InBrackets(c.Label))
	}
	p.printParting(d.DiffResponse)
	if d.Flow {
		p.printLine("flow       their definitions differ")
	}
	p.printLine("")
	p.printTotals(d.DiffResponse)
	p.printNodes(d.Nodes)
	p.printValues("input", inputPair(d.Input))
	p.printValues("outputs", d.Outputs)
	p.printValues("state", d.State)
	p.printToolChanges(d.Tools)
	p.printFolders(d)
	return p.err
}

func (p *printer) printFolders(d differences) {
	if d.Problem != "" {
		p.printLine("")
		p.printLine("folders    not compared: %s", d.Problem)
	}
	if d.Folder == nil || len(d.Folder.Changes) == 0 {
		return
	}
	p.printLine("")
	p.printLine("folders, a to b:")
	list := d.Folder.Changes
	for _, c := range list[:min(len(list), maxDifferences)] {
		p.printLine("  %s", changeText(c))
	}
	p.printMore(len(list))
}

func runTitle(f wire.DiffRun) string {
	return fmt.Sprintf("%s  %s  %s", f.RunID, cmp.Or(f.FlowName, "-"), statusText(f.Status, f.Result, f.Reason))
}

func (p *printer) printParting(d wire.DiffResponse) {
	if d.Parted == nil {
		text := "nowhere: they did the same"
		if d.Same {
			text += " and came to the same"
		}
		p.printLine("parted     %s", text)
		return
	}
	p.printLine("parted     in %s", d.Parted.Node)
	p.printLine("  a        %s", stepText(d.Parted.A))
	p.printLine("  b        %s", stepText(d.Parted.B))
}

func stepText(s *wire.DiffStep) string {
	if s == nil {
		return "nothing more"
	}
	text := s.Text
	if s.Name != "" {
		text = s.Name + " " + text
	}
	if s.Failed {
		text += " (failed)"
	}
	return fmt.Sprintf("%s at %d", text, s.Pos)
}

func (p *printer) printTotals(d wire.DiffResponse) {
	t := newTable(p.w, "", "A", "B")
	both := func(name string, of func(wire.DiffRun) string) { t.addRow(name, of(d.A), of(d.B)) }
	both("took", tookText)
	both("cost", func(f wire.DiffRun) string {
		return costText(f.Usage.CostUsd, ledger.Basis(f.Usage.CostUsd, f.Usage.ComputedUsd, f.Usage.Unpriced))
	})
	both("tokens", func(f wire.DiffRun) string { return tokensText(tokensIn(f.Usage), f.Usage.OutputTokens) })
	both("turns", func(f wire.DiffRun) string { return fmt.Sprint(f.Usage.Turns) })
	both("tools", func(f wire.DiffRun) string { return callsText(f.Usage.ToolCalls, f.Usage.ToolErrors) })
	p.printTable(t)
}

func tookText(f wire.DiffRun) string {
	if f.EndedAt == 0 {
		return "-"
	}
	return spanText(f.StartedAt, time.UnixMilli(f.EndedAt))
}

func tokensIn(u wire.UsageTotals) int64 {
	return u.InputTokens + u.CacheCreationInputTokens + u.CacheReadInputTokens
}

func callsText[N int | int64](n, failed N) string {
	if failed == 0 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d, %d failed", n, failed)
}

func (p *printer) printNodes(nodes []wire.DiffNode) {
	if len(nodes) == 0 {
		return
	}
	p.printLine("")
	t := newTable(p.w, "NODE", "A", "B", "OUTPUT", "TOOLS A", "TOOLS B", "COST A", "COST B")
	for _, n := range nodes {
		output := "same"
		if n.Output {
			output = "differs"
		}
		t.addRow(n.Node, nodeText(n.A), nodeText(n.B), output,
			callsText(n.A.Tools, n.A.ToolErrors), callsText(n.B.Tools, n.B.ToolErrors), dollarsText(n.A.CostUsd), dollarsText(n.B.CostUsd))
	}
	p.printTable(t)
}

func nodeText(f wire.DiffNodeRun) string {
	text := string(f.Status)
	if f.Reason != "" && f.Reason != text {
		text += " (" + f.Reason + ")"
	}
	return text
}

func inputPair(p *wire.DiffPair) []wire.DiffValue {
	if p == nil {
		return nil
	}
	return []wire.DiffValue{{Name: "input", DiffPair: *p}}
}

func (p *printer) printValues(heading string, list []wire.DiffValue) {
	if len(list) == 0 {
		return
	}
	p.printLine("")
	p.printLine("%s:", heading)
	for _, v := range list[:min(len(list), maxDifferences)] {
		p.printLine("  %s", v.Name)
		p.printLine("    a  %s", valueText(v.A))
		p.printLine("    b  %s", valueText(v.B))
	}
	p.printMore(len(list))
}

func (p *printer) printMore(n int) {
	if n > maxDifferences {
		p.printLine("  … %d more with --json", n-maxDifferences)
	}
}

// valueText is a value in one line; a text is quoted, what isn't there is "-".
func valueText(v wire.Raw) string {
	if len(v) == 0 {
		return "-"
	}
	b, err := wire.AppendJSON(nil, v)
	if err != nil {
		return err.Error()
	}
	return timeline.Line(string(b), 400)
}

func (p *printer) printToolChanges(list []wire.DiffTool) {
	if len(list) == 0 {
		return
	}
	p.printLine("")
	p.printLine("calls of tools:")
	for _, c := range list[:min(len(list), maxDifferences)] {
		p.printLine("  %s: %s %s: a %d, b %d", c.Node, c.Tool, timeline.Line(c.Input, 120), c.A, c.B)
	}
	p.printMore(len(list))
}
