package transcript_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/transcript"
	"code.wake.dev/wake/pkg/subjects"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// bucket makes the object store as wake init does, as far as it matters here.
func bucket(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	name := subjects.Default.SessionsBucket()
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "OBJ_" + name, Subjects: []string{"$O." + name + ".C.>", "$O." + name + ".M.>"},
		Discard: jetstream.DiscardNew, AllowRollup: true, AllowDirect: true,
	})
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, js jetstream.JetStream) *transcript.Store {
	t.Helper()
	s, err := transcript.Open(context.WithoutCancel(t.Context()), js, subjects.Default, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func save(t *testing.T, s *transcript.Store, id string, offset int64, data string) {
	t.Helper()
	if err := s.Save(t.Context(), id, offset, []byte(data)); err != nil {
		t.Fatalf("save %d %q: %v", offset, data, err)
	}
}

func load(t *testing.T, s *transcript.Store, id string) string {
	t.Helper()
	b, err := s.Load(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestGrows(t *testing.T) {
	js := natstest.JetStream(t)
	bucket(t, js)
	s := open(t, js)
	if got := load(t, s, "s1"); got != "" {
		t.Errorf("nothing is kept, and %q is loaded", got)
	}
	save(t, s, "s1", 0, "one\n")
	save(t, s, "s1", 4, "two\nthr")
	save(t, s, "s1", 11, "") // nothing has grown
	if got := load(t, open(t, js), "s1"); got != "one\ntwo\n" {
		t.Errorf("kept %q", got)
	}
	save(t, s, "s1", 11, "ee\n")
	save(t, s, "s1", 4, "2\n") // the file was cut
	if got := load(t, open(t, js), "s1"); got != "one\n2\n" {
		t.Errorf("kept %q", got)
	}
	for _, offset := range []int64{-1, 7} {
		if err := s.Save(t.Context(), "s1", offset, []byte("x")); !errors.Is(err, transcript.ErrGap) {
			t.Errorf("offset %d: %v", offset, err)
		}
	}
	if err := s.Save(t.Context(), "s2", 3, []byte("x")); !errors.Is(err, transcript.ErrGap) {
		t.Errorf("a session that hasn't begun: %v", err)
	}
	// Any client can read it.
	objects, err := js.ObjectStore(t.Context(), subjects.Default.SessionsBucket())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := objects.GetString(t.Context(), "s1"); err != nil || got != "one\n2\n" {
		t.Errorf("the object is %q, %v", got, err)
	}
}

// A writer that was away while another took the session over changes nothing,
// whatever it tries.
func TestZombie(t *testing.T) {
	js := natstest.JetStream(t)
	bucket(t, js)
	zombie, heir := open(t, js), open(t, js)
	save(t, zombie, "s1", 0, "one\n")
	if got := load(t, heir, "s1"); got != "one\n" {
		t.Fatalf("loaded %q", got)
	}
	save(t, zombie, "s1", 4, "late\n") // between the heir's Load and its first Save
	save(t, heir, "s1", 0, "one\n")
	save(t, heir, "s1", 4, "two\n")
	for _, offset := range []int64{0, 4, 8, 9} {
		if err := zombie.Save(t.Context(), "s1", offset, []byte("zombie\n")); !errors.Is(err, transcript.ErrTaken) {
			t.Errorf("the zombie's save at %d: %v", offset, err)
		}
	}
	stranger := open(t, js) // has never seen it
	if err := stranger.Save(t.Context(), "s1", 0, []byte("stranger\n")); !errors.Is(err, transcript.ErrTaken) {
		t.Errorf("a writer that hasn't loaded the session: %v", err)
	}
	save(t, heir, "s1", 8, "three\n")
	if got := load(t, open(t, js), "s1"); got != "one\ntwo\nthree\n" {
		t.Errorf("kept %q", got)
	}
}

// Loading a session that is being written, for a fork of it, doesn't disturb its writer.
func TestLoadOfLiveSession(t *testing.T) {
	js := natstest.JetStream(t)
	bucket(t, js)
	s, other := open(t, js), open(t, js)
	save(t, s, "s1", 0, "one\n")
	load(t, s, "s1")
	load(t, other, "s1")
	save(t, s, "s1", 4, "two\n")
	if got := load(t, other, "s1"); got != "one\ntwo\n" {
		t.Errorf("kept %q", got)
	}
}

// What is kept takes the room of its content, and few messages, however slowly
// it grew.
func TestCompacts(t *testing.T) {
	js := natstest.JetStream(t)
	bucket(t, js)
	s := open(t, js)
	var want strings.Builder
	const saves = 1500
	for i := range saves {
		line := fmt.Sprintf("line %d\n", i)
		save(t, s, "s1", int64(want.Len()), line)
		want.WriteString(line)
	}
	if got := load(t, open(t, js), "s1"); got != want.String() {
		t.Fatalf("kept %d bytes, want %d", len(got), want.Len())
	}
	stream, err := js.Stream(t.Context(), "OBJ_"+subjects.Default.SessionsBucket())
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n > saves/2 {
		t.Errorf("%d messages", n)
	}
}

func TestLarge(t *testing.T) {
	js := natstest.JetStream(t)
	bucket(t, js)
	s := open(t, js)
	want := bytes.Repeat([]byte("0123456789abcde\n"), 200_000) // 3.2 MB
	save(t, s, "s1", 0, string(want[:1_600_000]))
	save(t, s, "s1", 1_600_000, string(want[1_600_000:]))
	if got := load(t, open(t, js), "s1"); got != string(want) {
		t.Errorf("kept %d bytes, want %d", len(got), len(want))
	}
}

func TestHostileNames(t *testing.T) {
	js := natstest.JetStream(t)
	bucket(t, js)
	s := open(t, js)
	for _, id := range []string{"../../etc/passwd", "a.b.>", "*", "\x00\n", strings.Repeat("x", 300)} {
		save(t, s, id, 0, id+"\n")
		if got := load(t, s, id); !strings.HasPrefix(got, id[:1]) {
			t.Errorf("%q is kept as %q", id, got)
		}
	}
	if got := load(t, s, "b"); got != "" {
		t.Errorf("b is %q", got)
	}
}

func TestNoBucket(t *testing.T) {
	if _, err := transcript.Open(t.Context(), natstest.JetStream(t), subjects.Default, nil); err == nil {
		t.Error("opened without an object store")
	}
}

// faulty dies, or loses an acknowledgement, at a publish.
type faulty struct {
	jetstream.JetStream
	die  context.CancelFunc
	mu   sync.Mutex
	left int  // publishes until then; negative: never
	sent bool // the publish at which it happens is stored
	lose bool // only the acknowledgement is lost; it goes on
}

func (f *faulty) PublishMsg(ctx context.Context, m *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.left == 0
	f.left--
	if now && !f.sent {
		f.fail()
		return nil, os.ErrDeadlineExceeded
	}
	ack, err := f.JetStream.PublishMsg(ctx, m, opts...)
	if now {
		f.fail()
		return nil, os.ErrDeadlineExceeded
	}
	return ack, err
}

func (f *faulty) fail() {
	if !f.lose {
		f.die()
	}
}

// process is a writer with a store of its own that may be made to fail.
type process struct {
	store *transcript.Store
	fault *faulty
	alive func() context.Context
}

func begin(t *rapid.T, js jetstream.JetStream) *process {
	ctx, cancel := context.WithCancel(t.Context())
	f := &faulty{JetStream: js, die: cancel, left: -1}
	s, err := transcript.Open(ctx, f, subjects.Default, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &process{store: s, fault: f, alive: func() context.Context { return ctx }}
}

func (p *process) load(t *rapid.T, id string) []byte {
	b, err := p.store.Load(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// mishap draws what goes wrong in the next save, if anything.
func (p *process) mishap(t *rapid.T) {
	p.fault.left = rapid.IntRange(-6, 2).Draw(t, "fails at")
	p.fault.sent = rapid.Bool().Draw(t, "stored")
	p.fault.lose = rapid.Bool().Draw(t, "lives")
}

func (p *process) save(id string, offset int, data []byte) error {
	return p.store.Save(p.alive(), id, int64(offset), data)
}

// change draws a save: mostly of what has grown.
func change(t *rapid.T, have []byte) (offset int, data, after []byte) {
	offset = len(have)
	if rapid.IntRange(0, 4).Draw(t, "cut") == 0 {
		offset = rapid.IntRange(0, len(have)).Draw(t, "offset")
	}
	data = []byte(rapid.StringMatching(`([a-c]{0,3}\n?){0,4}`).Draw(t, "data"))
	return offset, data, append(bytes.Clone(have[:offset]), data...)
}

func whole(b []byte) string { return string(b[:bytes.LastIndexByte(b, '\n')+1]) }

// Whatever is lost or dies between any two calls: what is kept is what was saved, or
// what was there before, never anything between.
func TestFaults(t *testing.T) {
	js := natstest.JetStream(t)
	bucket(t, js)
	session := 0
	rapid.Check(t, func(t *rapid.T) {
		session++
		id := fmt.Sprint("s", session)
		p := begin(t, js)
		var want []byte
		for range rapid.IntRange(1, 12).Draw(t, "saves") {
			offset, data, after := change(t, want)
			if want == nil {
				offset, after = 0, data
			}
			p.mishap(t)
			err := p.save(id, offset, data)
			kept := string(begin(t, js).load(t, id))
			switch {
			case err == nil:
				want = after
				if kept != whole(want) {
					t.Fatalf("%q is kept, want %q", kept, whole(want))
				}
				continue
			case kept != whole(want) && kept != whole(after):
				t.Fatalf("%q is kept: neither %q nor %q", kept, whole(want), whole(after))
			}
			if p.alive().Err() == nil { // it tries again
				p.fault.left = -1
				if err := p.save(id, offset, data); err != nil {
					t.Fatalf("tried again: %v", err)
				}
				want = after
				continue
			}
			p = begin(t, js)
			want = bytes.Clone(p.load(t, id))
			if err := p.save(id, 0, want); err != nil {
				t.Fatalf("the next writer: %v", err)
			}
		}
		if kept := string(begin(t, js).load(t, id)); kept != whole(want) {
			t.Fatalf("%q is kept, want %q", kept, whole(want))
		}
	})
}

// Of several writers only the last one that took the session over changes it;
// the others are refused or fail.
func TestTakeovers(t *testing.T) {
	js := natstest.JetStream(t)
	bucket(t, js)
	session := 0
	rapid.Check(t, func(t *rapid.T) {
		session++
		id := fmt.Sprint("t", session)
		owner := begin(t, js)
		want := []byte("begun\n")
		if err := owner.save(id, 0, want); err != nil {
			t.Fatal(err)
		}
		var zombies []*process
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0: // another writer takes over
				heir := begin(t, js)
				if got := string(heir.load(t, id)); got != whole(want) {
					t.Fatalf("loaded %q, want %q", got, whole(want))
				}
				want = []byte(whole(want))
				if err := heir.save(id, 0, want); err != nil {
					t.Fatal(err)
				}
				zombies, owner = append(zombies, owner), heir
			case 1, 2: // a former one wakes up, and may die of it
				if len(zombies) == 0 {
					continue
				}
				z := rapid.SampledFrom(zombies).Draw(t, "zombie")
				offset, data, _ := change(t, want)
				z.mishap(t)
				if z.save(id, offset, data) == nil && len(data) > 0 {
					t.Fatalf("a zombie saved %q at %d", data, offset)
				}
			default:
				offset, data, after := change(t, want)
				if err := owner.save(id, offset, data); err != nil {
					t.Fatal(err)
				}
				want = after
			}
			if kept := string(begin(t, js).load(t, id)); kept != whole(want) {
				t.Fatalf("%q is kept, want %q", kept, whole(want))
			}
		}
	})
}

// A session whose agent waits while others are busy is not forgotten for the sake of
// new ones.
func TestBusyOthers(t *testing.T) {
	js := natstest.JetStream(t)
	bucket(t, js)
	s := open(t, js)
	for i := range 4094 {
		load(t, s, fmt.Sprintf("past-%d", i))
	}
	save(t, s, "waits", 0, "one\n")
	for range 3000 {
		load(t, s, "busy")
	}
	save(t, s, "new", 0, "one\n")
	save(t, s, "waits", 4, "two\n")
	if got := load(t, s, "waits"); got != "one\ntwo\n" {
		t.Errorf("%q is kept", got)
	}
}

// A server that is away for a while is waited for, one that stays away isn't for ever.
func TestLoadWaitsForTheServer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		server := natstest.New(t)
		js := server.JetStream(t)
		bucket(t, js)
		s := open(t, js)
		save(t, s, "s1", 0, "one\n")
		for away, back := range map[time.Duration]bool{5 * time.Second: true, time.Hour: false} {
			server.Stop()
			begun, restart := time.Now(), time.After(away)
			started := make(chan struct{})
			go func() {
				defer close(started)
				<-restart
				server.Start(t)
			}()
			b, err := s.Load(t.Context(), "s1")
			if got := string(b); (err == nil && got == "one\n") != back {
				t.Errorf("away for %s: %q, %v", away, got, err)
			}
			if took := time.Since(begun); took > time.Minute {
				t.Errorf("away for %s: it took %s", away, took)
			}
			<-started
		}
	})
}

// What was removed is gone, chunks and all, and its name begins anew; others stay.
func TestRemove(t *testing.T) {
	js := natstest.JetStream(t)
	bucket(t, js)
	s := open(t, js)
	save(t, s, "s1", 0, "one\n")
	save(t, s, "s1", 4, "two\n")
	save(t, s, "s2", 0, "stays\n")
	for range 2 {
		if err := s.Remove(t.Context(), "s1"); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := js.Stream(t.Context(), "OBJ_"+subjects.Default.SessionsBucket())
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 2 {
		t.Errorf("%d messages are left, want a head and a chunk", n)
	}
	if got := load(t, s, "s1"); got != "" {
		t.Errorf("it still has %q", got)
	}
	save(t, s, "s1", 0, "again\n")
	if got := load(t, open(t, js), "s1") + load(t, s, "s2"); got != "again\nstays\n" {
		t.Errorf("kept %q", got)
	}
}
