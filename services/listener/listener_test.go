package listener_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/report"
	"code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/listener"
)

func TestMain(m *testing.M) { natstest.Main(m) }

const (
	id   = "20bf7da2-0000-4000-8000-000000000001"
	call = "toolu_1"
)

// scene is a machine with a session of Claude Code and a listener.
type scene struct {
	*testing.T
	log    *eventlog.Log
	config string // folder of settings
	file   string // of the listener's address
	server *httptest.Server
	stop   func()
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{T: t, log: logtest.Start(t), config: t.TempDir(), file: report.FileIn(t.TempDir())}
	s.start()
	return s
}

// start starts a listener, as the next process does.
func (s *scene) start() {
	s.Helper()
	var l *listener.Listener
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.ServeHTTP(w, r) }))
	s.Cleanup(s.server.Close)
	var err error
	if l, err = listener.New(listener.Config{ID: "l", URL: s.server.URL, File: s.file, Grace: time.Hour}, s.log, logtest.Logger(s)); err != nil {
		s.Fatal(err)
	}
	s.stop = logtest.Go(s, l.Run)
	s.until("the listener is there", func() bool {
		_, err := report.ReadAddress(s.file)
		return err == nil
	})
}

func (s *scene) until(what string, ok func() bool) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Second)
	defer cancel()
	for tick := time.NewTicker(10 * time.Millisecond); !ok(); {
		select {
		case <-ctx.Done():
			s.Fatalf("never: %s; the log:\n%s", what, s.story())
		case <-tick.C:
		}
	}
}

// transcript is the file of the session.
func (s *scene) transcript() string { return filepath.Join(s.config, "projects", "-src", id+".jsonl") }

func (s *scene) add(file, line string) {
	s.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		s.Fatal(err)
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		s.Fatal(err)
	}
	if _, err := f.WriteString(line + "\n"); err != nil {
		s.Fatal(err)
	}
	if err := f.Close(); err != nil {
		s.Fatal(err)
	}
}

// ask has the session make a call that a person is asked about.
func (s *scene) ask() {
	s.add(s.transcript(), `{"type":"user","uuid":"00000000-0000-4000-8000-000000000001","cwd":"/src","message":{"content":"tidy up"}}`)
	s.add(s.transcript(), `{"type":"assistant","uuid":"00000000-0000-4000-8000-000000000002","message":{"content":[{"type":"tool_use","id":"`+call+`","name":"Bash","input":{"command":"rm -r x"}}]}}`)
}

// fire fires a hook, and returns how to wait for what it says to Claude Code.
func (s *scene) fire(ctx context.Context, event, more string) (said func() string) {
	input := `{"session_id":"` + id + `","transcript_path":` + strconv.Quote(s.transcript()) + `,"cwd":"/src","hook_event_name":"` + event + `"` + more + `}`
	var out bytes.Buffer
	done := make(chan error, 1)
	hook := report.Hook{File: s.file, In: strings.NewReader(input), Out: &out, Parent: os.Getppid}
	go func() { done <- hook.Run(ctx) }()
	return func() string {
		s.Helper()
		select {
		case err := <-done:
			if err != nil {
				s.Errorf("the hook: %v", err)
			}
		case <-time.After(20 * time.Second):
			s.Fatalf("the hook doesn't end; the log:\n%s", s.story())
		}
		return out.String()
	}
}

const bash = `,"tool_name":"Bash","tool_input":{"command": "rm -r x"}`

// decide puts a decision on record, as a runner does.
func (s *scene) decide(kind, note string) {
	s.Helper()
	command, err := wire.Marshal(map[string]any{"type": kind, "runId": id, "nodeId": wire.HooksNode, "callId": call, "note": note, "by": "anna"})
	if err != nil {
		s.Fatal(err)
	}
	w := logtest.Claim(s, s.log, subjects.NoRun, wire.RunNode)
	logtest.Append(s, w, &wire.Event{Payload: &wire.CommandReceived{Command: command, CommandID: "c" + kind, AtPos: 1, Accepted: true}})
}

