package recorder_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childURL); url != "" {
		os.Exit(child(url))
	}
	// An object store's Put sometimes leaves this one behind: it takes a channel
	// that Put may have cleared by then, and waits on nil for ever.
	natstest.Main(m)
}

// plant is a server with a log and whoever writes into it.
type plant struct {
	t   testing.TB
	nc  *nats.Conn
	log *eventlog.Log
	dir string
	at  string // the store; "": not asked for yet
}

// newPlant sets up a server. The log runs until the test ends.
func newPlant(t testing.TB) *plant {
	t.Helper()
	return plantOn(t, natstest.Start(t), topology.Config{})
}

func plantOn(t testing.TB, nc *nats.Conn, c topology.Config) *plant {
	t.Helper()
	p := &plant{t: t, nc: nc, dir: t.TempDir()}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topology.Init(t.Context(), js, c); err != nil {
		t.Fatal(err)
	}
	log, err := eventlog.Open(t.Context(), nc, eventlog.Options{BlobLimit: 4 << 10})
	if err != nil {
		t.Fatal(err)
	}
	p.log = log
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- log.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		nc.Close()
	})
	return p
}

// path names the store.
func (p *plant) path() string {
	if p.at == "" {
		p.at = newTarget(p.t)
	}
	return p.at
}

// record runs a recorder until stop is called.
func (p *plant) record(c recorder.Config) (stop func() error) {
	p.t.Helper()
	if c.Path == "" {
		c.Path = p.path()
	}
	r, err := recorder.New(c, p.log, slog.New(slog.DiscardHandler))
	if err != nil {
		p.t.Fatal(err)
	}
	return p.run(r)
}

// run runs a recorder until stop is called.
func (p *plant) run(r *recorder.Recorder) (stop func() error) {
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	p.t.Cleanup(func() {
		if err := stop(); err != nil {
			p.t.Error(err)
		}
	})
	return stop
}

// until returns when position pos is recorded. In a bubble it takes no time.
func (p *plant) until(pos uint64) {
	p.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 3000 {
		r, err := api.Call[wire.EventsResponse](p.t.Context(), p.nc, subjects.Default, wire.VerbEvents, wire.EventsRequest{From: pos, Limit: 1, Void: true})
		if err != nil && codeOf(err) != wire.CodeUnreachable {
			p.t.Fatal(err)
		}
		if len(r.Events) > 0 {
			return
		}
		<-tick.C
	}
	p.t.Fatalf("position %d was not recorded", pos)
}

// claim makes the test the writer of a node.
func (p *plant) claim(run, node string) *eventlog.Writer {
	p.t.Helper()
	w, err := p.log.Claim(p.t.Context(), run, node, eventlog.Claim{Runner: "test"})
	if err != nil {
		p.t.Fatal(err)
	}
	return w
}

// write appends events of a node.
func (p *plant) write(w *eventlog.Writer, events ...*wire.Event) (pos uint64) {
	p.t.Helper()
	for _, e := range events {
		e.Timestamp = time.Now().UnixMilli()
	}
	pos, err := w.Append(p.t.Context(), events...)
	if err != nil {
		p.t.Fatal(err)
	}
	return pos
}

func text(content string) *wire.Event { return &wire.Event{Payload: &wire.AgentText{Content: content}} }

func (p *plant) lines(run string) []string {
	p.t.Helper()
	r, err := api.Call[wire.LogResponse](p.t.Context(), p.nc, subjects.Default, wire.VerbLog, wire.LogRequest{Run: run, Limit: new(1000)})
	if err != nil {
		p.t.Fatal(err)
	}
	return texts(r.Lines)
}

func texts(lines []wire.LogLine) []string {
	list := []string{}
	for _, l := range lines {
		list = append(list, string(l.Type)+" "+l.Text)
	}
	return list
}

func TestWhatIsAppendedIsRecorded(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		p.record(recorder.Config{})
		w := p.claim("r1", "coder")
		p.until(p.write(w, text("one"), text("two")))
		if diff := cmp.Diff([]string{"text one", "text two"}, p.lines("r1")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestAnAnswerKnowsWhatWasStoredBefore(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		p.record(recorder.Config{Wait: 300 * time.Millisecond})
		w := p.claim("r1", "coder")
		p.until(p.write(w, text("0")))
		for i := range 5 {
			p.write(w, text(fmt.Sprint(i+1)))
			if got := p.lines("r1"); len(got) != i+2 {
				t.Errorf("%d lines after %d events", len(got), i+2)
			}
		}
	})
}

