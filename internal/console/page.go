package console

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"code.wake.dev/wake/internal/graph"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

//go:embed assets
var assetFiles embed.FS

//go:embed templates
var templateFiles embed.FS

// templates are parsed when the first page is shown: most users who start wake look at none.
var templates = sync.OnceValue(func() *template.Template {
	return template.Must(template.Must(template.New("console").Funcs(template.FuncMap{
		"safe": timeline.Sanitize, "line": func(s string) string { return timeline.Line(s, 400) }, "short": func(s string) string { return timeline.Line(s, 90) },
		"cost": timeline.Cost, "span": timeline.Took, "count": shortCount, "run": runAddress, "lag": timeline.Behind, "clock": clockText, "ago": agoText, "asset": assetURL, "ansi": coloredText, "failed": isFailedCall,
		"input": timeline.Input, "whole": timeline.WholeInput, "pieces": piecesOf, "list": func(v ...any) []any { return v }, "json": prettyValue, "dict": pairsOf, "pretty": prettyText, "state": stateWord, "add": func(a, b int) int { return a + b },
		"said": func(l wire.LogLine) string { return timeline.PlainLine(l.Type, l.Text) }, "alert": timeline.PlainAlert, "node": timeline.NodeName, "most": mostCost,
		"quoted": func(s string) []string { return strings.Split(s, "`") }, "odd": func(n int) bool { return n%2 == 1 },
	}).Parse(graph.Template)).ParseFS(templateFiles, "templates/*.html"))
})

// page is what all pages have.
type page struct {
	Title    string
	At       string // name of the page, for navigation
	Root     string // from here to the console's first page: addresses on a page are below it
	Here     string // the page's own address, below the root
	Run      string
	Operator bool
	SignedIn bool
	Behind   uint64 // events with which the recorder has to catch up, and which aren't on the page
	Data     any
}

// showPage writes a page, or the part of one that is named.
func (s *Console) showPage(w http.ResponseWriter, r *http.Request, status int, name string, p page) {
	p.Root, p.Here = rootOf(r), strings.TrimPrefix(r.URL.RequestURI(), "/")
	if u := userOfRequest(r); u != nil {
		p.SignedIn, p.Operator = true, u.role == operator
	}
	if behind, ok := r.Context().Value(lagKey{}).(*atomic.Uint64); ok {
		p.Behind = behind.Load()
	}
	var b bytes.Buffer
	if err := templates().ExecuteTemplate(&b, name, p); err != nil {
		s.c.Logger.ErrorContext(r.Context(), "page can't be made", "page", name, "error", err)
		http.Error(w, "the page can't be made; the log of wake says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // if it fails, the browser is gone
}

// runAddress is the address of a run's page below the root. An id may have any character.
func runAddress(id string) string { return "runs/" + url.PathEscape(id) }

// rootOf returns the way from a page to the first one. It is relative: a proxy may have taken a path off the address that the browser knows.
func rootOf(r *http.Request) string {
	return "./" + strings.Repeat("../", strings.Count(r.URL.EscapedPath(), "/")-1)
}

// redirectBelow sends the browser to an address below the root, behind a proxy, too: [http.Redirect] makes a path of it.
func redirectBelow(w http.ResponseWriter, r *http.Request, to string, status int) {
	w.Header().Set("Location", rootOf(r)+to)
	w.WriteHeader(status)
}

// showPart writes a part of a page, or why there is none.
func (s *Console) showPart(w http.ResponseWriter, r *http.Request, name string, data any, err error) {
	if err != nil {
		s.showError(w, r, err)
		return
	}
	s.showPage(w, r, http.StatusOK, name, page{Data: data})
}

// sendAnswer sends an answer, or why there is none.
func (s *Console) sendAnswer(w http.ResponseWriter, r *http.Request, answer any, err error) {
	if err != nil {
		s.showError(w, r, err)
		return
	}
	s.writeJSON(w, http.StatusOK, answer)
}

// readOfRun reads what a request asks of the run that its path names.
type readOfRun func(r *http.Request, l *link, run string) (any, error)

// partOf shows what is read as a part of a page.
func (s *Console) partOf(name string, read readOfRun) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		data, err := s.readRun(r, read)
		s.showPart(w, r, name, data, err)
	}
}

func (s *Console) sendOf(read readOfRun) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer, err := s.readRun(r, read)
		s.sendAnswer(w, r, answer, err)
	}
}

func (s *Console) readRun(r *http.Request, read readOfRun) (any, error) {
	l, run, err := s.findRun(r)
	if err != nil {
		return nil, err
	}
	return read(r, l, run)
}

