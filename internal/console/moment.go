package console

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/graph"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// moment is a run at a position of its log.
type moment struct {
	At    uint64
	State *wire.State
	Nodes []momentNode
	Tools []wire.ToolCall
	Lines []wire.LogLine // the last ones up to there, the latest first
	Graph *graph.Picture
	Files bool   // the user may see the files of the run
	First uint64 // position at which the run began
}

// Word is how the run was doing, in a word.
func (m moment) Word() string { return cmp.Or(string(m.State.Result), string(m.State.Status)) }

// TookMs is how long the run had taken.
func (m moment) TookMs() int64 {
	if m.State.StartedAt == 0 {
		return 0
	}
	return m.State.UpdatedAt - m.State.StartedAt
}

// TokensIn are those that models had been given, from caches, too.
func (m moment) TokensIn() int64 { return ledger.TotalIn(m.State.Usage) }

// Basis is what the cost comes from, see [wire.CostReported].
func (m moment) Basis() string {
	u := m.State.Usage
	return ledger.Basis(u.CostUsd, u.ComputedUsd, u.Unpriced)
}

type momentNode struct {
	ID, State string
	wire.NodeState
}

// What a moment shows of what came before it.
const (
	momentEvents = 600     // of the whole log, at first
	maxWindow    = 600_000 // of it, that are looked through at most
	momentLines  = 30
)

// readMoment returns the run as it was at a position: the fold of the log up to there, which is what
// `wake state --at` tells.
func readMoment(r *http.Request, l *link, run string, at uint64) (*moment, error) {
	ctx := r.Context()
	state, err := stateAt(ctx, l, run, max(at, 1))
	if err != nil {
		return nil, err
	}
	m := &moment{At: at, State: state, Tools: openTools(state), Graph: graph.Draw(state), Files: userOfRequest(r).may(inspector)}
	if m.First, err = firstPosition(ctx, l, run); err != nil {
		return nil, err
	}
	for id, n := range state.Nodes {
		if id != wire.RunNode {
			m.Nodes = append(m.Nodes, momentNode{id, graph.NodeWord(state, id), n})
		}
	}
	slices.SortFunc(m.Nodes, func(a, b momentNode) int {
		return cmp.Or(cmp.Compare(a.Scheduled, b.Scheduled), cmp.Compare(a.ID, b.ID))
	})
	for window := uint64(momentEvents); ; window *= 10 { // others' events are between those of the run
		if m.Lines, err = linesBefore(ctx, l, run, at, window); err != nil || len(m.Lines) >= momentLines/2 || window >= at || window >= maxWindow {
			slices.Reverse(m.Lines)
			return m, err
		}
	}
}

// stateAt is the fold of a run's log up to a position; 0: the present.
func stateAt(ctx context.Context, l *link, run string, at uint64) (*wire.State, error) {
	state, err := l.client.StateAt(ctx, run, at)
	if at > 0 && wire.HasCode(err, wire.CodeRunNotFound) {
		err = &wire.APIError{Code: wire.CodeNotFound, Message: "the run had not begun there"}
	}
	return state, err
}

// linesBefore returns the last lines of the log up to a position.
func linesBefore(ctx context.Context, l *link, run string, at, window uint64) ([]wire.LogLine, error) {
	from := uint64(1)
	if at > window {
		from = at - window
	}
	var lines []wire.LogLine
	timelines := map[string]*timeline.Timeline{}
	for e, err := range history.Read(ctx, l.reader, eventlog.Query{Run: run, From: from, To: at}) {
		if err != nil {
			return nil, err
		}
		if e.Event == nil {
			continue
		}
		node := e.Event.Node()
		if timelines[node] == nil {
			timelines[node] = &timeline.Timeline{}
		}
		step := timelines[node].Step(e.Pos, e.Event)
		i := slices.IndexFunc(lines, func(x wire.LogLine) bool { return x.Pos == step.Pos })
		switch {
		case step.Op == timeline.None:
		case step.Op == timeline.Add || i < 0:
			lines = append(lines, wire.LogLine{Pos: step.Pos, TS: e.Event.Timestamp, Node: node, Parent: e.Event.Parent, Type: step.Type, Text: step.Text})
		case step.Op == timeline.Extend:
			lines[i].Text += step.Text
		default:
			lines[i].Text = step.Text
		}
	}
	return lines[max(0, len(lines)-momentLines):], nil
}

// readState returns the state of a run at a position, as `wake state --json` does.
func readState(r *http.Request, l *link, run string) (any, error) {
	at, err := positionOf(r.FormValue("at"))
	if err != nil {
		return nil, err
	}
	return l.client.StateAt(r.Context(), run, at)
}

// firstPosition is that of the run's first event.
func firstPosition(ctx context.Context, l *link, run string) (uint64, error) {
	page, err := api.Call[wire.EventsResponse](ctx, l.nc, l.reader.Names(), wire.VerbEvents, wire.EventsRequest{Run: run, Limit: 1})
	if err != nil || len(page.Events) == 0 {
		return 0, err
	}
	return page.Events[0].Pos, nil
}