// fill appends n events to each of two nodes and returns the last position.
func (p *plant) fill(n int) (pos uint64) {
	p.t.Helper()
	for _, node := range []string{"a", "b"} {
		w := p.claim("r1", node)
		for i := range n {
			pos = p.write(w, text(fmt.Sprintf("%s %d", node, i)))
		}
	}
	return pos
}

// want checks that everything up to pos is recorded once.
func (p *plant) want(pos uint64) {
	p.t.Helper()
	s := openAt(p.t, p.path())
	defer closed(p.t, s)
	r, err := s.Answers.Events(p.t.Context(), wire.EventsRequest{Void: true}, false, 1<<20)
	if err != nil {
		p.t.Fatal(err)
	}
	for i, e := range r.Events {
		if e.Pos != uint64(i+1) || e.Mark != "" {
			p.t.Errorf("row %d: position %d, mark %q", i, e.Pos, e.Mark)
		}
	}
	if uint64(len(r.Events)) != pos {
		p.t.Errorf("%d events, want %d", len(r.Events), pos)
	}
	if at, err := s.Archive.Position(p.t.Context()); err != nil || at.Seq != pos || at.Incarnation != p.log.Incarnation() {
		p.t.Errorf("position %+v, %v", at, err)
	}
}

func TestACrashBetweenCommitAndAck(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		pos := p.fill(20)
		s := openAt(t, p.path()) // committed by a process that died before it acknowledged
		var entries []eventlog.Entry
		for e, err := range p.log.Read(t.Context(), eventlog.Query{To: 25}) {
			if err != nil {
				t.Fatal(err)
			}
			entries = append(entries, e)
		}
		if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: p.log.Incarnation(), Entries: entries}); err != nil {
			t.Fatal(err)
		}
		closed(t, s)
		stop := p.record(recorder.Config{Batch: 7})
		p.until(pos)
		if err := stop(); err != nil {
			t.Error(err)
		}
		p.want(pos)
	})
}

// TestWhatSomebodyElseAcknowledgedIsRecorded is the loss at a fail-over with one
// acknowledgement for all before it: the file's position counts, not the
// consumer's.
func TestWhatSomebodyElseAcknowledgedIsRecorded(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		pos := p.fill(20)
		consumer, err := p.log.JetStream().Consumer(t.Context(), "WAKE_EVENTS", "recorder")
		if err != nil {
			t.Fatal(err)
		}
		batch, err := consumer.Fetch(int(pos))
		if err != nil {
			t.Fatal(err)
		}
		for m := range batch.Messages() {
			if err := m.Ack(); err != nil {
				t.Fatal(err)
			}
		}
		stop := p.record(recorder.Config{})
		p.until(pos)
		if err := stop(); err != nil {
			t.Error(err)
		}
		p.want(pos)
	})
}

func TestAResetWhileRecordingChangesNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		stop := p.record(recorder.Config{Batch: 5})
		p.until(p.fill(10))
		for _, to := range []uint64{1, 17} {
			if _, err := p.log.JetStream().ResetConsumerToSequence(t.Context(), "WAKE_EVENTS", "recorder", to); err != nil {
				t.Fatal(err)
			}
			p.until(p.fill(10))
		}
		pos := p.fill(1)
		p.until(pos)
		if err := stop(); err != nil {
			t.Error(err)
		}
		p.want(pos)
	})
}

func TestAnOlderFileCatchesUp(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		stop := p.record(recorder.Config{})
		p.until(p.fill(10))
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		restore := backup(t, p.path())
		stop = p.record(recorder.Config{})
		pos := p.fill(10)
		p.until(pos)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		before := dump(t, p.path())
		restore()
		stop = p.record(recorder.Config{})
		p.until(pos)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		p.want(pos)
		if diff := cmp.Diff(before, dump(t, p.path())); diff != "" {
			t.Errorf("(-before +restored):\n%s", diff)
		}
	})
}

