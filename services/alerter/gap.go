package alerter

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// gap are events of a node that the log lacks although it has later ones.
type gap struct {
	Node     string
	From, To uint64 // seq
	Pos      uint64 // of the event behind it
}

func (g gap) finding() finding {
	n := g.To - g.From + 1
	which := fmt.Sprintf("seq %d", g.From)
	if n > 1 {
		which = fmt.Sprintf("seq %d to %d", g.From, g.To)
	}
	return finding{
		Kind: kindGap, Severity: wire.SeverityCritical, NodeID: g.Node, Armed: g.Pos,
		Text: fmt.Sprintf(textGap, formatCount(int64(n), "event"), nameLine(g.Node), which),
		Data: map[string]any{"nodeId": nameLine(g.Node), "from": g.From, "to": g.To},
	}
}

// wholeness says of a run whether nothing of it is missing, as far as that is plain from the events as they come: its
// owner alone has written, one event after the other.
type wholeness struct {
	seq, epoch uint64 // of the owner's last event
	unknown    bool
}

// note accounts for the run's next event, or for the same one again.
func (s *wholeness) note(e *wire.Event) {
	next := e.Seq == s.seq+1 && (e.Epoch == s.epoch || e.Epoch > s.epoch && e.Claims())
	switch {
	case e.NodeID != wire.RunNode || !next && e.Seq != s.seq:
		s.unknown = true
	case next:
		s.seq, s.epoch = e.Seq, e.Epoch
	}
}

// completedBy reports whether an event completes a run of which nothing is missing.
func (s *wholeness) completedBy(e *wire.Event) bool {
	_, complete := e.Payload.(*wire.FlowComplete)
	return complete && !s.unknown
}

// gapsIn returns the gaps in the events of a node, which are in stream order and
// of all kinds. What a fenced writer wrote doesn't count, what has aged out isn't
// missing.
func gapsIn(node string, events func(yield func(eventlog.Entry, error) bool)) ([]gap, error) {
	var gaps []gap
	var last, epoch uint64
	for x, err := range events {
		switch {
		case err != nil:
			return nil, err
		case x.Err != nil || x.Event.Epoch < epoch:
			continue
		}
		e := x.Event
		epoch = e.Epoch
		before := last
		switch p := e.Payload.(type) {
		case *wire.NodeClaimed:
			before = max(before, p.AtSeq)
		case *wire.RunClaimed:
			before = max(before, p.AtSeq)
		}
		if before > 0 && e.Seq > before+1 {
			gaps = append(gaps, gap{Node: node, From: before + 1, To: e.Seq - 1, Pos: x.Pos})
		}
		last = max(last, e.Seq)
	}
	return gaps, nil
}

// findGaps looks for gaps in the events of a run that has ended, up to its end. A node
// with as many events as the number of its last event has none; the events of other
// nodes are read.
func (a *Alerter) findGaps(ctx context.Context, runID string, end uint64) ([]gap, error) {
	names := a.log.Names()
	info, err := a.stream.Info(ctx, jetstream.WithSubjectFilter(names.RunEvents(runID)))
	if err != nil {
		return nil, err
	}
	events := map[string]uint64{} // by a subject of the node
	for subject, n := range info.State.Subjects {
		if _, node, _, err := names.ParseEvent(subject); err == nil {
			events[node] += n
		}
	}
	var all []gap
	for _, node := range sortedKeys(events) {
		last, err := a.stream.GetLastMsgForSubject(ctx, names.NodeEvents(runID, node))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // aged out meanwhile
		}
		if err != nil {
			return nil, err
		}
		if e, err := wire.Decode(last.Data); err == nil && e.Seq == events[node] {
			continue
		}
		gaps, err := gapsIn(node, a.log.Read(ctx, eventlog.Query{Run: runID, Node: node, To: end}))
		if err != nil {
			return nil, err
		}
		all = append(all, gaps...)
	}
	return all, nil
}
