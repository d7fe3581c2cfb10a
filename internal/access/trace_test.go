package access_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// init makes the streams.
func (s *site) init() {
	s.t.Helper()
	nc, _, _ := s.connect(access.User{Name: "init", Role: access.Init})
	js, err := jetstream.New(nc)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := topology.Init(s.t.Context(), js, topology.Config{Names: subjects.Default}); err != nil {
		s.t.Fatal(err)
	}
}

// prepare makes the streams, and stores a message in those that matter.
func (s *site) prepare() {
	s.t.Helper()
	s.init()
	nc, _, _ := s.connect(access.User{Name: "runner", Role: access.Runner})
	js, err := jetstream.New(nc)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, subject := range []string{"wake.events.mine.a.flow", "wake.events.other.a.flow", "wake.cmd.other", "wake.queue.run", "wake.queue.node.default", "$KV.WAKE_LEASES.other.a"} {
		if _, err := js.Publish(s.t.Context(), subject, []byte("x")); err != nil {
			s.t.Fatal(err)
		}
	}
}

// stored returns how many messages each stream has had, and its consumers, as the server's monitoring says.
func (s *site) stored() map[string]string {
	s.t.Helper()
	found := map[string]string{}
	for _, one := range s.servers {
		report, err := one.Jsz(&jszAll)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, a := range report.AccountDetails {
			for _, st := range a.Streams {
				found[a.Name+" "+st.Name] = fmt.Sprint(st.State.LastSeq, st.State.Msgs)
				for _, c := range st.Consumer {
					found[a.Name+" "+st.Name+" "+c.Name] = fmt.Sprint(c.Delivered, c.AckFloor, c.Config.FilterSubjects)
				}
			}
		}
	}
	return found
}

// users are those of the accounts that don't have the streams.
var users = []access.User{
	{Name: "guest", Role: access.Guest, Run: "mine"},
	{Name: "viewer", Role: access.Viewer},
	{Name: "inspector", Role: access.Inspector},
	{Name: "operator", Role: access.Operator},
	{Name: "debugger", Role: access.Debugger},
	{Name: "ingest", Role: access.Ingest},
}

// actions are subjects that a client could try to publish to.
func actions() []string {
	n := subjects.Default
	all := []string{
		"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.STREAM.CREATE.EVIL", "$JS.API.META.LEADER.STEPDOWN",
		"$SYS.REQ.USER.INFO", "$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.ACCOUNT.PING.SUBSZ", "$SRV.PING", "$SRV.INFO.wake-recorder", "_R_.x", "_INBOX.x",
		"wake.events.other.a.agent", "wake.events.mine.a.agent", "wake.cmd.other", "wake.cmd.mine", "wake.queue.run", "wake.queue.node.default",
		"wake.alerts.other.a.k.x", "wake.deadletter.recorder", "wake.hooks.policy", "wake.ingest.x",
		"$KV.WAKE_LEASES.other.a", "$KV.WAKE_SNAPSHOTS.other", "$KV.WAKE_STATE.recorder._", "$KV.WAKE_BOOKMARKS.other.x", "$O.WAKE_BLOBS.C.x", "$O.WAKE_SESSIONS.M.x",
	}
	for _, verb := range []string{
		wire.VerbLog, wire.VerbStatus, wire.VerbTop, wire.VerbFleet, wire.VerbTimeline, wire.VerbApprovals, wire.VerbRuns, wire.VerbSearch, wire.VerbStats, wire.VerbEvents, wire.VerbState,
		wire.VerbSnapshot, wire.VerbCommand, wire.VerbStart, wire.VerbDelete, wire.VerbFeed, wire.VerbLast, wire.VerbBounds, wire.VerbValue, wire.VerbBlob,
		wire.VerbSession, wire.VerbSinks, wire.VerbLetters, wire.VerbSink("x"), wire.VerbIngest, wire.VerbPack,
		wire.VerbAlerts, wire.VerbBookmarks, wire.VerbDiff, wire.VerbWorkspace,
	} {
		all = append(all, n.API(verb))
	}
	for _, stream := range []string{"WAKE_EVENTS", "WAKE_COMMANDS", "WAKE_QUEUE", "WAKE_ALERTS", "WAKE_DEADLETTER", "KV_WAKE_LEASES", "KV_WAKE_STATE", "KV_WAKE_SNAPSHOTS", "OBJ_WAKE_BLOBS", "OBJ_WAKE_SESSIONS"} {
		for _, verb := range []string{"INFO", "MSG.GET", "MSG.DELETE", "PURGE", "UPDATE", "DELETE", "SNAPSHOT", "LEADER.STEPDOWN"} {
			all = append(all, "$JS.API.STREAM."+verb+"."+stream)
		}
		for _, verb := range []string{"CREATE", "NAMES", "LIST"} {
			all = append(all, "$JS.API.CONSUMER."+verb+"."+stream)
		}
		for _, verb := range []string{"INFO", "CREATE", "DURABLE.CREATE", "DELETE", "MSG.NEXT", "RESET", "PAUSE"} {
			all = append(all, "$JS.API.CONSUMER."+verb+"."+stream+".recorder", "$JS.API.CONSUMER."+verb+"."+stream+".queue")
		}
		all = append(all, "$JS.API.DIRECT.GET."+stream, "$JS.ACK."+stream+".recorder.1.1.1.1.1", "$JS.FC."+stream+".x")
	}
	return all
}

