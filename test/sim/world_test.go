//go:build linux

package sim_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/oracle"
)

// world is an installation of wake and all that happens to it.
type world struct {
	t       *testing.T
	seed    uint64
	rng     *rand.Rand // of the one goroutine that decides
	dir     string
	verbose bool
	start   time.Time

	server    *natstest.Server
	js        jetstream.JetStream // the client's
	log       *eventlog.Log       // the client's, to read
	ledger    *oracle.Ledger
	memories  memories
	machine   keeper.Machine // on which all runners are, with folders of their own
	sessions  atomic.Int64   // of agents so far, and of others that speak to their programs
	said      atomic.Int64   // lines of agents that the log is to show
	web       web
	processes []*process

	tasks   sync.WaitGroup
	ctx     context.Context //nolint:containedctx // of the world, as t.Context
	over    context.CancelFunc
	names   subjects.Names
	runs    []string // that were asked for, and forks that may come to be
	forks   map[string]bool
	healing map[*life]bool // whose connections have lost something
	asked   int            // commands so far

	bugs      map[string]bug // by process
	patience  time.Duration
	hasty     bool // agents act before their intent is stored
	forgetful bool // agents don't know what they have begun
	keepers   bool // it is about keepers: each runner has some, and calls take long

	mu      sync.Mutex
	runners []prometheus.Collector // of all lives
	history []string
	faults  map[string]int
	written map[[2]string]bool // by run and call
	seen    map[uint64]bool    // folders in which agents have begun, by inode
	sights  []sight            // of these
}

// note adds a line to the history.
func (w *world) note(who, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history = append(w.history, fmt.Sprintf("%9.3fs %-12s %s", time.Since(w.start).Seconds(), who, fmt.Sprintf(format, args...)))
}

// fault counts and notes a fault.
func (w *world) fault(kind, format string, args ...any) {
	w.mu.Lock()
	w.faults[kind]++
	w.mu.Unlock()
	w.note("FAULT", kind+": "+format, args...)
}

func (w *world) stored(position uint64, subject string, data []byte) {
	w.ledger.Acknowledged(position, subject, data)
}

// newWorld starts the server and the client, and nothing else.
func newWorld(t *testing.T, seed uint64, verbose bool) *world {
	t.Helper()
	w := &world{
		bugs: map[string]bug{}, patience: patience,
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 0)), dir: t.TempDir(), verbose: verbose, start: time.Now(),
		ledger: oracle.NewLedger(), memories: memories{of: map[string]memory{}}, faults: map[string]int{},
		forks: map[string]bool{}, healing: map[*life]bool{}, written: map[[2]string]bool{}, seen: map[uint64]bool{},
	}
	w.machine.Main = w.program
	w.web = web{w: w, moods: map[string]mood{}}
	w.ctx, w.over = context.WithCancel(t.Context())
	w.server = natstest.New(t)
	nc := w.server.Conn(t, nats.ReconnectBufSize(-1))
	var err error
	if w.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	if _, err := topology.Init(t.Context(), w.js, topology.Config{}); err != nil {
		t.Fatal(err)
	}
	if w.log, err = eventlog.Open(t.Context(), nc, eventlog.Options{}); err != nil {
		t.Fatal(err)
	}
	return w
}

// run starts a process.
func (w *world) run(p *process) {
	w.processes = append(w.processes, p)
	w.tasks.Go(func() { p.supervise(w.ctx) })
}

// stop ends everything but the server and the client.
func (w *world) stop() {
	w.over()
	w.tasks.Wait()
	w.machine.Off()
}

// publish sends something until it is stored, as a client does that insists.
func (w *world) publish(what, subject string, data []byte, stored func(position uint64)) {
	w.tasks.Go(func() {
		for w.ctx.Err() == nil {
			ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
			ack, err := w.js.Publish(ctx, subject, data)
			cancel()
			if err == nil {
				stored(ack.Sequence)
				return
			}
			w.note("client", "%s: %v", what, err)
			select {
			case <-time.After(time.Second):
			case <-w.ctx.Done():
			}
		}
	})
}

// submit asks for a run.
func (w *world) submit() {
	id := fmt.Sprintf("run%d", len(w.runs)+1) // forks count
	definition, input := randomFlow(w.rng, w.runsCommands(), w.isMobile())
	data, err := wire.Marshal(wire.RunRequest{V: wire.Version, RunID: id, Definition: definition, Input: input})
	if err != nil {
		w.t.Fatal(err)
	}
	w.runs = append(w.runs, id)
	w.note("client", "submits %s: %s", id, text(definition))
	w.publish("submit "+id, w.names.QueueRun(), data, func(uint64) { w.ledger.Requested(id) })
}