func TestARebuildMakesTheSameFile(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		owner := p.claim("r1", wire.RunNode)
		worker := p.claim("r1", "coder")
		stop := p.record(recorder.Config{})
		p.write(owner, &wire.Event{Payload: &wire.FlowStart{FlowName: "review", Definition: wire.Null, DefinitionHash: "h", Labels: map[string]string{"name": "x"}}})
		p.write(owner, &wire.Event{ExecID: "coder#1", Payload: &wire.NodeScheduled{Target: "coder", Attempt: 1}})
		p.write(worker, &wire.Event{ExecID: "coder#1", Payload: &wire.NodeStart{NodeType: "agent"}})
		p.write(worker, &wire.Event{ExecID: "coder#1", SessionID: "s1", Payload: &wire.AgentStart{Prompt: wire.RawString("Do it.")}})
		for i := range 30 {
			p.until(p.write(worker, &wire.Event{ExecID: "coder#1", Payload: &wire.AgentTextDelta{Content: fmt.Sprint(i, " "), Block: i / 10}}))
		}
		pos := p.write(worker, &wire.Event{ExecID: "coder#1", Payload: &wire.NodeComplete{Output: wire.RawString("ok")}})
		p.until(pos)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		before := dump(t, p.path())
		p.at = newTarget(t)
		stop = p.record(recorder.Config{Batch: 3})
		p.until(pos)
		if got := p.lines("x"); len(got) != 7 || got[3] != "text 0 1 2 3 4 5 6 7 8 9 " {
			t.Errorf("lines %.300q", got)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, dump(t, p.path())); diff != "" {
			t.Errorf("(-before +rebuilt):\n%s", diff)
		}
	})
}

