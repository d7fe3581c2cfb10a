package console

import (
	"cmp"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/client"
	"code.wake.dev/wake/pkg/wire"
)

// verdict is what has become of an order, for the page that gave it.
type verdict struct {
	OK       bool   `json:"ok"`
	Text     string `json:"text"`
	Hint     string `json:"hint,omitempty"`
	Position uint64 `json:"position,omitempty"`
	Run      string `json:"run,omitempty"`   // a new one
	Link     string `json:"link,omitempty"`  // to a run
	Until    int64  `json:"until,omitempty"` // Unix ms: how long it is good for
}

// orders are the commands that pages give.
var orders = []string{"send", "steer", "reply", "resume", "pause", "abort", "approve", "deny", "bookmark"}

// giveCommand sends a command of a form and says what has become of it.
func (s *Console) giveCommand(w http.ResponseWriter, r *http.Request) {
	l, run, err := s.findRun(r)
	if err == nil {
		err = r.ParseForm()
	}
	var c wire.Command
	if err == nil {
		c, err = commandOf(r.PostForm)
	}
	if err != nil {
		s.tellVerdict(w, verdictOf("", wire.CommandResponse{}, err))
		return
	}
	c.RunID, c.By = run, cmp.Or(userOfRequest(r).name, s.c.By, "console")
	answer, err := l.client.Do(r.Context(), c)
	s.tellVerdict(w, verdictOf(c.Type, answer, err))
}

// commandOf reads a command off a form. A question that is answered by options has a field for each
// part of it, choose.QUESTION, and perhaps words of one's own.
func commandOf(f url.Values) (wire.Command, error) {
	c := wire.Command{
		Type: f.Get("type"), NodeID: f.Get("node"), CallID: f.Get("call"), PromptID: f.Get("prompt"), Note: strings.TrimSpace(f.Get("note")),
		Message: strings.TrimSpace(f.Get("message")), Reason: strings.TrimSpace(f.Get("reason")), Label: strings.TrimSpace(f.Get("label")), At: f.Get("at"),
		Interrupt: f.Get("interrupt") != "",
	}
	if f.Get("rerun") != "" {
		c.Rerun = []string{"*"}
	}
	bad := func(text string) (wire.Command, error) {
		return c, &wire.APIError{Code: wire.CodeBadRequest, Message: text}
	}
	switch {
	case !slices.Contains(orders, c.Type):
		return bad("there is no such command")
	case (c.Type == "send" || c.Type == "steer") && c.Message == "":
		return bad("the message is empty")
	case c.Type == "bookmark" && c.Label == "":
		return bad("the bookmark needs a name")
	case c.Type != "reply":
		return c, nil
	}
	answers := map[string]any{}
	for name, chosen := range f {
		if question, ok := strings.CutPrefix(name, "choose."); ok && len(chosen) > 0 {
			answers[question] = chosen
			if len(chosen) == 1 {
				answers[question] = chosen[0]
			}
		}
	}
	c.Message = ""
	if own := strings.TrimSpace(f.Get("message")); own != "" {
		c.Content = wire.RawString(own)
		return c, nil
	}
	if len(answers) == 0 {
		return bad("choose an answer, or write one")
	}
	content, err := wire.Marshal(answers)
	if one, ok := answers[""]; ok && len(answers) == 1 { // of an ask node
		content, err = wire.Marshal(one)
	}
	c.Content = content
	return c, err
}

// verdictOf says what has become of a command.
func verdictOf(kind string, a wire.CommandResponse, err error) verdict {
	if e, ok := errors.AsType[*wire.APIError](err); ok {
		return verdict{Text: timeline.Line(e.Message, 400), Hint: timeline.Line(e.Hint, 300), Position: a.Position}
	}
	switch {
	case err != nil:
		return verdict{Text: timeline.Line(err.Error(), 400)}
	case !a.Recorded:
		return verdict{OK: true, Text: kind + " is stored; it is obeyed when a runner comes"}
	}
	return verdict{OK: true, Text: kind + " received", Position: a.Position}
}

func (s *Console) tellVerdict(w http.ResponseWriter, v verdict) {
	status := http.StatusOK
	if !v.OK {
		status = http.StatusConflict
	}
	s.writeJSON(w, status, v)
}

// forkRun begins a run that goes on from a point of another one.
func (s *Console) forkRun(w http.ResponseWriter, r *http.Request) {
	l, run, err := s.findRun(r)
	q := client.ForkRequest{RunID: run, At: strings.TrimSpace(r.PostFormValue("at")), Message: strings.TrimSpace(r.PostFormValue("message"))}
	if err == nil {
		q.Overrides, err = overridesOf(strings.TrimSpace(r.PostFormValue("model")), strings.TrimSpace(r.PostFormValue("overrides")))
	}
	var f client.ForkResult
	if err == nil {
		f, err = l.client.Fork(r.Context(), q)
	}
	if err != nil {
		s.tellVerdict(w, verdictOf("fork", wire.CommandResponse{}, err))
		return
	}
	v := verdict{OK: true, Text: "forked: run " + f.RunID, Run: f.RunID}
	if !f.Recorded {
		v.Text = "the fork is stored; it begins when a runner comes"
	}
	s.tellVerdict(w, v)
}

// overridesOf returns the options that a fork's agents are given: others as JSON, and a model.
func overridesOf(model, others string) (wire.Raw, error) {
	options := map[string]any{}
	if others != "" {
		raw, err := wire.RawFromJSON([]byte(others))
		given, is := raw.Any().(map[string]any)
		if err != nil || !is {
			return nil, &wire.APIError{Code: wire.CodeBadRequest, Message: "other overrides are no JSON object", Hint: `such as {"maxTurns": 20}`}
		}
		options = given
	}
	if model != "" {
		options["model"] = model
	}
	if len(options) == 0 {
		return nil, nil
	}
	return wire.Marshal(options)
}

// readVerbs are the verbs of wake.api that pages and programs may ask here. What changes something has
// addresses of its own.
var readVerbs = []string{
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
		answer, err = callVerb[wire.Raw](r.Context(), s, verb, q)
	}
	s.sendAnswer(w, r, answer, err)
}
