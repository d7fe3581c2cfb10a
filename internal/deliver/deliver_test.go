package deliver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/deliver"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
)

func TestMain(m *testing.M) {
	if os.Getenv("RECEIVER") != "" {
		receive()
		return
	}
	natstest.Main(m)
}

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="

// settings are the section of the detectors in these tests.
type settings struct {
	Stuck struct {
		After time.Duration `yaml:"after"`
	} `yaml:"stuck"`
}

func (s *settings) Kinds() []string { return []string{"error", "failure_loop", "test"} }

func (s *settings) Validate() error {
	if s.Stuck.After < 0 {
		return errors.New("stuck.after: must not be negative")
	}
	return nil
}

func lookup(name string) (string, bool) {
	v, ok := map[string]string{"SECRET": secret, "TOKEN": "t0psecret", "PATH": "/usr/bin:/bin"}[name]
	return v, ok
}

func rules(t testing.TB, src string) *deliver.Rules {
	t.Helper()
	r, err := deliver.Parse("rules.yaml", []byte(src), lookup, &settings{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// world is a server, and a receiver of webhooks, in a bubble.
type world struct {
	t      testing.TB
	server *natstest.Server
	log    *eventlog.Log // of the test
	web    *receiver
	count  int
}

func begin(t testing.TB) *world {
	t.Helper()
	s := natstest.New(t)
	nc := s.Conn(t)
	logtest.Init(t, nc, topology.Config{})
	return &world{t: t, server: s, log: logtest.Open(t, nc), web: listen(t)}
}

// start runs a deliverer as one more process, until kill.
func (w *world) start(src string) (kill func()) {
	w.t.Helper()
	_, _, kill = w.run(rules(w.t, src), io.Discard)
	return kill
}

func (w *world) run(r *deliver.Rules, out io.Writer) (d *deliver.Deliverer, stop, kill func()) {
	w.t.Helper()
	nc := w.server.Conn(w.t)
	d = deliver.New(deliver.Config{Out: out, Transport: w.web.transport}, r, logtest.Open(w.t, nc), logtest.Logger(w.t))
	stop = logtest.Go(w.t, d.Run)
	return d, stop, func() {
		nc.Close()
		stop()
	}
}

// raise stores alerts, as the alerter does, and returns their ids.
func (w *world) raise(n int, edit ...func(*wire.Alert)) []string {
	w.t.Helper()
	var keys []string
	for range n {
		w.count++
		data, err := wire.RawFromJSON([]byte(`{"type":"event"}`))
		if err != nil {
			w.t.Fatal(err)
		}
		a := wire.Alert{
			V: 1, Key: fmt.Sprintf("error-%d", w.count), Kind: "error", Severity: wire.SeverityError, RunID: "r1", NodeID: "coder",
			Label: "coder", Position: wire.Position{Incarnation: "i", Seq: uint64(w.count)}, Timestamp: time.Now().UnixMilli(),
			Text: fmt.Sprintf("[subagent:coder] ❌ %d", w.count), Data: data, Flow: "review", Labels: map[string]string{"team": "core"},
		}
		for _, f := range edit {
			f(&a)
		}
		data, err = wire.Marshal(a)
		if err != nil {
			w.t.Fatal(err)
		}
		if _, err := w.log.JetStream().Publish(w.t.Context(), w.log.Names().Alert(a.RunID, a.NodeID, a.Kind, a.Key), data, jetstream.WithExpectLastSequencePerSubject(0)); err != nil {
			w.t.Fatal(err)
		}
		keys = append(keys, fmt.Sprintf("i-%s-%d", a.Key, a.Timestamp))
	}
	return keys
}

func severity(s wire.Severity) func(*wire.Alert) { return func(a *wire.Alert) { a.Severity = s } }

func (w *world) letters() []deliver.Letter {
	w.t.Helper()
	var all []deliver.Letter
	for l, err := range deliver.StoredLetters(w.t.Context(), w.log, "") {
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, l)
	}
	return all
}

// receiver is an HTTP server that can be reached without a network.
type receiver struct {
	transport http.RoundTripper
	conns     chan net.Conn

	mu     sync.Mutex
	answer func(http.ResponseWriter, event) // default: 200
	got    []event                          // what was taken
	tries  int
}

// event is a webhook.
type event struct {
	ID     string `json:"id"`
	Source string `json:"source"`
	Type   string `json:"type"`
	Data   json.RawMessage
	host   string
	header http.Header
	body   []byte
	at     time.Time
}

// listen serves over pipes: TCP would stop the time of the bubble.
func listen(t testing.TB) *receiver {
	r := &receiver{conns: make(chan net.Conn)}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		select {
		case r.conns <- theirs:
			return ours, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
	r.transport = transport
	server := &http.Server{Handler: r}
	done := make(chan struct{})
	l := &pipes{r.conns, make(chan struct{})}
	go func() {
		defer close(done)
		_ = server.Serve(l) // it is closed
	}()
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
		<-done
	})
	return r
}

type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	e := event{host: req.Host, header: req.Header, body: body, at: time.Now()}
	_ = json.Unmarshal(body, &e)
	r.mu.Lock()
	r.tries++
	answer := r.answer
	r.mu.Unlock()
	rec := &status{ResponseWriter: w, code: 200}
	if answer != nil {
		answer(rec, e)
	}
	if rec.code < 300 {
		r.mu.Lock()
		r.got = append(r.got, e)
		r.mu.Unlock()
	}
}

