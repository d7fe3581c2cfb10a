// Package access says what each process and person may do on the NATS server, and
// makes the keys, credentials and certificates of an installation.
//
// NATS doesn't check what a request names as its reply: a user who may ask one thing may
// have the answer stored in any stream of its account, and heard by every listener
// there. So the streams are in an account of their own, and each sort of users has
// one, into which it imports what it may ask: ADR 16.
package access

import (
	"fmt"
	"slices"
	"strings"

	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Role says which credentials a process has. Each may do the least that its work needs.
type Role string

// The roles; what each is for is in [seats]. A service of wake has the role of its name.
const (
	Init        Role = "init"
	Runner      Role = "runner"
	Recorder    Role = "recorder"
	Snapshotter Role = "snapshotter"
	Alerter     Role = "alerter"
	Ingest      Role = "ingest"
	Operator    Role = "operator"
	Viewer      Role = "viewer"
	Inspector   Role = "inspector"
	Guest       Role = "guest"
	Debugger    Role = "debugger"
	Up          Role = "up"
)

// Account is a part of the server that shares nothing with the others but what one
// exports and the other imports.
type Account string

// The accounts.
const (
	LogAccount Account = "log" // has the streams
	Operators  Account = "operators"
	Viewers    Account = "viewers"
	Inspectors Account = "inspectors"
	Guests     Account = "guests"
	Debuggers  Account = "debuggers"
	Ingesters  Account = "ingesters"
)

// seat is the account that a role is in, and what it may do there.
type seat struct {
	role    Role
	purpose string
	account Account
	grant   func(*grants)
}

// seats is what each role may do. All else is refused.
var seats = []seat{
	{Init, "creates streams, buckets and consumers: `wake init`, backup and restore; keeps schedules and budgets", LogAccount, (*grants).grantInit},
	{Runner, "appends events", LogAccount, (*grants).grantRunner},
	{Recorder, "reads the log and answers questions", LogAccount, (*grants).grantRecorder},
	{Snapshotter, "reads the log and stores snapshots", LogAccount, (*grants).grantSnapshotter},
	{Alerter, "reads the log and stores alerts", LogAccount, (*grants).grantAlerter},
	{Up, "all of these in one process: `wake up`", LogAccount, (*grants).grantUp},
	{Ingest, "adds runs that happened elsewhere: `wake ingest`, `wake import`", Ingesters, (*grants).grantImports},
	{Operator, "people and programs that start, steer and read runs", Operators, (*grants).operator},
	{Viewer, "those that only read", Viewers, (*grants).grantImports},
	{Inspector, "those that read the files of runs, too: folders and sessions", Inspectors, (*grants).grantImports},
	{Guest, "those that read one run", Guests, (*grants).grantGuest},
	{Debugger, "those that listen to events as they are published: `nats sub`", Debuggers, (*grants).grantImports},
}

// logExports is all that enters or leaves the account of the log: questions and runs that
// happened elsewhere, and what others may listen to.
func logExports(n subjects.Names) (services, streams []string) {
	return []string{n.Prefix() + ".api.*", n.AllIngest()}, []string{n.AllEvents(), n.AllAlerts()}
}

// importLists are what an account takes of the exports. It imports nothing that any of its users
// may not ask for: the answer to one question may be sent to where another is asked.
func (a Account) importLists(n subjects.Names) (services, streams []string) {
	switch a {
	case Operators:
		return []string{n.Prefix() + ".api.*"}, nil
	case Ingesters:
		return []string{n.API(wire.VerbIngest), n.AllIngest()}, nil
	case Viewers:
		return verbSubjects(n, ofRun, ofAll), nil
	case Inspectors:
		return verbSubjects(n, ofRun, ofAll, ofFiles), nil
	case Guests:
		return verbSubjects(n, ofRun), nil
	case Debuggers:
		return nil, []string{n.AllEvents(), n.AllAlerts()}
	default:
		return nil, nil
	}
}

// ofRun are the verbs of the API that are about one run, and change nothing.
var ofRun = []string{
	wire.VerbLog, wire.VerbStatus, wire.VerbEvents, wire.VerbState, wire.VerbSnapshot, wire.VerbTimeline, wire.VerbAlerts,
	wire.VerbFeed, wire.VerbLast, wire.VerbBounds, wire.VerbValue, wire.VerbBlob,
}

// ofAll are those that are about all runs, and change nothing.
var ofAll = []string{
	wire.VerbApprovals, wire.VerbRuns, wire.VerbTop, wire.VerbFleet, wire.VerbSearch, wire.VerbStats, wire.VerbBudgets, wire.VerbSinks, wire.VerbLetters,
	wire.VerbBookmarks, wire.VerbDiff, // of a run and its ancestors, of two runs
}

// ofFiles are those that tell what is in files of runs.
var ofFiles = []string{wire.VerbPack, wire.VerbSession, wire.VerbWorkspace}

func verbSubjects(n subjects.Names, lists ...[]string) (all []string) {
	for _, verb := range slices.Concat(lists...) {
		all = append(all, n.API(verb))
	}
	return all
}

// Roles are all roles.
func Roles() []Role {
	all := make([]Role, len(seats))
	for i, s := range seats {
		all[i] = s.role
	}
	return all
}

// Accounts are all accounts, that of the log first.
func Accounts() []Account {
	var all []Account
	for _, s := range seats {
		if !slices.Contains(all, s.account) {
			all = append(all, s.account)
		}
	}
	return all
}

func (r Role) findSeat() (seat, error) {
	for _, s := range seats {
		if s.role == r {
			return s, nil
		}
	}
	return seat{}, fmt.Errorf("access: there is no role %q", string(r))
}

// Account returns the account that users of the role are in.
func (r Role) Account() (Account, error) {
	s, err := r.findSeat()
	return s.account, err
}

// Permissions are the subjects that a user may publish and subscribe to. All
// others are refused.
type Permissions struct {
	Publish   []string
	Except    []string // of Publish
	Subscribe []string
	Replies   bool // may answer requests
}

// Permissions returns what a role may do in its account. Inbox is the first token of
// the subjects on which a user gets answers: no other user may listen there.
func (r Role) Permissions(n subjects.Names, inbox string) (Permissions, error) {
	s, err := r.findSeat()
	if err != nil {
		return Permissions{}, err
	}
	g := &grants{names: n, account: s.account}
	g.allowSubscribe(inbox + ".>")
	s.grant(g)
	return g.sortedPermissions(), nil
}

// grants collects permissions.
type grants struct {
	names   subjects.Names
	account Account
	p       Permissions
}

func (g *grants) allowPublish(all ...string)   { g.p.Publish = append(g.p.Publish, all...) }
func (g *grants) denyPublish(all ...string)    { g.p.Except = append(g.p.Except, all...) }
func (g *grants) allowSubscribe(all ...string) { g.p.Subscribe = append(g.p.Subscribe, all...) }

func (g *grants) sortedPermissions() Permissions {
	for _, list := range []*[]string{&g.p.Publish, &g.p.Except, &g.p.Subscribe} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
		all := slices.Clone(*list)
		*list = slices.DeleteFunc(*list, func(subject string) bool {
			return slices.ContainsFunc(all, func(wider string) bool { return coversSubject(wider, subject) })
		})
	}
	return g.p
}

