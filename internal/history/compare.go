package history

import (
	"context"

	"code.wake.dev/wake/internal/compare"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// Compared says as what two runs are compared.
type Compared struct {
	At    uint64 // as they were at this position; 0: as they are
	Words bool   // the steps have what agents said and commands wrote, too
}

// Compare compares what two runs, of which each is named by its whole id, have done.
func Compare(ctx context.Context, log eventlog.Reader, runA, runB string, c Compared) (d wire.DiffResponse, a, b compare.Side, err error) {
	if a.State, err = StateAt(ctx, log, runA, 0); err != nil {
		return d, a, b, err
	}
	if b.State, err = StateAt(ctx, log, runB, 0); err != nil {
		return d, a, b, err
	}
	common, spansA, spansB := compare.Ancestry(a.State, b.State)
	if err = gatherSide(ctx, log, &a, spansA, c); err != nil {
		return d, a, b, err
	}
	if err = gatherSide(ctx, log, &b, spansB, c); err != nil {
		return d, a, b, err
	}
	return compare.Runs(a, b, common), a, b, nil
}

// gatherSide gathers what a run did in the given spans, those of its ancestors first.
func gatherSide(ctx context.Context, log eventlog.Reader, s *compare.Side, spans []compare.Span, c Compared) (err error) {
	present := s.State.Position.Seq // what comes now doesn't count
	if c.At > 0 {
		present = min(present, c.At)
		if s.State, err = StateAt(ctx, log, s.State.RunID, c.At); err != nil {
			return err
		}
	}
	var words uint64 // where they end, which no state tells
	if c.Words && c.At > 0 {
		words = c.At
	} else if c.Words {
		if _, words, err = log.Bounds(ctx); err != nil {
			return err
		}
	}
	for _, span := range spans {
		last := min(span.To, words)
		if span.To = min(span.To, present); span.To <= span.From {
			continue // it hadn't come that far
		}
		var begin *wire.State
		if span.From > 0 {
			if begin, err = StateAt(ctx, log, span.RunID, span.From); err != nil {
				return err
			}
		}
		end := s.State
		if span.RunID != end.RunID || span.To != end.Position.Seq {
			if end, err = StateAt(ctx, log, span.RunID, span.To); err != nil {
				return err
			}
		}
		s.Spend(begin, end)
		if err := readSteps(ctx, log, s, span, last); err != nil {
			return err
		}
	}
	return nil
}

// readSteps adds what a run did in a span, and the words up to a position, if any are wanted.
func readSteps(ctx context.Context, log eventlog.Reader, s *compare.Side, span compare.Span, words uint64) error {
	q := eventlog.Query{Run: span.RunID, Kinds: snapshot.Kinds, To: span.To}
	if words > 0 {
		q.Kinds, q.To = nil, max(span.To, words)
	}
	fenced, said := eventlog.LastEpochs{}, saidLines{}
	for e, err := range Read(ctx, log, q) {
		if err != nil {
			return err
		}
		if e.Event == nil || fenced.IsVoid(e.Event) || e.Pos <= span.From {
			continue
		}
		whole, err := log.Inline(ctx, e.Event)
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			whole = e.Event
			s.Missing++
		}
		if step, ok := compare.StepOf(e.Pos, whole); ok && e.Pos <= span.To {
			s.Steps = append(s.Steps, step)
		} else if !ok && words > 0 {
			said.add(s, e.Pos, whole)
		}
	}
	for _, n := range said {
		n.end(s)
	}
	return nil
}

// saidLines are the lines of words of each node, which come in pieces.
type saidLines map[string]*saidNode

type saidNode struct {
	lines timeline.Timeline
	open  map[uint64]*openLine // that may still change, by their positions
}

// openLine is a line and its step.
type openLine struct {
	step int
	text string
}

// Bounds of words.
const (
	maxOpen = 32      // lines of a node that may still change
	maxSaid = 4 << 10 // bytes of a line that are compared
)

// add adds what an event says: a new step, or more of one.
func (l saidLines) add(s *compare.Side, pos uint64, e *wire.Event) {
	n := l[e.Node()]
	if n == nil {
		n = &saidNode{open: map[uint64]*openLine{}}
		l[e.Node()] = n
	}
	step := n.lines.Step(pos, e)
	line := n.open[step.Pos]
	if step.Op == timeline.None || line == nil && step.Type != wire.LineText {
		return
	}
	if line == nil {
		if len(n.open) >= maxOpen {
			n.end(s)
		}
		line = &openLine{step: len(s.Steps)}
		n.open[step.Pos] = line
		s.Steps = append(s.Steps, compare.SayingOf(step.Pos, e))
	}
	if step.Op == timeline.Replace {
		line.text = ""
	}
	if left := maxSaid - len(line.text); left > 0 {
		line.text += step.Text[:min(left, len(step.Text))]
	}
}

// end writes what lines say into their steps.
func (n *saidNode) end(s *compare.Side) {
	for _, line := range n.open {
		s.Steps[line.step].SetText(line.text)
	}
	clear(n.open)
}
