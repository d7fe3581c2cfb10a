//go:build torture

package torture_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// active is how many runs there are at a time.
const active = 5

// script leaves a line when a command begins and when it ends: $0 is the node, $1
// the iteration, $2 the ledger. Its folder is named after the execution.
const script = `echo "begin $0 $1 $(basename "$(dirname "$PWD")")/$(basename "$PWD") $(date +%s%N)" >> "$2/exec"; sleep 0.$(($$ % 8 + 1)); ` +
	`echo "end $0 $1 $(basename "$(dirname "$PWD")")/$(basename "$PWD") $(date +%s%N)" >> "$2/exec"`

// load keeps runs going and gives them commands.
type load struct {
	s    *site
	rand *rand.Rand

	mu        sync.Mutex
	runs      []string
	ended     map[string]bool
	requested map[string]bool // and the server said that it has the request
	born      map[string]time.Time
	forgotten map[string]bool // see forget
	commands  map[string]int  // by verb
	failed    map[string]int  // verbs that ended with an error
	paused    map[string]time.Time
	reruns    int
	n         int
}

func newLoad(s *site) *load {
	return &load{
		s: s, rand: rand.New(rand.NewPCG(s.Seed, 2)), ended: make(map[string]bool), requested: make(map[string]bool), born: make(map[string]time.Time), forgotten: make(map[string]bool),
		commands: make(map[string]int), failed: make(map[string]int), paused: make(map[string]time.Time),
	}
}

// run works until stop is closed.
func (l *load) run(stop <-chan struct{}) {
	for tick := 0; ; tick++ {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(100+l.rand.IntN(500)) * time.Millisecond):
		}
		l.look()
		open := l.open()
		switch {
		case len(open) < active:
			l.begin()
		case l.rand.IntN(2) == 0:
			l.command(open[l.rand.IntN(len(open))])
		}
	}
}

// open lists the runs that haven't ended, as far as is known.
func (l *load) open() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.runs), func(id string) bool { return l.ended[id] || l.forgotten[id] })
}

// look asks for the state of the runs, and does what an operator would.
func (l *load) look() {
	l.mu.Lock()
	runs := slices.DeleteFunc(slices.Clone(l.runs), func(id string) bool { return l.ended[id] })
	l.mu.Unlock()
	for _, id := range runs {
		st := l.s.peek(id)
		l.forget(id, st == nil)
		if st == nil {
			continue
		}
		switch st.Status {
		case wire.RunComplete, wire.RunAborted:
			l.mu.Lock()
			l.ended[id] = true
			l.mu.Unlock()
		case wire.RunPaused:
			l.resume(st)
		default:
			delete(l.paused, id)
		}
	}
}

// unborn is how long a run may take to begin of which nobody said that it will.
const unborn = 20 * time.Second

// forget gives a run up whose request was never stored, as the verb said, or whose
// fork was refused once there was an owner to do so. If it comes to be after all,
// it has to end like all others.
func (l *load) forget(id string, unknown bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgotten[id] = unknown && !l.requested[id] && time.Since(l.born[id]) > unborn
}

// doubt takes no request for stored any more: the queue was lost.
func (l *load) doubt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.requested)
	l.s.ledger.LostQueue()
	for _, id := range l.runs {
		l.born[id] = time.Now()
	}
}

// resume lets a run go on that has been paused for a while.
func (l *load) resume(st *wire.State) {
	since, ok := l.paused[st.RunID]
	if !ok {
		l.paused[st.RunID] = time.Now()
		return
	}
	if time.Since(since) < time.Second {
		return
	}
	args := []string{"resume", st.RunID}
	for node := range st.Nodes {
		if run.Interrupted(st, node) {
			args = append(args, "--rerun", node)
			l.reruns++
		}
	}
	l.do(args...)
	l.paused[st.RunID] = time.Now()
}

// peek is the state of a run as its snapshot has it; nil if nobody knows.
func (s *site) peek(id string) *wire.State {
	ctx, cancel := s.soon()
	defer cancel()
	kv, err := s.JS.KeyValue(ctx, subjects.Default.SnapshotsBucket())
	if err != nil {
		return nil
	}
	var v jetstream.KeyValueEntry
	if v, err = kv.Get(ctx, subjects.Default.SnapshotKey(id)); err != nil {
		return nil
	}
	st := new(wire.State)
	if wire.Unmarshal(v.Value(), st) != nil {
		return nil
	}
	return st
}

