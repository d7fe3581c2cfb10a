package console

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"sync"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/redact"
	"code.wake.dev/wake/pkg/wire"
)

// How long links are good for.
const (
	shareTime    = 24 * time.Hour // if nothing is said
	maxShareTime = 90 * 24 * time.Hour
)

const (
	// maxPages bounds the pages of shared runs that are sent at the same time, maxPagesOfRun those of one run: a slow reader with a link
	// to a run holds up the readers of that one alone.
	maxPages      = 8
	maxPagesOfRun = 2
	// maxPageTime is how long the sending of one may take.
	maxPageTime = 5 * time.Minute
)

// pageCount counts the pages of shared runs that are being sent, by their runs.
type pageCount struct {
	mu    sync.Mutex
	all   int
	ofRun map[string]int
}

// takePlace reports whether one more page of a run may be sent. If so, it counts until it is given back.
func (c *pageCount) takePlace(run string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all >= maxPages || c.ofRun[run] >= maxPagesOfRun {
		return false
	}
	if c.ofRun == nil {
		c.ofRun = map[string]int{}
	}
	c.all++
	c.ofRun[run]++
	return true
}

func (c *pageCount) givePlaceBack(run string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.ofRun[run]--; c.ofRun[run] == 0 {
		delete(c.ofRun, run)
	}
}

// shareRun makes a link to a run for a viewer without a token.
func (s *Console) shareRun(w http.ResponseWriter, r *http.Request) {
	_, run, err := s.findRun(r)
	lasts := shareTime
	if text := r.PostFormValue("for"); err == nil && text != "" {
		if lasts, err = time.ParseDuration(text); err != nil || lasts < time.Second || lasts > maxShareTime {
			err = &wire.APIError{Code: wire.CodeBadRequest, Message: fmt.Sprintf("%.40q is no time that a link can last", text), Hint: "such as 24h; 2160h at most"}
		}
	}
	if err != nil {
		s.tellVerdict(w, verdictOf("share", wire.CommandResponse{}, err))
		return
	}
	until := time.Now().Add(lasts)
	s.tellVerdict(w, verdict{
		OK: true, Text: "all who have the link see this run until " + until.UTC().Format(time.DateTime) + " UTC, and nothing else",
		Link: s.linkBase(r.Host) + "shared/" + s.signShare(run, until), Until: until.UnixMilli(),
	})
}

// signShare is what a link to a run has: until when it is good, the run, and a signature of both.
func (s *Console) signShare(run string, until time.Time) string {
	b := append(binary.BigEndian.AppendUint64(nil, uint64(until.Unix())), run...) // after 1970
	return base64.RawURLEncoding.EncodeToString(append(s.shareSum(b), b...))
}

func (s *Console) shareSum(b []byte) []byte {
	m := hmac.New(sha256.New, s.secret)
	m.Write([]byte("share\x00"))
	m.Write(b)
	return m.Sum(nil)
}

// readShare returns the run of a link that this console has signed, and until when it is good.
func (s *Console) readShare(token string) (run string, until time.Time, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) <= sha256.Size+8 || !hmac.Equal(b[:sha256.Size], s.shareSum(b[sha256.Size:])) {
		return "", time.Time{}, false
	}
	b = b[sha256.Size:]
	return string(b[8:]), time.Unix(int64(binary.BigEndian.Uint64(b)), 0), true // ours
}

// showShared shows the run of a link as a page that has all in it: it asks for nothing, so nothing else is to
// be had by the link. Secrets are taken out once more, by stricter rules than those of the log.
func (s *Console) showShared(w http.ResponseWriter, r *http.Request) {
	run, until, ok := s.readShare(r.PathValue("link"))
	switch {
	case !ok:
		s.showError(w, r, &wire.APIError{Code: wire.CodeNotFound, Message: "there is no such link"})
		return
	case time.Now().After(until):
		s.showPage(w, r, http.StatusGone, "problem", page{Title: "Expired", Data: &wire.APIError{
			Code: wire.CodeDenied, Message: "this link was good until " + until.UTC().Format(time.DateTime) + " UTC", Hint: "ask its sender for a new one",
		}})
		return
	}
	if !s.shared.takePlace(run) {
		s.showError(w, r, &wire.APIError{Code: wire.CodeBusy, Message: "too many look at shared runs just now", Hint: "try again in a minute"})
		return
	}
	defer s.shared.givePlaceBack(run)
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(maxPageTime)); err != nil {
		s.c.Logger.WarnContext(r.Context(), "a slow reader of a shared run can't be cut off", "run", run, "error", err)
	}
	l, err := s.openLink(r.Context())
	var known bool
	if err == nil {
		_, known, err = l.reader.Last(r.Context(), run, wire.RunNode)
	}
	if err == nil && !known {
		err = &wire.APIError{Code: wire.CodeRunNotFound, Message: "the run isn't there any more"}
	}
	var alerts []wire.Alert
	if err == nil {
		alerts, err = l.reader.LastAlerts(r.Context(), run, maxAlerts)
	}
	if err != nil {
		s.showError(w, r, err)
		return
	}
	for i := range alerts {
		alerts[i].Text, _ = s.c.Redact.Text(alerts[i].Text)
	}
	w.Header().Set("Content-Security-Policy", export.PagePolicy()+"; frame-ancestors 'none'")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	about := export.Run{
		ID: run, Incarnation: l.reader.Incarnation(), Alerts: alerts, Redact: lineRedactor(s.c.Redact),
		Note: "shared by " + s.c.By + " until " + until.UTC().Format("2006-01-02 15:04 UTC") + "; as it was at " + time.Now().UTC().Format("15:04:05 UTC") + ": load it again for what came since",
	}
	fetch := func(sum string) ([]byte, error) { return l.reader.Blob(r.Context(), sum) } //nolint:contextcheck // it is that of the request
	events := export.Whole(history.Read(r.Context(), l.reader, eventlog.Query{Run: run}), fetch, func() {})
	if _, err := export.HTML(w, about, redactEvents(s.c.Redact, events)); err != nil && r.Context().Err() == nil {
		s.c.Logger.WarnContext(r.Context(), "shared run can't be shown whole", "run", run, "error", err)
	}
}

// lineRedactor returns what takes secrets out of a line that is whole: a text comes in pieces, and a secret may be in none of them.
func lineRedactor(secrets *redact.Set) func(line string) string {
	return func(line string) string {
		clean, _ := secrets.Text(line)
		return clean
	}
}

// redactEvents yields events without secrets. What can't be looked through isn't yielded.
func redactEvents(secrets *redact.Set, events export.Events) export.Events {
	return func(yield func(eventlog.Entry, error) bool) {
		for e, err := range events {
			if err == nil && e.Event != nil {
				if e.Event, err = redactEvent(secrets, e.Event); err != nil {
					e.Event, e.Err, err = nil, err, nil
				}
				e.Data = nil
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

func redactEvent(secrets *redact.Set, e *wire.Event) (*wire.Event, error) {
	data, err := wire.Encode(e)
	if err == nil {
		data, err = secrets.Event(e, data)
	}
	if err != nil {
		return nil, err
	}
	return wire.Decode(data)
}
