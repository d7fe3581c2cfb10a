package access_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// site is an installation: one server, or a cluster of three, with its users.
type site struct {
	t       *testing.T
	servers []*server.Server
	keys    access.Keys
}

func newSite(t *testing.T) *site {
	t.Helper()
	keys, err := access.Keys{}.Renew(subjects.Default)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, keys: keys}
	s.start(t.TempDir(), "")
	return s
}

func newCluster(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	s.servers[0].Shutdown() // only its keys are wanted
	s.servers = nil
	routes := freeAddresses(t, 3)
	for i, address := range routes {
		s.start(t.TempDir(), fmt.Sprintf("server_name: n%d\ncluster { name: x, listen: %q, routes: [nats://%s] }\n", i, address, strings.Join(routes, ", nats://")))
	}
	await(t, "a leader", func() bool {
		led := slices.ContainsFunc(s.servers, (*server.Server).JetStreamIsLeader)
		return led && !slices.ContainsFunc(s.servers, func(s *server.Server) bool {
			return !s.JetStreamIsCurrent() || len(s.JetStreamClusterPeers()) < 3 && s.JetStreamIsLeader()
		})
	})
	return s
}

// freeAddresses returns addresses that are free at the moment: routes have to be known
// before the servers run.
func freeAddresses(t *testing.T, n int) (all []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // all at once, so that no port comes twice
		all = append(all, l.Addr().String())
	}
	return all
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// start starts a server on what the keys say.
func (s *site) start(dir, more string) {
	t := s.t
	t.Helper()
	conf := filepath.Join(dir, "nats.conf")
	text := fmt.Sprintf("listen: 127.0.0.1:-1\njetstream { store_dir: %q }\n", dir) + more + s.keys.Conf
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := server.ProcessConfigFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	s.servers = append(s.servers, natstest.Serve(t, o))
}

// connect connects as a user, and returns where its refusals are told.
func (s *site) connect(u access.User) (*nats.Conn, chan error, string) {
	s.t.Helper()
	creds, err := s.keys.Credentials(u)
	if err != nil {
		s.t.Fatal(err)
	}
	nc, refused := s.connectWith(creds)
	return nc, refused, nc.Opts.InboxPrefix
}

