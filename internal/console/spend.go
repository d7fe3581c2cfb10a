package console

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/pkg/wire"
)

// spend is what was used.
type spend struct {
	wire.StatsResponse

	Since string
}

// showSpend shows what `wake stats` tells.
func (s *Console) showSpend(w http.ResponseWriter, r *http.Request) {
	p := spend{Since: r.FormValue("since")}
	var q wire.StatsRequest
	var err error
	if p.Since != "" {
		if q.Since, err = wire.ParseAgo(p.Since); err != nil {
			s.showError(w, r, &wire.APIError{Code: wire.CodeBadRequest, Message: err.Error()})
			return
		}
	}
	if p.StatsResponse, err = callVerb[wire.StatsResponse](r.Context(), s, wire.VerbStats, q); err != nil {
		s.showError(w, r, err)
		return
	}
	s.showPage(w, r, http.StatusOK, "spend", page{Title: "Spend", At: "spend", Data: p})
}

// runSpend is what a run has used.
type runSpend struct {
	wire.StatsResponse

	Run   string
	Turns []turn // of its agents, the newest first
}

// turn is what an agent has used from one message to it to the end of what it did then.
type turn struct {
	Pos         uint64
	At          int64 // Unix ms: its end
	Node, Model string
	TookMs      int64
	In, Out     int64 // tokens
	Cost        float64
	Basis       string
}

// What is read of the turns of a run.
const (
	maxTurns   = 50
	turnWindow = 20_000 // positions before the run's last one
)

func readRunSpend(ctx context.Context, s *Console, l *link, run string) (p runSpend, err error) {
	p.Run = run
	if p.StatsResponse, err = callVerb[wire.StatsResponse](ctx, s, wire.VerbStats, wire.StatsRequest{Run: run}); err != nil {
		return p, err
	}
	st, err := callVerb[wire.StatusResponse](ctx, s, wire.VerbStatus, wire.StatusRequest{Run: run})
	if err != nil {
		return p, err
	}
	for e, err := range history.Read(ctx, l.reader, eventlog.Query{Run: run, Kinds: []wire.Kind{wire.KindAgent}, From: st.Position.Seq - min(st.Position.Seq, turnWindow)}) {
		if err != nil {
			return p, err
		}
		if e.Event == nil {
			continue
		}
		if end, is := e.Event.Payload.(*wire.TurnEnd); is {
			p.Turns = append(p.Turns, turnOf(e.Pos, e.Event, end))
		}
	}
	p.Turns = p.Turns[max(0, len(p.Turns)-maxTurns):]
	slices.Reverse(p.Turns)
	return p, nil
}

func turnOf(pos uint64, e *wire.Event, end *wire.TurnEnd) turn {
	t := turn{Pos: pos, At: e.Timestamp, Node: e.NodeID, TookMs: end.DurationMs, Model: strings.Join(slices.Sorted(maps.Keys(end.ModelUsage)), ", ")}
	if u := end.Usage; u != nil {
		t.In, t.Out = u.InputTokens+wire.ValueOf(u.CacheCreationInputTokens)+wire.ValueOf(u.CacheReadInputTokens), u.OutputTokens
	}
	if end.TurnCostUsd != nil {
		t.Cost, t.Basis = *end.TurnCostUsd, wire.CostReported
		if end.CostSource != "" {
			t.Basis = wire.CostComputed
		}
	}
	return t
}

// found is what a search has found.
type found struct {
	wire.SearchResponse

	Text string
	Next string
}

// showSearch looks for words in the logs of all runs.
func (s *Console) showSearch(w http.ResponseWriter, r *http.Request) {
	f := found{Text: r.FormValue("q")}
	if f.Text != "" {
		var err error
		if f.SearchResponse, err = callVerb[wire.SearchResponse](r.Context(), s, wire.VerbSearch, wire.SearchRequest{Text: f.Text, Limit: 50, Cursor: r.FormValue("cursor")}); err != nil {
			s.showError(w, r, err)
			return
		}
		if f.Cursor != "" {
			f.Next = "search?" + encodeQuery("q", f.Text, "cursor", f.Cursor)
		}
	}
	s.showPage(w, r, http.StatusOK, "search", page{Title: "Search", At: "search", Data: f})
}