// TestLargeFieldsAreCopied runs on the real clock because of what TestMain says.
func TestLargeFieldsAreCopied(t *testing.T) {
	p := newPlant(t)
	stop := p.record(recorder.Config{})
	large := strings.Repeat("large ", 2000)
	p.until(p.write(p.claim("r1", "coder"), text(large)))
	if err := p.log.JetStream().DeleteObjectStore(t.Context(), "WAKE_BLOBS"); err != nil {
		t.Fatal(err)
	}
	if got := p.lines("r1"); len(got) != 1 || got[0] != "text "+large {
		t.Errorf("lines %.300q", got)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if got := dump(t, p.path())["blobs"]; len(got) != 1 {
		t.Errorf("%d blobs: the large text wasn't one", len(got))
	}
}

func TestPoisonIsKeptAndSetAside(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		stop := p.record(recorder.Config{})
		w := p.claim("r1", "coder")
		p.write(w, text("before"))
		// Whoever isn't kept out by permissions can publish anything.
		for _, m := range []*nats.Msg{
			{Subject: "wake.events.r1.other.agent", Data: []byte("\xc1 no event")},
			{Subject: "wake.events.r2.coder.text", Data: p.stored("r1", "coder")}, // of another run
			{Subject: "wake.events.=zz.x.agent", Data: nil},
		} {
			if _, err := p.log.JetStream().PublishMsg(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
		pos := p.write(w, text("after"))
		p.until(pos)
		if diff := cmp.Diff([]string{"text before", "text after"}, p.lines("r1")); diff != "" {
			t.Errorf("lines (-want +got):\n%s", diff)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if got := eventMarks(t, p.path()); len(got) != 6 || got[2] != "pos=3 run=_ mark=bad bytes=10" || got[4] != "pos=5 run=_ mark=bad bytes=0" {
			t.Errorf("events %q", got)
		}
		db := openDB(t, p.path())
		defer db.Close()
		if got := rowsOf(t, db, `SELECT run FROM runs WHERE run <> '_'`); len(got) != 1 {
			t.Errorf("runs %q: poison made one", got)
		}
		stream, err := p.log.JetStream().Stream(t.Context(), "WAKE_DEADLETTER")
		if err != nil {
			t.Fatal(err)
		}
		for seq, want := range map[uint64]string{1: "malformed", 2: "another run"} {
			m, err := stream.GetMsg(t.Context(), seq)
			if err != nil {
				t.Fatal(err)
			}
			var letter wire.Poison
			if err := wire.Unmarshal(m.Data, &letter); err != nil {
				t.Fatal(err)
			}
			if letter.Service != "recorder" || letter.Position != seq+2 || !strings.Contains(letter.Reason, want) || m.Subject != "wake.deadletter.recorder" {
				t.Errorf("letter %d on %s: %+v, want %q", seq, m.Subject, letter, want)
			}
		}
	})
}

// An event that has ended the process as often as may be is kept as it is, and set aside.
func TestEndsItsProcess(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		w := p.claim("r1", "coder")
		p.write(w, text("before"))
		pos := p.write(w, text("venom"))
		last := p.write(w, text("after"))
		stop := p.record(recorder.Config{Trial: logtest.Dying(t, "recorder", p.log.Incarnation(), pos)})
		p.until(last)
		if err := stop(); err != nil {
			t.Error(err)
		}
		bad := slices.DeleteFunc(eventMarks(t, p.path()), func(e string) bool { return !strings.Contains(e, " mark=bad ") })
		if len(bad) != 1 || !strings.HasPrefix(bad[0], fmt.Sprintf("pos=%d run=_ ", pos)) {
			t.Errorf("events %q", bad)
		}
		stream, err := p.log.JetStream().Stream(t.Context(), "WAKE_DEADLETTER")
		if err != nil {
			t.Fatal(err)
		}
		m, err := stream.GetMsg(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		var letter wire.Poison
		if err := wire.Unmarshal(m.Data, &letter); err != nil || letter.Position != pos || !strings.Contains(letter.Reason, "has ended the process 3 times") {
			t.Errorf("letter %+v: %v", letter, err)
		}
	})
}

// stored returns the bytes of a node's last event.
func (p *plant) stored(run, node string) []byte {
	p.t.Helper()
	e, ok, err := p.log.Last(p.t.Context(), run, node)
	if err != nil || !ok {
		p.t.Fatal(ok, err)
	}
	return e.Data
}

func TestEventsThatAgedOutLeaveAMark(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := plantOn(t, natstest.Start(t), topology.Config{MaxAge: 6 * time.Minute})
		p.fill(3)
		<-time.After(12 * time.Minute)
		w := p.claim("r2", "coder")
		pos := p.write(w, text("late"))
		stop := p.record(recorder.Config{})
		p.until(pos)
		if err := stop(); err != nil {
			t.Error(err)
		}
		events := eventMarks(t, p.path())
		for i, want := range []string{"pos=8 run=_ mark=recorder ", "pos=9 run=r2 mark= ", "pos=10 run=r2 mark= "} {
			if len(events) != 3 || !strings.HasPrefix(events[i], want) {
				t.Errorf("events %q, want number %d to be %q", events, i, want)
			}
		}
		db := openDB(t, p.path())
		defer db.Close()
		if diff := cmp.Diff([]string{"lost=8 "}, rowsOf(t, db, `SELECT lost FROM streams`)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestAFileOfAnotherStreamIsRefused(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		p.fill(3)
		s := openAt(t, p.path())
		story(t).store(s, 100)
		closed(t, s)
		before := dump(t, p.path())
		r, err := recorder.New(recorder.Config{Path: p.path()}, p.log, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		err = r.Run(t.Context())
		if !errors.Is(err, eventlog.ErrIncarnation) || !strings.Contains(err.Error(), "start again") {
			t.Errorf("got %v", err)
		}
		if diff := cmp.Diff(before, dump(t, p.path())); diff != "" {
			t.Errorf("the file was changed (-before +after):\n%s", diff)
		}
	})
}

// told waits until a board has a trouble, or has none, and returns what it says.
func told(b *health.Board, ill bool) error {
	for {
		changed := b.Changed()
		if err := b.Err(); (err != nil) == ill {
			return err
		}
		<-changed
	}
}

// While the store can't grow, the recorder tells so, answers from what it has, and then goes on by
// itself.
func TestFullDisk(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		p.at = filepath.Join(p.dir, "recorder.db") // which pages are counted of
		board := health.NewBoard(slog.New(slog.DiscardHandler))
		r, err := recorder.New(recorder.Config{Path: p.path(), Health: board}, p.log, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		p.run(r)
		w := p.claim("r1", "coder")
		p.until(p.write(w, text("first")))
		for range 2 {
			if err := r.Fill(t.Context(), true); err != nil {
				t.Fatal(err)
			}
			var last uint64
			for range 50 {
				last = p.write(w, text(rand.Text()+strings.Repeat(rand.Text(), 100)))
			}
			if err := told(board, true); !strings.Contains(err.Error(), "recorder: recording: ") || !strings.Contains(err.Error(), "full") {
				t.Errorf("it says %v", err)
			}
			<-time.After(time.Minute)
			if got, err := api.Call[wire.RunsResponse](t.Context(), p.nc, subjects.Default, wire.VerbRuns, wire.RunsRequest{}); err != nil || len(got.Runs) != 1 {
				t.Errorf("it answers %v, %v", got, err)
			}
			if err := r.Fill(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			p.until(last)
			_ = told(board, false)
		}
	})
}

// A store that somebody has put another file in the place of is no reason to end.
func TestDamagedStore(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		p.at = filepath.Join(p.dir, "recorder.db")
		pos := p.fill(3)
		r, err := recorder.New(recorder.Config{Path: p.path()}, p.log, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		stop := p.run(r)
		p.until(pos)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		damaged := func(what string, put func() error) {
			t.Helper()
			if err := put(); err != nil {
				t.Fatal(err)
			}
			err := r.Run(t.Context())
			if err == nil || recorder.Lasting(err) || !strings.Contains(err.Error(), "the store is damaged") || !strings.Contains(err.Error(), "move "+p.path()) {
				t.Errorf("%s: %v", what, err)
			}
		}
		damaged("cut off", func() error { return os.Truncate(p.path(), 4096) })
		damaged("another file", func() error { return os.WriteFile(p.path(), []byte(strings.Repeat("no database ", 1000)), 0o600) })
		other, err := recorder.New(recorder.Config{Path: p.path()}, p.log, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Run(t.Context()); !recorder.Lasting(err) {
			t.Errorf("Run of one that was told to use it: %v", err)
		}
	})
}

// A stream that ends before the store is of servers that are behind, or have lost something: the
// recorder waits for its events, and refuses others in their place.
func TestStoreBeyondTheStream(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		p.fill(3)
		s := openAt(t, p.path())
		tape := story(t)
		if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: p.log.Incarnation(), Entries: tape.entries}); err != nil {
			t.Fatal(err)
		}
		closed(t, s)
		board := health.NewBoard(slog.New(slog.DiscardHandler))
		r, err := recorder.New(recorder.Config{Path: p.path(), Health: board}, p.log, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- r.Run(t.Context()) }()
		if err := told(board, true); !strings.Contains(err.Error(), eventlog.ErrBeyond.Error()) {
			t.Errorf("it says %v", err)
		}
		select {
		case err := <-done:
			t.Fatalf("it ended: %v", err)
		case <-time.After(10 * time.Minute):
		}
		p.fill(len(tape.entries))
		if err := <-done; !errors.Is(err, eventlog.ErrIncarnation) {
			t.Errorf("got %v", err)
		}
	})
}

