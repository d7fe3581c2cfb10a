// Package compare tells what two runs have in common and in what they differ: a
// fork and the run that it was forked from, or two runs of the same flow.
//
// It is given states and events and does no I/O. What can't be the same twice
// doesn't count as a difference: times, positions, ids, and the words of an agent.
package compare

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"code.wake.dev/wake/pkg/wire"
)

// Present is a position behind all others: the end of a run's events.
const Present = uint64(math.MaxUint64)

// Span is a part of a run's events: those behind From, up to To.
type Span struct {
	RunID    string
	From, To uint64
}

// Ancestry returns the last point that two runs have in common, nil if they have
// none, and the events of each behind it, oldest first.
func Ancestry(a, b *wire.State) (common *wire.DiffCommon, ofA, ofB []Span) {
	if a.RunID == b.RunID {
		return &wire.DiffCommon{RunID: a.RunID, Position: a.Position.Seq}, nil, nil
	}
	lineA, lineB := runLine(a), runLine(b)
	for i, x := range lineA {
		j := slices.IndexFunc(lineB, func(y wire.Ancestor) bool { return y.RunID == x.RunID })
		if j < 0 {
			continue
		}
		y := lineB[j]
		common = &wire.DiffCommon{RunID: x.RunID, Position: min(x.Position, y.Position), Label: y.Label}
		if x.Position < y.Position {
			common.Label = x.Label
		}
		return common, spansBehind(lineA[:i+1], common.Position), spansBehind(lineB[:j+1], common.Position)
	}
	return nil, spansBehind(lineA[:1], 0), spansBehind(lineB[:1], 0)
}

// runLine is a run and its ancestors, each with the position up to which its events
// belong to the run.
func runLine(s *wire.State) []wire.Ancestor {
	return append([]wire.Ancestor{{RunID: s.RunID, Position: Present}}, s.Lineage...)
}

// spansBehind are the events of a line, nearest first, that are behind a position of its
// last member.
func spansBehind(line []wire.Ancestor, from uint64) []Span {
	var all []Span
	for _, a := range slices.Backward(line) {
		if a.Position > from {
			all = append(all, Span{a.RunID, from, a.Position})
		}
		from = 0
	}
	return all
}

// Side is one of two runs.
type Side struct {
	State *wire.State      // at its end
	Usage wire.UsageTotals // behind the common point; see [Side.Spend]
	Steps []Step           // behind the common point

	Missing int // steps with large fields that couldn't be read

	costs map[string]float64 // by node, behind the common point
}

// Runs compares two runs; common is their common point, nil if they have none. What agents have said is no
// difference.
func Runs(a, b Side, common *wire.DiffCommon) wire.DiffResponse {
	a.Steps, b.Steps = deedsOf(a.Steps), deedsOf(b.Steps)
	d := wire.DiffResponse{
		A: runFacts(a), B: runFacts(b), Common: common,
		Flow:  a.State.DefinitionHash != b.State.DefinitionHash,
		Input: differingPair(a.State.Input, b.State.Input),
		State: diffValues("", a.State.State, b.State.State, 0),
		Tools: toolChanges(a.Steps, b.Steps), Missing: a.Missing + b.Missing,
	}
	stepsA, stepsB := byNode(a.Steps), byNode(b.Steps)
	rank := math.MaxInt
	for _, node := range nodesOfBoth(a.State, b.State, stepsA, stepsB) {
		if node == wire.RunNode && len(stepsA[node])+len(stepsB[node]) == 0 {
			continue
		}
		n := wire.DiffNode{Node: node, A: nodeFacts(a, node, stepsA[node]), B: nodeFacts(b, node, stepsB[node])}
		var at int
		n.Parted, at = findParting(node, stepsA[node], stepsB[node])
		if out := differingPair(essentialOutput(a.State.Outputs[node]), essentialOutput(b.State.Outputs[node])); out != nil {
			n.Output = true
			d.Outputs = append(d.Outputs, wire.DiffValue{Name: node, DiffPair: *out})
		}
		if n.Parted != nil && at < rank {
			rank, d.Parted = at, n.Parted
		}
		if n.Parted != nil || n.Output || n.A != n.B {
			d.Nodes = append(d.Nodes, n)
		}
	}
	d.Same = d.Parted == nil && !d.Flow && d.Input == nil && len(d.State) == 0 && len(d.Outputs) == 0 &&
		d.A.Status == d.B.Status && d.A.Result == d.B.Result
	return d
}

