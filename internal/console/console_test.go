package console_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"image"
	"image/png"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/console"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/redact"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/client"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// world is a server with a recorder and a console.
type world struct {
	t       *testing.T
	log     *eventlog.Log
	console *console.Console
	config  console.Config
	http    *http.Client
	token   string

	stopRecorder func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	server := natstest.New(t)
	nc := server.Conn(t)
	logtest.Init(t, nc, topology.Config{})
	w := &world{t: t, log: logtest.Open(t, nc)}
	r, err := recorder.New(recorder.Config{Path: filepath.Join(t.TempDir(), "recorder.db")}, w.log, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w.stopRecorder = logtest.Go(t, r.Run)
	logtest.Serve(t, w.log)
	w.config = console.Config{
		Addr: "127.0.0.1:0", File: filepath.Join(t.TempDir(), "console-url"), Names: subjects.Default, By: "tester", Logger: logtest.Logger(t),
		Connect: func(context.Context) (*nats.Conn, error) { return nats.Connect("", nats.InProcessServer(server)) },
	}
	w.serveConsole()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	w.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return w
}

// serveConsole starts a console, until the returned function is called.
func (w *world) serveConsole() (stop func()) {
	w.t.Helper()
	var err error
	if w.console, err = console.New(w.config); err != nil {
		w.t.Fatal(err)
	}
	_, w.token, _ = strings.Cut(w.console.URL(), "#token=")
	return logtest.Go(w.t, w.console.Run)
}

// ask sends a request with changes, and returns the answer's status and text.
func (w *world) ask(method, path, body string, change func(*http.Request)) (status int, text string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.console.Address()+strings.TrimPrefix(path, "/"), strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+w.token)
	if body != "" && body[0] != '{' {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if change != nil {
		change(r)
	}
	answer, err := w.http.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	if !strings.Contains(answer.Header.Get("Content-Security-Policy"), "default-src 'none'") {
		w.t.Errorf("%s has the policy %q", path, answer.Header.Get("Content-Security-Policy"))
	}
	return answer.StatusCode, string(b)
}

// get asks for a page until it has a text: the recorder may be behind.
func (w *world) get(path, has string) string {
	w.t.Helper()
	var status int
	var text string
	for range 200 {
		if status, text = w.ask(http.MethodGet, path, "", nil); status == http.StatusOK && strings.Contains(text, has) {
			return text
		}
		<-time.After(20 * time.Millisecond)
	}
	w.t.Fatalf("%s is answered by %d, without %q: %.2000s", path, status, has, text)
	return ""
}

// hostile are texts that an agent may write anywhere.
const hostile = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'></title>\x1b[31mred\x1b[0m\x1b]0;owned\x07 \u202egpj.exe\u2066 javascript:alert(3)"

// write appends a run of an agent that waits for permission, and returns its writers.
func (w *world) write(run, said string) (flow, agent *eventlog.Writer) {
	w.t.Helper()
	flow, agent = logtest.Claim(w.t, w.log, run, wire.RunNode), logtest.Claim(w.t, w.log, run, "coder")
	logtest.Append(w.t, flow, &wire.Event{Payload: &wire.FlowStart{FlowName: said, Definition: wire.Null, DefinitionHash: "h", Labels: map[string]string{"name": said}}},
		&wire.Event{ExecID: "coder#1", Payload: &wire.NodeScheduled{Target: "coder", Attempt: 1}})
	input, err := wire.Marshal(map[string]any{"command": "rm -rf " + said})
	if err != nil {
		w.t.Fatal(err)
	}
	logtest.Append(w.t, agent, &wire.Event{ExecID: "coder#1", Payload: &wire.NodeStart{NodeType: "agent", Attempt: 1}},
		&wire.Event{ExecID: "coder#1", SessionID: "5e551011", Payload: &wire.AgentStart{Prompt: wire.RawString(said), Model: said}},
		&wire.Event{ExecID: "coder#1", Payload: &wire.AgentText{Content: said}},
		&wire.Event{ExecID: "coder#1", CallID: "c0", Payload: &wire.AgentTool{ToolName: "Edit", ToolInput: wire.RawOf(map[string]any{"old_string": "a\n" + said, "new_string": "b\n" + said}), ToolOutput: wire.RawString(said), Error: said}},
		&wire.Event{ExecID: "coder#1", CallID: said, Payload: &wire.ToolIntent{ToolName: said, ToolInput: input}},
		&wire.Event{ExecID: "coder#1", CallID: said, Payload: &wire.PermissionRequired{ToolName: said, ToolInput: input, Description: said}})
	return flow, agent
}

// Nobody without a token, no page of others and no name of others gets anything; a viewer gives no order.
func TestGuard(t *testing.T) {
	w := newWorld(t)
	w.write("r", "hello")
	w.get("/", "hello")
	viewerURL := w.get("/system", "#token=")
	_, viewer, _ := strings.Cut(viewerURL, "#token=")
	viewer, _, _ = strings.Cut(viewer, "<")
	drop := func(r *http.Request) { r.Header.Del("Authorization") }
	as := func(token string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	}
	header := func(pairs ...string) func(*http.Request) {
		return func(r *http.Request) {
			for i := 0; i < len(pairs); i += 2 {
				r.Header.Set(pairs[i], pairs[i+1])
			}
		}
	}
	order := "type=pause&reason=x"
	for name, tt := range map[string]struct {
		method, path, body string
		change             func(*http.Request)
		want               int
	}{
		"no token":              {http.MethodGet, "/", "", drop, http.StatusForbidden},
		"no token, a person":    {http.MethodGet, "/", "", func(r *http.Request) { drop(r); r.Header.Set("Accept", "text/html") }, http.StatusUnauthorized},
		"another token":         {http.MethodGet, "/", "", as("x"), http.StatusForbidden},
		"no token, an order":    {http.MethodPost, "/runs/r/command", order, drop, http.StatusForbidden},
		"no token, the log":     {http.MethodGet, "/runs/r/events", "", drop, http.StatusForbidden},
		"another name":          {http.MethodGet, "/", "", func(r *http.Request) { r.Host = "evil.example:7070" }, http.StatusForbidden},
		"another port":          {http.MethodGet, "/", "", func(r *http.Request) { r.Host = "127.0.0.1:1" }, http.StatusForbidden},
		"another origin":        {http.MethodPost, "/runs/r/command", order, header("Origin", "https://evil.example"), http.StatusForbidden},
		"another site":          {http.MethodPost, "/runs/r/command", order, header("Sec-Fetch-Site", "cross-site"), http.StatusForbidden},
		"another port's page":   {http.MethodPost, "/runs/r/command", order, header("Sec-Fetch-Site", "same-site"), http.StatusForbidden},
		"a picture of a page":   {http.MethodGet, "/runs/r/state", "", header("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"), http.StatusForbidden},
		"a viewer reads":        {http.MethodGet, "/runs/r", "", as(viewer), http.StatusOK},
		"a viewer orders":       {http.MethodPost, "/runs/r/command", order, as(viewer), http.StatusForbidden},
		"a viewer shares":       {http.MethodPost, "/runs/r/share", "for=1h", as(viewer), http.StatusForbidden},
		"a link that is not":    {http.MethodGet, "/shared/x", "", drop, http.StatusNotFound},
		"a viewer forks":        {http.MethodPost, "/runs/r/fork", "at=1", as(viewer), http.StatusForbidden},
		"a verb that changes":   {http.MethodPost, "/api/delete", `{"run":"r"}`, nil, http.StatusNotFound},
		"a verb that reads":     {http.MethodPost, "/api/fleet", `{}`, as(viewer), http.StatusOK},
		"a command that is not": {http.MethodPost, "/runs/r/command", "type=fork", nil, http.StatusConflict},
		"a run that is not":     {http.MethodGet, "/runs/nobody", "", nil, http.StatusNotFound},
		"a sign-in":             {http.MethodPost, "/signin", "token=" + url.QueryEscape(w.token), drop, http.StatusSeeOther},
		"a wrong sign-in":       {http.MethodPost, "/signin", "token=x", drop, http.StatusForbidden},
	} {
		if status, text := w.ask(tt.method, tt.path, tt.body, tt.change); status != tt.want {
			t.Errorf("%s: %d, want %d: %.300s", name, status, tt.want, text)
		}
	}
	page := w.get("/", "hello")
	if strings.Contains(page, "Approve</button>") == false {
		t.Error("an operator can't approve")
	}
	if _, page := w.ask(http.MethodGet, "/", "", as(viewer)); strings.Contains(page, "Approve</button>") || strings.Contains(page, w.token) {
		t.Error("a viewer can approve")
	}
}

// A page signs in by a cookie that scripts can't read and other sites don't send.
func TestCookie(t *testing.T) {
	w := newWorld(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.console.Address()+"signin", strings.NewReader("token="+w.token))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := w.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	cookie := answer.Cookies()[0]
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || strings.Contains(cookie.Value, w.token) {
		t.Errorf("the cookie is %+v", cookie)
	}
	w.get("/", "There is no run yet")
	by := func(value string) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Del("Authorization")
			r.AddCookie(&http.Cookie{Name: cookie.Name, Value: value})
		}
	}
	if status, _ := w.ask(http.MethodGet, "/", "", by(cookie.Value)); status != http.StatusOK {
		t.Errorf("with the cookie: %d", status)
	}
	if status, _ := w.ask(http.MethodGet, "/", "", by(w.token)); status != http.StatusForbidden {
		t.Errorf("with the token as the cookie: %d", status)
	}
}