func (s *site) connectWith(creds []byte) (*nats.Conn, chan error) {
	s.t.Helper()
	inbox, err := access.Inbox(creds)
	if err != nil || !strings.HasPrefix(inbox, "_INBOX_U") {
		s.t.Fatalf("inbox %q, %v", inbox, err)
	}
	refused := make(chan error, 1000)
	at := s.servers[len(creds)%len(s.servers)] // any of them
	nc, err := nats.Connect(at.ClientURL(), userClaims(s.t, creds), nats.CustomInboxPrefix(inbox), nats.IgnoreDiscoveredServers(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	return nc, refused
}

func userClaims(t *testing.T, creds []byte) nats.Option {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.creds")
	if err := os.WriteFile(path, creds, 0o600); err != nil {
		t.Fatal(err)
	}
	return nats.UserCredentials(path)
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

// What each role of the log's account may do, and what it may not. "+" is publish, "<"
// subscribe. The other accounts have [TestUsersLeaveNoTrace].
var table = map[access.Role]struct{ may, mayNot []string }{
	access.Init: {
		may:    []string{"+$JS.API.STREAM.CREATE.WAKE_EVENTS", "+$JS.API.STREAM.UPDATE.KV_WAKE_STATE", "+$JS.API.CONSUMER.DURABLE.CREATE.WAKE_EVENTS.recorder"},
		mayNot: []string{"+wake.events.r.n.flow", "+wake.cmd.r", "+wake.queue.run", "<wake.events.>", "<_INBOX.>", "+$SYS.REQ.USER.INFO"},
	},
	access.Runner: {
		may: []string{
			"+wake.events.r.n.flow", "+wake.queue.node.default", "+$KV.WAKE_LEASES.r.n", "+$O.WAKE_SESSIONS.C.x", "+wake.deadletter.runner", "<wake.api.command",
			"+wake.hooks.policy", "+$KV.WAKE_STATE.runner.r", "+$KV.WAKE_STATE.drain.r", "+$KV.WAKE_STATE.schedule.s", "+wake.api.budgets",
		},
		mayNot: []string{
			"+wake.alerts.r.n.k.x", "+$KV.WAKE_SNAPSHOTS.r", "+$KV.WAKE_STATE.recorder._", "+$KV.WAKE_STATE.budget._", "+$JS.API.STREAM.DELETE.WAKE_EVENTS", "+$JS.API.STREAM.PURGE.WAKE_EVENTS",
			"<wake.hooks.policy", "+$JS.API.STREAM.MSG.DELETE.WAKE_EVENTS", "+$JS.API.STREAM.UPDATE.WAKE_EVENTS", "<_INBOX.>", "<wake.events.>",
			"+$JS.API.CONSUMER.DELETE.WAKE_EVENTS.recorder", "+$JS.API.CONSUMER.CREATE.WAKE_EVENTS.recorder.wake.events.>", "+$JS.API.CONSUMER.RESET.WAKE_EVENTS.recorder",
			"+$SYS.REQ.USER.INFO",
		},
	},
	access.Recorder: {
		may: []string{"+$JS.API.CONSUMER.CREATE.WAKE_EVENTS.x", "+$JS.API.CONSUMER.RESET.WAKE_EVENTS.recorder", "+wake.deadletter.recorder", "+wake.cmd.r", "+wake.queue.run", "<wake.api.log", "+$KV.WAKE_STATE.recorder._", "+$KV.WAKE_STATE.health.recorder-1"},
		mayNot: []string{
			"+wake.events.r.n.flow", "+wake.queue.node.default", "+wake.alerts.r.n.k.x", "+$KV.WAKE_SNAPSHOTS.r", "+$KV.WAKE_LEASES.r.n",
			"+$JS.API.STREAM.PURGE.WAKE_EVENTS", "+$O.WAKE_BLOBS.C.x", "+$KV.WAKE_STATE.alerter._", "+$JS.API.CONSUMER.RESET.WAKE_EVENTS.alerter",
			"+$JS.API.CONSUMER.MSG.NEXT.WAKE_QUEUE.x",
		},
	},
	access.Snapshotter: {
		may: []string{"+$KV.WAKE_SNAPSHOTS.r", "+$KV.WAKE_BOOKMARKS.r.l", "+wake.deadletter.snapshotter", "<wake.api.snapshot"},
		mayNot: []string{
			"+wake.events.r.n.flow", "+wake.cmd.r", "+wake.queue.run", "+wake.alerts.r.n.k.x", "+$KV.WAKE_LEASES.r.n", "+$O.WAKE_SESSIONS.C.x",
			"+$KV.WAKE_STATE.recorder._", "+$JS.API.CONSUMER.DELETE.WAKE_EVENTS.recorder",
		},
	},
	access.Alerter: {
		may: []string{"+wake.alerts.r.n.k.x", "+wake.deadletter.alerter", "+$KV.WAKE_STATE.alerter.r", "+$KV.WAKE_STATE.sink.s", "+wake.api.budgets"},
		mayNot: []string{
			"+wake.events.r.n.flow", "+wake.cmd.r", "+wake.queue.run", "+$KV.WAKE_SNAPSHOTS.r", "+$KV.WAKE_LEASES.r.n", "+$O.WAKE_BLOBS.C.x", "+$KV.WAKE_STATE.recorder._",
		},
	},
	access.Up: {
		may:    []string{"+wake.events.r.n.flow", "+wake.alerts.r.n.k.x", "+$JS.API.CONSUMER.DELETE.WAKE_EVENTS.recorder", "<wake.api.log", "+wake.api.log"},
		mayNot: []string{"+$SYS.REQ.USER.INFO", "<_INBOX.>", "<wake.events.>"},
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
			if account, _ := role.Account(); account != access.LogAccount {
				return
			}
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

// Credentials end when they are to, and a service whose user is refused says so.
func TestExpired(t *testing.T) {
	s := newSite(t)
	nc, _, _ := s.connect(access.User{Name: "guest", Role: access.Viewer, For: 2 * time.Second})
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
		"no role":           {Role: "king"},
		"an empty role":     {},
		"a runner's run":    {Role: access.Runner, Run: "r"},
		"an operator's":     {Role: access.Operator, Run: "r"},
		"a viewer's":        {Role: access.Viewer, Run: "r"},
		"a guest's is none": {Role: access.Guest},
	} {
		if err := u.Check(); err == nil {
			t.Errorf("%s is fine", name)
		}
	}
	for _, text := range []string{"", "x", "-----BEGIN NATS USER JWT-----\nx\n------END NATS USER JWT------\n"} {
		if inbox, err := access.Inbox([]byte(text)); err == nil {
			t.Errorf("%q: %q", text, inbox)
		}
	}
}
