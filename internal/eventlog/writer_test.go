package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// deadLetters returns what is in WAKE_DEADLETTER, waiting until it is as much as
// wanted.
func (p process) deadLetters(want int) []wire.Poison {
	p.t.Helper()
	s, err := p.JetStream().Stream(p.t.Context(), subjects.Default.DeadLetterStream())
	if err != nil {
		p.t.Fatal(err)
	}
	var all []wire.Poison
	ctx, cancel := context.WithTimeout(p.t.Context(), 30*time.Second)
	defer cancel()
	for seq := uint64(1); len(all) < want; {
		m, err := s.GetMsg(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			<-time.After(5 * time.Millisecond)
			continue
		}
		if err != nil {
			p.t.Fatalf("%d of %d dead letters: %v", len(all), want, err)
		}
		var poison wire.Poison
		if err := wire.Unmarshal(m.Data, &poison); err != nil {
			p.t.Fatal(err)
		}
		all, seq = append(all, poison), seq+1
	}
	info, err := s.Info(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	if got := int(info.State.Msgs); got != want {
		p.t.Errorf("%d dead letters, want %d", got, want)
	}
	return all
}

// withStream changes the configuration of the stream of events, as nobody but
// `wake init` should.
func (p process) withStream(edit func(*jetstream.StreamConfig)) {
	p.t.Helper()
	s, err := p.JetStream().Stream(p.t.Context(), subjects.Default.EventsStream())
	if err != nil {
		p.t.Fatal(err)
	}
	c := s.CachedInfo().Config
	edit(&c)
	if _, err := p.JetStream().UpdateStream(p.t.Context(), c); err != nil {
		p.t.Fatal(err)
	}
}

func wantErr(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// soon returns a context that ends before the test would hang.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestClaim(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	appendTo(t, p.claim("r", "n"), text("a"))
	w, err := p.Claim(t.Context(), "r", "n", eventlog.Claim{Runner: "x", MinEpoch: 9, ExecID: "n#1"})
	if err != nil {
		t.Fatal(err)
	}
	if w.Epoch() != 9 {
		t.Errorf("epoch %d, want that of the lease, 9", w.Epoch())
	}
	w, err = p.Claim(t.Context(), "r", "n", eventlog.Claim{Runner: "x", MinEpoch: 2})
	if err != nil {
		t.Fatal(err)
	}
	if w.Epoch() != 10 {
		t.Errorf("epoch %d, want the next one, 10", w.Epoch())
	}
	p.claim("r", wire.RunNode)
	equal(t, "the log", p.read(eventlog.Query{}),
		"r/n 1.1 node:claimed",
		"r/n 1.2 agent:text a",
		"r/n 9.3 node:claimed",
		"r/n 10.4 node:claimed",
		"r/_run 1.1 run:claimed",
	)
	if _, err := p.Claim(t.Context(), "r", "n", eventlog.Claim{}); err == nil {
		t.Error("a claim without a runner is stored")
	}
	e, ok, err := p.Last(t.Context(), "r", "n")
	if err != nil || !ok || e.Pos != 4 || e.Event.ExecID != "" {
		t.Errorf("Last: %+v, %t, %v", e, ok, err)
	}
	if _, ok, err := p.Last(t.Context(), "r", "other"); ok || err != nil {
		t.Errorf("Last of a node without events: %t, %v", ok, err)
	}
}

// Of claims at the same time each has an epoch of its own or fails. In a bubble they
// also have the same timestamp: nothing but a nonce tells them apart.
func TestClaimsRace(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Start(t)
		setUp(t, nc, topology.Config{})
		p := start(t, nc, eventlog.Options{})
		for i := range 20 {
			raceClaims(t, p, fmt.Sprint("n", i))
		}
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
}

func raceClaims(t *testing.T, p process, node string) {
	t.Helper()
	var claiming sync.WaitGroup
	var mu sync.Mutex
	epochs := map[uint64]bool{}
	for range 16 {
		claiming.Go(func() {
			w, err := p.Claim(t.Context(), "r", node, eventlog.Claim{Runner: "x"})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && epochs[w.Epoch()]:
				t.Errorf("epoch %d of %s was claimed twice", w.Epoch(), node)
			case err == nil:
				epochs[w.Epoch()] = true
			case !errors.Is(err, eventlog.ErrFenced):
				t.Error(err)
			}
		})
	}
	claiming.Wait()
	if got := len(p.read(eventlog.Query{Run: "r", Node: node})); got != len(epochs) || got == 0 {
		t.Errorf("%d claims of %s are stored, %d were told that they are", got, node, len(epochs))
	}
}

