package mirror

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Path is where the mirror takes requests, with a verb behind it.
const Path = "/sessions/"

// programRequest is what a program asks for.
type programRequest struct {
	Key struct {
		Project string  `json:"projectKey"`
		Session string  `json:"sessionId"`
		Subpath *string `json:"subpath"`
	} `json:"key"`

	// Of append.
	Entries []json.RawMessage `json:"entries"`
	Again   bool              `json:"again"`   // the same batch was sent before, and no answer came
	Summary *folded           `json:"summary"` // nil: the program doesn't fold any

	// Of lost: entries that the program couldn't append, and won't try again.
	Error string   `json:"error"`
	Lost  int      `json:"lost"`
	UUIDs []string `json:"uuids"`

	sessionKey
	subpath string
	lines   []transcriptLine
}

// folded is a summary.
type folded struct {
	After int64           `json:"after"` // mtime of the transcript up to which it knows all, without the entries that come with it
	Data  json.RawMessage `json:"data"`
}

// requestProblem is what is wrong with a request.
type requestProblem struct {
	status int
	text   string
}

func (r *requestProblem) Error() string { return r.text }

func newProblem(status int, format string, args ...any) error {
	return &requestProblem{status, fmt.Sprintf(format, args...)}
}

// ServeHTTP does what a program asks for.
func (m *Mirror) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := m.checkRequest(r); err != nil {
		m.tellError(w, err)
		return
	}
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-r.Context().Done():
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(writeTime)) // else a slow sender keeps others out
	verb := strings.TrimPrefix(r.URL.Path, Path)
	q, err := readRequest(w, r, verb)
	if err == nil {
		err = m.open(r.Context())
	}
	if err == nil {
		err = m.do(r.Context(), w, verb, q)
	}
	if err != nil {
		m.tellError(w, err)
	}
}

// checkRequest tells whether a request is allowed: not of a page that a browser shows, to a name that leads here, without the token.
func (m *Mirror) checkRequest(r *http.Request) error {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case r.Method != http.MethodPost:
		return newProblem(http.StatusMethodNotAllowed, "requests are POST")
	case len(r.Header.Values("Origin")) > 0:
		return newProblem(http.StatusForbidden, "pages may not ask for sessions")
	case strings.HasPrefix(m.cfg.URL, "http://") && (ip == nil || !ip.IsLoopback()):
		return newProblem(http.StatusForbidden, "ask a loopback address, such as %s", m.cfg.URL)
	case subtle.ConstantTimeCompare([]byte(token), []byte(m.address.Key)) != 1:
		return newProblem(http.StatusUnauthorized, "there is no token, or another one's: it is in the file sessions-url of the data directory")
	case kind != "application/json":
		return newProblem(http.StatusUnsupportedMediaType, "requests are JSON")
	case r.ContentLength > maxRequest:
		return newProblem(http.StatusRequestEntityTooLarge, "a request has %d MiB at most: append fewer entries at once", maxRequest>>20)
	}
	return nil
}

func readRequest(w http.ResponseWriter, r *http.Request, verb string) (q programRequest, err error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if long := new(http.MaxBytesError); errors.As(err, &long) {
		return q, newProblem(http.StatusRequestEntityTooLarge, "a request has %d MiB at most: append fewer entries at once", maxRequest>>20)
	}
	if err != nil {
		return q, newProblem(http.StatusBadRequest, "the request didn't come whole")
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return q, newProblem(http.StatusBadRequest, "the request can't be read: %s", err)
	}
	q.sessionKey = sessionKey{q.Key.Project, q.Key.Session}
	if q.Key.Subpath != nil {
		if q.subpath = *q.Key.Subpath; q.subpath == "" {
			return q, newProblem(http.StatusBadRequest, "subpath is empty: leave it out")
		}
	}
	lists := verb == "list" || verb == "summaries"
	switch {
	case q.project == "" || q.session == "" && !lists:
		return q, newProblem(http.StatusBadRequest, "projectKey and sessionId are required")
	case max(len(q.project), len(q.session), len(q.subpath)) > maxName:
		return q, newProblem(http.StatusBadRequest, "a part of the key has %d bytes at most", maxName)
	case len(q.Entries) > maxEntries:
		return q, newProblem(http.StatusRequestEntityTooLarge, "append %d entries at most at once", maxEntries)
	}
	q.Error, q.UUIDs = q.Error[:min(len(q.Error), maxName)], q.UUIDs[:min(len(q.UUIDs), maxEntries)]
	for i, e := range q.Entries {
		var named struct {
			UUID   any `json:"uuid"`
			Parent any `json:"parentUuid"`
		}
		if !bytes.HasPrefix(e, []byte("{")) || json.Unmarshal(e, &named) != nil {
			return q, newProblem(http.StatusBadRequest, "entry %d is no object", i)
		}
		var text bytes.Buffer
		if err := json.Compact(&text, e); err != nil {
			return q, newProblem(http.StatusBadRequest, "entry %d: %s", i, err)
		}
		l := transcriptLine{text: text.Bytes()}
		l.uuid, _ = named.UUID.(string)
		l.parent, _ = named.Parent.(string)
		q.lines = append(q.lines, l)
	}
	return q, nil
}