// answers are what a form sends back of an agent's: as it was, and nobody sees it.
var answers = regexp.MustCompile(`(?:value|name)="[^"]*"`)

// What agents write is text, wherever it is shown: no element, no control character, no change of direction.
func TestHostileTexts(t *testing.T) {
	w := newWorld(t)
	w.write("r", hostile)
	w.write("s", hostile+" too")
	for path, has := range map[string]string{
		"/": "&lt;script&gt;", "/parts/inbox": "&lt;script&gt;", "/parts/fleet": "&lt;script&gt;", "/runs/r": "&lt;script&gt;", "/runs/r?at=9": "&lt;script&gt;",
		"/runs/r/parts/log": "&lt;script&gt;", "/runs/r/parts/head": "&lt;script&gt;", "/runs/r/parts/moment?at=9": "&lt;script&gt;", "/runs/r/entry?pos=7": "&lt;script&gt;",
		"/runs/r/entry?pos=8": "&lt;script&gt;", "/runs/r/compare": "&lt;script&gt;", "/runs/r/compare?with=s": "&lt;script&gt;", "/runs/r/parts/compared?with=s&all=1": "&lt;script&gt;", "/search?q=script": "", "/spend": "", "/runs/r/parts/spend": "",
	} {
		page := answers.ReplaceAllString(w.get(path, has), "")
		for _, evil := range []string{"<script>alert", "<img", "\x1b", "\u202e", "\u2066", "\x07", "style="} {
			if strings.Contains(page, evil) {
				t.Errorf("%s has %q", path, evil)
			}
		}
		if strings.Contains(strings.ReplaceAll(page, `" onerror=`, ""), `onerror="`) || strings.Contains(page, `href="javascript`) {
			t.Errorf("%s obeys", path)
		}
	}
	if page := w.get("/runs/r/entry?pos=8", "c1"); !strings.Contains(page, `<span class="c1">red</span>`) {
		t.Errorf("colours aren't shown: %s", page)
	}
}