type status struct {
	http.ResponseWriter
	code int
}

func (s *status) WriteHeader(code int) {
	s.code = code
	s.ResponseWriter.WriteHeader(code)
}

func (r *receiver) answers(f func(http.ResponseWriter, event)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = f
}

// ids returns what host has taken, in order.
func (r *receiver) ids(host string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, e := range r.got {
		if e.host == host {
			all = append(all, e.ID)
		}
	}
	return all
}

func (r *receiver) events() []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

const toOps = `
sinks:
  ops: {type: webhook, url: "http://ops/hook?token=${TOKEN}", secret: "${SECRET}"}
rules:
  - sinks: [ops]
`

func same(t testing.TB, what string, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// A sink that was down for ten minutes gets every alert once and in order, and a
// new sink none of before.
func TestSinkIsDown(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		w := begin(t)
		w.raise(3)
		w.start(toOps)
		<-time.After(2 * time.Second)
		want := w.raise(2)
		<-time.After(2 * time.Second)
		same(t, "before", want, w.web.ids("ops"))
		w.web.answers(func(h http.ResponseWriter, _ event) { h.WriteHeader(http.StatusServiceUnavailable) })
		for range 10 {
			want = append(want, w.raise(2)...)
			<-time.After(time.Minute)
		}
		same(t, "while it was down", want[:2], w.web.ids("ops"))
		w.web.answers(nil)
		<-time.After(90 * time.Second)
		same(t, "after", want, w.web.ids("ops"))
		if got := w.letters(); len(got) > 0 {
			t.Errorf("dead letters %v", got)
		}
	})
}

// A sink that never takes anything gets its attempts; then the notification is a
// dead letter with the reason, and the next has its turn. Another sink isn't
// delayed.
func TestSinkIsDead(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		w := begin(t)
		w.start(`
sinks:
  dead: {type: webhook, url: "http://dead/s3cretpath", attempts: 4}
  hung: {type: webhook, url: "http://hung/", attempts: 2, timeout: 15s}
  live: {type: webhook, url: http://live/}
  shown: {type: terminal}
rules:
  - sinks: [dead, live, hung, shown]
`)
		<-time.After(time.Second)
		w.web.answers(func(h http.ResponseWriter, e event) {
			switch e.host {
			case "dead":
				h.WriteHeader(http.StatusInternalServerError)
			case "hung":
				<-time.After(16 * time.Second)
				h.WriteHeader(http.StatusInternalServerError)
			}
		})
		want := w.raise(3)
		<-time.After(500 * time.Millisecond)
		same(t, "live", want, w.web.ids("live"))
		<-time.After(3 * time.Minute)
		for _, sink := range []string{"dead", "hung"} {
			var ids []string
			for _, l := range w.letters() {
				if l.Sink == sink {
					ids = append(ids, l.Notification.ID)
					if l.Reason == "" || strings.Contains(l.Reason, "s3cret") {
						t.Errorf("reason %q", l.Reason)
					}
				}
			}
			same(t, "dead letters of "+sink, want, ids)
		}
	})
}

