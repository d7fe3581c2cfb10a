package console

import "net/http"

// handler is all that the console serves.
func (s *Console) handler() http.Handler {
	m := http.NewServeMux()
	view := func(pattern string, f http.HandlerFunc) { m.HandleFunc(pattern, s.allow(viewer, f)) }
	order := func(pattern string, f http.HandlerFunc) { m.HandleFunc(pattern, s.allow(operator, f)) }

	m.HandleFunc("GET /assets/{name}", s.showAsset)
	m.HandleFunc("GET /shared/{link}", s.showShared)
	m.HandleFunc("POST /signin", s.signIn)
	m.HandleFunc("POST /signout", s.signOut)

	view("GET /{$}", s.showHome)
	view("GET /parts/inbox", s.showInbox)
	view("GET /parts/fleet", s.showFleet)
	view("GET /live", s.streamPulse)

	view("GET /runs/{run}", s.showRun)
	view("GET /runs/{run}/parts/{part}", s.showRunPart)
	view("GET /runs/{run}/entry", s.showEntry)
	view("GET /runs/{run}/compare", s.showCompare)
	view("GET /runs/{run}/diff", s.sendDiff)
	view("GET /runs/{run}/timeline", s.sendTimeline)
	view("GET /runs/{run}/state", s.sendState)
	view("GET /runs/{run}/events", s.streamEvents)
	view("GET /search", s.showSearch)
	view("GET /spend", s.showSpend)
	view("GET /system", s.showSystem)

	order("POST /runs/{run}/command", s.giveCommand)
	order("POST /runs/{run}/fork", s.forkRun)
	order("POST /runs/{run}/share", s.shareRun)

	view("POST /api/{verb}", s.passVerb)
	if s.reports != nil { // which knows its own tokens
		m.Handle("/hooks/", s.reports)
	}
	return s.guard(m)
}
