package console

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"sync"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/pkg/wire"
)

// How long the console waits before it asks again what has changed, while a page is open: as long as the answer took, within these bounds; while
// nothing changes, twice as long each time.
const (
	leastPause = 100 * time.Millisecond
	mostPause  = 400 * time.Millisecond
)

// change is what has changed: runs up to a position, or too many to name.
type change struct {
	Position uint64   `json:"position"`
	Runs     []string `json:"runs"`
	Many     bool     `json:"many,omitempty"`
	Waits    bool     `json:"waits,omitempty"` // what waits for a person may have changed, too
	Away     string   `json:"away,omitempty"`  // why no changes are known

	waiting map[string]int // number of things that wait for a person
}

// pulse asks once for all pages what has changed. It stands still while there are none. The zero
// value is ready.
type pulse struct {
	mu      sync.Mutex
	looking map[chan change]bool
	stop    context.CancelFunc
	done    sync.WaitGroup
}

// look returns what changes, until leave is called. A page that doesn't keep up hears of the next
// change: all that a change is good for is asking anew.
func (p *pulse) look(ctx context.Context, ask func(ctx context.Context, since uint64) (change, error)) (heard chan change, leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	heard = make(chan change, 1)
	if p.looking == nil {
		p.looking = map[chan change]bool{}
	}
	p.looking[heard] = true
	if len(p.looking) == 1 {
		beating, stop := context.WithCancel(context.WithoutCancel(ctx))
		p.stop = stop
		p.done.Go(func() { p.run(beating, ask) })
	}
	return heard, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.looking, heard)
		if len(p.looking) == 0 {
			p.stop()
		}
	}
}

// wait returns when no page asks any more.
func (p *pulse) wait() { p.done.Wait() }

func (p *pulse) run(ctx context.Context, ask func(context.Context, uint64) (change, error)) {
	var since uint64
	var waiting map[string]int
	pause := leastPause
	for away := false; ; {
		began := time.Now()
		c, err := ask(ctx, since)
		if len(c.Runs) > 0 || c.Many {
			pause = leastPause
		} else {
			pause *= 2
		}
		pause = min(max(pause, time.Since(began)), mostPause)
		c.Waits = c.Waits || c.Many || err == nil && !maps.Equal(c.waiting, waiting)
		waiting = c.waiting
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c = change{Position: since, Away: err.Error()}
		case away:
			c.Many = true // pages ask anew
		}
		if len(c.Runs) > 0 || c.Many || c.Waits || (c.Away != "") != away {
			p.tell(c)
		}
		away, since = c.Away != "", c.Position
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// tell tells all pages; one that hasn't heard the last change hears that there are many.
func (p *pulse) tell(c change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for heard := range p.looking {
		select {
		case heard <- c:
		default:
			select {
			case <-heard:
			default:
			}
			heard <- change{Position: c.Position, Many: true, Away: c.Away}
		}
	}
}

// askChanges asks the recorder which runs have changed.
func (s *Console) askChanges(ctx context.Context, since uint64) (change, error) {
	limited, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	const most = 50
	f, err := callVerb[wire.FleetResponse](limited, s, wire.VerbFleet, wire.FleetRequest{Since: since, Limit: most, Sort: "activity"})
	return makeChange(f, since), err
}

// makeChange returns what has changed behind a position. What waits has changed only if one of the runs waits, or fewer things wait than
// before.
func makeChange(f wire.FleetResponse, since uint64) change {
	many := f.Position > 0 && since == 0 || f.Total > len(f.Runs) || f.LeftMore || f.Position < since
	c := change{Position: f.Position, Many: many, waiting: f.Waits}
	for _, r := range f.Runs {
		c.Runs = append(c.Runs, r.RunID)
		c.Waits = c.Waits || r.State == "waiting" || r.WaitingFor != "" || r.Status == wire.RunPaused
	}
	c.Runs = append(c.Runs, f.Left...)
	return c
}

// streamPulse tells a page what has changed. A page that comes again asks for everything anew, so that
// it needs no position.
func (s *Console) streamPulse(w http.ResponseWriter, r *http.Request) {
	out, ok := beginStream(w)
	if !ok {
		return
	}
	heard, leave := s.pulse.look(r.Context(), s.askChanges)
	defer leave()
	alive := time.NewTicker(15 * time.Second)
	defer alive.Stop()
	_, _ = fmt.Fprint(w, "retry: 1000\nevent: begin\ndata: {}\n\n")
	for {
		if out.Flush() != nil {
			return
		}
		select {
		case c := <-heard:
			data, _ := json.Marshal(c) // texts and numbers
			_, _ = fmt.Fprintf(w, "id: %d\ndata: %s\n\n", c.Position, data)
		case <-alive.C:
			_, _ = fmt.Fprint(w, ": alive\n\n")
		case <-r.Context().Done():
			return
		}
	}
}

// beginStream begins an answer that goes on.
func beginStream(w http.ResponseWriter) (*http.ResponseController, bool) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	return out, out.Flush() == nil
}

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
