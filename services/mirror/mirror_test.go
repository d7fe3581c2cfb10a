package mirror_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/report"
	"code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/mirror"
	"code.wake.dev/wake/services/recorder"
)

func TestMain(m *testing.M) { natstest.Main(m) }

const id = "20bf7da2-0000-4000-8000-000000000001"

// scene is a server that keeps sessions, and a program that uses it.
type scene struct {
	*testing.T
	log    *eventlog.Log
	file   string
	idle   time.Duration
	prices agent.Prices
	server *httptest.Server
	stop   func()
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{T: t, log: logtest.Start(t), file: filepath.Join(t.TempDir(), "sessions-url"), idle: time.Hour}
	r, err := recorder.New(recorder.Config{Path: filepath.Join(t.TempDir(), "recorder.db")}, s.log, logtest.Logger(t))
	if err != nil {
		t.Fatal(err)
	}
	logtest.Go(t, r.Run)
	s.until("the recorder answers", func() bool {
		_, err := api.Call[wire.RunsResponse](t.Context(), s.log.Conn(), s.log.Names(), wire.VerbRuns, wire.RunsRequest{})
		return err == nil
	})
	s.start()
	return s
}

// start starts a mirror, as the next process does.
func (s *scene) start() {
	s.Helper()
	var m *mirror.Mirror
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.ServeHTTP(w, r) }))
	s.Cleanup(s.server.Close)
	var err error
	if m, err = mirror.New(mirror.Config{ID: "m", URL: s.server.URL, File: s.file, Idle: s.idle, Prices: s.prices}, s.log, logtest.Logger(s)); err != nil {
		s.Fatal(err)
	}
	s.stop = logtest.Go(s, m.Run)
	s.until("the mirror says where it is", func() bool {
		a, err := report.ReadAddress(s.file)
		return err == nil && a.URL == s.server.URL
	})
}

func (s *scene) until(what string, ok func() bool) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Second)
	defer cancel()
	for tick := time.NewTicker(10 * time.Millisecond); !ok(); {
		select {
		case <-ctx.Done():
			s.Fatalf("never: %s; the log:\n%s", what, s.story(id))
		case <-tick.C:
		}
	}
}

// ask asks for something, and returns the status and the answer.
func (s *scene) ask(verb string, q any, change func(*http.Request)) (status int, answer map[string]any) {
	s.Helper()
	body, err := json.Marshal(q)
	if err != nil {
		s.Fatal(err)
	}
	return s.send(verb, body, change)
}

func (s *scene) send(verb string, body []byte, change func(*http.Request)) (status int, answer map[string]any) {
	s.Helper()
	a, err := report.ReadAddress(s.file)
	if err != nil {
		s.Fatal(err)
	}
	r, err := http.NewRequestWithContext(s.Context(), http.MethodPost, s.server.URL+mirror.Path+verb, io.NopCloser(bytes.NewReader(body)))
	if err != nil {
		s.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+a.Key)
	if change != nil {
		change(r)
	}
	got, err := s.server.Client().Do(r)
	if err != nil {
		return 0, nil
	}
	defer func() { _ = got.Body.Close() }()
	if err := json.NewDecoder(got.Body).Decode(&answer); err != nil {
		s.Fatal(err)
	}
	return got.StatusCode, answer
}

// do asks for what is possible.
func (s *scene) do(verb string, q any) map[string]any {
	s.Helper()
	status, answer := s.ask(verb, q, nil)
	if status != http.StatusOK {
		s.Fatalf("%s: %d %v", verb, status, answer)
	}
	return answer
}

type (
	object = map[string]any
	list   = []any
)

func key(project, session string, subpath ...string) object {
	k := object{"projectKey": project, "sessionId": session}
	if len(subpath) > 0 {
		k["subpath"] = subpath[0]
	}
	return k
}

func (s *scene) append(k object, entries ...any) {
	s.Helper()
	s.do("append", object{"key": k, "entries": append(list{}, entries...)})
}

func (s *scene) load(k object) any {
	s.Helper()
	return s.do("load", object{"key": k})["entries"]
}

func (s *scene) sessions(project string) (all []string) {
	s.Helper()
	for _, one := range s.do("list", object{"key": object{"projectKey": project}})["sessions"].(list) {
		all = append(all, one.(object)["sessionId"].(string))
	}
	slices.Sort(all)
	return all
}