// TestUsersLeaveNoTrace has each user publish to all that there is, with all that
// there is as the reply. What its role doesn't name is refused; and whatever was named as
// the reply, no stream, consumer or other user notices anything.
func TestUsersLeaveNoTrace(t *testing.T) {
	t.Run("one", func(t *testing.T) { newSite(t).leaveNoTrace() })
	t.Run("three", func(t *testing.T) {
		if testing.Short() {
			t.Skip("a cluster takes seconds to begin")
		}
		newCluster(t).leaveNoTrace()
	})
}

func (s *site) leaveNoTrace() {
	t := s.t
	s.prepare()
	asked := s.answer()
	heard := map[string]*nats.Subscription{}
	for _, u := range users { // each has a neighbour of the same role, which listens to all that it may
		u.Name += "-neighbour"
		nc, _, inbox := s.connect(u)
		for _, subject := range []string{inbox + ".>", "wake.events.*.*.*"} {
			if !strings.HasPrefix(subject, inbox) && u.Role != access.Debugger {
				continue
			}
			sub, err := nc.SubscribeSync(subject)
			if err != nil {
				t.Fatal(err)
			}
			heard[u.Name+" "+subject] = sub
		}
	}
	for _, u := range users {
		nc, refused, inbox := s.connect(u)
		own, err := nc.SubscribeSync(inbox + ".>")
		if err != nil {
			t.Fatal(err)
		}
		p, err := u.Role.Permissions(subjects.Default, inbox)
		if err != nil {
			t.Fatal(err)
		}
		before := s.stored()
		replies := []string{
			inbox + ".x", "", "wake.events.other.a.agent", "wake.cmd.other", "wake.queue.run", "wake.alerts.other.a.k.x", "wake.api.log", "wake.api.command", "wake.api.start", "wake.ingest.x",
			"$KV.WAKE_LEASES.other.a", "$KV.WAKE_SNAPSHOTS.other", "$JS.API.STREAM.INFO.WAKE_EVENTS",
		}
		for _, subject := range actions() {
			is := func(allowed string) bool { return server.SubjectsCollide(subject, allowed) }
			may := slices.ContainsFunc(p.Publish, is) && !slices.ContainsFunc(p.Except, is)
			for _, reply := range replies {
				if err := nc.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Data: []byte(`{"seq":1,"run":"mine"}`)}); err != nil {
					t.Fatal(err)
				}
			}
			if err := nc.Flush(); err != nil {
				t.Fatal(err)
			}
			for range replies {
				if may {
					break
				}
				select {
				case err := <-refused:
					if !strings.Contains(err.Error(), fmt.Sprintf("Permissions Violation for Publish to %q", subject)) {
						t.Errorf("%s: %s: %v", u.Name, subject, err)
					}
				case <-time.After(10 * time.Second):
					t.Fatalf("%s may publish to %s", u.Name, subject)
				}
			}
			if may {
				if _, err := own.NextMsg(10 * time.Second); err != nil {
					t.Errorf("%s: %s isn't answered: %v", u.Name, subject, err)
				}
			}
			if len(refused) > 0 {
				t.Errorf("%s: %s: %v", u.Name, subject, <-refused)
			}
		}
		s.settle()
		for name, is := range s.stored() {
			if before[name] != is {
				t.Errorf("%s: %s: %q became %q", u.Name, name, before[name], is)
			}
		}
		if n, _, err := own.Pending(); n != 0 || err != nil {
			t.Errorf("%s: got %d more answers, %v", u.Name, n, err)
		}
	}
	for name, sub := range heard {
		if n, _, err := sub.Pending(); n != 0 || err != nil {
			t.Errorf("%s hears %d messages, %v", name, n, err)
		}
	}
	s.checkAsked(asked)
}