// The stream was restored from a backup, and has gone on beyond what was recorded of
// its former history, before the recorder starts or right then.
func TestAnotherHistoryIsRefused(t *testing.T) {
	for name, late := range map[string]bool{"before": false, "while it starts": true} {
		t.Run(name, func(t *testing.T) { natstest.Bubble(t, func(t *testing.T) { anotherHistory(t, late) }) })
	}
}

func anotherHistory(t *testing.T, late bool) {
	p := newPlant(t)
	pos := p.fill(3)
	batch := recorder.Batch{Incarnation: p.log.Incarnation()}
	for e, err := range p.log.Read(t.Context(), eventlog.Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		batch.Entries = append(batch.Entries, e)
	}
	last := batch.Entries[len(batch.Entries)-1]
	last.Pos++ // what has been recorded, and isn't in the backup
	batch.Entries = append(batch.Entries, last)
	s := openAt(t, p.path())
	if _, err := s.Index.Record(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	closed(t, s)
	before := dump(t, p.path())
	goOn := func() { p.write(p.claim("r2", "coder"), text("afterwards")) }
	if !late {
		goOn()
	}
	r, err := recorder.New(recorder.Config{Path: p.path()}, p.log, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Run(t.Context()) }()
	if late {
		<-time.After(2 * time.Second)
		_, err := api.Call[wire.RunsResponse](t.Context(), p.nc, subjects.Default, wire.VerbRuns, wire.RunsRequest{})
		if codeOf(err) != wire.CodeUnreachable {
			t.Errorf("it answers from a store of another history: %v", err)
		}
		goOn()
	}
	err = <-done
	if !errors.Is(err, eventlog.ErrIncarnation) || !strings.Contains(err.Error(), fmt.Sprintf("at position %d the stream has another event", pos+1)) {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(before, dump(t, p.path())); diff != "" {
		t.Errorf("the store was changed (-before +after):\n%s", diff)
	}
}

func TestTheSeedsOwnRequest(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		p.record(recorder.Config{})
		w := p.claim("r1", "sentinella")
		e := &wire.Event{CallID: "c1", Payload: &wire.AgentTool{
			ToolName: "Bash", ToolInput: mustRaw(t, map[string]any{"command": "git log --oneline -3"}), ToolOutput: wire.Null, DurationMs: new(int64(2100)),
		}}
		p.until(p.write(w, text("first"), e))
		m, err := p.nc.RequestWithContext(t.Context(), "wake.api.log", []byte(
			`{"type":"command","requestId":"42","action":"get_log","params":{"agentId":"sentinella","offset":0,"limit":50,"grep":"git|fail","since":300000,"type":"tool"}}`))
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(`{"requestId":"42","result":{"bufferLines":2,"lines":[{"text":"✅ Bash (2.1s)\ngit log --oneline -3","ts":%d,"type":"tool"}],`+
			`"offset":0,"returnedLines":1,"totalLines":1},"type":"response"}`, e.Timestamp)
		if diff := cmp.Diff(want, string(m.Data)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		m, err = p.nc.RequestWithContext(t.Context(), "wake.api.log", []byte(`{"run":"r1","grep":"("}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(m.Data); !strings.HasPrefix(got, `{"error":{"code":"BAD_REGEX",`) {
			t.Errorf("a bad pattern: %s", got)
		}
		<-time.After(30 * time.Second)
		status, err := api.Call[wire.StatusResponse](t.Context(), p.nc, subjects.Default, wire.VerbStatus, wire.StatusRequest{AgentID: "sentinella"})
		if err != nil || status.AgentID != "sentinella" || status.RunID != "r1" || status.LastActivity != "running git log --oneline -3" || status.LastActivityAge != "30s ago" {
			t.Errorf("status %+v, %v", status.AgentStatus, err)
		}
	})
}

func TestARestartOfTheServer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		server := natstest.New(t)
		p := plantOn(t, server.Conn(t), topology.Config{})
		stop := p.record(recorder.Config{})
		p.until(p.fill(5))
		server.Stop()
		<-time.After(time.Minute)
		server.Start(t)
		pos := p.fill(5)
		p.until(pos)
		if err := stop(); err != nil {
			t.Error(err)
		}
		p.want(pos)
	})
}

// checkSnapshots requires that a snapshot that is the fold is no damage, and a forged one is.
func checkSnapshots(t *testing.T, p *plant, s *recorder.Store) {
	t.Helper()
	states, err := snapshot.Open(t.Context(), p.log)
	if err != nil {
		t.Fatal(err)
	}
	state := run.New("r1")
	for e, err := range p.log.Read(t.Context(), eventlog.Query{Run: "r1", Kinds: snapshot.Kinds}) {
		if err != nil {
			t.Fatal(err)
		}
		if err := snapshot.Apply(t.Context(), p.log, state, e); err != nil && !snapshot.Refused(err) {
			t.Fatal(err)
		}
	}
	kept, err := states.Save(t.Context(), state, snapshot.Stored{})
	if err != nil {
		t.Fatal(err)
	}
	if v, err := s.Checker.VerifyAgainst(t.Context(), "", p.log); err != nil || len(v.Damages) > 0 {
		t.Errorf("found %v, %v", v.Damages, err)
	}
	state.Usage.CostUsd = 1000
	if _, err := states.Save(t.Context(), state, kept); err != nil {
		t.Fatal(err)
	}
	v, err := s.Checker.VerifyAgainst(t.Context(), "r1", p.log)
	if err != nil || len(v.Damages) != 1 || !strings.Contains(v.Damages[0].String(), "table WAKE_SNAPSHOTS: the snapshot isn't what the events") {
		t.Errorf("of a forged snapshot found %v, %v", v.Damages, err)
	}
	only := v.Remedy()
	if v.Omitted++; !strings.Contains(only, "rebuild snapshotter") || v.Remedy() == only {
		t.Errorf("of snapshots alone: %s; of others, too: %s", only, v.Remedy())
	}
	kv, err := p.log.JetStream().KeyValue(t.Context(), p.log.Names().SnapshotsBucket())
	if err == nil {
		err = kv.Purge(t.Context(), p.log.Names().SnapshotKey("r1"))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestVerifyAgainstTheStream(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		stop := p.record(recorder.Config{})
		p.fill(10)
		if _, err := p.log.JetStream().PublishMsg(t.Context(), &nats.Msg{Subject: "wake.events.r1.a.agent", Data: []byte("\xc1 no event")}); err != nil {
			t.Fatal(err)
		}
		pos := p.fill(10)
		p.until(pos)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		s := openAt(t, p.path())
		defer closed(t, s)
		for run, want := range map[string]int64{"": int64(pos), "r1": int64(pos) - 1} {
			v, err := s.Checker.VerifyAgainst(t.Context(), run, p.log)
			if err != nil || v.Compared != want || len(v.Damages) > 0 {
				t.Errorf("%q: %+v, %v; want %d compared", run, v, err, want)
			}
		}
		checkSnapshots(t, p, s)
		forged := openAt(t, filepath.Join(p.dir, "forged.db")) // sound in itself
		defer closed(t, forged)
		batch := recorder.Batch{Incarnation: p.log.Incarnation()}
		for e, err := range p.log.Read(t.Context(), eventlog.Query{}) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Pos == 7 {
				changed := *e.Event
				changed.Payload = &wire.AgentText{Content: "forged"}
				data, err := wire.Encode(&changed)
				if err != nil {
					t.Fatal(err)
				}
				e.Event, e.Data = &changed, data
			}
			batch.Entries = append(batch.Entries, e)
		}
		if _, err := forged.Index.Record(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		if v, err := forged.Checker.Verify(t.Context(), ""); err != nil || len(v.Damages) > 0 {
			t.Fatalf("it isn't sound in itself: %v, %v", v.Damages, err)
		}
		v, err := forged.Checker.VerifyAgainst(t.Context(), "", p.log)
		if err != nil || len(v.Damages) != 1 || v.Damages[0].String() != "run r1, position 7: the stream has another event here" {
			t.Errorf("found %v, %v", v.Damages, err)
		}
		other := openAt(t, filepath.Join(p.dir, "other.db"))
		defer closed(t, other)
		story(t).store(other, 100)
		if _, err := other.Checker.VerifyAgainst(t.Context(), "", p.log); !errors.Is(err, eventlog.ErrIncarnation) {
			t.Errorf("of another stream: %v", err)
		}
	})
}

// A run that is removed while the store is compared with the stream isn't taken for lost.
func TestRemovedWhileVerified(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		stop := p.record(recorder.Config{})
		owner := p.claim("r1", wire.RunNode)
		p.write(owner, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", Definition: mustRaw(t, map[string]any{"name": "f"}), DefinitionHash: "h"}})
		p.fill(10)
		p.until(p.write(owner, &wire.Event{Payload: &wire.FlowAborted{Reason: "operator"}}))
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		s := openAt(t, p.path())
		defer closed(t, s)
		checkSnapshots(t, p, s) // there is one
		removed := false
		s.Checker.Progress = func(part string, _, _ int64) {
			if part != "stream" || removed {
				return
			}
			removed = true
			if _, err := s.Retention.Delete(t.Context(), wire.DeleteRequest{Run: "r1", Now: true, Force: true}, 0, time.Now()); err != nil {
				t.Error(err)
			}
			for more, err := true, error(nil); more; {
				if _, more, err = s.Retention.Remove(t.Context(), time.Now().Add(time.Minute)); err != nil {
					t.Fatal(err)
				}
			}
		}
		v, err := s.Checker.VerifyAgainst(t.Context(), "", p.log)
		if err != nil || !removed || len(v.Damages) > 0 {
			t.Errorf("removed: %t; found %v, %v", removed, v.Damages, err)
		}
	})
}

func TestNewNeedsAFile(t *testing.T) {
	if _, err := recorder.New(recorder.Config{}, nil, nil); err == nil {
		t.Error("no error")
	}
}