// A dead letter is sent again when that is asked for, and gone when it is taken.
func TestRetry(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		w := begin(t)
		w.start(toOps)
		<-time.After(time.Second)
		w.web.answers(func(h http.ResponseWriter, _ event) { h.WriteHeader(http.StatusBadRequest) })
		want := w.raise(3)
		<-time.After(time.Second)
		if len(w.letters()) != 3 || w.web.tries != 3 {
			t.Fatalf("%d dead letters after %d attempts: what is refused for good isn't tried again", len(w.letters()), w.web.tries)
		}
		r, err := deliver.Retry(t.Context(), w.log.Conn(), w.log.Names(), "ops", nil)
		if err != nil || r.Sent != 0 || r.Problem != "answered 400 Bad Request" || !r.More {
			t.Errorf("%+v, %v", r, err)
		}
		w.web.answers(nil)
		r, err = deliver.Retry(t.Context(), w.log.Conn(), w.log.Names(), "ops", []uint64{w.letters()[1].ID})
		if err != nil || r.Sent != 1 || r.More {
			t.Errorf("%+v, %v", r, err)
		}
		r, err = deliver.Retry(t.Context(), w.log.Conn(), w.log.Names(), "ops", nil)
		if err != nil || r.Sent != 2 || r.Problem != "" {
			t.Errorf("%+v, %v", r, err)
		}
		same(t, "taken", []string{want[1], want[0], want[2]}, w.web.ids("ops"))
		if got := w.letters(); len(got) > 0 {
			t.Errorf("dead letters %v", got)
		}
		if r, err = deliver.Try(t.Context(), w.log.Conn(), w.log.Names(), "ops"); err != nil || r.Sent != 1 {
			t.Errorf("test: %+v, %v", r, err)
		}
	})
}

// A sink that has much to take can be asked for something all the same.
func TestAskedWhileBusy(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		w := begin(t)
		w.start(toOps)
		<-time.After(time.Second)
		w.web.answers(func(http.ResponseWriter, event) { <-time.After(time.Second) })
		want := w.raise(30)
		<-time.After(5 * time.Second)
		r, err := deliver.Try(t.Context(), w.log.Conn(), w.log.Names(), "ops")
		if n := len(w.web.ids("ops")); err != nil || r.Sent != 1 || n > 10 {
			t.Errorf("behind %d others: %+v, %v", n, r, err)
		}
		<-time.After(time.Minute)
		got := slices.DeleteFunc(w.web.ids("ops"), func(id string) bool { return id == "test-ops" })
		same(t, "taken", want, got)
	})
}

// Two processes share the sinks: everything is sent once and in order, and goes on
// when one of them dies.
func TestTwoAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		w := begin(t)
		kill := w.start(toOps)
		<-time.After(time.Second)
		w.start(toOps)
		<-time.After(time.Second)
		var want []string
		for range 5 {
			want = append(want, w.raise(3)...)
			<-time.After(7 * time.Second)
		}
		same(t, "by two", want, w.web.ids("ops"))
		kill()
		want = append(want, w.raise(3)...)
		<-time.After(45 * time.Second)
		same(t, "by the other", want, w.web.ids("ops"))
	})
}

// What a process had given back goes on at once, from where it was.
func TestRestart(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		w := begin(t)
		_, stop, _ := w.run(rules(t, toOps), nil)
		<-time.After(time.Second)
		want := w.raise(2)
		<-time.After(time.Second)
		stop()
		want = append(want, w.raise(2)...)
		w.start(toOps)
		<-time.After(time.Second)
		same(t, "taken", want, w.web.ids("ops"))
	})
}

// Other rules count from when they are there; what was waiting isn't lost.
func TestReplace(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		w := begin(t)
		var out logtest.Output
		d, _, _ := w.run(rules(t, toOps), &out)
		<-time.After(time.Second)
		want := w.raise(1)
		<-time.After(time.Second)
		w.web.answers(func(h http.ResponseWriter, _ event) { h.WriteHeader(http.StatusServiceUnavailable) })
		want = append(want, w.raise(2)...)
		<-time.After(10 * time.Second)
		w.web.answers(nil)
		d.Replace(rules(t, `
sinks:
  ops: {type: webhook, url: http://elsewhere/}
  screen: {type: terminal}
rules:
  - sinks: [ops]
  - {sinks: [screen], match: {severity: critical}}
`))
		<-time.After(time.Second)
		same(t, "elsewhere", want[1:], w.web.ids("elsewhere"))
		w.raise(1)
		w.raise(1, severity(wire.SeverityCritical))
		<-time.After(time.Second)
		same(t, "at first", want[:1], w.web.ids("ops"))
		same(t, "printed", "[subagent:coder] ❌ 5\n", out.String())
	})
}

// What a sink has taken isn't sent again because the server was away when that was
// to be recorded.
func TestServerIsAway(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		w := begin(t)
		w.delivering(w.server.Conn(t, nats.ReconnectBufSize(-1)), toOps, w.web.transport)
		<-time.After(time.Second)
		raised, stopped := make(chan struct{}), make(chan struct{})
		w.web.answers(func(http.ResponseWriter, event) {
			w.web.answers(nil)
			<-raised
			w.server.Stop()
			close(stopped)
		})
		want := w.raise(2)
		close(raised)
		<-stopped
		<-time.After(20 * time.Second)
		w.server.Start(t)
		<-time.After(time.Minute)
		same(t, "taken", want, w.web.ids("ops"))
	})
}