// runAddresses are the addresses of runs on a page, and what is below them.
var runAddresses = regexp.MustCompile(`"(runs/[^"]*)"`)

// TestOddIDs shows that whatever characters the id of a run has, its page links to itself, and its orders go to it.
func TestOddIDs(t *testing.T) {
	w := newWorld(t)
	ids := []string{"r", "r/command?", "r?x=1", "r#time", "a/b", "%2e", "ü &amp; \"'", "r;s:t"}
	for _, id := range ids {
		w.write(id, "hello")
	}
	for _, id := range ids {
		own := "/runs/" + url.PathEscape(id)
		for _, path := range []string{own, own + "/parts/nodes", own + "/compare?with=r", own + "/parts/log"} {
			page := w.get(path, "")
			for _, found := range runAddresses.FindAllStringSubmatch(page, -1) {
				address, err := url.Parse(html.UnescapeString(found[1]))
				if err != nil {
					t.Errorf("%s: %v", path, err)
					continue
				}
				segments := strings.Split(address.EscapedPath(), "/")
				if name, err := url.PathUnescape(segments[1]); err != nil || name != id && (!strings.Contains(path, "compare") || name != "r") || len(segments) > 4 {
					t.Errorf("%s links to %q, which is run %q", path, found[1], name)
				}
			}
			if id != "r" && !strings.Contains(path, "parts") && !strings.Contains(html.UnescapeString(page), url.PathEscape(id)+"/") {
				t.Errorf("%s has no address below itself", path)
			}
		}
	}
	fleet := w.get("/parts/fleet", "")
	for _, id := range ids {
		if !slices.ContainsFunc(runAddresses.FindAllStringSubmatch(fleet, -1), func(found []string) bool {
			return html.UnescapeString(found[1]) == "runs/"+url.PathEscape(id)
		}) {
			t.Errorf("the list of runs doesn't link to %q", id)
		}
	}
}

