package console

import (
	"errors"
	"io"
	"net/http"
	"slices"

	"code.wake.dev/wake/pkg/wire"
)

// readVerbs are the verbs of wake.api that pages and programs may ask here. What changes something has
// addresses of its own.
var readVerbs = []string{ //nolint:gochecknoglobals // a table
	wire.VerbFleet, wire.VerbTimeline, wire.VerbLog, wire.VerbStatus, wire.VerbTop, wire.VerbApprovals, wire.VerbRuns, wire.VerbSearch, wire.VerbStats, wire.VerbBudgets,
	wire.VerbEvents, wire.VerbState, wire.VerbSnapshot, wire.VerbSinks, wire.VerbLetters, wire.VerbAlerts, wire.VerbBookmarks, wire.VerbDiff,
}

// passVerb passes a request on to a verb of wake.api, as JSON.
func (s *Console) passVerb(w http.ResponseWriter, r *http.Request) {
	verb := r.PathValue("verb")
	if !slices.Contains(readVerbs, verb) {
		s.showError(w, r, &wire.APIError{Code: wire.CodeNotFound, Message: "there is no such verb here"})
		return
	}
	s.askVerb(w, r, verb)
}

// passWorkspace passes a request on to the verb that tells what is in folders of runs.
func (s *Console) passWorkspace(w http.ResponseWriter, r *http.Request) {
	s.askVerb(w, r, wire.VerbWorkspace)
}

func (s *Console) askVerb(w http.ResponseWriter, r *http.Request, verb string) {
	body, err := io.ReadAll(r.Body)
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		err = &wire.APIError{Code: wire.CodeTooLarge, Message: "the request is too large"}
	}
	if len(body) == 0 {
		body = []byte("{}")
	}
	var q wire.Raw
	if err == nil {
		if q, err = wire.RawFromJSON(body); err != nil {
			err = &wire.APIError{Code: wire.CodeBadRequest, Message: "the request is no JSON"}
		}
	}
	var answer wire.Raw
	if err == nil {
		answer, err = call[wire.Raw](r.Context(), s, verb, q)
	}
	s.sendAnswer(w, r, answer, err)
}
