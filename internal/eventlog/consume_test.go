package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
)

// service consumes the log and keeps its position, as services do.
type service struct {
	p    process
	c    eventlog.Consumer
	pos  uint64   // saved
	seen []uint64 // positions handed to it
	// before is called before entries are handled.
	before func(entries []eventlog.Entry) error
}

func newService(p process, durable string) *service {
	s := &service{p: p, c: eventlog.Consumer{Durable: durable, Batch: 10, Wait: 5 * time.Millisecond}}
	if durable != "recorder" {
		s.c.Kinds = folded
	}
	return s
}

// folded are the kinds of events that change a state.
var folded = []wire.Kind{wire.KindFlow, wire.KindAgent, wire.KindTool}

// until consumes until the position is reached.
func (s *service) until(t testing.TB, pos uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // of the bubble's clock, maybe
	defer cancel()
	if err := s.run(ctx, func() {
		if s.pos >= pos {
			cancel()
		}
	}); err != nil {
		t.Fatal(err)
	}
	if s.pos < pos {
		t.Fatalf("consumed up to %d, want %d", s.pos, pos)
	}
}

func (s *service) run(ctx context.Context, after func()) error {
	s.c.From = wire.Position{Incarnation: s.p.Incarnation(), Seq: s.pos}
	return s.p.Consume(ctx, s.c, func(_ context.Context, entries []eventlog.Entry) error {
		if len(entries) > max(s.c.Batch, s.c.Ahead) {
			return fmt.Errorf("%d entries at once", len(entries))
		}
		if s.before != nil {
			if err := s.before(entries); err != nil {
				return err
			}
		}
		for _, e := range entries {
			s.seen = append(s.seen, e.Pos)
			s.pos = e.Pos
		}
		after()
		return nil
	})
}

// once checks that every position up to last was seen once, in order.
func (s *service) once(t testing.TB, last uint64) {
	t.Helper()
	for i, pos := range s.seen {
		if pos != uint64(i)+1 {
			t.Fatalf("entry %d is at position %d", i, pos)
		}
	}
	if len(s.seen) != int(last) {
		t.Errorf("%d entries were seen, want %d", len(s.seen), last)
	}
}

func fill(t testing.TB, p process, n int) {
	t.Helper()
	w := p.claim("r", "n")
	enqueue(t, w, 0, n-1)
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// What comes while entries are handled is handled together after them.
func TestConsumeAhead(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := one(t, eventlog.Options{})
		fill(t, p, 200)
		s := newService(p, "recorder")
		s.c.Ahead = 60
		var sizes []int
		slow := func(entries []eventlog.Entry) error {
			sizes = append(sizes, len(entries))
			<-time.After(time.Second)
			return nil
		}
		broken := errors.New("broken")
		s.before = func(entries []eventlog.Entry) error {
			if len(sizes) == 2 {
				return broken
			}
			return slow(entries)
		}
		if err := s.run(t.Context(), func() {}); !errors.Is(err, broken) {
			t.Fatalf("got %v, want the error of handle", err)
		}
		if s.pos == 0 || s.pos != uint64(sizes[0]+sizes[1]) {
			t.Errorf("at %d after batches of %v", s.pos, sizes)
		}
		s.before = slow
		s.until(t, 200)
		s.once(t, 200)
		most := 0
		for _, n := range sizes {
			most = max(most, n)
		}
		if most <= s.c.Batch || len(sizes) > 9 {
			t.Errorf("batches of %v: nothing is gathered while one is handled", sizes)
		}
	})
}

// A few entries are waited for until Wait is over, many that came at once for a moment.
func TestConsumeAheadOfMany(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		for n, want := range map[int]time.Duration{3: 800 * time.Millisecond, 20: 100 * time.Millisecond} {
			p := one(t, eventlog.Options{})
			fill(t, p, n)
			s := newService(p, "recorder")
			s.c.Batch, s.c.Ahead, s.c.Wait = 320, 1000, 800*time.Millisecond
			began, took := time.Now(), time.Duration(0)
			s.before = func([]eventlog.Entry) error {
				took = time.Since(began)
				return nil
			}
			s.until(t, uint64(n))
			if took < want || took > want+50*time.Millisecond {
				t.Errorf("%d entries were handled after %v, want %v", n, took, want)
			}
		}
	})
}

