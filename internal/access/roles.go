// Package access says what each process and person may do on the NATS server, and
// makes the keys, credentials and certificates of an installation.
package access

import (
	"fmt"
	"slices"
	"strings"

	"wake/pkg/subjects"
)

// Role is whose credentials a process has. Each may do the least that its work needs.
type Role string

// The roles. A service of wake has the role of its name.
const (
	Init        Role = "init"        // creates streams, buckets and consumers: wake init, backup and restore
	Runner      Role = "runner"      // appends events
	Recorder    Role = "recorder"    // reads the log and answers questions
	Snapshotter Role = "snapshotter" // reads the log and stores snapshots
	Alerter     Role = "alerter"     // reads the log and stores alerts
	Operator    Role = "operator"    // people and programs that start, steer and read runs
	Ingest      Role = "ingest"      // an operator who also adds runs that happened elsewhere: wake ingest, wake import
	Viewer      Role = "viewer"      // those that only read; of one run, if it is given
)

// Roles are all roles.
func Roles() []Role {
	return []Role{Init, Runner, Recorder, Snapshotter, Alerter, Operator, Ingest, Viewer}
}

// Services are the roles that an installation's processes need.
func Services() []Role { return []Role{Init, Runner, Recorder, Snapshotter, Alerter} }

// Permissions are the subjects that somebody may publish and subscribe to. What
// isn't named is refused.
type Permissions struct {
	Publish   []string
	Except    []string // of Publish
	Subscribe []string
	Replies   bool // may answer whoever asked
}

// Permissions returns what a role may do in an installation. Run, which only a viewer
// has, is the one run that it sees; it needs "" for all. Inbox is the first token of
// the subjects on which it gets answers: nobody else may listen there.
func (r Role) Permissions(n subjects.Names, run, inbox string) (Permissions, error) {
	if run != "" && r != Viewer {
		return Permissions{}, fmt.Errorf("access: only a viewer is of one run, not a %s", r)
	}
	g := &grants{names: n}
	g.subscribe(inbox + ".>")
	switch r {
	case Init:
		g.publish("$JS.API.>", "$JS.SNAPSHOT.>", "$KV.>", "$O.>")
		g.subscribe("$JS.EVENT.ADVISORY.>")
	case Runner:
		g.runner()
	case Recorder:
		g.service("recorder", subjects.RecorderConsumer)
		g.read(n.AlertsStream())
		g.state()
	case Snapshotter:
		g.service("snapshotter", subjects.SnapshotterConsumer)
		g.keyValue(n.SnapshotsBucket(), n.BookmarksBucket())
		g.object(n.BlobsBucket())
		g.state()
	case Alerter:
		g.service("alerter", subjects.AlerterConsumer)
		g.publish(n.Prefix() + ".alerts.>")
		g.subscribe(n.AllAlerts()) // sinks look when one is raised
		g.read(n.AlertsStream(), n.DeadLetterStream())
		g.publish(n.AllDeadLetters(), "$JS.API.STREAM.MSG.DELETE."+n.DeadLetterStream()) // of sinks; those that are sent again
		g.publish("$JS.API.STREAM.INFO.*", "$JS.API.STREAM.NAMES")                       // for storage pressure
		g.state()
	case Operator:
		g.operator()
	case Ingest:
		g.operator()
		g.publish(n.Prefix()+".events.>", n.DeadLetter("eventlog"))
		g.subscribe("$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED." + n.EventsStream())
		g.keyValue(n.LeasesBucket(), n.StateBucket())
		g.object(n.BlobsBucket(), n.SessionsBucket())
	case Viewer:
		g.viewer(run)
	default:
		return Permissions{}, fmt.Errorf("access: there is no role %q", string(r))
	}
	return g.sorted(), nil
}

// grants collects permissions.
type grants struct {
	names subjects.Names
	p     Permissions
}

func (g *grants) publish(all ...string)   { g.p.Publish = append(g.p.Publish, all...) }
func (g *grants) subscribe(all ...string) { g.p.Subscribe = append(g.p.Subscribe, all...) }

func (g *grants) sorted() Permissions {
	for _, list := range []*[]string{&g.p.Publish, &g.p.Except, &g.p.Subscribe} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return g.p
}

// read allows reading streams, by consumers of one's own too. A consumer's name is
// one token, of which no part can be granted: so who may make and end its own may end
// others', which costs their owners a moment and nothing else.
func (g *grants) read(streams ...string) {
	for _, s := range streams {
		g.publish(
			"$JS.API.STREAM.INFO."+s, "$JS.API.STREAM.MSG.GET."+s, "$JS.API.DIRECT.GET."+s, "$JS.API.DIRECT.GET."+s+".>",
			"$JS.API.CONSUMER.CREATE."+s, "$JS.API.CONSUMER.CREATE."+s+".>", "$JS.API.CONSUMER.INFO."+s+".*",
			"$JS.API.CONSUMER.LIST."+s, "$JS.API.CONSUMER.NAMES."+s,
			"$JS.API.CONSUMER.MSG.NEXT."+s+".*", "$JS.API.CONSUMER.DELETE."+s+".*", "$JS.ACK."+s+".>", "$JS.FC."+s+".>",
		)
	}
}