// story is what the log has of the session.
func (s *scene) story() string {
	var b strings.Builder
	for e, err := range s.log.Read(context.WithoutCancel(s.Context()), eventlog.Query{Run: id}) {
		if err != nil || e.Err != nil {
			s.Fatal(err, e.Err)
		}
		switch p := e.Event.Payload.(type) {
		case *wire.FlowStart:
			b.WriteString("start " + p.Labels["name"] + "\n")
		case *wire.PermissionRequired:
			b.WriteString("asked " + p.ToolName + " " + e.Event.CallID + "\n")
		case *wire.PermissionDecided:
			b.WriteString(string(p.Decision) + " by " + p.By + " " + p.Note + "\n")
		case *wire.ToolSealed:
			b.WriteString("sealed\n")
		case *wire.HookFired:
			b.WriteString(p.HookEvent + " " + p.Output + e.Event.CallID + "\n")
		case *wire.FlowPaused:
			b.WriteString("paused " + p.Message + "\n")
		}
	}
	return b.String()
}

func (s *scene) awaitStory(want string) {
	s.Helper()
	s.until("the log tells\n"+want, func() bool { return strings.TrimSpace(s.story()) == strings.TrimSpace(want) })
}

// Whoever is asked in a terminal is asked in the log, and the answer that is given elsewhere goes back.
func TestAnsweredElsewhere(t *testing.T) {
	for kind, want := range map[string]string{
		"approve": `{"hookSpecificOutput":{"decision":{"behavior":"allow"},"hookEventName":"PermissionRequest"}}`,
		"deny":    `{"hookSpecificOutput":{"decision":{"behavior":"deny","message":"never"},"hookEventName":"PermissionRequest"}}`,
	} {
		t.Run(kind, func(t *testing.T) {
			s := newScene(t)
			s.ask()
			said := s.fire(t.Context(), report.PermissionRequest, bash)
			s.awaitStory("start tidy up\nasked Bash toolu_1")
			s.decide(kind, "never")
			if got := strings.TrimSpace(said()); got != want {
				t.Errorf("it says %s, want %s", got, want)
			}
			done := map[string]string{"approve": "allow", "deny": "deny"}[kind]
			s.awaitStory("start tidy up\nasked Bash toolu_1\n" + done + " by anna never")
		})
	}
}

// An answer in the terminal is on record, and the hook says nothing.
func TestAnsweredInTerminal(t *testing.T) {
	for result, want := range map[string]string{
		`"is_error":false}]},"toolUseResult":{}}`:                      "allow by terminal",
		`"is_error":true}]},"toolUseResult":"User rejected tool use"}`: "deny by terminal",
	} {
		s := newScene(t)
		s.ask()
		said := s.fire(t.Context(), report.PermissionRequest, bash)
		s.awaitStory("start tidy up\nasked Bash toolu_1")
		s.add(s.transcript(), `{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"`+call+`",`+result)
		if got := said(); got != "" {
			t.Errorf("it says %s", got)
		}
		s.awaitStory("start tidy up\nasked Bash toolu_1\n" + want)
	}
}

// A call that is made again is another one: the result of the first says nothing of it, also where the file has the second one late.
func TestCallMadeAgain(t *testing.T) {
	s := newScene(t)
	s.ask()
	s.add(s.transcript(), `{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"`+call+`","is_error":true}]},"toolUseResult":"User rejected tool use"}`)
	said := s.fire(t.Context(), report.PermissionRequest, bash)
	<-time.After(150 * time.Millisecond)
	s.add(s.transcript(), `{"type":"assistant","uuid":"00000000-0000-4000-8000-000000000003","message":{"id":"m2","content":[{"type":"tool_use","id":"toolu_2","name":"Bash","input":{"command":"rm -r x"}}]}}`)
	s.awaitStory("start tidy up\nasked Bash toolu_2")
	s.add(s.transcript(), `{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"toolu_2","is_error":false}]},"toolUseResult":{}}`)
	if got := said(); got != "" {
		t.Errorf("it says %s", got)
	}
	s.awaitStory("start tidy up\nasked Bash toolu_2\nallow by terminal")
}

