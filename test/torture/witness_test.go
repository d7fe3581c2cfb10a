//go:build torture

package torture_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
	"code.wake.dev/wake/test/oracle"
)

// witness sees what is published and what the servers answer, and puts the two
// together. It may miss something, while servers are away, but makes nothing up.
type witness struct {
	nc     *nats.Conn
	subs   []*nats.Subscription
	in     chan *nats.Msg
	ended  chan struct{}
	ledger *oracle.Ledger

	mu       sync.Mutex
	events   int // acknowledged ones
	commands int

	writers map[[2]string]string // run, node → runner, by the claims so far
	want    []wire.Type          // a writer waits for the first of them
	found   chan sighting

	batches map[string]map[int]*nats.Msg // by id, then by number
	asked   map[string][]*nats.Msg       // by the subject of the answer
	answers map[string]answer            // which came first
}

// answer is what a stream says about a publish.
type answer struct {
	Stream string `json:"stream"`
	Seq    uint64 `json:"seq"`
	Batch  string `json:"batch"`
	Count  int    `json:"count"`
	Dup    bool   `json:"duplicate"`
	Error  any    `json:"error"`
}

// newWitness begins to look on.
func newWitness(url string, ledger *oracle.Ledger) (*witness, error) {
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.Name("witness"), quiet())
	if err != nil {
		return nil, err
	}
	w := &witness{
		nc: nc, in: make(chan *nats.Msg, 1<<20), ended: make(chan struct{}), ledger: ledger,
		writers: make(map[[2]string]string), found: make(chan sighting, 1),
		batches: make(map[string]map[int]*nats.Msg), asked: make(map[string][]*nats.Msg), answers: make(map[string]answer),
	}
	// Answers to publishers have three tokens. Whoever listened to inboxes of two,
	// too, would keep the requests alive of readers that are gone.
	for _, subject := range []string{"wake.events.>", "wake.cmd.>", "_INBOX.*.*"} {
		sub, err := nc.ChanSubscribe(subject, w.in)
		if err != nil {
			return nil, err
		}
		w.subs = append(w.subs, sub)
	}
	go w.run()
	return w, nc.Flush()
}

// close ends it when it has seen what has arrived.
func (w *witness) close() {
	for _, sub := range w.subs {
		_ = sub.Unsubscribe() // the connection is closed next
	}
	w.nc.Close()
	close(w.in)
	<-w.ended
}

func (w *witness) counts() (events, commands int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.events, w.commands
}

func (w *witness) run() {
	defer close(w.ended)
	for m := range w.in {
		if strings.HasPrefix(m.Subject, "wake.events.") {
			w.heard(m)
		}
		switch {
		case strings.HasPrefix(m.Subject, "_INBOX."):
			w.answered(m)
		case m.Header.Get("Nats-Batch-Id") != "":
			w.batched(m)
		case m.Reply != "":
			w.published(m.Reply, []*nats.Msg{m})
		}
	}
}

// heard notes who writes what, and tells who waits for an event.
func (w *witness) heard(m *nats.Msg) {
	e, err := wire.Decode(m.Data)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	key := [2]string{e.RunID, e.NodeID}
	if who := lab.Claimant(e); who != "" {
		w.writers[key] = who
	}
	if slices.Contains(w.want, e.Type()) && w.writers[key] != "" {
		w.want = nil
		w.found <- sighting{e.Type(), w.writers[key]}
	}
}

// sighting is an event that is being published.
type sighting struct {
	event  wire.Type
	runner string // its writer
}

// await returns the next event of one of some types.
func (w *witness) await(types []wire.Type, within time.Duration) (x sighting, ok bool) {
	w.mu.Lock()
	w.want = types
	w.mu.Unlock()
	select {
	case x = <-w.found:
		return x, true
	case <-time.After(within):
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.want = nil
	select {
	case x = <-w.found: // just now
		return x, true
	default:
		return sighting{}, false
	}
}

// batched collects the messages of an atomic batch. The last one asks for the
// answer.
func (w *witness) batched(m *nats.Msg) {
	id := m.Header.Get("Nats-Batch-Id")
	n, err := strconv.Atoi(m.Header.Get("Nats-Batch-Sequence"))
	if err != nil {
		return
	}
	if w.batches[id] == nil {
		w.batches[id] = make(map[int]*nats.Msg)
	}
	w.batches[id][n] = m
	if m.Header.Get("Nats-Batch-Commit") == "" {
		return
	}
	all := make([]*nats.Msg, n)
	for i := range n {
		all[i] = w.batches[id][i+1]
	}
	delete(w.batches, id)
	w.published(m.Reply, all)
}

func (w *witness) published(reply string, all []*nats.Msg) {
	if a, ok := w.answers[reply]; ok {
		delete(w.answers, reply)
		w.stored(a, all)
		return
	}
	w.asked[reply] = all
}

func (w *witness) answered(m *nats.Msg) {
	var a answer
	if len(m.Data) == 0 || m.Data[0] != '{' || json.Unmarshal(m.Data, &a) != nil || a.Seq == 0 || a.Dup || a.Error != nil {
		return
	}
	if a.Stream != subjects.Default.EventsStream() && a.Stream != subjects.Default.CommandsStream() {
		return
	}
	all, ok := w.asked[m.Subject]
	if !ok {
		w.answers[m.Subject] = a
		return
	}
	delete(w.asked, m.Subject)
	w.stored(a, all)
}

// stored notes what an answer says of the messages that it is about.
func (w *witness) stored(a answer, all []*nats.Msg) {
	if a.Batch != "" && a.Count != len(all) || a.Batch == "" && len(all) != 1 {
		return
	}
	for i, m := range all {
		if m == nil {
			continue // missed
		}
		w.note(a.Stream, a.Seq-uint64(len(all)-1-i), m)
	}
}

func (w *witness) note(stream string, position uint64, m *nats.Msg) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if stream == subjects.Default.EventsStream() {
		w.events++
		w.ledger.Acknowledged(position, m.Subject, m.Data)
		return
	}
	var c wire.Command
	run, err := subjects.Default.ParseCommand(m.Subject)
	if err != nil || wire.Unmarshal(m.Data, &c) != nil {
		return
	}
	w.commands++
	w.ledger.Commanded(position, run, c.ID)
}