// do runs a verb of wake, which may fail.
func (l *load) do(args ...string) bool {
	_, err := l.s.Try(append(args, "--connect-timeout", "2s")...)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commands[args[0]]++
	if err != nil {
		l.failed[args[0]]++
		l.s.Tell("wake %s: %v", strings.Join(args, " "), err)
	}
	return err == nil
}

// begin starts a run of a random flow.
func (l *load) begin() {
	l.n++
	id := fmt.Sprintf("t%d", l.n)
	file := filepath.Join(l.s.Dir, id+".yaml")
	if err := os.WriteFile(file, []byte(l.flow()), 0o600); err != nil {
		l.s.Errorf("%v", err)
		return
	}
	ok := l.do("run", file, "--id", id, "--detach", "--set", "ledger="+filepath.Join(l.s.Dir, "ledger"))
	if ok {
		l.s.ledger.Requested(id)
	}
	l.add(id, ok)
}

// add notes a run, which may not exist if its request got lost.
func (l *load) add(id string, requested bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requested[id] = requested
	l.born[id] = time.Now()
	l.runs = append(l.runs, id)
}

// command gives a run a random command.
func (l *load) command(id string) {
	l.n++
	switch n := l.rand.IntN(20); {
	case n < 6:
		l.do("send", id, fmt.Sprintf("message %d", l.n))
	case n < 9:
		l.do("pause", id, "--reason", "torture")
	case n < 11:
		l.do("resume", id)
	case n < 12:
		l.do("abort", id, "--reason", "torture")
	case n < 16:
		l.do("bookmark", id, "--label", fmt.Sprintf("l%d", l.n))
	case len(l.open()) < 2*active:
		l.fork(id)
	}
}

// fork forks a run, at its present or at one of its first points.
func (l *load) fork(id string) {
	child := fmt.Sprintf("t%d", l.n)
	args := []string{"fork", id, "--id", child}
	if l.rand.IntN(2) == 0 {
		args = append(args, "--at", fmt.Sprintf("sfp-%d", 1+l.rand.IntN(6)))
	}
	if l.do(args...) {
		l.add(child, false) // a queued command may be rejected later
	}
}

// flow is a random flow of agents and commands.
func (l *load) flow() string {
	agent := func(id, more string) string {
		return fmt.Sprintf(`
  - id: %s
    type: agent
    input: {provider: claude, prompt: "Do it%s. calls=%d ms=%d ledger={{ state.ledger }}"}`, id, more, 1+l.rand.IntN(4), 100+l.rand.IntN(300))
	}
	command := func(id, iteration string) string {
		return fmt.Sprintf(`
  - id: %s
    type: exec
    idempotent: %t
    input:
      command: [sh, -c, '%s', %s, "%s", "{{ state.ledger }}"]`, id, l.rand.IntN(3) > 0, script, id, iteration)
	}
	head := "name: torture\nworkspace: node\nstate: {items: [a, b, c]}\nnodes:"
	switch l.rand.IntN(4) {
	case 0: // two at once
		return head + agent("left", "") + agent("right", "") + command("report", "0") + "\nedges:\n  - {from: left, to: report}\n  - {from: right, to: report}\n"
	case 1: // one after the other
		return head + command("prepare", "0") + agent("work", "") + command("check", "0") + "\nedges:\n  - {from: prepare, to: work}\n  - {from: work, to: check}\n"
	case 2: // one for each
		return head + agent("plan", "") + agent("item", " for {{ it }}") + command("collect", "0") +
			"\nedges:\n  - {from: plan, to: item, forEach: {in: state.items, as: it}}\n  - {from: item, to: collect}\n"
	default: // again and again
		return head + agent("try", "") + command("test", "{{ $iteration }}") + command("done", "0") +
			"\nedges:\n  - {from: try, to: test}\n  - {from: test, to: try, when: '$iteration < 2', maxIterations: 2}\n  - {from: test, to: done, when: '$iteration >= 2'}\n"
	}
}
