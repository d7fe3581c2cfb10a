package access_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/access"
	"wake/internal/natstest"
	"wake/pkg/subjects"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// site is a server with the users of an installation.
type site struct {
	t    *testing.T
	url  string
	keys access.Keys
	errs map[string]chan error // of connections, by who has them
}

func newSite(t *testing.T) *site {
	t.Helper()
	keys, err := access.NewKeys(subjects.Default)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	conf := filepath.Join(dir, "nats.conf")
	text := fmt.Sprintf("listen: 127.0.0.1:-1\njetstream { store_dir: %q }\n", dir) + keys.Conf
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := server.ProcessConfigFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	o.NoSigs, o.NoLog = true, true
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("server not ready")
	}
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	return &site{t: t, url: s.ClientURL(), keys: keys, errs: map[string]chan error{}}
}

// connect connects as a user, and returns where its refusals are told.
func (s *site) connect(u access.User) (*nats.Conn, chan error, string) {
	s.t.Helper()
	account, err := access.Account(s.keys.Seeds[access.AccountKey])
	if err != nil {
		s.t.Fatal(err)
	}
	creds, err := access.Credentials(subjects.Default, account, s.keys.Seeds[u.SignedBy()], u)
	if err != nil {
		s.t.Fatal(err)
	}
	path := filepath.Join(s.t.TempDir(), "x.creds")
	if err := os.WriteFile(path, creds, 0o600); err != nil {
		s.t.Fatal(err)
	}
	inbox, err := access.Inbox(creds)
	if err != nil || !strings.HasPrefix(inbox, "_INBOX_U") {
		s.t.Fatalf("inbox %q, %v", inbox, err)
	}
	refused := make(chan error, 1000)
	nc, err := nats.Connect(s.url, nats.UserCredentials(path), nats.CustomInboxPrefix(inbox),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	return nc, refused, inbox
}

// refusal returns what the server said against the last call, nil for nothing: it has
// read everything when it answers a ping.
func refusal(t *testing.T, nc *nats.Conn, refused chan error) error {
	t.Helper()
	for range 2 { // the handler runs after the answer was read
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-refused:
		return err
	case <-time.After(20 * time.Millisecond):
		return nil
	}
}

// What each role may do, and what it may not. "+" is publish, "<" subscribe.
var table = map[access.Role]struct{ may, mayNot []string }{
	access.Init: {
		may:    []string{"+$JS.API.STREAM.CREATE.WAKE_EVENTS", "+$JS.API.STREAM.UPDATE.KV_WAKE_STATE", "+$JS.API.CONSUMER.DURABLE.CREATE.WAKE_EVENTS.recorder"},
		mayNot: []string{"+wake.events.r.n.flow", "+wake.cmd.r", "+wake.queue.run", "<wake.events.>", "<_INBOX.>"},
	},
	access.Runner: {
		may: []string{"+wake.events.r.n.flow", "+wake.queue.node.default", "+$KV.WAKE_LEASES.r.n", "+$O.WAKE_SESSIONS.C.x", "+wake.deadletter.runner", "<wake.api.command", "+wake.hooks.policy"},
		mayNot: []string{
			"+wake.alerts.r.n.k.x", "+$KV.WAKE_SNAPSHOTS.r", "+$JS.API.STREAM.DELETE.WAKE_EVENTS", "+$JS.API.STREAM.PURGE.WAKE_EVENTS", "<wake.hooks.policy",
			"+$JS.API.STREAM.MSG.DELETE.WAKE_EVENTS", "+$JS.API.STREAM.UPDATE.WAKE_EVENTS", "<_INBOX.>", "<wake.events.>",
		},
	},
	access.Recorder: {
		may: []string{"+$JS.API.CONSUMER.CREATE.WAKE_EVENTS.x", "+wake.deadletter.recorder", "<wake.api.log"},
		mayNot: []string{
			"+wake.events.r.n.flow", "+wake.cmd.r", "+wake.queue.run", "+wake.alerts.r.n.k.x", "+$KV.WAKE_SNAPSHOTS.r", "+$KV.WAKE_LEASES.r.n",
			"+$JS.API.STREAM.PURGE.WAKE_EVENTS", "+$O.WAKE_BLOBS.C.x",
		},
	},
	access.Snapshotter: {
		may:    []string{"+$KV.WAKE_SNAPSHOTS.r", "+$KV.WAKE_BOOKMARKS.r.l", "+wake.deadletter.snapshotter", "<wake.api.snapshot"},
		mayNot: []string{"+wake.events.r.n.flow", "+wake.cmd.r", "+wake.queue.run", "+wake.alerts.r.n.k.x", "+$KV.WAKE_LEASES.r.n", "+$O.WAKE_SESSIONS.C.x"},
	},
	access.Alerter: {
		may:    []string{"+wake.alerts.r.n.k.x", "+wake.deadletter.alerter", "+$KV.WAKE_STATE.alerter.r"},
		mayNot: []string{"+wake.events.r.n.flow", "+wake.cmd.r", "+wake.queue.run", "+$KV.WAKE_SNAPSHOTS.r", "+$KV.WAKE_LEASES.r.n", "+$O.WAKE_BLOBS.C.x"},
	},
	access.Operator: {
		may: []string{"+wake.api.command", "+wake.cmd.r", "+wake.queue.run", "<wake.events.r.>", "<wake.alerts.>", "+$JS.API.DIRECT.GET.KV_WAKE_SNAPSHOTS.$KV.WAKE_SNAPSHOTS.r"},
		mayNot: []string{
			"+wake.events.r.n.flow", "+wake.alerts.r.n.k.x", "+wake.queue.node.default", "+$KV.WAKE_SNAPSHOTS.r", "+$KV.WAKE_LEASES.r.n", "<wake.api.log",
			"+$JS.API.STREAM.DELETE.WAKE_EVENTS", "<_INBOX.>", "<_INBOX_X.>",
		},
	},
	access.Ingest: {
		may:    []string{"+wake.events.r.n.flow", "+wake.cmd.r", "+wake.queue.run"},
		mayNot: []string{"+wake.alerts.r.n.k.x", "+$KV.WAKE_SNAPSHOTS.r", "+$JS.API.STREAM.DELETE.WAKE_EVENTS", "<wake.api.log"},
	},
	access.Viewer: {
		may: []string{"+wake.api.log", "+wake.api.status", "<wake.events.>", "+$JS.API.CONSUMER.CREATE.WAKE_EVENTS.x.wake.events.r.>"},
		mayNot: []string{
			"+wake.api.command", "+wake.api.delete", "+wake.cmd.r", "+wake.queue.run", "+wake.events.r.n.flow", "+wake.alerts.r.n.k.x",
			"+$KV.WAKE_SNAPSHOTS.r", "+$KV.WAKE_STATE.x", "+$JS.API.STREAM.PURGE.WAKE_EVENTS", "<_INBOX.>",
		},
	},
}

func (s *site) try(nc *nats.Conn, refused chan error, subject string) error {
	s.t.Helper()
	if name, ok := strings.CutPrefix(subject, "<"); ok {
		sub, err := nc.SubscribeSync(name)
		if err != nil {
			s.t.Fatal(err)
		}
		defer sub.Unsubscribe() //nolint:errcheck // it may be refused
	} else if err := nc.Publish(subject[1:], nil); err != nil {
		s.t.Fatal(err)
	}
	return refusal(s.t, nc, refused)
}

func TestRoles(t *testing.T) {
	s := newSite(t)
	for _, role := range access.Roles() {
		t.Run(string(role), func(t *testing.T) {
			s.t = t
			nc, refused, _ := s.connect(access.User{Name: string(role), Role: role})
			if len(table[role].may) == 0 || len(table[role].mayNot) == 0 {
				t.Fatal("nothing is known of it")
			}
			for _, subject := range table[role].may {
				if err := s.try(nc, refused, subject); err != nil {
					t.Errorf("%s: %v", subject, err)
				}
			}
			for _, subject := range table[role].mayNot {
				if err := s.try(nc, refused, subject); err == nil || !strings.Contains(err.Error(), "Permissions Violation") {
					t.Errorf("%s: it is not refused: %v", subject, err)
				}
			}
		})
	}
}

// A viewer of one run reads that run, by a consumer whose only filter it is.
func TestViewerOfOneRun(t *testing.T) {
	s := newSite(t)
	nc, refused, _ := s.connect(access.User{Name: "guest", Role: access.Viewer, Run: "a.b c"})
	const token = "a=2Eb=20c"
	for subject, want := range map[string]bool{
		"<wake.events." + token + ".>":                                       true,
		"<wake.alerts." + token + ".>":                                       true,
		"+$JS.API.CONSUMER.CREATE.WAKE_EVENTS.x.wake.events." + token + ".>": true,
		"+$JS.API.DIRECT.GET.KV_WAKE_SNAPSHOTS.$KV.WAKE_SNAPSHOTS." + token:  true,
		"<wake.events.other.>":                                               false,
		"<wake.events.>":                                                     false,
		"+$JS.API.CONSUMER.CREATE.WAKE_EVENTS.x.wake.events.other.>":         false,
		"+$JS.API.CONSUMER.CREATE.WAKE_EVENTS.x":                             false,
		"+$JS.API.CONSUMER.CREATE.WAKE_EVENTS":                               false,
		"+$JS.API.CONSUMER.DURABLE.CREATE.WAKE_EVENTS.x":                     false,
		"+$JS.API.STREAM.MSG.GET.WAKE_EVENTS":                                false,
		"+$JS.API.DIRECT.GET.WAKE_EVENTS":                                    false,
		"+$JS.API.DIRECT.GET.KV_WAKE_SNAPSHOTS.$KV.WAKE_SNAPSHOTS.other":     false,
		"+$JS.API.CONSUMER.DELETE.WAKE_EVENTS.recorder":                      false,
		"+$JS.API.CONSUMER.MSG.NEXT.WAKE_EVENTS.x":                           true,
		"+$JS.API.CONSUMER.MSG.NEXT.WAKE_EVENTS.recorder":                    false,
		"+$JS.API.CONSUMER.MSG.NEXT.WAKE_EVENTS.snapshotter":                 false,
		"+$JS.API.CONSUMER.MSG.NEXT.WAKE_EVENTS.alerter":                     false,
		"+wake.api.status":                                                   false,
		"+wake.cmd." + token:                                                 false,
	} {
		if err := s.try(nc, refused, subject); (err == nil) != want {
			t.Errorf("%s: allowed %t, want %t: %v", subject, err == nil, want, err)
		}
	}
}

func TestViewerReadsItsRun(t *testing.T) {
	s := newSite(t)
	stream := func(u access.User) (*nats.Conn, jetstream.JetStream) {
		nc, _, _ := s.connect(u)
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		return nc, js
	}
	_, js := stream(access.User{Name: "init", Role: access.Init})
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "WAKE_EVENTS", Subjects: []string{"wake.events.>"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateConsumer(t.Context(), "WAKE_EVENTS", jetstream.ConsumerConfig{Durable: subjects.RecorderConsumer, AckPolicy: jetstream.AckAllPolicy}); err != nil {
		t.Fatal(err)
	}
	_, js = stream(access.User{Name: "runner", Role: access.Runner})
	for _, run := range []string{"mine", "other", "mine"} {
		if _, err := js.Publish(t.Context(), "wake.events."+run+".n.flow", []byte(run)); err != nil {
			t.Fatal(err)
		}
	}
	nc, js := stream(access.User{Name: "guest", Role: access.Viewer, Run: "mine"})
	others, err := nc.Request("$JS.API.CONSUMER.MSG.NEXT.WAKE_EVENTS."+subjects.RecorderConsumer, []byte(`{"no_wait":true}`), 100*time.Millisecond)
	if err == nil {
		t.Errorf("by the recorder's consumer it reads %q", others.Data)
	}
	c, err := js.OrderedConsumer(t.Context(), "WAKE_EVENTS", jetstream.OrderedConsumerConfig{FilterSubjects: []string{"wake.events.mine.>"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		m, err := c.Next(jetstream.FetchMaxWait(10 * time.Second))
		if err != nil || string(m.Data()) != "mine" {
			t.Fatalf("%v, %v", m, err)
		}
	}
}

// Credentials end when they are to, and a service whose user is refused says so.
func TestExpired(t *testing.T) {
	s := newSite(t)
	nc, _, _ := s.connect(access.User{Name: "guest", Role: access.Viewer, For: time.Second})
	closed := make(chan struct{})
	nc.SetClosedHandler(func(*nats.Conn) { close(closed) })
	select {
	case <-closed:
	case <-time.After(30 * time.Second):
		t.Error("it is still connected")
	}
}

func TestBadSettings(t *testing.T) {
	for name, u := range map[string]access.User{
		"no role":        {Role: "king"},
		"a runner's run": {Role: access.Runner, Run: "r"},
		"an empty role":  {},
		"an operator's":  {Role: access.Operator, Run: "r"},
	} {
		if p, err := u.Role.Permissions(subjects.Default, u.Run, "_INBOX_x"); err == nil {
			t.Errorf("%s: %v", name, p)
		}
	}
	for _, text := range []string{"", "x", "-----BEGIN NATS USER JWT-----\nx\n------END NATS USER JWT------\n"} {
		if inbox, err := access.Inbox([]byte(text)); err == nil {
			t.Errorf("%q: %q", text, inbox)
		}
	}
}
