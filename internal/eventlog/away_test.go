package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
)

// away is a process and its server, which can go away.
type away struct {
	process
	server *natstest.Server
	nc     *nats.Conn
}

func newAway(t testing.TB, o eventlog.Options, edits ...func(*server.Options)) away {
	t.Helper()
	s := natstest.New(t, edits...)
	nc := s.Conn(t, nats.ReconnectBufSize(-1))
	setUp(t, nc, topology.Config{})
	return away{process: start(t, nc, o), server: s, nc: nc}
}

// another is a process beside or after this one.
func (a away) another(o eventlog.Options) process {
	a.t.Helper()
	return start(a.t, a.server.Conn(a.t, nats.ReconnectBufSize(-1)), o)
}

// image copies a spool as a crash at this moment would leave it.
func image(t testing.TB, dir string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

func segments(t testing.TB, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*", "*", "*.seg"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

// spooled waits until n segments are in the spool.
func spooled(t testing.TB, dir string, n int) []string {
	t.Helper()
	for {
		if all := segments(t, dir); len(all) >= n {
			return all
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("nothing is spooled")
		}
	}
}

func enqueue(t testing.TB, w *eventlog.Writer, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if err := w.Enqueue(t.Context(), text(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
}

// texts checks that a node holds a claim and then the texts from 0 to n.
func (p process) texts(run, node string, n int) {
	p.t.Helper()
	got := p.read(eventlog.Query{Run: run, Node: node, Kinds: []wire.Kind{wire.KindText}})
	if len(got) != n {
		p.t.Errorf("%d texts of %s/%s are stored, want %d", len(got), run, node, n)
	}
	for i, l := range got {
		if !strings.HasSuffix(l, fmt.Sprintf("agent:text %d", i)) {
			p.t.Fatalf("text %d of %s/%s is %s", i, run, node, l)
		}
	}
}

// A dead letter waits on disk while the server is away, also for a process that goes on with it. Of one that no message could hold,
// the beginning is kept.
func TestDeadLetterWaits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := newAway(t, eventlog.Options{SpoolDir: dir})
	w := a.claim("r", "n")
	a.server.Stop()
	enqueue(t, w, 0, 1)
	ended, cancel := context.WithCancel(t.Context())
	cancel() // the node of the event is over
	long := strings.Repeat("x", 8<<20)
	for _, data := range []string{"bad", long} {
		if err := a.QueueDeadLetter(ended, "runner", "why", eventlog.Entry{Subject: "wake.events.r.n.text", Data: []byte(data)}); err != nil {
			t.Fatal(err)
		}
	}
	spooled(t, dir, 1)
	left := image(t, dir)
	a.server.Start(t)
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"the process", "the next one"} {
		letters := a.deadLetters(2) // the next one's are the same
		if l := letters[0]; l.Service != "runner" || l.Reason != "why" || string(l.Data) != "bad" || l.Subject != "wake.events.r.n.text" {
			t.Errorf("%s stored %+v", from, l)
		}
		if got := string(letters[1].Data); len(got) < 100<<10 || !strings.HasPrefix(long, got) {
			t.Errorf("%s stored %d bytes of a long one", from, len(got))
		}
		if from == "the process" {
			next := a.another(eventlog.Options{SpoolDir: left})
			if err := next.stop(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A dead letter that the disk refuses waits until the disk takes it, whatever else the process does.
func TestDeadLetterWaitsForTheDisk(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "spool")
	a := newAway(t, eventlog.Options{SpoolDir: dir})
	w := a.claim("r", "n")
	a.server.Stop()
	if err := errors.Join(os.Rename(dir, dir+".away"), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	queued := make(chan error, 1)
	go func() {
		queued <- a.QueueDeadLetter(t.Context(), "runner", "why", eventlog.Entry{Subject: "wake.events.r.n.text", Data: []byte("bad")})
	}()
	select {
	case err := <-queued:
		t.Fatalf("a disk that refuses everything has it: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-queued:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it waits although the disk takes it")
	}
	a.server.Start(t)
	enqueue(t, w, 0, 1)
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l := a.deadLetters(1)[0]; string(l.Data) != "bad" {
		t.Errorf("%+v was stored", l)
	}
}

// While the server is away, events wait on disk; little is kept in memory.
func TestServerAway(t *testing.T) {
	t.Parallel()
	dir, n := t.TempDir(), 30_000
	if testing.Short() {
		n = 5000
	}
	a := newAway(t, eventlog.Options{SpoolDir: dir, MemLimit: 64 << 10, Lanes: 2})
	w, other := a.claim("r", "n"), a.claim("r2", "n")
	enqueue(t, w, 0, 10)
	a.server.Stop()
	enqueue(t, w, 10, n)
	enqueue(t, other, 0, 100)
	spooled(t, dir, 1)
	for ctx := soon(t); a.Health() == nil; {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("all is well while the server is away")
		}
	}
	a.server.Start(t)
	for _, w := range []*eventlog.Writer{w, other} {
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	a.texts("r", "n", n)
	a.texts("r2", "n", 100)
	if err := a.Health(); err != nil {
		t.Errorf("Health: %v", err)
	}
	if left := segments(t, dir); len(left) > 0 {
		t.Errorf("the spool still has %v", left)
	}
	appendTo(t, w, text(strconv.Itoa(n)))
	a.texts("r", "n", n+1)
}

// Bounds waits for a server that is away, as reading does: what begins with it would fail an agent else.
func TestBoundsServerAway(t *testing.T) {
	t.Parallel()
	a := newAway(t, eventlog.Options{})
	appendTo(t, a.claim("r", "n"), text("a"))
	a.server.Stop()
	done := make(chan error, 1)
	go func() {
		_, last, err := a.Bounds(t.Context())
		if err == nil && last != 2 {
			err = fmt.Errorf("the last position is %d", last)
		}
		done <- err
	}()
	select {
	case err := <-done:
		t.Errorf("Bounds while the server is away: %v", err)
	case <-time.After(300 * time.Millisecond):
		a.server.Start(t)
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// Without a spool Enqueue waits when memory is full, and nothing is lost.
func TestServerAwayWithoutSpool(t *testing.T) {
	t.Parallel()
	a := newAway(t, eventlog.Options{MemLimit: 64 << 10, Lanes: 1})
	w := a.claim("r", "n")
	a.server.Stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		enqueue(t, w, 0, 1000)
	}()
	select {
	case <-done:
		t.Fatal("1000 events fit into 64 KiB")
	case <-time.After(300 * time.Millisecond):
	}
	a.server.Start(t)
	<-done
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.texts("r", "n", 1000)
}

// crash is a process that died while the server was away, with 1000 texts in
// its spool of which the first are also in the log.
func crash(t *testing.T, inLog int, then func(a away, image string)) {
	t.Helper()
	dir := t.TempDir()
	a := newAway(t, eventlog.Options{SpoolDir: dir, MemLimit: 16 << 10, Lanes: 2, BlobLimit: 4 << 10})
	w := a.claim("r", "n")
	enqueue(t, w, 0, inLog)
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.server.Stop()
	enqueue(t, w, inLog, 1000)
	spooled(t, dir, 1)
	found := image(t, dir)
	a.nc.Close()
	wantErr(t, "Run of a process without a connection", a.stop(), nats.ErrConnectionClosed)
	a.server.Start(t)
	then(a, found)
}

func TestCrash(t *testing.T) {
	t.Parallel()
	for _, inLog := range []int{0, 1, 300} {
		crash(t, inLog, func(a away, found string) {
			p := a.another(eventlog.Options{SpoolDir: found})
			w := p.claim("r", "n")
			if w.Epoch() != 2 {
				t.Errorf("epoch %d, want 2", w.Epoch())
			}
			p.texts("r", "n", 1000)
			if seq, pos := w.Last(); seq != 1002 || pos != 1002 {
				t.Errorf("the claim is %d at %d, want 1002 at 1002", seq, pos)
			}
			if left := segments(t, found); len(left) > 0 {
				t.Errorf("the spool still has %v", left)
			}
			p.deadLetters(0)
		})
	}
}

// A process dies again and again while it drains.
func TestCrashWhileDraining(t *testing.T) {
	t.Parallel()
	crash(t, 10, func(a away, found string) {
		for range 3 {
			// It stores everything, and dies before it notes that.
			twin := image(t, found)
			p := a.another(eventlog.Options{SpoolDir: twin})
			p.claim("other", "n")
			if err := p.stop(); err != nil {
				t.Fatal(err)
			}
		}
		p := a.another(eventlog.Options{SpoolDir: found})
		p.claim("r", "n")
		p.texts("r", "n", 1000)
		p.deadLetters(0)
	})
}

func TestCrashWithTornFrame(t *testing.T) {
	t.Parallel()
	crash(t, 10, func(a away, found string) {
		all := segments(t, found)
		last := all[len(all)-1]
		info, err := os.Stat(last)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(last, info.Size()-7); err != nil {
			t.Fatal(err)
		}
		p := a.another(eventlog.Options{SpoolDir: found})
		p.claim("r", "n")
		p.texts("r", "n", 999)
		if l := p.deadLetters(1)[0]; !strings.Contains(l.Reason, "torn") {
			t.Errorf("dead letter: %s", l.Reason)
		}
	})
}

func TestCrashWithCorruptFrame(t *testing.T) {
	t.Parallel()
	crash(t, 10, func(a away, found string) {
		path := segments(t, found)[0]
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		p := a.another(eventlog.Options{SpoolDir: found})
		w := p.claim("r", "n")
		seq, _ := w.Last()
		stored := int(seq) - 2
		if stored < 100 || stored > 900 {
			t.Errorf("%d texts are stored, want those before the damage", stored)
		}
		p.texts("r", "n", stored)
		letters := p.deadLetters(1000 - stored) // the damaged one and all after it
		if !strings.Contains(letters[0].Reason, "damaged") || !strings.Contains(letters[1].Reason, "lost events") {
			t.Errorf("dead letters: %q, %q", letters[0].Reason, letters[1].Reason)
		}
	})
}

// What is left in a spool when Run ends is stored by the next process.
func TestRestartWithSpool(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := newAway(t, eventlog.Options{SpoolDir: dir, DrainWait: 50 * time.Millisecond, BlobLimit: 4 << 10})
	w := a.claim("r", "n")
	a.server.Stop()
	enqueue(t, w, 0, 100)
	big := strings.Repeat("x", 8<<10)
	if err := w.Enqueue(t.Context(), text(big)); err != nil {
		t.Fatal(err)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	a.server.Start(t)
	p := a.another(eventlog.Options{SpoolDir: dir, Lanes: 7})
	p.claim("r", "n")
	n := 0
	for e, err := range p.Read(t.Context(), eventlog.Query{Kinds: []wire.Kind{wire.KindText}}) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; n <= 100 {
			continue
		}
		whole, err := p.Inline(t.Context(), e.Event)
		if err != nil || whole.Payload.(*wire.AgentText).Content != big {
			t.Errorf("the blob came not through the spool: %v", err)
		}
	}
	if n != 101 {
		t.Errorf("%d texts are stored, want 101", n)
	}
}

// A run that ends without a spool says what it lost.
func TestRunEndsWithLoss(t *testing.T) {
	t.Parallel()
	a := newAway(t, eventlog.Options{DrainWait: 50 * time.Millisecond})
	w := a.claim("r", "n")
	a.server.Stop()
	enqueue(t, w, 0, 10)
	wantErr(t, "Run", a.stop(), eventlog.ErrLost)
	wantErr(t, "Flush", w.Flush(soon(t)), eventlog.ErrClosed)
}

func TestSpoolIsTaken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := newAway(t, eventlog.Options{SpoolDir: dir})
	if _, err := eventlog.Open(t.Context(), a.nc, eventlog.Options{SpoolDir: dir}); err == nil {
		t.Error("two processes have the same spool")
	}
}

// Deltas are dropped first, before they get a seq; what stays is stored, and so
// is how many were dropped.
func TestDeltasAreDroppedFirst(t *testing.T) {
	t.Parallel()
	a := newAway(t, eventlog.Options{SpoolDir: t.TempDir(), SpoolLimit: 1 << 20, MemLimit: 16 << 10, Lanes: 1})
	w := a.claim("r", "n")
	a.server.Stop()
	const deltas = 20_000
	for i := range deltas {
		if err := w.Enqueue(t.Context(), delta(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
		if i == deltas-1 {
			enqueue(t, w, 0, 100) // there is still room for these
		}
	}
	a.server.Start(t)
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var kept, dropped int64
	next := uint64(1)
	for e, err := range a.Read(t.Context(), eventlog.Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Event.Seq != next {
			t.Fatalf("seq %d, want %d", e.Event.Seq, next)
		}
		next++
		switch p := e.Event.Payload.(type) {
		case *wire.AgentTextDelta:
			kept++
		case *wire.StorageFailure:
			dropped += p.Dropped
			if p.UntilMs < p.SinceMs || p.SinceMs == 0 {
				t.Errorf("from %d to %d", p.SinceMs, p.UntilMs)
			}
		}
	}
	if kept == 0 || dropped == 0 || kept+dropped != deltas {
		t.Errorf("%d deltas kept and %d dropped of %d", kept, dropped, deltas)
	}
	a.texts("r", "n", 100)
}

// A delta that waits for room when storage goes away is dropped, and told of later. Who gives up while there is no room leaves no gap.
func TestNoRoomForTheWord(t *testing.T) {
	t.Parallel()
	s := natstest.New(t)
	setUp(t, s.Conn(t), topology.Config{})
	var l line
	p := start(t, l.conn(t, s), eventlog.Options{MemLimit: 16 << 10, Lanes: 1, AckWait: time.Minute})
	w, other := p.claim("r", "n"), p.claim("r", "other")
	s.Stop()
	for i := range 2000 {
		if err := w.Enqueue(t.Context(), delta(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	s.Start(t)
	if _, err := other.Append(t.Context(), text("storage is back")); err != nil {
		t.Fatal(err)
	}
	l.deafen()
	filling, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	for i := 0; other.Enqueue(filling, text(fmt.Sprint(i))) == nil; i++ {
	}
	waiting, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := w.Enqueue(waiting, text("no room")); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("there is no room, and it was told %v", err)
	}
	l.cut()
	if err := errors.Join(other.Flush(t.Context()), w.Enqueue(t.Context(), text("room")), w.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	var next, dropped uint64 = 1, 0
	for e, err := range p.Read(t.Context(), eventlog.Query{Run: "r", Node: "n"}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Event.Seq != next {
			t.Fatalf("seq %d, want %d", e.Event.Seq, next)
		}
		next++
		if failure, ok := e.Event.Payload.(*wire.StorageFailure); ok {
			dropped += uint64(failure.Dropped)
		}
	}
	if dropped == 0 {
		t.Error("nobody is told that deltas were dropped")
	}
}

// Append waits as long as its context; the event is stored later.
func TestAppendIsAmbiguous(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a := newAway(t, eventlog.Options{})
		w := a.claim("r", "n")
		a.server.Stop()
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		_, err := w.Append(ctx, text("0"))
		if !errors.Is(err, eventlog.ErrAmbiguous) {
			t.Errorf("Append: %v, want ErrAmbiguous", err)
		}
		if took := time.Since(began); took != 30*time.Second {
			t.Errorf("it waited %s, want 30s", took)
		}
		<-time.After(10 * time.Minute)
		a.server.Start(t)
		began = time.Now()
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("it took %s to store what was queued", took)
		}
		a.texts("r", "n", 1)
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A node whose history aged out can be claimed by a process that knows where it ended
// (RULES 11).
func TestHistoryAgesOut(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Start(t)
		setUp(t, nc, topology.Config{MaxAge: time.Hour})
		p := start(t, nc, eventlog.Options{})
		w := p.claim("r", "n")
		enqueue(t, w, 0, 3)
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-time.After(61 * time.Minute)
		_, err := w.Append(t.Context(), text("x"))
		wantErr(t, "Append after the history aged out", err, eventlog.ErrAged)
		w, err = p.Claim(t.Context(), "r", "n", eventlog.Claim{Runner: "x", AtSeq: 4, MinEpoch: 2})
		if err != nil {
			t.Fatal(err)
		}
		e := text("3")
		if pos := appendTo(t, w, e); pos != 6 || e.Seq != 6 || e.Epoch != 2 {
			t.Errorf("after the claim: %d.%d at %d, want 2.6 at 6", e.Epoch, e.Seq, pos)
		}
		equal(t, "the log", p.read(eventlog.Query{Run: "r", Node: "n"}), "r/n 2.5 node:claimed", "r/n 2.6 agent:text 3")
		for e, err := range p.Read(t.Context(), eventlog.Query{Kinds: []wire.Kind{wire.KindFlow}}) {
			if err != nil || e.Event.Payload.(*wire.NodeClaimed).AtSeq != 4 {
				t.Errorf("the claim doesn't say what it follows: %v, %v", e.Event, err)
			}
		}
		first, last, err := p.Bounds(t.Context())
		if err != nil || first != 5 || last != 6 {
			t.Errorf("the stream goes from %d to %d: %v", first, last, err)
		}
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
}