func TestFencing(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	zombie := p.claim("r", "n")
	appendTo(t, zombie, text("a"))
	w, err := p.Claim(t.Context(), "r", "n", eventlog.Claim{Runner: "rival"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = zombie.Append(soon(t), text("b"), text("c"))
	wantErr(t, "Append of a zombie", err, eventlog.ErrFenced)
	if !strings.Contains(err.Error(), `"rival" claimed it with epoch 2 at position 3`) {
		t.Errorf("the error doesn't say who: %v", err)
	}
	<-zombie.Fenced()
	wantErr(t, "Enqueue of a zombie", zombie.Enqueue(soon(t), text("d")), eventlog.ErrFenced)
	wantErr(t, "Flush of a zombie", zombie.Flush(soon(t)), eventlog.ErrFenced)
	appendTo(t, w, text("e"))
	equal(t, "the log", p.read(eventlog.Query{}),
		"r/n 1.1 node:claimed",
		"r/n 1.2 agent:text a",
		"r/n 2.3 node:claimed",
		"r/n 2.4 agent:text e",
	)
	for i, letter := range p.deadLetters(2) {
		e, err := wire.Decode(letter.Data)
		if err != nil {
			t.Fatal(err)
		}
		if e.Seq != uint64(3+i) || e.Epoch != 1 || !strings.Contains(letter.Reason, "rival") || letter.Subject != "wake.events.r.n.text" {
			t.Errorf("dead letter %d: %+v", i, letter)
		}
	}
}

// A stale group doesn't take the rest of its batch with it.
func TestFencedPartOfABatch(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{Lanes: 1})
	var writers []*eventlog.Writer
	for i := range 10 {
		writers = append(writers, p.claim("r", fmt.Sprint("n", i)))
	}
	p.claim("r", "n3")
	p.claim("r", "n7")
	for range 20 {
		for _, w := range writers {
			if err := w.Enqueue(t.Context(), text("x")); err != nil && !errors.Is(err, eventlog.ErrFenced) {
				t.Fatal(err)
			}
		}
	}
	held := 0
	for i, w := range writers {
		err := w.Flush(soon(t))
		if i == 3 || i == 7 {
			wantErr(t, "Flush of a zombie", err, eventlog.ErrFenced)
		} else if err != nil {
			t.Error(err)
		}
		for e, err := range p.Read(t.Context(), eventlog.Query{Run: "r", Node: fmt.Sprint("n", i), Kinds: []wire.Kind{wire.KindText}}) {
			if err != nil || e.Event == nil {
				t.Fatal(e.Err, err)
			}
			held++
		}
	}
	if held != 8*20 {
		t.Errorf("%d events are stored, want %d", held, 8*20)
	}
}

// On a single server what several lanes have waits for one batch together. A writer that is fenced takes the others with it once at most.
func TestLanesStoreTogether(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{Lanes: 8})
	laneOf := func(run string) uint32 {
		h := fnv.New32a()
		h.Write([]byte(run))
		return h.Sum32() % 8
	}
	writers := map[string]*eventlog.Writer{}
	for i := range 24 {
		run := fmt.Sprint("r", i)
		if writers[run] = p.claim(run, "n"); i%8 == 0 {
			p.claim(run, "n")
		}
	}
	var appending sync.WaitGroup
	for run, w := range writers {
		appending.Go(func() {
			for range 20 {
				if _, err := w.Append(t.Context(), text("x"), text("y")); err != nil {
					if !errors.Is(err, eventlog.ErrFenced) || !slices.Contains([]string{"r0", "r8", "r16"}, run) {
						t.Errorf("%s: %v", run, err)
					}
					return
				}
			}
		})
	}
	appending.Wait()
	if err := p.Health(); err != nil {
		t.Error(err)
	}
	s, err := p.JetStream().Stream(t.Context(), "WAKE_EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(t.Context())
	if err != nil || info.State.Msgs != 24+3+21*40 {
		t.Fatalf("%d messages, want %d: %v", info.State.Msgs, 24+3+21*40, err)
	}
	lanes := map[string]map[uint32]bool{}
	for pos := range info.State.LastSeq {
		m, err := s.GetMsg(t.Context(), pos+1)
		if err != nil {
			t.Fatal(err)
		}
		id := m.Header.Get("Nats-Batch-Id")
		if lanes[id] == nil {
			lanes[id] = map[uint32]bool{}
		}
		lanes[id][laneOf(strings.Split(m.Subject, ".")[2])] = true
	}
	delete(lanes, "")
	together := 0
	for _, of := range lanes {
		if len(of) > 1 {
			together++
		}
	}
	if together < len(lanes)/5 {
		t.Errorf("of %d batches %d have events of several lanes", len(lanes), together)
	}
}

func TestAppendAllOrNothing(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	w := p.claim("r", "n")
	_, err := w.Append(t.Context(), text("a"), &wire.Event{Payload: &wire.ToolIntent{}})
	if field := new(wire.FieldError); !errors.As(err, &field) {
		t.Errorf("Append of an invalid event: %v, want a FieldError", err)
	}
	appendTo(t, w, text("b"))
	equal(t, "the log", p.read(eventlog.Query{}), "r/n 1.1 node:claimed", "r/n 1.2 agent:text b")
}

// More than a batch is stored in several, in order.
func TestAppendMoreThanABatch(t *testing.T) {
	t.Parallel()
	nc := natstest.New(t, func(o *server.Options) { o.JetStreamLimits.MaxBatchSize = 64 }).Conn(t)
	setUp(t, nc, topology.Config{})
	p := start(t, nc, eventlog.Options{})
	w := p.claim("r", "n")
	events := make([]*wire.Event, 2500)
	for i := range events {
		events[i] = text(fmt.Sprint(i))
	}
	if pos := appendTo(t, w, events...); pos != 2501 {
		t.Errorf("position %d, want 2501", pos)
	}
	for i, l := range p.read(eventlog.Query{From: 2}) {
		if want := fmt.Sprintf("r/n 1.%d agent:text %d", i+2, i); l != want {
			t.Fatalf("%s, want %s", l, want)
		}
	}
}

// What was appended together is stored together by a server, too, that takes less in a batch than is queued by then.
func TestUnitsOfSmallBatches(t *testing.T) {
	t.Parallel()
	nc := natstest.New(t, func(o *server.Options) { o.JetStreamLimits.MaxBatchSize = 64 }).Conn(t)
	setUp(t, nc, topology.Config{})
	p := start(t, nc, eventlog.Options{})
	var writing sync.WaitGroup
	for i := range 24 {
		w := p.claim(fmt.Sprint("r", i), "n")
		writing.Go(func() {
			for range 4 {
				unit := make([]*wire.Event, 25)
				for n := range unit {
					unit[n] = text("x")
				}
				if _, err := w.Append(t.Context(), unit...); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()
	s, err := p.JetStream().Stream(t.Context(), "WAKE_EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]int{} // of runs in batches
	for pos := range s.CachedInfo().State.LastSeq {
		m, err := s.GetMsg(t.Context(), pos+1)
		if err != nil {
			t.Fatal(err)
		}
		if id := m.Header.Get("Nats-Batch-Id"); id != "" {
			sizes[id+" "+m.Subject]++
		}
	}
	for part, n := range sizes {
		if n%25 != 0 {
			t.Errorf("batch %s has %d events of it, appended 25 at a time", part, n)
		}
	}
	if len(sizes) == 0 {
		t.Error("there is no batch")
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{Lanes: 1})
	a, b := p.claim("r", "a"), p.claim("r", "b")
	appendTo(t, a, text("alone"))
	appendTo(t, a, text("1"), text("2"), text("3"))
	appendTo(t, b, text("1"), text("2"))
	s, err := p.JetStream().Stream(t.Context(), "WAKE_EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	for pos, want := range map[uint64]int{3: 2, 4: 4, 5: 2, 6: 5, 7: 4, 8: 5} {
		m, err := s.GetMsg(t.Context(), pos)
		if err != nil {
			t.Fatal(err)
		}
		for name := range m.Header {
			if !strings.HasPrefix(name, "Nats-Expected-") && !strings.HasPrefix(name, "Nats-Batch-") {
				m.Header.Del(name) // put there by a direct get
			}
		}
		if len(m.Header) != want {
			t.Errorf("position %d has headers %v, want %d", pos, m.Header, want)
		}
		if got := m.Header.Get("Nats-Expected-Last-Subject-Sequence-Subject"); want != 2 && got != subjects.Default.NodeEvents("r", map[bool]string{true: "a", false: "b"}[pos < 7]) {
			t.Errorf("position %d expects %q", pos, got)
		}
	}
}

// What a writer never sent can't become its events: neither garbage on its
// subject nor an event of another node.
func TestForeignMessages(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	w := p.claim("r", "n")
	appendTo(t, w, text("a"))
	foreign, err := wire.Encode(&wire.Event{RunID: "r", NodeID: "other", Seq: 3, Epoch: 1, Payload: &wire.AgentText{Content: "b"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range [][]byte{foreign, []byte("garbage")} {
		if _, err := p.JetStream().Publish(t.Context(), "wake.events.r.n.text", data); err != nil {
			t.Fatal(err)
		}
	}
	if _, err = w.Append(soon(t), text("c")); err != nil {
		t.Errorf("Append after a foreign publisher: %v", err)
	}
	var bad []eventlog.Entry
	for e, err := range p.Read(t.Context(), eventlog.Query{Run: "r"}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Err != nil {
			bad = append(bad, e)
		}
	}
	if len(bad) != 2 || bad[0].Event != nil || bad[0].NodeID != "n" || string(bad[1].Data) != "garbage" {
		t.Errorf("entries that aren't events: %+v", bad)
	}
	w, err = p.Claim(t.Context(), "r", "n", eventlog.Claim{Runner: "x"})
	if err != nil {
		t.Fatal(err)
	}
	e := text("d")
	appendTo(t, w, e)
	if e.Seq != 5 || e.Epoch != 2 {
		t.Errorf("after the claim: %d.%d, want 2.5", e.Epoch, e.Seq)
	}
	if err := p.DeadLetter(t.Context(), "recorder", "not an event", bad[1]); err != nil {
		t.Fatal(err)
	}
	letters := p.deadLetters(1)
	last := letters[len(letters)-1]
	if last.Service != "recorder" || last.Position != 4 || string(last.Data) != "garbage" {
		t.Errorf("dead letter: %+v", last)
	}
}

// What the stream of dead letters refuses is kept until it takes it.
func TestLettersRefused(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{Lanes: 1})
	letters := func(edit func(*jetstream.StreamConfig)) {
		s, err := p.JetStream().Stream(t.Context(), subjects.Default.DeadLetterStream())
		if err != nil {
			t.Fatal(err)
		}
		c := s.CachedInfo().Config
		edit(&c)
		if _, err := p.JetStream().UpdateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	var was jetstream.StreamConfig
	letters(func(c *jetstream.StreamConfig) { was, c.MaxMsgSize = *c, 64 })
	sent, err := p.Conn().SubscribeSync(subjects.Default.DeadLetter(eventlog.DeadService))
	if err != nil {
		t.Fatal(err)
	}
	w := p.claim("r", "n")
	p.claim("r", "n")
	const want = 3
	for i := range want {
		if err := w.Enqueue(t.Context(), text(fmt.Sprint(i))); err != nil && !errors.Is(err, eventlog.ErrFenced) {
			t.Fatal(err)
		}
	}
	wantErr(t, "Flush", w.Flush(soon(t)), eventlog.ErrFenced)
	for range want + 1 { // one of them again
		if _, err := sent.NextMsgWithContext(soon(t)); err != nil {
			t.Fatalf("they are gone: %v", err)
		}
	}
	letters(func(c *jetstream.StreamConfig) { *c = was })
	p.deadLetters(want)
}

// An event that the stream refuses for good ends its writer, not its lane.
func TestRefusedForGood(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{Lanes: 1})
	a, b := p.claim("r", "a"), p.claim("r", "b")
	p.withStream(func(c *jetstream.StreamConfig) { c.MaxMsgSize = 8 << 10 })
	big := strings.Repeat("x", 16<<10)
	for i := range 10 {
		for _, e := range []*wire.Event{text(fmt.Sprint(i)), text(big)}[:1+i/9] {
			if err := a.Enqueue(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Enqueue(t.Context(), text(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	wantErr(t, "Flush", a.Flush(soon(t)), eventlog.ErrFenced)
	if err := b.Flush(soon(t)); err != nil {
		t.Error(err)
	}
	if seq, _ := a.Last(); seq != 11 {
		t.Errorf("%d events of a are stored, want 11", seq)
	}
	p.deadLetters(1)
}

func TestAnchor(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	w := p.claim("r", "n")
	if _, err := w.Anchor(t.Context(), "x", ""); err != nil {
		t.Fatal(err)
	}
	appendTo(t, w, text("a"))
	equal(t, "the log", p.read(eventlog.Query{}),
		"r/n 1.1 node:claimed", "r/n 1.2 node:claimed", "r/n 1.3 agent:text a")
}

// A claim that a rival stored isn't taken for the writer's own, although its subject
// is the same and it stands where that would.
func TestAnchorOfZombie(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	zombie := p.claim("r", "n")
	p.claim("r", "n")
	_, err := zombie.Anchor(soon(t), "x", "")
	wantErr(t, "Anchor of a zombie", err, eventlog.ErrFenced)
	equal(t, "the log", p.read(eventlog.Query{}), "r/n 1.1 node:claimed", "r/n 2.2 node:claimed")
}

// A blob is stored before its event, once.
func TestBlobs(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{BlobLimit: 4 << 10})
	w := p.claim("r", "n")
	random := make([]byte, 2<<20) // more than the server's max_payload
	for i := range random {
		random[i] = 'a' + byte(rand.N(26))
	}
	big := string(random)
	for range 2 {
		appendTo(t, w, text(big))
	}
	var got []*wire.Event
	for e, err := range p.Read(t.Context(), eventlog.Query{Kinds: []wire.Kind{wire.KindText}}) {
		if err != nil || e.Event == nil {
			t.Fatal(err, e.Err)
		}
		if len(e.Data) > 4<<10 || len(e.Event.Blobs) != 1 {
			t.Errorf("the event has %d bytes and %d blobs", len(e.Data), len(e.Event.Blobs))
		}
		whole, err := p.Inline(t.Context(), e.Event)
		if err != nil {
			t.Fatal(err)
		}
		if whole.Payload.(*wire.AgentText).Content != big {
			t.Error("the content is another one")
		}
		got = append(got, e.Event)
	}
	s, err := p.JetStream().Stream(t.Context(), "OBJ_WAKE_BLOBS")
	if err != nil {
		t.Fatal(err)
	}
	chunks := uint64(2<<20/(128<<10)) + 1
	if state := s.CachedInfo().State; state.Msgs != chunks+1 || state.LastSeq != chunks+1 {
		t.Errorf("the object store was written %d times, want %d: one put", state.LastSeq, chunks+1)
	}
	got[0].Blobs[0].SHA256 = strings.Repeat("0", 64)
	_, err = p.Inline(t.Context(), got[0])
	wantErr(t, "Inline of a missing blob", err, eventlog.ErrBlobMissing)
	_, err = p.Blob(t.Context(), "nothing")
	wantErr(t, "a missing blob", err, eventlog.ErrBlobMissing)
}

// A blob with damaged or lost content counts as missing: its readers go on.
func TestDamagedBlobs(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{BlobLimit: 4 << 10})
	w := p.claim("r", "n")
	s, err := p.JetStream().Stream(t.Context(), "OBJ_WAKE_BLOBS")
	if err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func(chunks []uint64) error{
		"a part is lost": func(chunks []uint64) error { return s.DeleteMsg(t.Context(), chunks[1]) },
		"all of it is lost": func(chunks []uint64) error {
			for _, chunk := range chunks {
				if err := s.DeleteMsg(t.Context(), chunk); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		before := s.CachedInfo().State.LastSeq
		appendTo(t, w, text(strings.Repeat(name, 20<<10)))
		info, err := s.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var chunks []uint64
		for seq := before + 1; seq < info.State.LastSeq; seq++ { // the last is the description
			chunks = append(chunks, seq)
		}
		if err := damage(chunks); err != nil {
			t.Fatal(err)
		}
		sum := ""
		for e, err := range p.Read(t.Context(), eventlog.Query{Kinds: []wire.Kind{wire.KindText}}) {
			if err != nil || e.Event == nil {
				t.Fatal(err, e.Err)
			}
			sum = e.Event.Blobs[0].SHA256
		}
		_, err = p.Blob(t.Context(), sum)
		wantErr(t, name, err, eventlog.ErrBlobMissing)
	}
}

func TestOpenFails(t *testing.T) {
	t.Parallel()
	nc := natstest.Start(t)
	if _, err := eventlog.Open(t.Context(), nc, eventlog.Options{}); err == nil {
		t.Error("a log without a stream opens")
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "WAKE_EVENTS", Subjects: []string{"wake.events.>"}}); err != nil {
		t.Fatal(err)
	}
	_, err = eventlog.Open(t.Context(), nc, eventlog.Options{})
	wantErr(t, "a stream without incarnation", err, topology.ErrNoIncarnation)
}

// When Run ends, what is queued is stored, and writers are told.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	w := p.claim("r", "n")
	for i := range 100 {
		if err := w.Enqueue(t.Context(), text(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if got := len(p.read(eventlog.Query{})); got != 101 {
		t.Errorf("%d events are stored, want 101", got)
	}
	_, err := w.Append(t.Context(), text("late"))
	wantErr(t, "Append", err, eventlog.ErrClosed)
}

// ids of any content have subjects of their own.
func TestHostileIDs(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	long := strings.Repeat("x", 300)
	for _, run := range []string{"a.b", "a>", "*", "\x1b[2J", long, long + "y"} {
		w := p.claim(run, "n/0")
		appendTo(t, w, text("t"))
		equal(t, "the log", p.read(eventlog.Query{Run: run}), run+"/n/0 1.1 node:claimed", run+"/n/0 1.2 agent:text t")
	}
}
