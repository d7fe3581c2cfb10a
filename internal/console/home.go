package console

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"sync"

	"code.wake.dev/wake/pkg/wire"
)

// home is the first page.
type home struct {
	Inbox inbox
	Fleet fleet
}

// inbox is what waits for a person.
type inbox struct {
	wire.ApprovalsResponse

	Run      string // of whose page it is a part; "": it is that of all
	Operator bool
	More     int // that aren't shown
}

// maxInbox bounds what is shown of it at once.
const maxInbox = 20

// fleet is a page of the runs.
type fleet struct {
	wire.FleetResponse

	Query  fleetQuery
	States []stateCount
	Prev   string // address of the page before; "": there is none
	Next   string
}

// stateCount is a state with its number of runs, and how to see only those.
type stateCount struct {
	State string
	N     int
	On    bool
	URL   string
}

// fleetQuery is what a URL says of the fleet.
type fleetQuery struct {
	State, Label, Flow, Text, Sort, Cursor string
}

// fleetPage is how many runs are on a page: their rows and what is in them stay few.
const fleetPage = 50

func readFleetQuery(v url.Values) fleetQuery {
	return fleetQuery{State: v.Get("state"), Label: v.Get("label"), Flow: v.Get("flow"), Text: v.Get("q"), Sort: v.Get("sort"), Cursor: v.Get("cursor")}
}

// url is the address that asks this, of a page or a part of one.
func (q fleetQuery) url(path string) string {
	asked := encodeQuery("state", q.State, "label", q.Label, "flow", q.Flow, "q", q.Text, "sort", q.Sort, "cursor", q.Cursor)
	if asked == "" {
		return path
	}
	return path + "?" + asked
}

// Part is the address of the list alone.
func (q fleetQuery) Part() string { return q.url("parts/fleet") }

// Any reports whether it leaves out runs.
func (q fleetQuery) Any() bool { return q.State != "" || q.Label != "" || q.Flow != "" || q.Text != "" }

func (s *Console) readFleet(r *http.Request) (fleet, error) {
	f := fleet{Query: readFleetQuery(r.URL.Query())}
	ask := wire.FleetRequest{Label: f.Query.Label, Flow: f.Query.Flow, Text: f.Query.Text, Sort: f.Query.Sort, Cursor: f.Query.Cursor, Limit: fleetPage}
	if f.Query.State != "" {
		ask.State = []string{f.Query.State}
	}
	var err error
	if f.FleetResponse, err = callVerb[wire.FleetResponse](r.Context(), s, wire.VerbFleet, ask); err != nil {
		return f, err
	}
	page := func(cursor string) string {
		q := f.Query
		q.Cursor = cursor
		return q.url("./")
	}
	if f.Before > 0 {
		f.Prev = page(f.Previous)
	}
	if f.Cursor != "" {
		f.Next = page(f.Cursor)
	}
	for _, state := range []string{"waiting", "failed", "paused", "active", "idle", "aborted", "complete"} {
		q := f.Query
		q.State, q.Cursor = state, ""
		if f.Query.State == state {
			q.State = ""
		}
		if n := f.FleetResponse.States[state]; n > 0 || f.Query.State == state {
			f.States = append(f.States, stateCount{state, n, f.Query.State == state, q.url("./")})
		}
	}
	return f, nil
}

func (s *Console) readInbox(r *http.Request, run string) (inbox, error) {
	a, err := callVerb[wire.ApprovalsResponse](r.Context(), s, wire.VerbApprovals, wire.ApprovalsRequest{Run: run})
	b := inbox{ApprovalsResponse: a, Run: run, More: a.Omitted, Operator: userOfRequest(r).role == operator}
	if len(b.Approvals) > maxInbox {
		b.More += len(b.Approvals) - maxInbox
		b.Approvals = slices.Clone(b.Approvals[:maxInbox])
	}
	return b, err
}

func (s *Console) showHome(w http.ResponseWriter, r *http.Request) {
	var h home
	var missing error
	var asking sync.WaitGroup
	asking.Go(func() { h.Inbox, missing = s.readInbox(r, "") })
	var err error
	h.Fleet, err = s.readFleet(r)
	asking.Wait()
	if err = cmp.Or(err, missing); err != nil {
		s.showError(w, r, err)
		return
	}
	s.showPage(w, r, http.StatusOK, "home", page{Title: "Fleet", At: "home", Data: h})
}

func (s *Console) showInbox(w http.ResponseWriter, r *http.Request) {
	b, err := s.readInbox(r, r.FormValue("run"))
	s.showPart(w, r, "inbox", b, err)
}

func (s *Console) showFleet(w http.ResponseWriter, r *http.Request) {
	f, err := s.readFleet(r)
	s.showPart(w, r, "fleet", f, err)
}

// system is how the installation is doing.
type system struct {
	Checks  []Check
	Runners []Runner
	Sinks   []wire.SinkStatus
	Letters []wire.Raw
	Absent  string // why nothing is known of sinks
	Viewer  string // the address for viewers, who may only read
	Users   int
}

func (s *Console) showSystem(w http.ResponseWriter, r *http.Request) {
	p := system{Users: len(s.users)}
	l, err := s.openLink(r.Context())
	if err != nil { // that no recorder answers is among what the checks tell
		nc, failed := s.c.Connect(r.Context())
		if failed != nil {
			s.showError(w, r, unreachableError(failed))
			return
		}
		defer nc.Close()
		l = &link{nc: nc}
	}
	if s.c.Checks != nil {
		p.Checks = s.c.Checks(r.Context(), l.nc)
	}
	if s.c.Runners != nil {
		p.Runners = s.c.Runners(r.Context(), l.nc)
	}
	var sinks wire.SinksResponse
	if err == nil {
		sinks, err = callVerb[wire.SinksResponse](r.Context(), s, wire.VerbSinks, struct{}{})
	}
	if err == nil {
		p.Sinks = sinks.Sinks
		var letters wire.LettersResponse
		if letters, err = callVerb[wire.LettersResponse](r.Context(), s, wire.VerbLetters, wire.LettersRequest{}); err == nil {
			p.Letters = letters.Letters[:min(len(letters.Letters), 50)]
		}
	}
	if err != nil {
		p.Absent = err.Error()
	}
	if s.c.Users == "" && userOfRequest(r).role == operator {
		p.Viewer = s.Address() + "#token=" + s.users[1].token
	}
	s.showPage(w, r, http.StatusOK, "system", page{Title: "System", At: "system", Data: p})
}