// do does what is asked for, and answers.
func (m *Mirror) do(ctx context.Context, w http.ResponseWriter, verb string, q programRequest) error {
	switch verb {
	case "append":
		return m.append(ctx, w, q)
	case "load":
		return m.load(ctx, w, q)
	case "list":
		all := []map[string]any{}
		for _, r := range m.listRecords(q.project) {
			if r.Subpath == "" {
				all = append(all, map[string]any{"sessionId": r.Session, "mtime": r.At})
			}
		}
		return writeJSON(w, http.StatusOK, map[string]any{"sessions": all})
	case "summaries":
		all := []map[string]any{}
		for _, r := range m.listRecords(q.project) {
			if r.Subpath == "" && r.Summary != nil {
				all = append(all, map[string]any{"sessionId": r.Session, "mtime": r.Folded, "data": r.Summary})
			}
		}
		return writeJSON(w, http.StatusOK, map[string]any{"summaries": all})
	case "subkeys":
		all := []string{}
		for _, r := range m.findShelf(q.sessionKey).shelfRecords() {
			if r.Subpath != "" {
				all = append(all, r.Subpath)
			}
		}
		slices.Sort(all)
		return writeJSON(w, http.StatusOK, map[string]any{"subkeys": all})
	case "delete":
		limited, stop := context.WithTimeout(context.WithoutCancel(ctx), writeTime)
		defer stop()
		if err := m.findShelf(q.sessionKey).remove(limited, q.subpath); err != nil {
			return err
		}
		return writeJSON(w, http.StatusOK, struct{}{})
	case "lost":
		limited, stop := context.WithTimeout(context.WithoutCancel(ctx), writeTime)
		defer stop()
		m.mu.Lock()
		s := m.shelfOf(q.sessionKey)
		m.mu.Unlock()
		if err := s.noteTrouble(limited, q); err != nil {
			return err
		}
		return writeJSON(w, http.StatusOK, struct{}{})
	}
	return newProblem(http.StatusNotFound, "there is no %.40q: append, load, list, summaries, subkeys, delete, lost", verb)
}

// append appends, also if the program is gone meanwhile.
func (m *Mirror) append(ctx context.Context, w http.ResponseWriter, q programRequest) error {
	if len(q.lines) == 0 {
		return writeJSON(w, http.StatusOK, struct{}{})
	}
	limited, stop := context.WithTimeout(context.WithoutCancel(ctx), writeTime)
	defer stop()
	m.mu.Lock()
	s := m.shelfOf(q.sessionKey)
	m.mu.Unlock()
	at, err := s.append(limited, q)
	if !errors.Is(err, errConflict) {
		if err != nil {
			return err
		}
		return writeJSON(w, http.StatusOK, map[string]any{"mtime": at})
	}
	body := map[string]any{"error": err.Error(), "summary": nil}
	for _, r := range s.shelfRecords() {
		if r.Subpath == q.subpath {
			if body["mtime"] = r.At; r.Folded == r.At {
				body["summary"] = r.Summary
			}
		}
	}
	return writeJSON(w, http.StatusConflict, body)
}

// load answers with all entries, as they were appended.
func (m *Mirror) load(ctx context.Context, w http.ResponseWriter, q programRequest) error {
	lines, at, err := m.findShelf(q.sessionKey).load(ctx, q.subpath)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	if lines == nil {
		return writeJSON(w, http.StatusOK, map[string]any{"entries": nil, "mtime": at})
	}
	all := bytes.ReplaceAll(bytes.TrimSuffix(lines, []byte("\n")), []byte("\n"), []byte(",\n"))
	_, _ = fmt.Fprintf(w, `{"mtime":%d,"entries":[%s]}`, at, all) // a program that is gone needs none
	return nil
}

// listRecords returns the records of a project's sessions.
func (m *Mirror) listRecords(project string) (all []transcriptRecord) {
	for _, s := range m.allShelves() {
		if s.project == project {
			all = append(all, s.shelfRecords()...)
		}
	}
	return all
}

func writeJSON(w http.ResponseWriter, status int, body any) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a program that is gone needs none
	return nil
}

// tellError answers with a problem.
func (m *Mirror) tellError(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable
	if refused, ok := errors.AsType[*requestProblem](err); ok {
		status = refused.status
	} else {
		m.logger.Warn("a program's session isn't kept or read", "error", err)
	}
	_ = writeJSON(w, status, map[string]string{"error": err.Error()})
}