// A call that a session which died had begun, and that never had a result, isn't the one that is made again.
func TestCallOfDeadSession(t *testing.T) {
	s := newScene(t)
	s.ask()
	said := s.fire(t.Context(), report.PermissionRequest, bash)
	s.awaitStory("start tidy up\nasked Bash toolu_1")
	s.add(s.transcript(), `{"type":"assistant","uuid":"00000000-0000-4000-8000-000000000003","message":{"id":"m2","content":[{"type":"tool_use","id":"toolu_2","name":"Bash","input":{"command":"rm -r x"}}]}}`)
	s.add(s.transcript(), `{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"toolu_2","is_error":false}]},"toolUseResult":{}}`)
	if got := said(); got != "" {
		t.Errorf("it says %s", got)
	}
	s.awaitStory("start tidy up\nasked Bash toolu_1\nallow by terminal")
}

// A request that can't be stored, since it names no tool, leaves its dialog to the terminal, and doesn't come again and again.
func TestRequestNamesNoTool(t *testing.T) {
	s := newScene(t)
	s.ask()
	if got := s.fire(t.Context(), report.PermissionRequest, `,"tool_input":{"command":"rm -r x"}`)(); got != "" {
		t.Errorf("it says %s", got)
	}
}

// Hooks of equal calls that fire at the same moment have requests of their own.
func TestEqualCallsAtOnce(t *testing.T) {
	s := newScene(t)
	s.ask()
	for n := 2; n <= 4; n++ {
		s.add(s.transcript(), fmt.Sprintf(`{"type":"assistant","uuid":"00000000-0000-4000-8000-00000000001%d","message":{"content":[{"type":"tool_use","id":"toolu_%d","name":"Bash","input":{"command":"rm -r x"}}]}}`, n, n))
	}
	ctx, end := context.WithCancel(t.Context())
	var hooks []func() string
	for range 4 {
		hooks = append(hooks, s.fire(ctx, report.PermissionRequest, bash))
	}
	s.until("four requests", func() bool {
		story := s.story()
		for n := 1; n <= 4; n++ {
			if strings.Count(story, fmt.Sprintf("asked Bash toolu_%d\n", n)) != 1 {
				return false
			}
		}
		return true
	})
	end()
	for _, said := range hooks {
		said()
	}
}

// Two calls of a message that are the same are two requests, each decided for itself.
func TestEqualCalls(t *testing.T) {
	s := newScene(t)
	s.ask()
	s.add(s.transcript(), `{"type":"assistant","uuid":"00000000-0000-4000-8000-000000000003","message":{"content":[{"type":"tool_use","id":"toolu_2","name":"Bash","input":{"command":"rm -r x"}}]}}`)
	first := s.fire(t.Context(), report.PermissionRequest, bash)
	s.awaitStory("start tidy up\nasked Bash toolu_1")
	second := s.fire(t.Context(), report.PermissionRequest, bash)
	s.awaitStory("start tidy up\nasked Bash toolu_1\nasked Bash toolu_2")
	s.decide("approve", "ok")
	if got := first(); !strings.Contains(got, `"behavior":"allow"`) {
		t.Errorf("the first says %q", got)
	}
	s.awaitStory("start tidy up\nasked Bash toolu_1\nasked Bash toolu_2\nallow by anna ok")
	s.add(s.transcript(), `{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"toolu_2","is_error":true}]},"toolUseResult":"User rejected tool use"}`)
	if got := second(); got != "" {
		t.Errorf("the second says %q", got)
	}
	s.awaitStory("start tidy up\nasked Bash toolu_1\nasked Bash toolu_2\nallow by anna ok\ndeny by terminal")
}