func runFacts(s Side) wire.DiffRun {
	t := s.State
	return wire.DiffRun{
		RunID: t.RunID, FlowName: t.FlowName, Status: t.Status, Result: t.Result, Reason: t.Reason, Error: t.Error,
		StartedAt: t.StartedAt, EndedAt: t.EndedAt, Steps: len(s.Steps), Usage: s.Usage,
	}
}

func nodeFacts(s Side, node string, steps []rankedStep) wire.DiffNodeRun {
	n := s.State.Nodes[node]
	f := wire.DiffNodeRun{Status: s.State.NodeStatus[node], Reason: n.Reason, Execs: n.Execs, Steps: len(steps), CostUsd: s.costs[node]}
	for _, step := range steps {
		if step.What != Tool {
			continue
		}
		f.Tools++
		if step.Failed {
			f.ToolErrors++
		}
	}
	return f
}

// rankedStep is a step and its place among all steps of its side.
type rankedStep struct {
	*Step
	rank int
}

func byNode(steps []Step) map[string][]rankedStep {
	all := map[string][]rankedStep{}
	for i := range steps {
		s := &steps[i]
		all[s.Node] = append(all[s.Node], rankedStep{s, i})
	}
	return all
}

// nodesOfBoth are the nodes of both runs, sorted.
func nodesOfBoth(a, b *wire.State, stepsA, stepsB map[string][]rankedStep) []string {
	all := slices.Collect(maps.Keys(a.NodeStatus))
	all = slices.AppendSeq(all, maps.Keys(b.NodeStatus))
	all = slices.AppendSeq(all, maps.Keys(stepsA))
	all = slices.AppendSeq(all, maps.Keys(stepsB))
	slices.Sort(all)
	return slices.Compact(all)
}

// findParting finds the first step of a node that differs, and its place among all.
func findParting(node string, a, b []rankedStep) (*wire.DiffParting, int) {
	for i := range max(len(a), len(b)) {
		switch {
		case i >= len(a):
			return &wire.DiffParting{Node: node, B: &b[i].DiffStep}, b[i].rank
		case i >= len(b):
			return &wire.DiffParting{Node: node, A: &a[i].DiffStep}, a[i].rank
		case a[i].key != b[i].key:
			return &wire.DiffParting{Node: node, A: &a[i].DiffStep, B: &b[i].DiffStep}, min(a[i].rank, b[i].rank)
		}
	}
	return nil, 0
}

// toolChanges lists the calls that the sides made unequally often, those that a made
// first.
func toolChanges(a, b []Step) []wire.DiffTool {
	var order []wire.DiffTool
	index := map[string]int{}
	count := func(steps []Step, add func(*wire.DiffTool)) {
		for _, s := range steps {
			if s.What != Tool {
				continue
			}
			key := s.Node + "\x00" + s.call
			i, ok := index[key]
			if !ok {
				i = len(order)
				index[key] = i
				order = append(order, wire.DiffTool{Node: s.Node, Tool: s.Name, Input: s.Text})
			}
			add(&order[i])
		}
	}
	count(a, func(c *wire.DiffTool) { c.A++ })
	count(b, func(c *wire.DiffTool) { c.B++ })
	order = slices.DeleteFunc(order, func(c wire.DiffTool) bool { return c.A == c.B })
	slices.SortStableFunc(order, func(x, y wire.DiffTool) int { return cmp.Compare(min(x.A, 1), min(y.A, 1)) * -1 })
	return order
}

// Spend adds to the side what it used between two states of one run; begin is nil
// for its beginning.
func (s *Side) Spend(begin, end *wire.State) {
	if begin == nil {
		begin = &wire.State{}
	}
	from, to := begin.Usage, end.Usage
	s.Usage.InputTokens += to.InputTokens - from.InputTokens
	s.Usage.OutputTokens += to.OutputTokens - from.OutputTokens
	s.Usage.CacheCreationInputTokens += to.CacheCreationInputTokens - from.CacheCreationInputTokens
	s.Usage.CacheReadInputTokens += to.CacheReadInputTokens - from.CacheReadInputTokens
	s.Usage.CostUsd += to.CostUsd - from.CostUsd
	s.Usage.ComputedUsd += to.ComputedUsd - from.ComputedUsd
	s.Usage.Unpriced += to.Unpriced - from.Unpriced
	s.Usage.Turns += to.Turns - from.Turns
	s.Usage.ToolCalls += to.ToolCalls - from.ToolCalls
	s.Usage.ToolErrors += to.ToolErrors - from.ToolErrors
	if s.costs == nil {
		s.costs = map[string]float64{}
	}
	for id, n := range end.Nodes {
		s.costs[id] += n.CostUsd - begin.Nodes[id].CostUsd
	}
}