func (s *scene) same(what string, want, got any) {
	s.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		s.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// story is what the log has of a run.
func (s *scene) story(run string) string {
	var b strings.Builder
	for e, err := range s.log.Read(context.WithoutCancel(s.Context()), eventlog.Query{Run: run}) {
		if err != nil || e.Err != nil {
			s.Fatal(err, e.Err)
		}
		switch p := e.Event.Payload.(type) {
		case *wire.FlowStart:
			b.WriteString("start " + p.Labels["name"] + "\n")
		case *wire.AgentText:
			b.WriteString(e.Event.NodeID + " says " + p.Content + "\n")
		case *wire.SessionCompared:
			fmt.Fprintf(&b, "%s: %s\n", p.Verdict, strings.Join(p.StreamLacks, "; "))
		case *wire.RawMessage:
			b.WriteString("raw " + p.Name + "\n")
		case *wire.FlowPaused:
			b.WriteString("paused\n")
		case *wire.FlowResumed:
			b.WriteString("resumed\n")
		case *wire.FlowAborted:
			b.WriteString("aborted\n")
		}
	}
	return b.String()
}

// said is an entry in which the agent says something.
func said(n, after int, text string) object {
	e := object{
		"type": "assistant", "uuid": uuid(n), "parentUuid": nil, "sessionId": id, "timestamp": fmt.Sprintf("2026-11-23T10:00:%02dZ", n%60),
		"message": object{"id": fmt.Sprintf("msg_%d", n), "role": "assistant", "model": "claude-sonnet-4-5", "content": list{object{"type": "text", "text": text}}},
	}
	if after > 0 {
		e["parentUuid"] = uuid(after)
	}
	return e
}

func uuid(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// The rules that a SessionStore has to keep.
func TestContract(t *testing.T) {
	s := newScene(t)
	rules := []struct {
		name string
		test func(s *scene, p string)
	}{
		{"what was appended is loaded, in order", func(s *scene, p string) {
			s.append(key(p, "s"), object{"type": "a", "uuid": "1"}, object{"type": "b", "uuid": "2"})
			s.append(key(p, "s"), object{"type": "c", "uuid": "0"})
			s.same("loaded", any(list{object{"type": "a", "uuid": "1"}, object{"type": "b", "uuid": "2"}, object{"type": "c", "uuid": "0"}}), s.load(key(p, "s")))
		}},
		{"entries are deep-equal", func(s *scene, p string) {
			body := `{"key":{"projectKey":"` + p + `","sessionId":"s"},"entries":[{"type":"x","n":1.50,"big":12345678901234567890,"e":1e3,"text":"a\u0000\ud800 \u2028 <b>&\n","none":null,"deep":{"a":[{},[],""," ",true]},"ü":"ü"}]}`
			if status, answer := s.send("append", []byte(body), nil); status != 200 {
				s.Fatal(status, answer)
			}
			var want object
			if err := json.Unmarshal([]byte(body), &want); err != nil {
				s.Fatal(err)
			}
			s.same("loaded", want["entries"], s.load(key(p, "s")))
		}},
		{"a key that was never written is null", func(s *scene, p string) {
			s.same("nothing", any(nil), s.load(key(p, "none")))
			s.same("of a sub-agent", any(nil), s.load(key(p, "none", "subagents/agent-1")))
		}},
		{"an entry with a uuid is there once", func(s *scene, p string) {
			s.append(key(p, "s"), object{"type": "a", "uuid": "1"}, object{"type": "a", "uuid": "1"})
			s.append(key(p, "s"), object{"type": "b", "uuid": "2"}, object{"type": "a", "uuid": "1"})
			s.same("loaded", any(list{object{"type": "a", "uuid": "1"}, object{"type": "b", "uuid": "2"}}), s.load(key(p, "s")))
		}},
		{"entries without a uuid are appended as they come", func(s *scene, p string) {
			s.append(key(p, "s"), object{"type": "title"}, object{"type": "title"})
			s.append(key(p, "s"), object{"type": "title"})
			s.same("loaded", any(list{object{"type": "title"}, object{"type": "title"}, object{"type": "title"}}), s.load(key(p, "s")))
		}},
		{"to append nothing does nothing", func(s *scene, p string) {
			s.append(key(p, "s"))
			s.same("loaded", any(nil), s.load(key(p, "s")))
			s.same("listed", []string(nil), s.sessions(p))
		}},
		{"subpaths are by themselves", func(s *scene, p string) {
			s.append(key(p, "s"), object{"type": "a"})
			s.append(key(p, "s", "subagents/agent-1"), object{"type": "b"})
			s.append(key(p, "s", "../../x"), object{"type": "c"})
			s.same("session", any(list{object{"type": "a"}}), s.load(key(p, "s")))
			s.same("sub-agent", any(list{object{"type": "b"}}), s.load(key(p, "s", "subagents/agent-1")))
			s.same("any name", any(list{object{"type": "c"}}), s.load(key(p, "s", "../../x")))
		}},
		{"projects are by themselves", func(s *scene, p string) {
			s.append(key(p, "s"), object{"type": "a"})
			s.append(key(p+"/s", "s"), object{"type": "b"})
			s.same("one", any(list{object{"type": "a"}}), s.load(key(p, "s")))
			s.same("other", any(list{object{"type": "b"}}), s.load(key(p+"/s", "s")))
			s.same("sessions", []string{"s"}, s.sessions(p))
		}},
		{"sessions are listed, with a time in whole milliseconds", func(s *scene, p string) {
			before := float64(time.Now().UnixMilli())
			s.append(key(p, "s1"), object{"type": "a"})
			s.append(key(p, "s2", "subagents/agent-1"), object{"type": "a"})
			s.append(key(p, "s3"), object{"type": "a"})
			s.same("sessions that have a transcript of their own", []string{"s1", "s3"}, s.sessions(p))
			s.same("of another project", []string(nil), s.sessions(p+"x"))
			for _, one := range s.do("list", object{"key": object{"projectKey": p}})["sessions"].(list) {
				if at := one.(object)["mtime"].(float64); at < before || at != float64(int64(at)) || at > float64(time.Now().UnixMilli()+1000) {
					s.Errorf("time %v", at)
				}
			}
		}},
		{"summaries are kept as they are, by whoever knows all entries", func(s *scene, p string) {
			q := object{"key": key(p, "s"), "entries": list{object{"type": "a"}}, "summary": object{"after": 0, "data": object{"x": list{1.5, nil}}}}
			at := s.do("append", q)["mtime"]
			want := any(list{object{"sessionId": "s", "mtime": at, "data": object{"x": list{1.5, nil}}}})
			s.same("summaries", want, s.do("summaries", object{"key": object{"projectKey": p}})["summaries"])
			status, answer := s.ask("append", q, nil)
			s.same("status of one that doesn't know the first", 409, status)
			s.same("what it is told", object{"error": "something was appended since", "mtime": at, "summary": object{"x": list{1.5, nil}}}, answer)
			s.same("loaded", any(list{object{"type": "a"}}), s.load(key(p, "s")))
			s.append(key(p, "s"), object{"type": "b"}) // by a program that folds none
			q["summary"].(object)["after"] = at
			_, answer = s.ask("append", q, nil)
			s.same("the summary, which is old", any(nil), answer["summary"])
			q["summary"].(object)["after"] = answer["mtime"]
			s.do("append", q)
		}},
		{"a session is deleted with what is below it", func(s *scene, p string) {
			s.append(key(p, "s"), object{"type": "a"})
			s.append(key(p, "s", "subagents/agent-1"), object{"type": "b"})
			s.append(key(p, "t"), object{"type": "c"})
			s.do("delete", object{"key": key(p, "s")})
			s.same("session", any(nil), s.load(key(p, "s")))
			s.same("sub-agent", any(nil), s.load(key(p, "s", "subagents/agent-1")))
			s.same("subkeys", any(list{}), s.do("subkeys", object{"key": key(p, "s")})["subkeys"])
			s.same("sessions", []string{"t"}, s.sessions(p))
			s.same("another", any(list{object{"type": "c"}}), s.load(key(p, "t")))
			s.append(key(p, "s"), object{"type": "again"})
			s.same("one that begins anew", any(list{object{"type": "again"}}), s.load(key(p, "s")))
			s.do("delete", object{"key": key(p, "never")})
		}},
		{"a subpath is deleted alone", func(s *scene, p string) {
			s.append(key(p, "s"), object{"type": "a"})
			s.append(key(p, "s", "subagents/agent-1"), object{"type": "b"})
			s.append(key(p, "s", "subagents/agent-2"), object{"type": "c"})
			s.do("delete", object{"key": key(p, "s", "subagents/agent-1")})
			s.same("session", any(list{object{"type": "a"}}), s.load(key(p, "s")))
			s.same("deleted", any(nil), s.load(key(p, "s", "subagents/agent-1")))
			s.same("subkeys", any(list{"subagents/agent-2"}), s.do("subkeys", object{"key": key(p, "s")})["subkeys"])
		}},
		{"subkeys are the subpaths", func(s *scene, p string) {
			s.append(key(p, "s"), object{"type": "a"})
			s.append(key(p, "s", "subagents/agent-2"), object{"type": "b"})
			s.append(key(p, "s", "subagents/agent-1"), object{"type": "b"})
			s.same("subkeys", any(list{"subagents/agent-1", "subagents/agent-2"}), s.do("subkeys", object{"key": key(p, "s")})["subkeys"])
			s.same("of nothing", any(list{}), s.do("subkeys", object{"key": key(p, "t")})["subkeys"])
		}},
	}
	for n, rule := range rules {
		project := fmt.Sprintf("-p%d", n)
		t.Run(rule.name, func(t *testing.T) { rule.test(&scene{T: t, log: s.log, file: s.file, server: s.server}, project) })
	}
	s.stop()
	s.server.Close()
	s.start()
	s.same("after a restart", any(list{object{"type": "title"}, object{"type": "title"}, object{"type": "title"}}), s.load(key("-p4", "s")))
	s.same("subkeys after a restart", any(list{"subagents/agent-2"}), s.do("subkeys", object{"key": key("-p11", "s")})["subkeys"])
}

// The usage of a message that the transcript doesn't say to be over is told once nothing has been appended for a while: once, also by the next
// process, and where the session goes on.
func TestUsageOfLastMessage(t *testing.T) {
	s := newScene(t)
	s.idle = 50 * time.Millisecond
	used := func() (all []string) {
		for e, err := range s.log.Read(t.Context(), eventlog.Query{Run: id}) {
			if err != nil || e.Err != nil {
				t.Fatal(err, e.Err)
			}
			if p, is := e.Event.Payload.(*wire.Usage); is {
				all = append(all, fmt.Sprintf("%s %d", p.MessageID, p.OutputTokens))
			}
		}
		return all
	}
	answer := func(n int) object {
		e := said(n, n-1, "hello")
		e["message"].(object)["usage"] = object{"input_tokens": 10, "output_tokens": 5}
		return e
	}
	prompt := func(n int) object {
		return object{"type": "user", "uuid": uuid(n), "timestamp": fmt.Sprintf("2026-11-23T10:00:%02dZ", n), "message": object{"role": "user", "content": "hi"}}
	}
	k := key("p", id)
	s.append(k, prompt(1), answer(2))
	s.stop() // before it is told
	s.start()
	s.until("it is told", func() bool { return len(used()) > 0 && strings.HasSuffix(s.story(id), "paused\n") })
	s.stop()
	s.start()
	s.append(k, prompt(3), answer(4))
	s.until("both are told", func() bool { return len(used()) > 1 && strings.Count(s.story(id), "paused\n") == 2 })
	s.same("what was used", []string{"msg_2 5", "msg_4 5"}, used())
}

// What a program appends is told as a run, each entry once, whichever mirror keeps it meanwhile; a run in which nothing goes on rests.
func TestTold(t *testing.T) {
	s := newScene(t)
	k := key("-src", id)
	s.append(k, object{"type": "user", "uuid": uuid(1), "cwd": "/src", "timestamp": "2026-11-23T10:00:00Z", "message": object{"content": "tidy up"}}, said(2, 1, "gladly"))
	s.append(key("-src", id, "subagents/agent-7"), said(11, 0, "I help"))
	s.same("story", "start tidy up\nagent says gladly\nagent-7 says I help\n", s.story(id))
	s.stop()
	s.server.Close()
	s.idle = time.Millisecond
	s.start()
	s.until("it rests", func() bool { return strings.HasSuffix(s.story(id), "paused\n") })
	s.append(k, said(2, 1, "gladly"), said(3, 2, "done"))
	want := "start tidy up\nagent says gladly\nagent-7 says I help\npaused\nresumed\nagent says done\n"
	s.same("story", want, strings.TrimSuffix(s.story(id), "paused\n"))
}

// What messages cost is told at the prices that are given.
func TestPrices(t *testing.T) {
	s := newScene(t)
	s.stop()
	s.server.Close()
	s.prices = agent.Prices{"claude-sonnet-4-5": {Input: 1, Output: 4}}
	s.start()
	message := said(2, 0, "gladly")
	m, _ := message["message"].(object)
	m["usage"], m["stop_reason"] = object{"input_tokens": 7, "output_tokens": 5}, "end_turn"
	s.append(key("-src", id), message)
	for e, err := range s.log.Read(t.Context(), eventlog.Query{Run: id, Node: "agent"}) {
		if err != nil || e.Err != nil {
			t.Fatal(err, e.Err)
		}
		if p, is := e.Event.Payload.(*wire.Usage); is {
			if p.CostUsd == nil || math.Abs(*p.CostUsd-27e-6) > 1e-12 || p.CostSource != wire.PricesOptions {
				t.Errorf("%+v", p)
			}
			return
		}
	}
	t.Errorf("nothing was used:\n%s", s.story(id))
}

// A mirror that is ended while it begins has no fault to tell.
func TestEndedAtTheStart(t *testing.T) {
	s := newScene(t)
	m, err := mirror.New(mirror.Config{ID: "n", URL: s.server.URL, File: s.file, Idle: s.idle}, s.log, logtest.Logger(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Run(ctx); err != nil {
		t.Error(err)
	}
}

// A batch that is tried again since no answer came is there once, with entries that have no uuid, too.
func TestTriedAgain(t *testing.T) {
	s := newScene(t)
	k := key("-src", id)
	s.append(k, object{"type": "mode"}, said(1, 0, "a"))
	batch := list{object{"type": "mode"}, said(1, 0, "a"), object{"type": "title"}, said(2, 1, "b"), object{"type": "mode"}}
	s.do("append", object{"key": k, "entries": batch})
	for range 2 {
		s.do("append", object{"key": k, "entries": batch, "again": true})
		s.same("loaded", any(list{object{"type": "mode"}, said(1, 0, "a"), object{"type": "mode"}, object{"type": "title"}, said(2, 1, "b"), object{"type": "mode"}}), s.load(k))
		s.stop()
		s.server.Close()
		s.start()
	}
	s.do("append", object{"key": k, "entries": list{object{"type": "title"}, said(3, 2, "c")}, "again": true}) // which didn't come the first time
	if n := len(s.load(k).(list)); n != 8 {
		t.Errorf("%d entries", n)
	}
}

// What is missing is a gap in the verdict, told once: entries that others refer to, and those that a program says it has lost. One that
// comes later is kept.
func TestLacks(t *testing.T) {
	s := newScene(t)
	k := key("-src", id)
	s.append(k, said(1, 0, "a"), said(2, 1, "b"))
	s.append(k, said(4, 3, "d"), said(5, 3, "e"))
	want := "start \nagent says a\nagent says b\nagent says d\nagent says e\nstream short: entry " + uuid(3) + ", which another one refers to\n"
	s.same("story", want, s.story(id))
	s.append(k, said(3, 2, "c"), said(6, 3, "f"))
	if n := len(s.load(k).(list)); n != 6 {
		t.Errorf("%d of 6 entries are kept", n)
	}
	want += "agent says c\nagent says f\n"
	s.same("story", want, s.story(id))
	s.do("lost", object{"key": k, "error": "no room", "lost": 2, "uuids": list{uuid(7)}})
	want += "raw system/mirror_error\nstream short: entry " + uuid(7) + ", which the program couldn't append\n"
	s.same("story", want, s.story(id))
	s.do("lost", object{"key": key("-src", "other"), "error": "at once"})
	s.same("of one of which nothing has come", "start \nraw system/mirror_error\nstream short: \n", s.story("other"))
}

// A session of which a watcher tells already is the same run, and each line is told once.
func TestWatchedBefore(t *testing.T) {
	s := newScene(t)
	start, err := (&session.About{Title: "seen"}).Start("")
	if err != nil {
		t.Fatal(err)
	}
	logtest.Append(t, logtest.Claim(t, s.log, id, wire.RunNode), &wire.Event{Payload: start})
	logtest.Append(t, logtest.Claim(t, s.log, id, session.MainNode), &wire.Event{Payload: &wire.TranscriptRead{File: "-src/x.jsonl", Digest: "x", Lines: []string{uuid(1)}}})
	s.append(key("-src", id), said(1, 0, "a"), said(2, 1, "b"))
	s.same("story", "start seen\nagent says b\n", s.story(id))
}

// A run of something else isn't a session's, nor is one that was deleted.
func TestOtherRuns(t *testing.T) {
	s := newScene(t)
	logtest.Append(t, logtest.Claim(t, s.log, id, wire.RunNode), &wire.Event{Payload: &wire.FlowStart{FlowName: "f", Definition: wire.RawString("x"), DefinitionHash: "h"}})
	s.append(key("-src", id), said(1, 0, "a"))
	s.same("story", "start \n", s.story(id))
	s.same("loaded", any(list{said(1, 0, "a")}), s.load(key("-src", id)))
	s.append(key("-src", "b"), said(2, 0, "b"))
	s.do("delete", object{"key": key("-src", "b")})
	s.append(key("-src", "b"), said(3, 0, "c"))
	s.same("story", "start \nagent says b\naborted\n", s.story("b"))
}

// A program that may not ask isn't answered, and what is no request isn't kept.
func TestRefused(t *testing.T) {
	s := newScene(t)
	good := `{"key":{"projectKey":"p","sessionId":"s"},"entries":[{"type":"x"}]}`
	for name, c := range map[string]struct {
		body   string
		change func(*http.Request)
		want   int
	}{
		"no token":         {good, func(r *http.Request) { r.Header.Del("Authorization") }, 401},
		"another token":    {good, func(r *http.Request) { r.Header.Set("Authorization", "Bearer x") }, 401},
		"a page":           {good, func(r *http.Request) { r.Header.Set("Origin", s.server.URL) }, 403},
		"a page, null":     {good, func(r *http.Request) { r.Header.Set("Origin", "null") }, 403},
		"another name":     {good, func(r *http.Request) { r.Host = "evil.example:80" }, 403},
		"a form":           {good, func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, 415},
		"read":             {good, func(r *http.Request) { r.Method = http.MethodGet }, 405},
		"no JSON":          {"{", nil, 400},
		"cut":              {good[:len(good)-4], nil, 400},
		"no key":           {`{"entries":[{}]}`, nil, 400},
		"empty subpath":    {`{"key":{"projectKey":"p","sessionId":"s","subpath":""},"entries":[{}]}`, nil, 400},
		"long key":         {`{"key":{"projectKey":"p","sessionId":"` + strings.Repeat("x", 600) + `"},"entries":[{}]}`, nil, 400},
		"no object":        {`{"key":{"projectKey":"p","sessionId":"s"},"entries":[{"type":"x"},7]}`, nil, 400},
		"too many":         {`{"key":{"projectKey":"p","sessionId":"s"},"entries":[` + strings.Repeat("{},", 10_000) + `{}]}`, nil, 413},
		"40 MB":            {strings.Repeat(" ", 40<<20), nil, 413},
		"40 MB, no length": {strings.Repeat(" ", 40<<20), func(r *http.Request) { r.ContentLength = -1 }, 413},
	} {
		if got, answer := s.send("append", []byte(c.body), c.change); got != c.want && (got != 0 || c.want != 413) {
			t.Errorf("%s: %d %v, want %d", name, got, answer, c.want)
		}
	}
	if status, _ := s.send("everything", []byte(good), nil); status != 404 {
		t.Errorf("a verb that there isn't: %d", status)
	}
	s.same("kept", any(nil), s.load(key("p", "s")))
}

// Names and entries that programs choose lead nowhere else.
func TestHostile(t *testing.T) {
	s := newScene(t)
	for _, name := range []string{"../..", "_run", "_", "a.b >*", "\x1b[2J", strings.Repeat("ü", 256), "'; DROP TABLE runs", "-src/" + id} {
		s.append(key(name, name), object{"type": name, "uuid": name, "sessionId": "../x", "message": name})
		s.append(key(name, name, name), object{"type": "assistant", "message": object{"content": name}})
		s.same(name, any(list{object{"type": name, "uuid": name, "sessionId": "../x", "message": name}}), s.load(key(name, name)))
		s.same(name+" listed", []string{name}, s.sessions(name))
	}
	for e, err := range s.log.Read(t.Context(), eventlog.Query{Run: subjects.NoRun}) {
		if err == nil && e.Event != nil && e.Event.NodeID != wire.RunNode {
			t.Errorf("a session is told as no run's: %s", e.Event.NodeID)
		}
	}
}

// A large entry, such as one with a picture, is kept.
func TestLarge(t *testing.T) {
	s := newScene(t)
	large := object{"type": "x", "data": strings.Repeat("picture ", 1<<20)}
	s.append(key("p", id), large, said(1, 0, "a"))
	s.append(key("p", id), said(2, 1, "b"))
	s.same("loaded", any(list{large, said(1, 0, "a"), said(2, 1, "b")}), s.load(key("p", id)))
}
