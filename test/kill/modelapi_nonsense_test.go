package kill_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// Nonsense answers each question to a model with nonsense of one of several kinds.
type Nonsense struct {
	*httptest.Server

	kind  atomic.Value
	asked atomic.Int64
}

// NonsenseKinds are the kinds: "html", the page of a proxy with status 200; "types", JSON whose fields have other types; "cut", a stream that
// ends in its middle; "empty", nothing; "broken", an error of the server's own, which is no JSON.
func NonsenseKinds() []string { return []string{"html", "types", "cut", "empty", "broken"} }

// NewNonsense starts one on loopback, which ends with the test.
func NewNonsense(t *testing.T) *Nonsense {
	t.Helper()
	n := new(Nonsense)
	n.Say(NonsenseKinds()[0])
	n.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d, ok := dialectOf(r.URL.Path)
		if !ok || r.Method != http.MethodPost {
			http.NotFound(w, r)
			return
		}
		n.asked.Add(1)
		n.answer(w, r, d)
	}))
	t.Cleanup(n.CloseClientConnections) // before it closes, which waits for them
	t.Cleanup(n.Close)
	return n
}

// Say sets the kind of the answers from now on.
func (n *Nonsense) Say(kind string) { n.kind.Store(kind) }

// Asked returns how many questions there were.
func (n *Nonsense) Asked() int64 { return n.asked.Load() }

// otherTypes are answers whose fields have other types, by the end of the path.
func otherTypes() map[string]string {
	return map[string]string{
		"messages":  `{"type":"message_start","message":{"id":7,"type":["message"],"role":{},"content":"none","usage":[]}}`,
		"responses": `{"type":"response.completed","response":{"id":[],"status":7,"output":"none","usage":"many"}}`,
		"Content":   `{"candidates":{"content":7},"usageMetadata":"many"}`,
	}
}

func (n *Nonsense) answer(w http.ResponseWriter, r *http.Request, d dialect) {
	switch n.kind.Load() {
	case "html":
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprint(w, "<html><body><h1>Sign in to the \x1b[31mnetwork</h1></body></html>") // it may be gone
	case "types":
		w.Header().Set("Content-Type", "text/event-stream")
		for end, answer := range otherTypes() {
			if strings.HasSuffix(r.URL.Path, end) {
				_, _ = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", strings.Split(answer, `"`)[3], answer) // likewise
			}
		}
	case "cut":
		whole := httptest.NewRecorder()
		d.write(whole, r, ModelDone, nil)
		w.Header().Set("Content-Type", whole.Header().Get("Content-Type"))
		_, _ = w.Write(whole.Body.Bytes()[:whole.Body.Len()/2]) // likewise
	case "broken":
		http.Error(w, "panic: \x1b[31mnil pointer", http.StatusInternalServerError)
	}
}