// showError says why there is no answer: to programs as JSON, to people as a page.
func (s *Console) showError(w http.ResponseWriter, r *http.Request, err error) {
	e, ok := errors.AsType[*wire.APIError](err)
	if !ok {
		if r.Context().Err() != nil {
			return
		}
		s.c.Logger.WarnContext(r.Context(), "request failed", "path", r.URL.Path, "error", err)
		e = &wire.APIError{Code: wire.CodeInternal, Message: err.Error()}
	}
	status := statusOf(e.Code)
	if strings.Contains(r.Header.Get("Accept"), "text/html") {
		s.showPage(w, r, status, "problem", page{Title: "Problem", Data: e})
		return
	}
	s.writeJSON(w, status, wire.ErrorResponse{Error: e})
}

func statusOf(code wire.ErrorCode) int {
	switch code {
	case wire.CodeDenied:
		return http.StatusForbidden
	case wire.CodeRunNotFound, wire.CodeNodeNotFound, wire.CodeNotFound, wire.CodeSessionNotFound:
		return http.StatusNotFound
	case wire.CodeUnreachable, wire.CodeBusy:
		return http.StatusServiceUnavailable
	case wire.CodeTimeout:
		return http.StatusGatewayTimeout
	case wire.CodeInternal, wire.CodeCorruptedData:
		return http.StatusInternalServerError
	case wire.CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case wire.CodeBadRequest, wire.CodeBadRegex:
		return http.StatusBadRequest
	default:
		return http.StatusConflict
	}
}

func (s *Console) writeJSON(w http.ResponseWriter, status int, v any) {
	raw, err := wire.Marshal(v)
	var b []byte
	if err == nil {
		b, err = wire.AppendJSON(nil, raw)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}

// assetURL names an asset by its content, so that browsers keep it; below the root.
func assetURL(name string) string {
	return "assets/" + name + "?v=" + assetSums()[name]
}

var assetSums = sync.OnceValue(func() map[string]string {
	sums := map[string]string{}
	_ = fs.WalkDir(assetFiles, "assets", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := assetFiles.ReadFile(path)
		sum := sha256.Sum256(b)
		sums[strings.TrimPrefix(path, "assets/")] = hex.EncodeToString(sum[:6])
		return err
	})
	return sums
})

func (s *Console) showAsset(w http.ResponseWriter, r *http.Request) {
	if r.FormValue("v") == assetSums()[r.PathValue("name")] {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeFileFS(w, r, assetFiles, "assets/"+r.PathValue("name"))
}

// shortCount writes a number in at most five characters.
func shortCount(v any) string {
	var n int64
	if _, err := fmt.Sscan(fmt.Sprint(v), &n); err != nil {
		return fmt.Sprint(v)
	}
	return timeline.Count(n)
}

func clockText(ms int64) string {
	if ms == 0 {
		return ""
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02 15:04:05")
}

func agoText(ms int64) string {
	if ms == 0 {
		return ""
	}
	return timeline.Span(max(0, time.Now().UnixMilli()-ms))
}

// pairsOf makes a map of names and values, for templates that take several.
func pairsOf(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return m
}

// stateWord is how a run is doing, in a word.
func stateWord(f wire.DiffRun) string { return cmp.Or(string(f.Result), string(f.Status)) }

// positionOf reads a position; "" is 0.
func positionOf(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	pos, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, &wire.APIError{Code: wire.CodeBadRequest, Message: fmt.Sprintf("%.40q is no position", text)}
	}
	return pos, nil
}

// encodeQuery makes a query of names and values; empty ones are left out.
func encodeQuery(pairs ...string) string {
	v := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			v.Set(pairs[i], pairs[i+1])
		}
	}
	return v.Encode()
}

func isFailedCall(l wire.LogLine) bool {
	return l.Type == wire.LineTool && strings.HasPrefix(l.Text, timeline.FailedCall)
}

// piece is a part of a text, which matches or doesn't.
type piece struct {
	Text string
	Hit  bool
}

// Pieces are the parts of a hit's snippet.
func piecesOf(h wire.SearchHit) (all []piece) {
	text, at := []rune(timeline.PlainLine(h.Type, h.Snippet)), 0
	cut := utf8.RuneCountInString(h.Snippet) - len(text) // its sign in front
	for _, m := range h.Matches {
		m.From, m.To = m.From-cut, m.To-cut
		if m.From < at || m.To > len(text) || m.To < m.From {
			continue
		}
		all = append(all, piece{string(text[at:m.From]), false}, piece{string(text[m.From:m.To]), true})
		at = m.To
	}
	return append(all, piece{string(text[at:]), false})
}
