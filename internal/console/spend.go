package console

import (
	"net/http"

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
	if p.StatsResponse, err = call[wire.StatsResponse](r.Context(), s, wire.VerbStats, q); err != nil {
		s.showError(w, r, err)
		return
	}
	s.showPage(w, r, http.StatusOK, "spend", page{Title: "Spend", At: "spend", Data: p})
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
		if f.SearchResponse, err = call[wire.SearchResponse](r.Context(), s, wire.VerbSearch, wire.SearchRequest{Text: f.Text, Limit: 50, Cursor: r.FormValue("cursor")}); err != nil {
			s.showError(w, r, err)
			return
		}
		if f.Cursor != "" {
			f.Next = "/search?" + encode("q", f.Text, "cursor", f.Cursor)
		}
	}
	s.showPage(w, r, http.StatusOK, "search", page{Title: "Search", At: "search", Data: f})
}

// piece is a part of a text, which matches or doesn't.
type piece struct {
	Text string
	Hit  bool
}

// Pieces are the parts of a hit's snippet.
func piecesOf(h wire.SearchHit) (all []piece) {
	text, at := []rune(h.Snippet), 0
	for _, m := range h.Matches {
		if m.From < at || m.To > len(text) || m.To < m.From {
			continue
		}
		all = append(all, piece{string(text[at:m.From]), false}, piece{string(text[m.From:m.To]), true})
		at = m.To
	}
	return append(all, piece{string(text[at:]), false})
}