// A call that was allowed and works on isn't waited for: the process of the session says that it is busy.
func TestAllowedAndAtWork(t *testing.T) {
	s := newScene(t)
	holder := filepath.Join(s.config, "sessions", "1.json")
	hold := func(status string) {
		if err := os.MkdirAll(filepath.Dir(holder), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(holder, []byte(`{"pid":`+strconv.Itoa(os.Getpid())+`,"sessionId":"`+id+`","status":"`+status+`"}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hold("waiting")
	s.ask()
	d := session.Dialog{Session: id, File: s.transcript(), Tool: "Bash", Input: json.RawMessage(`{"command":"rm -r x"}`)}
	now := time.Now()
	if got := d.Look(now); got != session.Open {
		t.Fatalf("it is %q while it waits", got)
	}
	hold("busy")
	if got := d.Look(now); got != session.Open {
		t.Errorf("it is %q at the moment", got)
	}
	if got := d.Look(now.Add(time.Second)); got != session.Allowed {
		t.Errorf("it is %q while the call works", got)
	}
	if err := os.Remove(holder); err != nil {
		t.Fatal(err)
	}
	if got := d.Look(now.Add(time.Second)); got != session.Gone {
		t.Errorf("it is %q when the process is gone", got)
	}
}

// A listener that is killed and comes back knows what was asked; the hook waits on, and nothing is told twice.
func TestListenerComesBack(t *testing.T) {
	s := newScene(t)
	s.ask()
	said := s.fire(t.Context(), report.PermissionRequest, bash)
	s.awaitStory("start tidy up\nasked Bash toolu_1")
	s.server.CloseClientConnections()
	s.stop()
	s.decide("approve", "") // while it is away
	s.start()
	if got := said(); !strings.Contains(got, `"behavior":"allow"`) {
		t.Errorf("it says %q", got)
	}
	s.awaitStory("start tidy up\nasked Bash toolu_1\nallow by anna")
}

// What a hook that was killed waited for isn't waited for any more, nor what a session that has ended asked.
func TestNobodyWaits(t *testing.T) {
	s := newScene(t)
	s.ask()
	ctx, kill := context.WithCancel(t.Context())
	said := s.fire(ctx, report.PermissionRequest, bash)
	s.awaitStory("start tidy up\nasked Bash toolu_1")
	kill()
	said()
	s.awaitStory("start tidy up\nasked Bash toolu_1\nsealed")
	s.fire(t.Context(), report.SessionEnd, `,"reason":"other"`)()
	s.awaitStory("start tidy up\nasked Bash toolu_1\nsealed\nSessionEnd other\npaused the session has ended (other)")
}

// What the session's file doesn't tell is told of a session that is known; what it tells isn't, and what a newer hook reports neither.
func TestEvents(t *testing.T) {
	s := newScene(t)
	s.ask()
	said := s.fire(t.Context(), report.PermissionRequest, bash)
	s.awaitStory("start tidy up\nasked Bash toolu_1")
	for event, more := range map[string]string{"UserPromptSubmit": `,"prompt":"x"`, "Unheard": ""} {
		s.fire(t.Context(), event, more)()
	}
	want := "start tidy up\nasked Bash toolu_1\n"
	for _, c := range [][3]string{
		{report.Notification, `,"message":"look"`, "look"},
		{report.Elicitation, `,"message":"which?"`, "which?"},
		{report.Stop, `,"last_assistant_message":"done"`, ""},
		{report.StopFailure, `,"error":"rate_limit"`, "rate_limit"},
		{report.SubagentStart, `,"agent_id":"a7"`, "a7"},
		{report.SubagentStop, `,"agent_id":"a7"`, "a7"},
		{report.PreCompact, `,"trigger":"auto"`, "auto"},
		{report.PostCompact, `,"trigger":"auto"`, "auto"},
		{report.PostToolUse, `,"tool_name":"Bash","tool_use_id":"toolu_1","tool_response":"` + strings.Repeat("x", report.MaxBytes) + `"`, "toolu_1"},
		{report.PostToolUseFailure, `,"tool_name":"Bash","tool_use_id":"toolu_2"`, "toolu_2"},
	} {
		s.fire(t.Context(), c[0], c[1])()
		want += c[0] + " " + c[2] + "\n"
		s.awaitStory(want)
	}
	s.decide("approve", "")
	said()
}

// Where nobody listens, a hook ends at once, and the next one doesn't even try.
func TestAway(t *testing.T) {
	s := newScene(t)
	s.ask()
	address, err := report.ReadAddress(s.file)
	if err != nil {
		t.Fatal(err)
	}
	s.stop()
	s.server.Close()
	if err := address.Write(s.file); err != nil { // as a process that was killed leaves it
		t.Fatal(err)
	}
	if got := s.fire(t.Context(), report.PermissionRequest, bash)(); got != "" {
		t.Errorf("it says %q", got)
	}
	if _, err := report.ReadAddress(s.file); !os.IsNotExist(err) {
		t.Errorf("the next one asks in vain, too: %v", err)
	}
}

// What a person would be asked isn't told of the session of a program; the rest is.
func TestOfPrograms(t *testing.T) {
	s := newScene(t)
	s.ask()
	s.fire(t.Context(), report.PermissionRequest, bash)
	s.awaitStory("start tidy up\nasked Bash toolu_1")
	for event, more := range map[string]string{report.PermissionRequest: bash, report.Notification: `,"message":"look"`, report.Stop: ""} {
		input := `{"session_id":"` + id + `","transcript_path":` + strconv.Quote(s.transcript()) + `,"hook_event_name":"` + event + `"` + more + `}`
		hook := report.Hook{File: s.file, In: strings.NewReader(input), Out: io.Discard, Parent: os.Getppid, Program: true}
		if err := hook.Run(t.Context()); err != nil {
			t.Error(err)
		}
	}
	s.awaitStory("start tidy up\nasked Bash toolu_1\nStop ")
}

// A run that a runner executes isn't the hooks' to tell.
func TestDriven(t *testing.T) {
	s := newScene(t)
	w := logtest.Claim(t, s.log, id, wire.RunNode)
	logtest.Append(t, w, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", Definition: wire.RawString("x"), DefinitionHash: "h"}})
	s.ask()
	if got := s.fire(t.Context(), report.PermissionRequest, bash)(); got != "" {
		t.Errorf("it says %q", got)
	}
	s.awaitStory("start")
}

// A sender that may not report is refused, and nothing of it is stored.
func TestRefused(t *testing.T) {
	s := newScene(t)
	address, err := report.ReadAddress(s.file)
	if err != nil {
		t.Fatal(err)
	}
	own := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+address.Token(id)) }
	body := `{"session":"` + id + `","event":"PermissionRequest","call":"c","tool":"Bash"}`
	for name, c := range map[string]struct {
		body   string
		change func(*http.Request)
		want   int
	}{
		"no token":        {body, func(r *http.Request) { r.Header.Del("Authorization") }, 401},
		"another's token": {body, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+address.Token("other")) }, 403},
		"a made-up token": {body, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+id+".x") }, 401},
		"a page":          {body, func(r *http.Request) { r.Header.Set("Origin", s.server.URL) }, 403},
		"a page, null":    {body, func(r *http.Request) { r.Header.Set("Origin", "null") }, 403},
		"another name":    {body, func(r *http.Request) { r.Host = "evil.example:80" }, 403},
		"localhost":       {body, func(r *http.Request) { r.Host = "localhost:7070" }, 403},
		"a form":          {body, func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, 415},
		"read":            {"", func(r *http.Request) { r.Method = http.MethodGet }, 405},
		"no JSON":         {"{", own, 400},
		"no call":         {`{"session":"` + id + `","event":"PermissionRequest"}`, own, 400},
		"a long call":     {`{"session":"` + id + `","event":"Decided","call":"` + strings.Repeat("x", 5000) + `"}`, own, 400},
		"10 MB":           {strings.Repeat(" ", 10<<20), own, 413},
	} {
		if got := s.post(address, c.body, c.change); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if story := s.story(); story != "" {
		t.Errorf("stored:\n%s", story)
	}
}

// post asks as a hook does, with a change, and returns the status.
func (s *scene) post(address report.Address, body string, change func(*http.Request)) int {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), http.MethodPost, address.URL+report.Path, io.NopCloser(strings.NewReader(body)))
	if err != nil {
		s.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+address.Token(id))
	change(r)
	answer, err := s.server.Client().Do(r)
	if err != nil {
		s.Fatal(err)
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}

// A session that floods the listener is told to stop; others are heard.
func TestFlood(t *testing.T) {
	s := newScene(t)
	address, err := report.ReadAddress(s.file)
	if err != nil {
		t.Fatal(err)
	}
	got := map[int]int{}
	s.until("it is refused", func() bool {
		got[s.post(address, `{"session":"`+id+`","event":"Notification","text":"x"}`, func(*http.Request) {})]++
		return got[429] > 0
	})
	if got[200] == 0 {
		t.Errorf("answers: %v", got)
	}
	other := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+address.Token("other")) }
	if status := s.post(address, `{"session":"other","event":"Notification"}`, other); status != 200 {
		t.Errorf("another session gets %d", status)
	}
	if diff := cmp.Diff("", s.story()); diff != "" {
		t.Errorf("of a session in which nothing was said is stored:\n%s", diff)
	}
}