// request is what a service was asked, and by whom.
type request struct {
	subject string
	caller  access.Caller
	err     error
	reply   string
}

// answer answers all verbs, in the roles of a recorder and a runner, and returns what is asked.
func (s *site) answer() chan request {
	asked := make(chan request, 10_000)
	for role, subject := range map[access.Role]string{access.Recorder: "wake.api.*", access.Runner: "wake.ingest.*"} {
		nc, _, _ := s.connect(access.User{Name: "service", Role: role})
		if _, err := nc.Subscribe(subject, func(m *nats.Msg) {
			c, err := access.ReadCaller(m.Header.Get(access.CallerHeader))
			asked <- request{m.Subject, c, err, m.Reply}
			_ = m.Respond([]byte(`{}`)) // without a reply there is nobody to answer
		}); err != nil {
			s.t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			s.t.Fatal(err)
		}
	}
	return asked
}

// checkAsked checks that the server says who has asked, and of which run a guest is.
// A client that names a verb as reply has the service's own answer asked there: that is nobody's
// question, and there is no subject to answer on.
func (s *site) checkAsked(asked chan request) {
	counts := map[string]int{}
	for len(asked) > 0 {
		switch r := <-asked; {
		case r.caller.Name == "service", r.err != nil:
			if r.err == nil {
				s.t.Errorf("an answer counts as a question: %+v", r)
			}
			if r.reply != "" {
				s.t.Errorf("an answer is a question: %+v", r)
			}
			counts["echo"]++
		case (r.caller.Name == "guest") != (r.caller.Run == "mine") || r.caller.Key == "":
			s.t.Errorf("%+v", r)
		case r.reply != "" && !strings.HasPrefix(r.reply, "_R_."):
			s.t.Errorf("the reply is the asker's: %+v", r)
		default:
			counts[r.caller.Name]++
		}
	}
	for _, name := range []string{"guest", "viewer", "operator", "ingest"} {
		if counts[name] == 0 {
			s.t.Errorf("%s asked nothing", name)
		}
	}
	s.t.Logf("asked: %v", counts)
}

var jszAll = server.JSzOptions{Accounts: true, Streams: true, Consumer: true, Config: true}

// settle returns when what the server has read before is done: it answers an inquiry about each stream.
func (s *site) settle() {
	nc, _, _ := s.connect(access.User{Name: "init", Role: access.Init})
	js, err := jetstream.New(nc)
	if err != nil {
		s.t.Fatal(err)
	}
	for range 3 {
		lister := js.ListStreams(s.t.Context())
		for range lister.Info() {
		}
		if lister.Err() != nil {
			s.t.Fatal(lister.Err())
		}
	}
}