// coversSubject reports whether a subject is one of those below another one.
func coversSubject(wider, subject string) bool {
	prefix, ok := strings.CutSuffix(wider, ">")
	return ok && wider != subject && strings.HasPrefix(subject, prefix)
}

// grantImports allows what the account imports.
func (g *grants) grantImports() {
	services, streams := g.account.importLists(g.names)
	g.allowPublish(services...)
	g.allowSubscribe(streams...)
}

// operator allows what the account imports, but for adding runs that happened elsewhere.
func (g *grants) operator() {
	g.grantImports()
	g.denyPublish(g.names.API(wire.VerbIngest))
}

// grantGuest allows what the account imports to users with credentials that name a run: the
// server takes no connection for which a denied subject can't be made.
func (g *grants) grantGuest() {
	g.grantImports()
	g.denyPublish("_RUN.{{tag(" + runTag + ")}}")
}

func (g *grants) grantInit() {
	g.allowPublish("$JS.API.>", "$JS.SNAPSHOT.>", "$KV.>", "$O.>")
	g.allowSubscribe("$JS.EVENT.ADVISORY.>")
}

// grantUp allows what init and all services may, and asking oneself whether one answers.
func (g *grants) grantUp() {
	for _, grant := range []func(*grants){(*grants).grantInit, (*grants).grantRunner, (*grants).grantRecorder, (*grants).grantSnapshotter, (*grants).grantAlerter} {
		grant(g)
	}
	g.allowPublish(g.names.Prefix() + ".api.>")
	g.p.Except = nil // from one service what is another's
}

