package listener

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"time"

	"code.wake.dev/wake/internal/report"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// ServeHTTP takes a report. It answers at once, before it does anything: what follows in the body is the verdict that a
// request waits for; of other reports nothing, once they are stored.
func (l *Listener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	session, status := l.checkRequest(r)
	if status != 0 {
		http.Error(w, http.StatusText(status), status)
		return
	}
	select {
	case l.slots <- struct{}{}:
	default:
		http.Error(w, "too many requests at the same time", http.StatusServiceUnavailable)
		return
	}
	free := func() { <-l.slots }
	defer func() { free() }()
	rep, status := readReport(w, r, session)
	if status != 0 {
		http.Error(w, http.StatusText(status), status)
		return
	}
	if key := (seatKey{session, rep.Call}); rep.Event == report.PermissionRequest {
		if _, taken := l.seats.LoadOrStore(key, true); taken {
			http.Error(w, "another hook waits for the call", http.StatusConflict)
			return
		}
		defer l.seats.Delete(key)
	}
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush() // a hook that is gone doesn't wait
	seat, err := l.takeReport(r.Context(), rep)
	if err != nil {
		l.logger.Warn("what a hook reports isn't stored", "session", session, "event", rep.Event, "error", err)
		if !errors.As(err, new(*wire.FieldError)) { // else it would fail again
			panic(http.ErrAbortHandler) // the hook sees that it isn't
		}
	}
	if seat == nil {
		if rep.Event == report.PermissionRequest {
			_ = json.NewEncoder(w).Encode(report.Verdict{}) // there will be none
		}
		return
	}
	free()
	free = func() {}
	defer seat.leaveHook()
	select {
	case <-r.Context().Done():
	case verdict := <-seat.verdict:
		_ = json.NewEncoder(w).Encode(verdict) // the hook says what has become of it
	}
}

// checkRequest returns the session that asks, or why it may not: pages that a browser shows say where they come from, and
// names that lead here are none of ours.
func (l *Listener) checkRequest(r *http.Request) (session string, status int) {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	token, bears := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	session = l.address.SessionOf(token)
	switch {
	case r.Method != http.MethodPost:
		return "", http.StatusMethodNotAllowed
	case len(r.Header.Values("Origin")) > 0, ip == nil || !ip.IsLoopback():
		return "", http.StatusForbidden
	case !bears || session == "" || subjects.CheckID(session) != nil:
		return "", http.StatusUnauthorized
	case kind != "application/json":
		return "", http.StatusUnsupportedMediaType
	case r.ContentLength > report.MaxBytes:
		return "", http.StatusRequestEntityTooLarge
	case !l.countRequest(session, time.Now()):
		return "", http.StatusTooManyRequests
	}
	return session, 0
}

// countRequest reports whether a session may ask once more in this second.
func (l *Listener) countRequest(session string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.began) >= time.Second {
		l.began = now
		clear(l.counts)
	}
	l.counts[session]++
	return l.counts[session] <= maxASecond
}

func readReport(w http.ResponseWriter, r *http.Request, session string) (rep report.Report, status int) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, report.MaxBytes))
	if long := new(http.MaxBytesError); errors.As(err, &long) {
		return rep, http.StatusRequestEntityTooLarge
	}
	if err != nil || json.Unmarshal(body, &rep) != nil {
		return rep, http.StatusBadRequest
	}
	switch {
	case rep.Session != session:
		return rep, http.StatusForbidden
	case rep.Call != "" && subjects.CheckID(rep.Call) != nil, rep.Call == "" && (rep.Event == report.PermissionRequest || rep.Event == report.Decided):
		return rep, http.StatusBadRequest
	}
	if now := time.Now().UnixMilli(); rep.At <= 0 || rep.At > now {
		rep.At = now
	}
	return rep, 0
}

// takeReport stores a report. Of a request it returns where its hook waits.
func (l *Listener) takeReport(ctx context.Context, rep report.Report) (*waitingHook, error) {
	t, err := l.taleOf(rep.Session)
	if err != nil {
		return nil, err
	}
	limited, stop := context.WithTimeout(context.WithoutCancel(ctx), writeTime)
	defer stop()
	if rep.Event == report.PermissionRequest {
		return t.askPerson(limited, rep)
	}
	return nil, t.noteReport(limited, rep)
}
