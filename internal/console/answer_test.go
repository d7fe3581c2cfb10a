package console_test

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/pkg/wire"
)

// givenCommands returns how many commands were given, and the last one.
func (w *world) givenCommands() (n int, last wire.Command) {
	w.t.Helper()
	given, err := w.log.JetStream().Stream(w.t.Context(), w.log.Names().CommandsStream())
	if err != nil {
		w.t.Fatal(err)
	}
	info, err := given.Info(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if info.State.LastSeq > 0 {
		stored, err := given.GetMsg(w.t.Context(), info.State.LastSeq)
		if err == nil {
			err = wire.Unmarshal(stored.Data, &last)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	return int(info.State.LastSeq), last // a few
}

// asks appends a request for permission and returns the alert that tells of it.
func (w *world) asks(run string, agent *eventlog.Writer, call string, at time.Time) *wire.Alert {
	w.t.Helper()
	input := wire.RawOf(map[string]any{"command": "make deploy of " + run})
	logtest.Append(w.t, agent, &wire.Event{ExecID: "coder#1", CallID: call, Payload: &wire.ToolIntent{ToolName: "Bash", ToolInput: input}},
		&wire.Event{ExecID: "coder#1", CallID: call, Payload: &wire.PermissionRequired{ToolName: "Bash", ToolInput: input}})
	var pos uint64
	for e, err := range w.log.Read(w.t.Context(), eventlog.Query{Run: run}) {
		if err != nil {
			w.t.Fatal(err)
		}
		if _, is := e.Event.Payload.(*wire.PermissionRequired); is {
			pos = e.Pos
		}
	}
	return &wire.Alert{
		Kind: "waiting", RunID: run, NodeID: "coder", Position: wire.Position{Incarnation: w.log.Incarnation(), Seq: pos},
		Timestamp: at.UnixMilli(), Data: wire.RawOf(map[string]any{"callId": call}),
	}
}

// addressPattern finds the addresses on a page.
var addressPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:href|src|action)="([^"#]+)"`) })

// All that a page of a link names is where the link is: a proxy may have a path of its own for the console.
func TestAnswerBehindPrefix(t *testing.T) {
	w := newWorld(t)
	w.config.Public = "https://wake.example/w"
	w.serveConsole()
	_, agent := w.write("r", "hello")
	link := w.console.AnswerLink(w.asks("r", agent, "c1", time.Now()))
	public, err := url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	page := func(r *http.Request) { r.Header.Del("Authorization"); r.Header.Set("Accept", "text/html") }
	for _, c := range [][2]string{{http.MethodGet, link}, {http.MethodPost, link}, {http.MethodGet, "https://wake.example/w/answer/none"}, {http.MethodGet, "https://wake.example/w/shared/none"}} {
		at := c[1]
		_, text := w.ask(c[0], strings.TrimPrefix(at, "https://wake.example/w"), "type=abort", page)
		found := addressPattern().FindAllStringSubmatch(text, -1)
		if len(found) < 4 {
			t.Fatalf("%s names %d addresses: %s", at, len(found), text)
		}
		base, err := public.Parse(found[0][1]) // the page says by which way its addresses begin
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range found[1:] {
			u, err := base.Parse(html.UnescapeString(m[1]))
			if err != nil || u.Host != "wake.example" || !strings.HasPrefix(u.Path, "/w/") {
				t.Errorf("%s has %s, which is %v: %v", at, m[1], u, err)
			}
			if asset, is := strings.CutPrefix(u.Path, "/w/assets/"); is {
				if status, _ := w.ask(http.MethodGet, "/assets/"+asset, "", page); status != http.StatusOK {
					t.Errorf("%s is answered by %d", m[1], status)
				}
			}
		}
	}
}

// Of a run that waits for more than an answer of the recorder has room for, each link is good.
func TestAnswerOfFullRun(t *testing.T) {
	w := newWorld(t)
	w.config.Public = "https://wake.example"
	w.serveConsole()
	_, agent := w.write("r", "hello")
	input := wire.RawOf(map[string]any{"command": strings.Repeat("make all ", 4000)})
	for i := range 30 {
		call := fmt.Sprint("full-", i)
		logtest.Append(t, agent, &wire.Event{ExecID: "coder#1", CallID: call, Payload: &wire.ToolIntent{ToolName: "Bash", ToolInput: input}},
			&wire.Event{ExecID: "coder#1", CallID: call, Payload: &wire.PermissionRequired{ToolName: "Bash", ToolInput: input}})
	}
	link := w.console.AnswerLink(w.asks("r", agent, "last", time.Now()))
	w.get("/parts/inbox?run=r", "more: answer some")
	if status, text := w.ask(http.MethodGet, strings.TrimPrefix(link, "https://wake.example"), "", nil); status != http.StatusOK || !strings.Contains(text, "make deploy of r") {
		t.Errorf("%d %.1000s", status, text)
	}
}

// A link that was used isn't good again where the run is held with its open calls.
func TestAnswerOfHeldRun(t *testing.T) {
	w := newWorld(t)
	w.config.Public = "https://wake.example"
	w.serveConsole()
	flow, agent := w.write("r", "hello")
	used := w.console.AnswerLink(w.asks("r", agent, "used", time.Now()))
	open := w.console.AnswerLink(w.asks("r", agent, "open", time.Now()))
	logtest.Append(t, agent, &wire.Event{ExecID: "coder#1", CallID: "used", Payload: &wire.PermissionDecided{Decision: wire.DecisionAllow, By: "tester"}})
	logtest.Append(t, flow, &wire.Event{Payload: &wire.FlowPaused{Reason: wire.PauseOperator}}, &wire.Event{Payload: &wire.FlowResumed{Strategy: "manual", Hold: true}})
	w.get("/parts/inbox?run=r", `value="used"`) // a person has to say what becomes of it
	for _, c := range []struct {
		method, link string
		status       int
	}{{http.MethodGet, used, http.StatusGone}, {http.MethodPost, used, http.StatusGone}, {http.MethodGet, open, http.StatusOK}} {
		status, text := w.ask(c.method, strings.TrimPrefix(c.link, "https://wake.example"), "type=approve", func(r *http.Request) { r.Header.Del("Authorization") })
		if status != c.status {
			t.Errorf("%s: %d instead of %d: %.1000s", c.method, status, c.status, text)
		}
	}
}

// A link of a notification answers its question, and no other, as long as it is open, and by a POST alone.
func TestAnswerLink(t *testing.T) {
	w := newWorld(t)
	if at := w.console.AnswerLink(&wire.Alert{Kind: "waiting", Data: wire.RawOf(map[string]any{"callId": "c"})}); at != "" {
		t.Errorf("nobody else reaches the console, and the link is %s", at)
	}
	w.config.Public = "https://wake.example/w"
	w.serveConsole()
	_, agent := w.write("r", "hello")
	_, other := w.write("other", "hello")
	alert := w.asks("r", agent, "c1", time.Now())
	w.asks("other", other, "c1", time.Now())
	pathOf := func(a *wire.Alert) string {
		t.Helper()
		path, ok := strings.CutPrefix(w.console.AnswerLink(a), "https://wake.example/w")
		if !ok {
			t.Fatalf("the link is %s", w.console.AnswerLink(a))
		}
		return path
	}
	drop := func(r *http.Request) { r.Header.Del("Authorization") }
	page := func(r *http.Request) { drop(r); r.Header.Set("Accept", "text/html"); r.Host = "wake.example" }
	good := pathOf(alert)
	w.get("/", "make deploy of r")
	if status, text := w.ask(http.MethodGet, good, "", page); status != http.StatusOK || !strings.Contains(text, "make deploy of r") || !strings.Contains(text, `action="answer/`+path.Base(good)) {
		t.Fatalf("%d %s", status, text)
	}
	if n, _ := w.givenCommands(); n != 0 {
		t.Fatal("to look at it is an answer")
	}
	for i := len("/answer/"); i < len(good); i++ { // any change of the link makes it another one
		changed := []byte(good)
		changed[i] ^= 1
		if status, _ := w.ask(http.MethodPost, string(changed), "type=approve", drop); status != http.StatusNotFound {
			t.Fatalf("%s is answered by %d", changed, status)
		}
	}
	// What it may say is an answer to its question.
	for _, body := range []string{"type=abort", "type=reply&message=x", "type=approve&call=&run=other", "type=deny&call=c9&node=x&note=no"} {
		status, text := w.ask(http.MethodPost, good, body, drop)
		n, c := w.givenCommands()
		if bad := strings.HasPrefix(body, "type=abort") || strings.HasPrefix(body, "type=reply"); bad != (status == http.StatusConflict) || bad && n > 0 {
			t.Errorf("%s: %d %s", body, status, text)
		}
		if n > 0 && (c.RunID != "r" || c.CallID != "c1" || c.By != "link" || c.NodeID != "coder") {
			t.Errorf("%s: %+v", body, c)
		}
	}
	if n, c := w.givenCommands(); n != 2 || c.Type != "deny" || c.Note != "no" {
		t.Errorf("%d commands, the last %+v", n, c)
	}
	// A page of others can't use it in a browser.
	evil := func(r *http.Request) {
		drop(r)
		r.Header.Set("Origin", "https://evil.example")
		r.Header.Set("Sec-Fetch-Site", "cross-site")
	}
	if status, _ := w.ask(http.MethodPost, good, "type=approve", evil); status != http.StatusForbidden {
		t.Errorf("another site is answered by %d", status)
	}
	expired := *alert
	expired.Timestamp = time.Now().Add(-25 * time.Hour).UnixMilli()
	elsewhere := *alert
	elsewhere.Position.Incarnation = "another log"
	unasked := *alert
	unasked.Position.Seq--
	ofOther := *alert
	ofOther.RunID = "other"
	for name, c := range map[string]struct {
		alert  wire.Alert
		status int
	}{"expired": {expired, http.StatusGone}, "of another log": {elsewhere, http.StatusNotFound}, "of another event": {unasked, http.StatusGone}, "of another run": {ofOther, http.StatusGone}} {
		if status, text := w.ask(http.MethodPost, pathOf(&c.alert), "type=approve", drop); status != c.status {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	// Once it is answered, the link is of no use, also if the agent asks again for the same call.
	logtest.Append(t, agent, &wire.Event{ExecID: "coder#1", CallID: "c1", Payload: &wire.PermissionDecided{Decision: "allow", By: "tester"}})
	gone := func(path string) (status int) {
		for range 200 {
			if status, _ = w.ask(http.MethodPost, path, "type=approve", page); status == http.StatusGone {
				break
			}
			<-time.After(20 * time.Millisecond)
		}
		return status
	}
	if status := gone(good); status != http.StatusGone {
		t.Errorf("once it is answered: %d", status)
	}
	logtest.Append(t, agent, &wire.Event{ExecID: "coder#1", CallID: "c1", Payload: &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.RawString("deployed")}})
	again := w.asks("r", agent, "c1", time.Now())
	w.get("/parts/inbox?run=r", "make deploy of r")
	before, _ := w.givenCommands()
	if status := gone(good); status != http.StatusGone {
		t.Errorf("asked again, the old link is answered by %d", status)
	}
	if n, _ := w.givenCommands(); n != before {
		t.Error("the old link has answered")
	}
	if status, text := w.ask(http.MethodPost, pathOf(again), "type=approve", page); status != http.StatusOK || !strings.Contains(text, "Answered") {
		t.Errorf("the new link: %d %s", status, text)
	}
}