// What came while entries were handled is handled then, though the server has said
// something since and nothing more comes.
func TestConsumeAheadOfSilence(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := one(t, eventlog.Options{})
		s := newService(p, "recorder")
		s.c.Ahead = 60
		w := p.claim("r", "n") // an event, too
		go func() {
			for i := range 3 {
				<-time.After(time.Second)
				enqueue(t, w, i, i+1)
			}
		}()
		s.before = func([]eventlog.Entry) error {
			<-time.After(30 * time.Second) // that is many heartbeats
			return nil
		}
		s.until(t, 4)
		if err := w.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A jump while entries are handled doesn't disturb those.
func TestConsumeAheadJumps(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	fill(t, p, 300)
	s := newService(p, "recorder")
	s.c.Ahead = 40
	n := 0
	s.before = func([]eventlog.Entry) error {
		if n++; n%3 == 0 {
			_, err := p.JetStream().ResetConsumerToSequence(t.Context(), "WAKE_EVENTS", "recorder", uint64(n))
			return err
		}
		return nil
	}
	s.until(t, 300)
	s.once(t, 300)
}

// steal lets another client of the durable consumer take and acknowledge n
// messages.
func steal(t testing.TB, p process, durable string, n int) {
	t.Helper()
	c, err := p.JetStream().Consumer(t.Context(), "WAKE_EVENTS", durable)
	if err != nil {
		t.Fatal(err)
	}
	batch, err := c.Fetch(n, jetstream.FetchContext(soon(t)))
	if err != nil {
		t.Fatal(err)
	}
	var last jetstream.Msg
	for m := range batch.Messages() {
		last = m
	}
	if last == nil {
		t.Fatal("nothing to steal")
	}
	if err := last.DoubleAck(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Rule 14: with AckAll the acknowledgement of one client covers what another has
// fetched and not handled. A service that trusted it would never see that.
func TestRule14OwnPosition(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	fill(t, p, 100)
	a := newService(p, "recorder")
	a.until(t, 10)
	steal(t, p, "recorder", 50) // another client acknowledges up to 60 at least

	c, err := p.JetStream().Consumer(t.Context(), "WAKE_EVENTS", "recorder")
	if err != nil {
		t.Fatal(err)
	}
	if floor := c.CachedInfo().AckFloor.Stream; floor <= a.pos {
		t.Errorf("the ack floor is %d: the test doesn't notice", floor)
	}
	a.until(t, 100)
	a.once(t, 100)
}

// Another client takes messages away while the service runs.
func TestConsumeJumps(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	fill(t, p, 300)
	a := newService(p, "recorder")
	n := 0
	a.before = func([]eventlog.Entry) error {
		if n++; n%5 == 0 && a.pos < 200 {
			steal(t, p, "recorder", 3)
		}
		return nil
	}
	a.until(t, 300)
	a.once(t, 300)
}

func TestConsumeHandlerFails(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	fill(t, p, 50)
	a := newService(p, "recorder")
	broken := errors.New("disk full")
	a.before = func(entries []eventlog.Entry) error {
		if entries[len(entries)-1].Pos > 30 {
			return broken
		}
		return nil
	}
	wantErr(t, "Consume", a.run(soon(t), func() {}), broken)
	if a.pos > 30 || a.pos < 20 {
		t.Errorf("saved up to %d", a.pos)
	}
	a.before = nil
	a.until(t, 50)
	a.once(t, 50)
}

func TestConsumeKinds(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	w := p.claim("r", "n")
	for i := range 20 {
		appendTo(t, w, text("x"), delta("y"), &wire.Event{Payload: &wire.TurnStart{}})
		_ = i
	}
	for _, test := range []struct {
		durable string
		kinds   []wire.Kind
		want    int
	}{
		{"recorder", nil, 61},
		{"recorder", []wire.Kind{wire.KindDelta}, 20},
		{"snapshotter", folded, 21},
		{"snapshotter", []wire.Kind{wire.KindFlow}, 1},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		got := 0
		c := eventlog.Consumer{Durable: test.durable, Kinds: test.kinds, Wait: time.Millisecond}
		err := p.Consume(ctx, c, func(_ context.Context, entries []eventlog.Entry) error {
			if got += len(entries); got >= test.want {
				cancel()
			}
			return nil
		})
		cancel()
		if err != nil || got != test.want {
			t.Errorf("%s %v: %d entries, want %d: %v", test.durable, test.kinds, got, test.want, err)
		}
	}
}

// A slow handler makes the server deliver again; it is not handed that.
func TestConsumeRedelivery(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Start(t)
		setUp(t, nc, topology.Config{})
		p := start(t, nc, eventlog.Options{})
		fill(t, p, 100)
		a := newService(p, "recorder")
		a.before = func([]eventlog.Entry) error {
			<-time.After(90 * time.Second / 2) // the server waits a minute for an acknowledgement
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := a.run(ctx, func() {
			if a.pos == 100 {
				cancel()
			}
		}); err != nil {
			t.Fatal(err)
		}
		a.once(t, 100)
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A client listens to everything, inboxes included, as people do who look for a
// fault. To the server, the requests of a reader that has gone are wanted then, and
// it gives them what there is.
func TestConsumeBesideAListener(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Start(t)
		setUp(t, nc, topology.Config{})
		if _, err := nc.Subscribe(">", func(*nats.Msg) {}); err != nil {
			t.Fatal(err)
		}
		p := start(t, nc, eventlog.Options{})
		fill(t, p, 50)
		s := newService(p, "recorder")
		s.c.Batch = 500 // a request is for more than there is
		s.until(t, 50)  // and leaves its request behind
		fill(t, p, 50)
		began := time.Now()
		s.until(t, 100)
		s.once(t, 100)
		if took := time.Since(began); took > time.Minute {
			t.Errorf("it took %s", took)
		}
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestConsumeAcrossRestart(t *testing.T) {
	t.Parallel()
	a := newAway(t, eventlog.Options{})
	fill(t, a.process, 200)
	s := newService(a.process, "recorder")
	n := 0
	s.before = func([]eventlog.Entry) error {
		if n++; n%7 == 0 {
			a.server.Stop()
			a.server.Start(t)
		}
		return nil
	}
	s.until(t, 200)
	s.once(t, 200)
}

// recreate replaces the stream of events, as a restore does.
func recreate(t testing.TB, nc *nats.Conn, events int) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), "WAKE_EVENTS"); err != nil {
		t.Fatal(err)
	}
	setUp(t, nc, topology.Config{})
	if events > 0 {
		fill(t, start(t, nc, eventlog.Options{}), events)
	}
}

// Rule 15: a position is of one incarnation of the stream.
func TestRule15Incarnation(t *testing.T) {
	t.Parallel()
	for _, events := range []int{0, 5, 50} { // the new stream is shorter or longer
		nc := natstest.Start(t)
		setUp(t, nc, topology.Config{})
		p := start(t, nc, eventlog.Options{})
		w := p.claim("r", "n")
		enqueue(t, w, 0, 9)
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := newService(p, "recorder")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		followed := make(chan error, 1)
		follow := func() error {
			for e, err := range p.Follow(ctx, eventlog.Query{}) {
				if err != nil || e.Pos == 10 {
					return err
				}
			}
			return ctx.Err()
		}
		if err := follow(); err != nil {
			t.Fatal(err)
		}
		err := s.run(ctx, func() {
			if s.pos == 10 {
				recreate(t, nc, events)
				go func() {
					followed <- func() error {
						for _, err := range p.Follow(ctx, eventlog.Query{From: 11}) {
							return err
						}
						return ctx.Err()
					}()
				}()
			}
		})
		wantErr(t, "Consume", err, eventlog.ErrIncarnation)
		wantErr(t, "Follow", <-followed, eventlog.ErrIncarnation)
		_, err = w.Append(soon(t), text("x"))
		wantErr(t, "Append", err, eventlog.ErrFenced)
		if events < 10 {
			wantErr(t, "Append", err, eventlog.ErrIncarnation)
		}

		for _, err := range p.Read(soon(t), eventlog.Query{Run: "r"}) {
			wantErr(t, "Read", err, eventlog.ErrIncarnation)
		}

		again := start(t, nc, eventlog.Options{})
		if again.Incarnation() == p.Incarnation() {
			t.Error("the incarnation is the same")
		}
		err = again.Consume(ctx, eventlog.Consumer{Durable: "recorder", From: wire.Position{Incarnation: p.Incarnation(), Seq: 3}}, nil)
		wantErr(t, "Consume with a position of another incarnation", err, eventlog.ErrIncarnation)
	}
}

// A position that stays beyond the end is told of (RULES 15).
func TestConsumeBeyondTheEnd(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Start(t)
		setUp(t, nc, topology.Config{})
		p := start(t, nc, eventlog.Options{})
		fill(t, p, 5)
		s := newService(p, "recorder")
		s.pos = 6
		wantErr(t, "Consume", s.run(t.Context(), nil), eventlog.ErrBeyond)
		for _, err := range p.Follow(t.Context(), eventlog.Query{From: 7}) {
			wantErr(t, "Follow", err, eventlog.ErrBeyond)
		}
		err := p.Consume(t.Context(), eventlog.Consumer{Durable: "nobody"}, nil)
		wantErr(t, "Consume", err, jetstream.ErrConsumerNotFound)
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A leader that is behind for a while ends no reader.
func TestConsumeWaitsForTheEnd(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Start(t)
		setUp(t, nc, topology.Config{})
		p := start(t, nc, eventlog.Options{})
		w := p.claim("r", "n")
		s := newService(p, "recorder")
		s.pos = 2
		go func() {
			<-time.After(20 * time.Second)
			enqueue(t, w, 0, 2)
		}()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if err := s.run(ctx, func() { cancel() }); err != nil {
			t.Errorf("Consume: %v", err)
		}
		if s.pos != 3 {
			t.Errorf("it is at %d", s.pos)
		}
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A durable consumer that a client deletes, or makes another of, is made again, and what
// it selects doesn't decide what the service is given.
func TestConsumeRepairs(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, js jetstream.JetStream){
		"deleted": func(*testing.T, jetstream.JetStream) {},
		"overwritten": func(t *testing.T, js jetstream.JetStream) {
			t.Helper()
			if _, err := js.CreateConsumer(t.Context(), "WAKE_EVENTS", jetstream.ConsumerConfig{
				Durable: "recorder", AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: "wake.events.other.>",
			}); err != nil {
				t.Error(err)
			}
		},
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, while it reads: %t", name, late), func(t *testing.T) {
				natstest.Bubble(t, func(t *testing.T) {
					nc := natstest.Start(t)
					setUp(t, nc, topology.Config{})
					p := start(t, nc, eventlog.Options{})
					js := p.JetStream()
					strike := func() {
						if err := js.DeleteConsumer(t.Context(), "WAKE_EVENTS", "recorder"); err != nil {
							t.Error(err)
						}
						harm(t, js)
					}
					if !late {
						strike()
					}
					w := p.claim("r", "n")
					s := newService(p, "recorder")
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					defer cancel()
					struck := false
					go func() {
						for i := range 10 {
							<-time.After(time.Second)
							enqueue(t, w, i, i+1)
						}
					}()
					if err := s.run(ctx, func() {
						if late && !struck {
							struck = true
							strike()
						}
					}); err != nil {
						t.Errorf("Consume: %v", err)
					}
					if s.pos != 11 {
						t.Errorf("it is at %d", s.pos)
					}
					if done, err := topology.Repair(t.Context(), js, p.Names(), "recorder"); err != nil || done != topology.Unchanged {
						t.Errorf("the consumer isn't as it was: %s, %v", done, err)
					}
					if err := p.stop(); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// Events that aged out leave a hole that no reset fills.
func TestConsumeAfterAgeing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Start(t)
		setUp(t, nc, topology.Config{MaxAge: time.Hour})
		p := start(t, nc, eventlog.Options{})
		fill(t, p, 5)
		<-time.After(61 * time.Minute)
		fill(t, p, 5)
		s := newService(p, "recorder")
		s.pos = 2
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := s.run(ctx, func() {
			if s.pos == 10 {
				cancel()
			}
		}); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(s.seen) != "[6 7 8 9 10]" {
			t.Errorf("seen: %v", s.seen)
		}
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestFollowAcrossRestart(t *testing.T) {
	t.Parallel()
	a := newAway(t, eventlog.Options{})
	w := a.claim("r", "n")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	next := uint64(1)
	for e, err := range a.Follow(ctx, eventlog.Query{Run: "r", Kinds: []wire.Kind{wire.KindFlow, wire.KindText}}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Pos != next {
			t.Fatalf("position %d, want %d", e.Pos, next)
		}
		if next++; next%10 == 0 {
			a.server.Stop()
			a.server.Start(t)
		}
		if next > 60 {
			break
		}
		if err := w.Enqueue(t.Context(), text("x")); err != nil {
			t.Fatal(err)
		}
	}
	if next != 61 {
		t.Errorf("followed up to %d", next-1)
	}
}

// Two processes of one service begin at the same time, each where it is. The
// durable consumer isn't served before both have begun, and the second one has
// ended: the first one must not be given what was left for the second one. No
// position tells, since other kinds lie between.
func TestConsumeByTwo(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Start(t)
		setUp(t, nc, topology.Config{})
		p := start(t, nc, eventlog.Options{})
		w := p.claim("r", "n")
		for range 20 {
			appendTo(t, w, text("x"), &wire.Event{Payload: &wire.TurnStart{}})
		}
		if _, err := p.JetStream().PauseConsumer(t.Context(), "WAKE_EVENTS", "snapshotter", time.Now().Add(3*time.Second)); err != nil {
			t.Fatal(err)
		}
		a, b := newService(p, "snapshotter"), newService(p, "snapshotter")
		b.pos = 39 // one event is left
		var both sync.WaitGroup
		for _, s := range []struct {
			*service
			lives time.Duration
		}{{a, 30 * time.Second}, {b, time.Second}} {
			both.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), s.lives)
				defer cancel()
				if err := s.run(ctx, func() {}); err != nil {
					t.Error(err)
				}
			})
			<-time.After(time.Second)
		}
		both.Wait()
		for _, s := range []struct {
			*service
			first uint64
		}{{a, 1}, {b, 41}} {
			var want []uint64
			for pos := s.first; pos <= 41; pos += 2 {
				want = append(want, pos)
			}
			if !slices.Equal(s.seen, want) {
				t.Errorf("the one that begins at %d saw %v, want %v", s.first, s.seen, want)
			}
		}
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
}

// The reader of a process is gone: it had stalled, or its server was lost.
func TestConsumeReaderVanishes(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	fill(t, p, 200)
	s := newService(p, "recorder")
	n := 0
	s.before = func([]eventlog.Entry) error {
		if n++; n%7 == 0 {
			removeReaders(t, p, "recorder")
		}
		return nil
	}
	s.until(t, 200)
	s.once(t, 200)
}

func removeReaders(t testing.TB, p process, durable string) {
	t.Helper()
	stream, err := p.JetStream().Stream(t.Context(), "WAKE_EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	names := stream.ConsumerNames(t.Context())
	for name := range names.Name() {
		if !eventlog.IsReader(name, durable) {
			continue
		}
		found = true
		if err := stream.DeleteConsumer(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	if names.Err() != nil || !found {
		t.Errorf("readers were found: %t, %v", found, names.Err())
	}
}

// The durable consumer shows where the service is, also after a client took it
// elsewhere and nothing has come since.
func TestConsumeShows(t *testing.T) {
	for _, ahead := range []int{0, 20} {
		t.Run(fmt.Sprint(ahead, " ahead"), func(t *testing.T) { consumeShows(t, ahead) })
	}
}

func consumeShows(t *testing.T, ahead int) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Start(t)
		setUp(t, nc, topology.Config{})
		p := start(t, nc, eventlog.Options{})
		fill(t, p, 50)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		s := newService(p, "recorder")
		s.c.Ahead = ahead
		disturb := sync.OnceFunc(func() {
			if _, err := p.JetStream().ResetConsumerToSequence(ctx, "WAKE_EVENTS", "recorder", 7); err != nil {
				t.Error(err)
			}
		})
		ended := make(chan error, 1)
		go func() {
			ended <- s.run(ctx, func() {
				if s.pos > 40 {
					disturb()
				}
			})
		}()
		<-time.After(20 * time.Second)
		c, err := p.JetStream().Consumer(ctx, "WAKE_EVENTS", "recorder")
		if err != nil {
			t.Fatal(err)
		}
		if i := c.CachedInfo(); i.AckFloor.Stream != 50 || i.NumPending != 0 || i.NumAckPending != 0 {
			t.Errorf("shown are position %d, %d behind, %d under way, want 50, none, none", i.AckFloor.Stream, i.NumPending, i.NumAckPending)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
}