// grantRead allows reading streams, by consumers of one's own too. A consumer's name is
// one token, of which no part can be granted: so a user who may make and end its own may end
// those of other processes, which costs them a moment and nothing else. The durable
// ones are their services'.
func (g *grants) grantRead(streams ...string) {
	for _, s := range streams {
		g.allowPublish(
			"$JS.API.STREAM.INFO."+s, "$JS.API.STREAM.MSG.GET."+s, "$JS.API.DIRECT.GET."+s, "$JS.API.DIRECT.GET."+s+".>",
			"$JS.API.CONSUMER.CREATE."+s, "$JS.API.CONSUMER.CREATE."+s+".>", "$JS.API.CONSUMER.INFO."+s+".*",
			"$JS.API.CONSUMER.LIST."+s, "$JS.API.CONSUMER.NAMES."+s,
			"$JS.API.CONSUMER.MSG.NEXT."+s+".*", "$JS.API.CONSUMER.DELETE."+s+".*", "$JS.ACK."+s+".>", "$JS.FC."+s+".>",
		)
	}
}

// grantKeyValue allows reading and writing buckets.
func (g *grants) grantKeyValue(buckets ...string) {
	for _, b := range buckets {
		g.grantRead("KV_" + b)
		g.allowPublish("$KV." + b + ".>")
	}
}

// grantObjects allows reading and writing object stores. To replace an object is to purge
// the chunks of the one before; a role that may purge some chunks may purge all: the server grants no less.
func (g *grants) grantObjects(buckets ...string) {
	for _, b := range buckets {
		g.grantRead("OBJ_" + b)
		g.allowPublish("$O."+b+".>", "$JS.API.STREAM.PURGE.OBJ_"+b)
	}
}

// grantVerify allows looking whether the installation is as it should be.
func (g *grants) grantVerify() {
	n := g.names
	for _, s := range []string{n.EventsStream(), n.CommandsStream(), n.QueueStream(), n.AlertsStream(), n.DeadLetterStream()} {
		g.allowPublish("$JS.API.STREAM.INFO."+s, "$JS.API.CONSUMER.INFO."+s+".*")
	}
	for _, b := range []string{n.SnapshotsBucket(), n.BookmarksBucket(), n.LeasesBucket(), n.StateBucket()} {
		g.allowPublish("$JS.API.STREAM.INFO.KV_" + b)
	}
	for _, b := range []string{n.BlobsBucket(), n.SessionsBucket(), n.WorkspacesBucket()} {
		g.allowPublish("$JS.API.STREAM.INFO.OBJ_" + b)
	}
	g.allowPublish("$JS.API.INFO")
}

// grantState allows a service to keep its own in the bucket of services' states: what
// begins with one of the names.
func (g *grants) grantState(service string, more ...string) {
	bucket := g.names.StateBucket()
	g.grantRead("KV_" + bucket)
	for _, key := range append(more, service+".>", "rebuild."+service, "rebuilding."+service, "encryption._", "health.>") {
		g.allowPublish("$KV." + bucket + "." + key)
	}
}

// grantAnswer allows serving verbs of the API, and being found. What comes by an import is
// answered on a subject of the server's.
func (g *grants) grantAnswer() {
	g.allowSubscribe(g.names.Prefix()+".api.>", "$SRV.>")
	g.allowPublish("_R_.>")
	g.p.Replies = true
}