// TestPagesOfRuns goes through the pages of a long list, and back.
func TestPagesOfRuns(t *testing.T) {
	w := newWorld(t)
	for i := range 120 {
		w.write(fmt.Sprint("r", i), "hello")
	}
	w.get("/", "of 120")
	links := regexp.MustCompile(`<a href="([^"]*)" rel="(next|prev)">`)
	path, seen := "/", []string{}
	for _, to := range []string{"next", "next", "prev", "prev"} {
		for _, found := range links.FindAllStringSubmatch(w.get(path, ""), -1) {
			if found[2] == to {
				path = strings.TrimPrefix(html.UnescapeString(found[1]), ".")
			}
		}
		shown := regexp.MustCompile(`\d+–\d+ of \d+`).FindString(w.get(path, ""))
		seen = append(seen, shown)
	}
	if want := []string{"51–100 of 120", "101–120 of 120", "51–100 of 120", "1–50 of 120"}; !slices.Equal(seen, want) {
		t.Errorf("%q, want %q", seen, want)
	}
}

// TestRecorderIsBehind shows that a page says what it lacks, and doesn't say that nothing waits then.
func TestRecorderIsBehind(t *testing.T) {
	w := newWorld(t)
	w.stopRecorder()
	for verb, answer := range map[string]any{
		wire.VerbFleet: wire.FleetResponse{Lag: wire.Lag{Behind: 5}}, wire.VerbApprovals: wire.ApprovalsResponse{Lag: wire.Lag{Behind: 3}},
	} {
		b, err := wire.Marshal(answer)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.log.Conn().Subscribe(subjects.Default.API(verb), func(m *nats.Msg) {
			if err := m.Respond(b); err != nil {
				t.Error(err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{"/": "has 5 events to catch up with", "/parts/inbox": "has 3 events to catch up with"} {
		if page := w.get(path, want); strings.Contains(page, "Nothing waits") {
			t.Errorf("%s says that nothing waits:\n%s", path, page)
		}
	}
}

// TestSystemWithoutRecorder shows that what is wrong is shown also if that is that no recorder is there.
func TestSystemWithoutRecorder(t *testing.T) {
	w := newWorld(t)
	names, err := subjects.New("elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	w.config.Names, w.config.File = names, filepath.Join(t.TempDir(), "console-url")
	w.config.Checks = func(context.Context, *nats.Conn) []console.Check {
		return []console.Check{{Name: "recorder", Verdict: "warn", Text: "none is at work", Remedy: "start one"}}
	}
	w.serveConsole()
	if page := w.get("/system", "none is at work"); !strings.Contains(page, "no recorder answers") {
		t.Errorf("it doesn't say why there are no sinks:\n%s", page)
	}
}

// What waits is shown with how long it waits, whatever its agent says meanwhile: in the list of runs, and on the page of the run.
func TestWaitsSince(t *testing.T) {
	w := newWorld(t)
	_, agent := w.write("r", "hello")
	asked := regexp.MustCompile(`data-since="\d+"`).FindString(w.get("/parts/inbox", "data-since"))
	logtest.Append(t, agent, &wire.Event{ExecID: "coder#1", Timestamp: time.Now().Add(time.Minute).UnixMilli(), Payload: &wire.AgentText{Content: "still waiting"}})
	w.get("/runs/r/parts/log", "still waiting")
	for _, path := range []string{"/parts/fleet", "/runs/r/parts/nodes"} {
		if page := w.get(path, `class="waits"`); !strings.Contains(page, asked) {
			t.Errorf("%s doesn't have %s:\n%s", path, asked, page)
		}
	}
}

// In the past, too, a call that failed looks like one.
func TestMomentOfFailure(t *testing.T) {
	w := newWorld(t)
	w.write("r", "hello")
	w.get("/runs/r", "hello")
	w.get("/runs/r/parts/moment", `<div class="r tool failed"`)
}

// What is wrong is said with the command that shows it.
func TestProblemNamesCommand(t *testing.T) {
	w := newWorld(t)
	w.write("r", "hello")
	w.get("/runs/r", "hello")
	asHTML := func(r *http.Request) { r.Header.Set("Accept", "text/html") }
	if status, page := w.ask(http.MethodGet, "/runs/nobody", "", asHTML); status != http.StatusNotFound || !strings.Contains(page, "<code>wake runs</code> lists them") {
		t.Errorf("%d %s", status, page)
	}
}

// The page of a run says whether its log and the session files of its agents tell the same.
func TestFeeds(t *testing.T) {
	w := newWorld(t)
	_, agent := w.write("r", "hello")
	logtest.Append(t, agent, &wire.Event{ExecID: "coder#1", SessionID: "5e551011", Payload: &wire.SessionCompared{Verdict: "stream short", StreamShort: 1}})
	w.get("/runs/r", "stream short")
	if _, page := w.ask(http.MethodGet, "/runs/r", "", nil); !strings.Contains(page, "<dt>log and session file</dt>") {
		t.Errorf("the page has no verdict:\n%s", page)
	}
}

// What has paused by itself until a person decides about it is in the inbox.
func TestPausedRuns(t *testing.T) {
	w := newWorld(t)
	flow, _ := w.write("r", "hello")
	logtest.Append(t, flow, &wire.Event{Payload: &wire.FlowPaused{Reason: wire.PauseRequiresAction}})
	w.get("/", "is paused and waits for a decision about what was interrupted")
}

// The state at any position is the one that wake state --at tells.
func TestStateAt(t *testing.T) {
	w := newWorld(t)
	flow, _ := w.write("r", "hello")
	last := logtest.Append(t, flow, &wire.Event{Payload: &wire.FlowPaused{Reason: wire.PauseOperator}})
	w.get("/runs/r", "paused")
	if _, home := w.ask(http.MethodGet, "/", "", nil); strings.Contains(home, "is paused and waits for") {
		t.Errorf("an operator's pause waits for a decision:\n%s", home)
	}
	c, err := client.Open(t.Context(), w.log.Conn(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for pos := uint64(1); pos <= last; pos++ {
		state, err := c.StateAt(t.Context(), "r", pos)
		status, got := w.ask(http.MethodGet, fmt.Sprint("/runs/r/state?at=", pos), "", nil)
		if err != nil {
			if status == http.StatusOK {
				t.Errorf("at %d: %s, want %v", pos, got, err)
			}
			continue
		}
		raw, err := wire.Marshal(state)
		if err != nil {
			t.Fatal(err)
		}
		want, err := wire.AppendJSON(nil, raw)
		if err != nil || got != string(want)+"\n" {
			t.Errorf("at %d: %v\n got %s\nwant %s", pos, err, got, want)
		}
	}
}

// Two runs stand side by side from where they part, at any position; their differences are those of wake diff.
func TestCompare(t *testing.T) {
	w := newWorld(t)
	_, agentA := w.write("a", "hello")
	_, agentB := w.write("b", "hello")
	event := func(p wire.Payload, call string) *wire.Event {
		return &wire.Event{ExecID: "coder#1", CallID: call, Payload: p}
	}
	shell := func(command, problem string) *wire.AgentTool {
		return &wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawOf(map[string]any{"command": command}), ToolOutput: wire.RawString("done"), Error: problem}
	}
	logtest.Append(t, agentA, event(shell("make test", "exit 2"), "c1"), event(&wire.AgentTextDelta{Content: "I give ", Block: 1}, ""), event(&wire.AgentTextDelta{Content: "up", Block: 1}, ""))
	logtest.Append(t, agentB, event(shell("make build", ""), "c1"))
	last := logtest.Append(t, agentB, event(shell("make test", ""), "c2"))

	page := w.get("/runs/a/compare?with=b", "They part in")
	for _, has := range []string{"make build", "make test", "I give up", "steps alike before", "nothing here", "failed", "Neither was forked"} {
		if !strings.Contains(page, has) {
			t.Errorf("the page lacks %q", has)
		}
	}
	if early := w.get(fmt.Sprint("/runs/a/parts/compared?with=b&at=", last-1), "make build"); strings.Count(early, "make test") >= strings.Count(page, "make test") {
		t.Error("the page of an earlier position has what came later")
	}
	if none := w.get("/runs/a/parts/compared?with=b&at=1", "not begun"); !strings.Contains(none, "Neither has done anything") && !strings.Contains(none, "nothing here") {
		t.Errorf("before both: %s", none)
	}
	w.get("/runs/a/compare?with=a", "They did the same")
	w.get("/runs/a/compare", `href="runs/a/compare?with=b"`)
	w.get("/runs/a/compare?with=b&offset=1000", "Side by side")
	for path, want := range map[string]int{"/runs/a/compare?with=nobody": 404, "/runs/a/diff?with=b&at=x": 400, "/runs/a/parts/compared?with=b&offset=-1": 400} {
		if status, text := w.ask(http.MethodGet, path, "", nil); status != want {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	d, _, _, err := history.Compare(t.Context(), w.log, "a", "b", history.Compared{})
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := wire.AppendJSON(nil, wire.RawOf(d))
	if err != nil {
		t.Fatal(err)
	}
	if _, got := w.ask(http.MethodGet, "/runs/a/diff?with=b", "", nil); got != string(encoded)+"\n" {
		t.Errorf("got %s\nwant %s", got, encoded)
	}
}

// A link shows one run, without secrets, until its time is over, and opens nothing else.
func TestShare(t *testing.T) {
	w := newWorld(t)
	secrets, err := redact.New(redact.All, []string{"swordfish-of-the-console"})
	if err != nil {
		t.Fatal(err)
	}
	w.config.Redact = secrets
	w.serveConsole()
	w.write("r", "hello swordfish-of-the-console password=hunter2hunter2 "+hostile)
	w.write("other", "nobody's business")
	w.get("/", "hello")
	drop := func(r *http.Request) { r.Header.Del("Authorization") }
	link := func(lasts string) string {
		t.Helper()
		status, text := w.ask(http.MethodPost, "/runs/r/share", "for="+lasts, nil)
		var v struct{ Link string }
		if err := json.Unmarshal([]byte(text), &v); err != nil || status != http.StatusOK {
			t.Fatalf("%d %s, %v", status, text, err)
		}
		path, ok := strings.CutPrefix(v.Link, w.console.Address())
		if !ok {
			t.Fatalf("the link is %s", v.Link)
		}
		return "/" + path
	}
	good := link("1h")
	status, page := w.ask(http.MethodGet, good, "", drop)
	if status != http.StatusOK || !strings.Contains(page, "hello") || !strings.Contains(page, "</html>") || !strings.Contains(page, "shared by tester until") {
		t.Fatalf("%d %s", status, page)
	}
	for _, no := range []string{"swordfish", "hunter2", "nobody's", "<script", "<form", "href=", "src=", "\x1b", "\u202e", w.token} {
		if strings.Contains(strings.ReplaceAll(page, "&lt;img src=x", ""), no) {
			t.Errorf("the page has %q", no)
		}
	}
	asCookie := func(r *http.Request) {
		drop(r)
		r.Header.Set("Authorization", "Bearer "+strings.TrimPrefix(good, "/shared/"))
	}
	for _, path := range []string{"/", "/runs/r", "/runs/r/events", "/runs/other", "/search?q=hello", good + "/runs/r", "/runs/r/entry?pos=7"} {
		if status, _ := w.ask(http.MethodGet, path, "", asCookie); status == http.StatusOK {
			t.Errorf("the link opens %s", path)
		}
	}
	if status, _ := w.ask(http.MethodPost, "/runs/r/command", "type=pause", asCookie); status != http.StatusForbidden {
		t.Errorf("the link gives orders: %d", status)
	}
	for i := len("/shared/"); i < len(good); i++ { // any change of the link makes it another one
		changed := []byte(good)
		changed[i] ^= 1
		if status, _ := w.ask(http.MethodGet, string(changed), "", drop); status == http.StatusOK {
			t.Errorf("%s is good, too", changed)
		}
	}
	soon := link("1s")
	for range 100 {
		if status, page = w.ask(http.MethodGet, soon, "", drop); status != http.StatusOK {
			break
		}
		<-time.After(50 * time.Millisecond)
	}
	if status != http.StatusGone || !strings.Contains(page, "good until") || strings.Contains(page, "hello") {
		t.Errorf("later: %d %s", status, page)
	}
	for _, lasts := range []string{"0s", "-1h", "x", "9999h"} {
		if status, text := w.ask(http.MethodPost, "/runs/r/share", "for="+lasts, nil); status != http.StatusConflict || !strings.Contains(text, "no time") {
			t.Errorf("for %s: %d %s", lasts, status, text)
		}
	}
}

// A reader with a link to a run that takes none of the page holds up other readers of that run at most.
func TestSlowReadersOfShare(t *testing.T) {
	w := newWorld(t)
	w.serveConsole()
	for i := range 12 {
		w.write("large", fmt.Sprint(i, strings.Repeat(" many words", 20_000)))
	}
	w.write("other", "hello")
	w.get("/", "hello")
	link := func(run string) string {
		t.Helper()
		_, text := w.ask(http.MethodPost, "/runs/"+run+"/share", "for=1h", nil)
		var v struct{ Link string }
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatalf("%s, %v", text, err)
		}
		return strings.TrimPrefix(v.Link, strings.TrimSuffix(w.console.Address(), "/"))
	}
	large, other := link("large"), link("other")
	drop := func(r *http.Request) { r.Header.Del("Authorization") }
	for range 4 {
		c, err := net.Dial("tcp", strings.Trim(strings.TrimPrefix(w.console.Address(), "http:"), "/"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.(*net.TCPConn).SetReadBuffer(4096); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", large, c.RemoteAddr()); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 12)); err != nil { // the answer has begun
			t.Fatal(err)
		}
	}
	if status, page := w.ask(http.MethodGet, large, "", drop); status != http.StatusServiceUnavailable {
		t.Errorf("one more reader of the same run: %d, %d bytes", status, len(page))
	}
	if status, page := w.ask(http.MethodGet, other, "", drop); status != http.StatusOK || !strings.Contains(page, "hello") {
		t.Errorf("a reader of another run: %d %.300s", status, page)
	}
}

// events reads events from a stream: so many, each with its position.
func (w *world) events(path, after string, n int) (ids []string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.console.Address()+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+w.token)
	if after != "" {
		r.Header.Set("Last-Event-ID", after)
	}
	answer, err := w.http.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); len(ids) < n && lines.Scan(); {
		if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// A reader that comes again, also after the console was away, has neither gap nor double.
func TestEvents(t *testing.T) {
	w := newWorld(t)
	stop := w.serveConsole()
	flow, _ := w.write("r", "hello")
	w.get("/runs/r", "hello")
	all := w.events("runs/r/events", "", 10)
	for cut := 1; cut < len(all); cut += 3 {
		first := w.events("runs/r/events", "", cut)
		if cut == 4 {
			address := w.console.Address()
			stop()
			stop = w.serveConsole()
			if w.console.Address() != address {
				t.Fatalf("the console is at %s now, it was at %s", w.console.Address(), address)
			}
		}
		rest := w.events("runs/r/events", first[len(first)-1], len(all)-cut)
		if got := strings.Join(append(first, rest...), " "); got != strings.Join(all, " ") {
			t.Errorf("cut at %d: %s, want %v", cut, got, all)
		}
	}
	done := make(chan []string, 1)
	go func() { done <- w.events("runs/r/events", all[len(all)-1], 1) }()
	next := logtest.Append(t, flow, &wire.Event{Payload: &wire.FlowPaused{Reason: wire.PauseOperator}})
	if got := <-done; len(got) != 1 || got[0] != fmt.Sprint(next) {
		t.Errorf("what came is %v, want %d", got, next)
	}
	stop()
}

// An open page hears of what changes.
func TestPulse(t *testing.T) {
	w := newWorld(t)
	w.get("/", "Nothing waits for you")
	first := make(chan []string, 1)
	go func() { first <- w.events("live", "", 1) }()
	select {
	case ids := <-first:
		t.Fatalf("where nothing has happened, heard %v", ids)
	case <-time.After(time.Second):
	}
	flow, _ := w.write("r", "hello")
	<-first
	w.get("/", "hello")
	heard := make(chan []string, 1)
	go func() { heard <- w.events("live", "", 2) }() // all at first, then the change
	for {
		logtest.Append(t, flow, &wire.Event{Payload: &wire.StatePatch{Patch: wire.Patch{Op: wire.PatchSet, Path: "n", Value: wire.RawString("x")}}})
		select {
		case ids := <-heard:
			if len(ids) != 2 || ids[0] == ids[1] {
				t.Errorf("heard %v", ids)
			}
			return
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// An order without a runner is stored; one for a run that isn't there is told so.
func TestOrder(t *testing.T) {
	w := newWorld(t)
	w.write("r", "hello")
	w.get("/", "hello")
	if status, text := w.ask(http.MethodPost, "/runs/r/command", "type=pause&reason=lunch", nil); status != http.StatusOK || !strings.Contains(text, "stored") {
		t.Errorf("%d %s", status, text)
	}
	if status, text := w.ask(http.MethodPost, "/runs/r/command", "type=steer", nil); status != http.StatusConflict || !strings.Contains(text, "empty") {
		t.Errorf("%d %s", status, text)
	}
	m, err := w.log.JetStream().Stream(t.Context(), w.log.Names().CommandsStream())
	if err != nil {
		t.Fatal(err)
	}
	stored, err := m.GetLastMsgForSubject(t.Context(), w.log.Names().Command("r"))
	if err != nil {
		t.Fatal(err)
	}
	var c wire.Command
	if err := wire.Unmarshal(stored.Data, &c); err != nil || c.Type != "pause" || c.Reason != "lunch" || c.By != "tester" {
		t.Errorf("%+v, %v", c, err)
	}
}

// Others can't read the file, and off loopback there is no console without a certificate.
func TestAddress(t *testing.T) {
	w := newWorld(t)
	info, err := os.Stat(w.config.File)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	c := w.config
	for _, addr := range []string{"0.0.0.0:0", ":0", "192.0.2.1:0", "example.com:0", "nonsense"} {
		c.Addr = addr
		if s, err := console.New(c); err == nil {
			t.Errorf("%s: %s", addr, s.Address())
		}
	}
	users := filepath.Join(t.TempDir(), "users")
	for text, good := range map[string]bool{
		"# who\nann operator 0123456789abcdef\nbob viewer fedcba9876543210\n": true, "ann operator short": false, "ann king 0123456789abcdef": false, "": false, "ann operator": false,
	} {
		if err := os.WriteFile(users, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c.Addr, c.Users, c.File = "127.0.0.1:0", users, ""
		s, err := console.New(c)
		if (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
		if err == nil {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		}
	}
}

// Only who has the role for it sees the files of runs.
func TestInspector(t *testing.T) {
	w := newWorld(t)
	w.config.Users = filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(w.config.Users, []byte("ann operator 0123456789operator\nbob viewer 0123456789viewer99\neve inspector 0123456789inspector\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.serveConsole()
	flow, _ := w.write("r", "hello")
	pos := logtest.Append(t, flow, &wire.Event{Payload: &wire.StatePatch{Patch: wire.Patch{Op: wire.PatchSet, Path: "n", Value: wire.RawString("x")}}})
	w.get("/runs/r", "hello")
	for token, want := range map[string]int{"0123456789viewer99": http.StatusForbidden, "0123456789inspector": http.StatusNotFound, "0123456789operator": http.StatusNotFound} {
		as := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
		for _, path := range []string{"/runs/r/workspace", "/runs/r/files", "/runs/r/file?path=a", fmt.Sprintf("/runs/r/files?at=%d&since=1", pos)} {
			if status, text := w.ask(http.MethodGet, path, "", as); status != want || want == http.StatusNotFound && !strings.Contains(text, "no snapshot") {
				t.Errorf("%s for %s: %d, want %d: %s", path, token, status, want, text)
			}
		}
		if status, text := w.ask(http.MethodPost, "/api/workspace", `{"run":"r"}`, as); status == http.StatusForbidden != (want == http.StatusForbidden) {
			t.Errorf("the verb workspace for %s: %d: %s", token, status, text)
		}
		order := http.StatusForbidden
		if strings.HasSuffix(token, "operator") {
			order = http.StatusConflict
		}
		if status, text := w.ask(http.MethodPost, "/runs/r/command", "type=nonsense", as); status != order {
			t.Errorf("%s orders: %d, want %d: %s", token, status, order, text)
		}
	}
}

// Pictures that a call has answered are shown, and stand for themselves in what it has answered; what only says that it is one isn't.
func TestEntryShowsPictures(t *testing.T) {
	w := newWorld(t)
	_, agent := w.write("r", "hello")
	var pixels bytes.Buffer
	if err := png.Encode(&pixels, image.NewGray(image.Rect(0, 0, 40, 40))); err != nil {
		t.Fatal(err)
	}
	picture := base64.StdEncoding.EncodeToString(pixels.Bytes())
	page := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("<svg onload=alert(1)>", 10)))
	output := wire.RawOf([]any{
		map[string]any{"type": "text", "text": "here"},
		map[string]any{"type": "image", "source": map[string]any{"media_type": "image/png", "data": picture}},
		map[string]any{"type": "image", "source": map[string]any{"media_type": "image/svg+xml", "data": page}},
	})
	pos := logtest.Append(t, agent, &wire.Event{ExecID: "coder#1", CallID: "c9", Payload: &wire.AgentTool{ToolName: "Screenshot", ToolInput: wire.Null, ToolOutput: output}})
	text := w.get(fmt.Sprint("/runs/r/entry?pos=", pos), "Screenshot")
	if strings.Count(text, "<img") != 1 || !strings.Contains(text, `src="data:image/png;base64,`+picture+`"`) || !strings.Contains(text, "picture 1, ") {
		t.Errorf("%.3000s", text)
	}
	if whole := w.get(fmt.Sprint("/runs/r/event?pos=", pos), "Screenshot"); !strings.Contains(whole, picture) || !strings.Contains(whole, page) {
		t.Errorf("the event lacks something: %.300s", whole)
	}
}
