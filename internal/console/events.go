package console

import (
	"encoding/json"
	"fmt"
	"iter"
	"net/http"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/pkg/wire"
)

// streamEvents sends the events of a run from a position on, and those to come: /events?from=POSITION.
// The id of each is its position, by which a reader that lost its connection goes on.
func (s *Console) streamEvents(w http.ResponseWriter, r *http.Request) {
	from, err := positionOf(r.FormValue("from"))
	if last := r.Header.Get("Last-Event-ID"); last != "" && err == nil {
		from, err = positionOf(last)
		from++
	}
	if err != nil {
		s.showError(w, r, err)
		return
	}
	l, run, err := s.findRun(r)
	if err != nil {
		s.showError(w, r, err)
		return
	}
	out, ok := beginStream(w)
	if !ok {
		return
	}
	send := func(events iter.Seq2[eventlog.Entry, error]) bool {
		for e, err := range events {
			if err != nil {
				if r.Context().Err() == nil {
					data, _ := json.Marshal(map[string]string{"error": err.Error()})
					_, _ = fmt.Fprintf(w, "event: problem\ndata: %s\n\n", data)
				}
				return false
			}
			from = e.Pos + 1
			if e.Event == nil {
				continue
			}
			data, err := wire.EncodeJSON(e.Event)
			if err != nil {
				continue // it can't be told
			}
			_, _ = fmt.Fprintf(w, "id: %d\ndata: %s\n\n", e.Pos, data)
			if out.Flush() != nil {
				return false
			}
		}
		return true
	}
	if send(history.Read(r.Context(), l.reader, eventlog.Query{Run: run, From: from})) {
		send(l.reader.Follow(r.Context(), eventlog.Query{Run: run, From: from}))
	}
}

// findRun returns the run that the path names.
func (s *Console) findRun(r *http.Request) (*link, string, error) {
	l, err := s.openLink(r.Context())
	if err != nil {
		return nil, "", err
	}
	run, err := l.client.Find(r.Context(), r.PathValue("run"))
	return l, run, err
}