// keyValue allows reading and writing buckets.
func (g *grants) keyValue(buckets ...string) {
	for _, b := range buckets {
		g.read("KV_" + b)
		g.publish("$KV." + b + ".>")
	}
}

// object allows reading and writing object stores. To replace an object is to purge
// the chunks of the one before.
func (g *grants) object(buckets ...string) {
	for _, b := range buckets {
		g.read("OBJ_" + b)
		g.publish("$O."+b+".>", "$JS.API.STREAM.PURGE.OBJ_"+b)
	}
}

// verify allows looking whether the installation is as it should be.
func (g *grants) verify() {
	n := g.names
	for _, s := range []string{n.EventsStream(), n.CommandsStream(), n.QueueStream(), n.AlertsStream(), n.DeadLetterStream()} {
		g.publish("$JS.API.STREAM.INFO."+s, "$JS.API.CONSUMER.INFO."+s+".*")
	}
	for _, b := range []string{n.SnapshotsBucket(), n.BookmarksBucket(), n.LeasesBucket(), n.StateBucket()} {
		g.publish("$JS.API.STREAM.INFO.KV_" + b)
	}
	for _, b := range []string{n.BlobsBucket(), n.SessionsBucket()} {
		g.publish("$JS.API.STREAM.INFO.OBJ_" + b)
	}
	g.publish("$JS.API.INFO")
}

// state allows a service to keep its own.
func (g *grants) state() { g.keyValue(g.names.StateBucket()) }

// answer allows serving verbs of the API, and being found.
func (g *grants) answer() {
	g.subscribe(g.names.Prefix()+".api.>", "$SRV.>")
	g.p.Replies = true
}

// service allows what every service does: reading the log from its position,
// answering questions, setting aside what can't be used.
func (g *grants) service(name, consumer string) {
	n := g.names
	g.verify()
	g.read(n.EventsStream())
	g.read("OBJ_" + n.BlobsBucket())
	g.publish("$JS.API.CONSUMER.RESET."+n.EventsStream()+"."+consumer, n.DeadLetter(name), n.DeadLetter("eventlog"))
	g.subscribe("$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED." + n.EventsStream())
	g.answer()
}

func (g *grants) runner() {
	n := g.names
	g.service("runner", "runner")
	g.publish(n.Prefix()+".events.>", n.Prefix()+".cmd.>", n.Prefix()+".queue.>", n.Prefix()+".api.>", n.DeadLetter("queue"))
	g.publish(n.Prefix() + ".hooks.>") // to ask, for agents
	g.read(n.CommandsStream(), n.QueueStream(), n.AlertsStream(), "KV_"+n.SnapshotsBucket(), "KV_"+n.BookmarksBucket())
	g.keyValue(n.LeasesBucket(), n.StateBucket())
	g.object(n.BlobsBucket(), n.SessionsBucket())
}

// watch allows reading everything of an installation.
func (g *grants) watch() {
	n := g.names
	g.verify()
	g.read(n.EventsStream(), n.CommandsStream(), n.QueueStream(), n.AlertsStream(), n.DeadLetterStream(),
		"KV_"+n.SnapshotsBucket(), "KV_"+n.BookmarksBucket(), "KV_"+n.LeasesBucket(), "KV_"+n.StateBucket(), "OBJ_"+n.BlobsBucket())
	g.subscribe(n.Prefix()+".events.>", n.Prefix()+".alerts.>", n.Prefix()+".deadletter.>")
}

func (g *grants) operator() {
	n := g.names
	g.watch()
	g.publish(n.Prefix()+".api.>", n.Prefix()+".cmd.>", n.Prefix()+".queue.run", "$SRV.>")
}

// readVerbs are the verbs of the API that change nothing.
var readVerbs = []string{"log", "status", "top", "approvals", "runs", "search", "stats", "events", "state", "snapshot"}

// viewer allows reading: everything, or one run by a consumer whose only filter is the
// run's. The API answers about every run, so a viewer of one run has none. Consumers
// of others would give it what they read: those of services go by their processes'
// random names, and the durable ones, which everybody knows, are excepted.
func (g *grants) viewer(run string) {
	n := g.names
	if run == "" {
		g.watch()
		for _, verb := range readVerbs {
			g.publish(n.API(verb))
		}
		g.publish("$SRV.PING", "$SRV.PING.>", "$SRV.INFO", "$SRV.INFO.>", "$SRV.STATS", "$SRV.STATS.>")
		return
	}
	s := n.EventsStream()
	for _, durable := range []string{subjects.RecorderConsumer, subjects.SnapshotterConsumer, subjects.AlerterConsumer} {
		g.p.Except = append(g.p.Except, "$JS.API.CONSUMER.MSG.NEXT."+s+"."+durable)
	}
	g.subscribe(n.RunEvents(run), n.RunAlerts(run))
	g.publish("$JS.API.STREAM.INFO."+s,
		"$JS.API.CONSUMER.CREATE."+s+".*."+n.RunEvents(run),
		"$JS.API.CONSUMER.INFO."+s+".*", "$JS.API.CONSUMER.MSG.NEXT."+s+".*",
		"$JS.API.DIRECT.GET.KV_"+n.SnapshotsBucket()+".$KV."+n.SnapshotsBucket()+"."+strings.TrimSuffix(strings.TrimPrefix(n.RunEvents(run), n.Prefix()+".events."), ".>"))
}