// grantService allows what every service does: reading the log from its position,
// answering questions, setting aside what can't be used.
func (g *grants) grantService(name string) {
	n := g.names
	g.grantVerify()
	g.grantRead(n.EventsStream())
	g.grantRead("OBJ_" + n.BlobsBucket())
	g.allowPublish(n.DeadLetter(name), n.DeadLetter("eventlog"))
	for _, durable := range []string{subjects.RecorderConsumer, subjects.SnapshotterConsumer, subjects.AlerterConsumer} {
		one := "." + n.EventsStream() + "." + durable
		if durable == name {
			g.allowPublish("$JS.API.CONSUMER.RESET" + one)
			continue
		}
		g.denyPublish("$JS.API.CONSUMER.CREATE"+one, "$JS.API.CONSUMER.CREATE"+one+".>", "$JS.API.CONSUMER.MSG.NEXT"+one, "$JS.API.CONSUMER.DELETE"+one)
	}
	g.allowSubscribe("$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED." + n.EventsStream())
}

func (g *grants) grantRecorder() {
	g.grantService("recorder")
	g.grantAnswer()
	g.grantRead(g.names.AlertsStream())
	g.grantRead("KV_"+g.names.SnapshotsBucket(), "KV_"+g.names.BookmarksBucket(), "OBJ_"+g.names.SessionsBucket()) // for callers
	g.allowPublish(g.names.AllCommands(), g.names.QueueRun())                                                      // of users, in their names
	for _, stream := range []string{                                                                               // of runs that are removed; it can't read what is in their folders
		"OBJ_" + g.names.WorkspacesBucket(), "OBJ_" + g.names.SessionsBucket(), "OBJ_" + g.names.BlobsBucket(),
		"KV_" + g.names.SnapshotsBucket(), "KV_" + g.names.BookmarksBucket(), g.names.AlertsStream(),
	} {
		g.allowPublish("$JS.API.STREAM.PURGE." + stream)
	}
	g.allowPublish(g.names.API(wire.VerbState), g.names.API(wire.VerbEvents)) // itself, for what the stream has dropped
	g.grantState("recorder")
	g.allowPublish("$KV." + g.names.StateBucket() + ".alerter.*") // of runs that are removed, and not its position
	g.denyPublish("$KV." + g.names.StateBucket() + ".alerter._")
}

func (g *grants) grantSnapshotter() {
	g.grantService("snapshotter")
	g.grantAnswer()
	g.grantKeyValue(g.names.SnapshotsBucket(), g.names.BookmarksBucket())
	g.grantObjects(g.names.BlobsBucket())
	g.grantState("snapshotter")
}

func (g *grants) grantAlerter() {
	n := g.names
	g.grantService("alerter")
	g.grantAnswer()
	g.allowPublish(n.Prefix() + ".alerts.>")
	g.allowSubscribe(n.AllAlerts()) // sinks look when one is raised
	g.grantRead(n.AlertsStream(), n.DeadLetterStream())
	g.allowPublish(n.AllDeadLetters(), "$JS.API.STREAM.MSG.DELETE."+n.DeadLetterStream()) // of sinks; those that are sent again
	g.allowPublish("$JS.API.STREAM.INFO.*", "$JS.API.STREAM.NAMES")                       // for storage pressure
	g.allowPublish(n.API(wire.VerbBudgets))
	g.grantState("alerter", "sink.>")
}

func (g *grants) grantRunner() {
	n := g.names
	g.grantService("runner")
	g.grantAnswer()
	g.allowPublish(n.Prefix()+".events.>", n.Prefix()+".cmd.>", n.Prefix()+".queue.>", n.DeadLetter("queue"))
	g.allowPublish(n.Prefix() + ".hooks.>")                       // to ask, for agents
	g.allowPublish(n.API(wire.VerbEvents), n.API(wire.VerbState)) // what the stream has dropped of a run that is forked, or whose folder is asked for
	g.allowPublish(n.API(wire.VerbBudgets))                       // what is spent of what runs share
	g.allowPublish(n.API(wire.VerbStatus))                        // whether a run was removed whose folder is there
	g.allowSubscribe(n.AllIngest())
	g.allowPublish(n.AllIngest()) // whether another reads an input
	g.grantRead(n.CommandsStream(), n.QueueStream(), n.AlertsStream(), "KV_"+n.SnapshotsBucket(), "KV_"+n.BookmarksBucket())
	g.grantKeyValue(n.LeasesBucket())
	g.grantState("runner", "drain.>", "ingest.>", "notices._", "schedule.>")
	g.grantObjects(n.BlobsBucket(), n.SessionsBucket(), n.WorkspacesBucket())
}
