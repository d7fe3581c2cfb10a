package console

import (
	"net/http"

	"code.wake.dev/wake/schemas"
)

// route is an address of the console.
type route struct {
	pattern string // of [http.ServeMux]
	least   role   // that may ask; "": every caller
	serve   http.HandlerFunc
}

// routes are all addresses of the console but /hooks/, which is the listener's. schemas/openapi.yaml describes them.
func (s *Console) routes() []route {
	return []route{
		{"GET /assets/{name}", "", s.showAsset},
		{"GET /shared/{link}", "", s.showShared},
		{"GET /answer/{link}", "", s.showAnswer},
		{"POST /answer/{link}", "", s.giveAnswer},
		{"POST /signin", "", s.signIn},
		{"POST /signout", "", s.signOut},

		{"GET /{$}", viewer, s.showHome},
		{"GET /parts/inbox", viewer, s.showInbox},
		{"GET /parts/fleet", viewer, s.showFleet},
		{"GET /live", viewer, s.streamPulse},

		{"GET /runs/{run}", viewer, s.showRun},
		{"GET /runs/{run}/parts/{part}", viewer, s.showRunPart},
		{"GET /runs/{run}/entry", viewer, s.partOf("entry", readEntry)},
		{"GET /runs/{run}/event", viewer, s.sendOf(readEvent)},
		{"GET /runs/{run}/alerts", viewer, s.sendAlerts},
		{"GET /runs/{run}/bookmarks", viewer, s.sendBookmarks},
		{"GET /runs/{run}/compare", viewer, s.showCompare},
		{"GET /runs/{run}/diff", viewer, s.sendOf(readDiff)},
		{"GET /runs/{run}/timeline", viewer, s.sendTimeline},
		{"GET /runs/{run}/state", viewer, s.sendOf(readState)},
		{"GET /runs/{run}/events", viewer, s.streamEvents},
		{"GET /runs/{run}/workspace", inspector, s.sendOf(readFolder)},
		{"GET /runs/{run}/files", inspector, s.partOf("files", readFiles)},
		{"GET /runs/{run}/file", inspector, s.partOf("file", readFile)},
		{"GET /search", viewer, s.showSearch},
		{"GET /spend", viewer, s.showSpend},
		{"GET /system", viewer, s.showSystem},
		{"GET /schemas/{name}", viewer, showSchema},

		{"POST /runs/{run}/command", operator, s.giveCommand},
		{"POST /runs/{run}/fork", operator, s.forkRun},
		{"POST /runs/{run}/share", operator, s.shareRun},

		{"POST /api/{verb}", viewer, s.passVerb},
		{"POST /api/workspace", inspector, s.passWorkspace},
	}
}

// handler is all that the console serves.
func (s *Console) handler() http.Handler {
	m := http.NewServeMux()
	for _, r := range s.routes() {
		if r.least != "" {
			r.serve = s.allow(r.least, r.serve)
		}
		m.HandleFunc(r.pattern, r.serve)
	}
	if s.reports != nil { // which knows its own tokens
		m.Handle("/hooks/", s.reports)
	}
	if s.sessions != nil { // so does it
		m.Handle(sessionsPath, s.sessions)
	}
	return s.guard(m)
}

// showSchema sends the description of what the console serves, or a schema that it names.
func showSchema(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("name") == "openapi.yaml" {
		w.Header().Set("Content-Type", "application/yaml")
	}
	http.ServeFileFS(w, r, schemas.Files, r.PathValue("name"))
}