func text(v wire.Raw) string {
	b, err := wire.AppendJSON(nil, v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// command sends a command.
func (w *world) command(run string, c wire.Command) {
	w.asked++
	if c.ID == "" {
		c.ID = fmt.Sprintf("c%d", w.asked)
	}
	data, err := wire.Marshal(c)
	if err != nil {
		w.t.Fatal(err)
	}
	w.note("client", "commands %s: %s", run, text(data))
	w.publish("command "+c.ID, w.names.Command(run), data, func(pos uint64) { w.ledger.Commanded(pos, run, c.ID) })
}

// play is the whole of a seed.
func (w *world) play() oracle.Report {
	for i := range 2 + w.rng.IntN(2) {
		w.run(w.runner(fmt.Sprintf("r%d", i+1), 1+w.rng.IntN(8)))
	}
	for _, p := range []*process{w.recorder(), w.snapshotter(), w.alerter()} {
		w.run(p)
	}
	w.connected()
	w.disturb()
	w.note("world", "the faults are over")
	w.calm()
	w.delivered()
	w.ledger.Left(w.machine.Keepers())
	w.stop()
	w.note("world", "everything has ended")
	report, err := oracle.Check(w.t.Context(), w.log, w.ledger, oracle.Options{Recorder: w.recorderFile()})
	if err != nil {
		w.t.Fatalf("seed %d: %v", w.seed, err)
	}
	if err := w.judgeFolders(&report); err != nil {
		w.t.Fatalf("seed %d: folders: %v", w.seed, err)
	}
	return report
}

// patience is how long everything may take to come to an end after the last fault,
// unless a world says otherwise.
const patience = 30 * time.Minute

// keeperStillness is how long runs that go on may record nothing in worlds that are about keepers. It is shorter than
// the longest orphan timeout, by which a keeper ends an agent that nobody has thawed, and longer than a step of an agent.
const keeperStillness = 8 * time.Minute

// calm lets an operator decide about whatever waits for a decision, until every run
// has ended, two minutes later too: a fork that was asked for may still have to begin.
func (w *world) calm() {
	deadline, recorded, progress := time.Now().Add(w.patience), uint64(0), time.Now()
	for quiet := false; w.ctx.Err() == nil; {
		<-time.After(20 * time.Second)
		states, err := oracle.States(w.ctx, w.log)
		if err != nil {
			w.note("operator", "%v", err)
			continue
		}
		open, events := 0, uint64(0)
		for _, id := range w.runs {
			if states[id] == nil && !w.forks[id] {
				open++
			}
		}
		for id, s := range states {
			events += s.EventCount
			if id == wire.NoRun || s.Status.Ended() {
				continue
			}
			open++
			w.decide(id, s)
		}
		if open == 0 && quiet {
			return
		}
		if events != recorded || open == 0 {
			recorded, progress = events, time.Now()
		}
		if time.Now().After(deadline) || w.keepers && time.Since(progress) > keeperStillness {
			w.note("operator", "%d runs have not ended", open)
			return
		}
		if quiet = open == 0; quiet {
			<-time.After(2 * time.Minute)
		}
	}
}

// decide is what an operator does about a run.
func (w *world) decide(id string, s *wire.State) {
	if s.Status == wire.RunPaused {
		w.command(id, wire.Command{Type: "resume", RunID: id, Fail: interrupted(s)})
		return
	}
	for node, n := range s.Nodes {
		if n.PromptID != "" {
			w.command(id, wire.Command{Type: "reply", RunID: id, NodeID: node, PromptID: n.PromptID, Content: wire.RawString("yes")})
		}
	}
	for _, c := range s.Tools {
		if c.State == wire.ToolApprovalRequired {
			w.command(id, wire.Command{Type: "approve", RunID: id, NodeID: c.Node, ExecID: c.Exec, CallID: c.CallID})
		}
	}
}

// interrupted lists the nodes about which a person has to decide.
func interrupted(s *wire.State) (nodes []string) {
	for id, n := range s.Nodes {
		if s.NodeStatus[id] == wire.NodeFailed && (n.ErrorType == wire.ErrorInterrupted || n.ErrorType == wire.ErrorSessionNotFound) {
			nodes = append(nodes, id)
		}
	}
	return nodes
}

func (w *world) tail(n int) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.history[max(0, len(w.history)-n):], "\n")
}
