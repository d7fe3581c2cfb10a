package eventlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
)

func openTestSpools(t testing.TB, dir string) *spools {
	t.Helper()
	s, err := openSpools(dir, "inc")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sample is what is compared of a frame.
type sample struct {
	Run, Node, Subject         string
	Epoch, Seq, After, AfterAt uint64
	Data                       string
	Blobs                      map[string]string
	More                       bool
	Broken                     bool
}

func sampleOf(f *frame) sample {
	s := sample{
		Run: f.run, Node: f.node, Subject: f.subject, Epoch: f.epoch, Seq: f.seq,
		After: f.afterSeq, AfterAt: f.afterPos, Data: string(f.data), More: f.more, Broken: f.broken != "",
	}
	for sum, data := range f.blobs {
		if s.Blobs == nil {
			s.Blobs = map[string]string{}
		}
		s.Blobs[sum] = string(data)
	}
	return s
}

func samplesOf(frames []*frame) []sample {
	all := make([]sample, len(frames))
	for i, f := range frames {
		all[i] = sampleOf(f)
	}
	return all
}

// drawUnit draws frames that belong together.
func drawUnit(t *rapid.T, seq *uint64) []*frame {
	unit := make([]*frame, rapid.IntRange(1, 4).Draw(t, "frames"))
	for i := range unit {
		*seq++
		unit[i] = &frame{
			run: "r", node: "n", epoch: 1, seq: *seq, subject: "s",
			data: bytes.Repeat([]byte{byte(*seq)}, rapid.IntRange(0, 600).Draw(t, "size")),
			more: i+1 < len(unit),
		}
		if rapid.IntRange(0, 9).Draw(t, "blob") == 0 {
			unit[i].blobs = map[string][]byte{fmt.Sprint(*seq): []byte("blob")}
		}
	}
	return unit
}

// A queue is a queue: whatever goes to memory and whatever to disk, frames come
// out once and in order, and a process that finds the spool gets all of those
// that it says it holds.
func TestQueueIsAQueue(t *testing.T) {
	parent, dirs := t.TempDir(), 0
	rapid.Check(t, func(rt *rapid.T) {
		dirs++
		dir := filepath.Join(parent, strconv.Itoa(dirs))
		open := func() (*spools, queue) {
			s := openTestSpools(t, dir)
			if left := s.leftoverSpool(); left != nil {
				return s, newQueue(left, 4000)
			}
			return s, newQueue(s.laneSpool(0, 40_000), 4000)
		}
		s, q := open()
		var model []*frame
		var seq uint64
		check := func() {
			if err := q.fillWindow(); err != nil {
				rt.Fatal(err)
			}
			if got, want := q.isEmpty(), len(model) == 0; got != want {
				rt.Fatalf("empty: %t, want %t", got, want)
			}
			if n := len(q.window); n > len(model) || n == 0 != (len(model) == 0) {
				rt.Fatalf("%d frames in the window of %d", n, len(model))
			}
			for i, f := range q.window {
				if f.seq != model[i].seq || !bytes.Equal(f.data, model[i].data) || f.broken != "" {
					rt.Fatalf("frame %d is seq %d (%s), want %d", i, f.seq, f.broken, model[i].seq)
				}
			}
			if q.bytes != sizeOf(q.window) {
				rt.Fatalf("%d bytes, want %d", q.bytes, sizeOf(q.window))
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				if q.disk.limit == 0 && q.isEmpty() { // what was found has been drained
					s.close()
					s, q = open()
				}
				if q.disk.limit == 0 {
					return
				}
				before := seq
				unit := drawUnit(rt, &seq)
				ok, err := q.putUnit(unit, rapid.Bool().Draw(rt, "droppable"))
				if err != nil {
					rt.Fatal(err)
				}
				if !ok {
					seq = before
					return
				}
				model = append(model, unit...)
			},
			"resolve": func(rt *rapid.T) {
				if err := q.fillWindow(); err != nil {
					rt.Fatal(err)
				}
				n := rapid.IntRange(0, len(q.window)).Draw(rt, "n")
				q.resolveOldest(n)
				model = model[n:]
			},
			"spill": func(rt *rapid.T) {
				if err := q.spillWindow(); err != nil {
					rt.Fatal(err)
				}
			},
			"crash": func(rt *rapid.T) {
				if !q.spooling {
					return
				}
				if err := q.disk.closeSegment(); err != nil {
					rt.Fatal(err)
				}
				s.close()
				s, q = open()
				// Frames of the first segment that were resolved come again; the log knows
				// them.
				if err := q.fillWindow(); err != nil {
					rt.Fatal(err)
				}
				again := 0
				for again < len(q.window) && len(model) > 0 && q.window[again].seq < model[0].seq {
					again++
				}
				if len(model) == 0 {
					again = len(q.window)
				}
				q.resolveOldest(again)
				if q.isEmpty() {
					s.close()
					s, q = open()
				}
			},
			"": func(*rapid.T) { check() },
		})
		s.close()
	})
}

func TestSpoolSegments(t *testing.T) {
	dir := t.TempDir()
	s := openTestSpools(t, dir)
	defer s.close()
	q := newQueue(s.laneSpool(0, 1<<30), 1)
	var want []sample
	const n = 3000
	for i := range n {
		f := &frame{run: "r", node: "n", epoch: 1, seq: uint64(i + 1), subject: "s", data: bytes.Repeat([]byte{byte(i)}, 4<<10)}
		if ok, err := q.putUnit([]*frame{f}, false); err != nil || !ok {
			t.Fatal(ok, err)
		}
		want = append(want, sampleOf(f))
	}
	count := func() int {
		all, err := filepath.Glob(filepath.Join(dir, "*", "*", "*.seg"))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if got := count(); got != 3 {
		t.Errorf("%d segments for %d MiB, want 3", got, n*4/1024)
	}
	var got []sample
	for !q.isEmpty() {
		if err := q.fillWindow(); err != nil {
			t.Fatal(err)
		}
		got = append(got, samplesOf(q.window)...)
		q.resolveOldest(len(q.window))
		if left := count(); left > 3-len(got)/1500 {
			t.Errorf("%d segments are left after %d frames", left, len(got))
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("frames: %s", d)
	}
	if q.spooling || count() != 0 {
		t.Errorf("an empty queue still has %d segments", count())
	}
}

// Each process writes into a folder of its own, behind what earlier ones have left,
// and what they have left is read in their order.
func TestSpoolGenerations(t *testing.T) {
	dir := t.TempDir()
	var want []sample
	for i := range 12 {
		s := openTestSpools(t, dir)
		q := newQueue(s.laneSpool(0, 1<<20), 1<<20)
		f := &frame{run: "r", node: "n", epoch: 1, seq: uint64(i + 1), subject: "s", data: []byte{byte(i)}}
		if _, err := q.putUnit([]*frame{f}, false); err != nil {
			t.Fatal(err)
		}
		if err := q.spillWindow(); err != nil {
			t.Fatal(err)
		}
		if err := q.disk.closeSegment(); err != nil {
			t.Fatal(err)
		}
		want = append(want, sampleOf(f))
		s.close()
	}
	s := openTestSpools(t, dir)
	defer s.close()
	left := newQueue(s.leftoverSpool(), 1<<20)
	var got []sample
	for !left.isEmpty() {
		if err := left.fillWindow(); err != nil {
			t.Fatal(err)
		}
		got = append(got, samplesOf(left.window)...)
		left.resolveOldest(len(left.window))
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("frames: %s", d)
	}
}

// A predecessor is an event of the writer's own epoch: what another writer has stored
// behind its claim is none, whatever its number.
func TestPrecedes(t *testing.T) {
	w := &writerState{epoch: 2, seq: 4, pos: 9}
	f := &frame{seq: 7}
	for _, tt := range []struct {
		epoch, seq uint64
		want       bool
	}{{2, 5, true}, {2, 6, false}, {2, 4, false}, {3, 5, false}, {1, 5, false}} {
		e := Entry{Event: &wire.Event{Epoch: tt.epoch, Seq: tt.seq, Payload: &wire.AgentText{}}}
		if got := w.isPredecessor(e, f); got != tt.want {
			t.Errorf("epoch %d, seq %d: %t", tt.epoch, tt.seq, got)
		}
	}
	last := Entry{Event: &wire.Event{Epoch: 2, Seq: 5, Payload: &wire.AgentText{}}}
	if w.isPredecessor(last, &frame{seq: 5}) {
		t.Error("another event in the frame's own place precedes it")
	}
}

// A segment of another incarnation holds positions that mean nothing (RULES 15).
func TestSpoolOfAnotherIncarnation(t *testing.T) {
	dir := t.TempDir()
	s := openTestSpools(t, dir)
	q := newQueue(s.laneSpool(0, 1<<20), 1<<20)
	if _, err := q.putUnit([]*frame{{run: "r", node: "n", epoch: 1, seq: 1, subject: "s"}}, false); err != nil {
		t.Fatal(err)
	}
	if err := q.spillWindow(); err != nil {
		t.Fatal(err)
	}
	if err := q.disk.closeSegment(); err != nil {
		t.Fatal(err)
	}
	s.close()
	s, err := openSpools(dir, "another")
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	left := newQueue(s.leftoverSpool(), 1<<20)
	if err := left.fillWindow(); err != nil {
		t.Fatal(err)
	}
	if len(left.window) != 1 || left.window[0].broken != ErrIncarnation.Error() {
		t.Errorf("frames: %+v", left.window)
	}
}

// What was appended together is stored together, or not at all.
// What is appended to a spool whose files were just removed is in the files that are made again.
func TestSpoolIsPutBackFirst(t *testing.T) {
	dir := t.TempDir()
	s := openTestSpools(t, dir)
	q := newQueue(s.laneSpool(0, 1<<20), 1)
	var want []sample
	for i := range 3 {
		if i > 0 {
			all, err := filepath.Glob(filepath.Join(dir, "*", "*", "*.seg"))
			if err != nil || len(all) != 1 || os.Remove(all[0]) != nil {
				t.Fatal(all, err)
			}
		}
		f := &frame{run: "r", node: "n", epoch: 1, seq: uint64(i + 1), subject: "s", data: []byte{byte(i)}}
		if ok, err := q.putUnit([]*frame{f}, false); err != nil || !ok {
			t.Fatal(ok, err)
		}
		want = append(want, sampleOf(f))
		if err := q.spillWindow(); err != nil { // the first, which stays in memory; the others follow it
			t.Fatal(err)
		}
	}
	if err := q.disk.closeSegment(); err != nil {
		t.Fatal(err)
	}
	s.close()
	s = openTestSpools(t, dir)
	defer s.close()
	left := newQueue(s.leftoverSpool(), 1<<20)
	if err := left.fillWindow(); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, samplesOf(left.window)); d != "" {
		t.Errorf("frames: %s", d)
	}
}

func TestSpoolUnitIsWhole(t *testing.T) {
	var b []byte
	for i := range 3 {
		b = appendRecord(b, &frame{run: "r", node: "n", seq: uint64(i + 1), subject: "s", data: []byte("data"), more: i < 2})
	}
	for cut := 1; cut < len(b); cut++ {
		var frames []*frame
		for _, unit := range parseUnits(b[:cut]) {
			frames = append(frames, unit...)
		}
		for i, f := range frames {
			if f.broken == "" {
				t.Fatalf("cut at %d, frame %d is not broken", cut, i)
			}
		}
	}
	if units := parseUnits(b); len(units) != 1 || len(units[0]) != 3 || units[0][0].broken != "" {
		t.Errorf("units: %v", units)
	}
}

// Any bytes are taken apart, none of them lost, and frames that are whole are
// found wherever they are.
func FuzzParseUnits(f *testing.F) {
	whole := appendRecord(nil, &frame{run: "r", node: "n", epoch: 1, seq: 7, subject: "s", data: []byte("x")})
	f.Add([]byte{}, []byte{})
	f.Add([]byte("garbage"), whole)
	f.Add(whole[:20], whole[3:])
	f.Add(appendRecord(nil, &frame{run: "r", more: true}), whole)
	f.Fuzz(func(t *testing.T, before, after []byte) {
		b := append(append(bytes.Clone(before), whole...), after...)
		found := false
		length := 0
		for _, unit := range parseUnits(b) {
			for i, f := range unit {
				if f.more != (i+1 < len(unit)) && f.broken == "" {
					t.Errorf("frame %d of %d says more: %t", i, len(unit), f.more)
				}
				found = found || f.seq == 7 && f.run == "r"
				length += len(f.data)
			}
		}
		if !found && !hidden(before) {
			t.Error("the whole frame is not found")
		}
		if length > len(b) {
			t.Errorf("%d bytes of data from %d", length, len(b))
		}
	})
}

// hidden reports whether the bytes end in a record that swallows what follows;
// only one whose checksum is right does.
func hidden(b []byte) bool {
	for i := range b {
		if bytes.HasPrefix(b[i:], []byte("WKF1")) {
			return true
		}
	}
	return false
}

// A frame that can be parsed is the frame that was written.
func FuzzFrame(f *testing.F) {
	f.Add(appendFrame(nil, &frame{run: "r", node: "n", epoch: 1, seq: 2, afterSeq: 1, afterPos: 9, subject: "s", data: []byte("x"), blobs: map[string][]byte{"a": []byte("b")}, more: true}))
	f.Fuzz(func(t *testing.T, b []byte) {
		one, err := parseFrame(b)
		if err != nil {
			return
		}
		again, err := parseFrame(appendFrame(nil, one))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(sampleOf(one), sampleOf(again)); d != "" {
			t.Error(d)
		}
	})
}

// The acknowledgement of an event may come while the event goes to the spool, which
// then says that the writer knew it to be stored.
func TestSpoolOfWhatIsStored(t *testing.T) {
	t.Parallel()
	nc := natstest.Start(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topology.Init(t.Context(), js, topology.Config{}); err != nil {
		t.Fatal(err)
	}
	open := func(o Options) *Log {
		l, err := Open(t.Context(), nc, o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		t.Cleanup(func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		return l
	}
	log := open(Options{})
	w, err := log.Claim(t.Context(), "r", "n", Claim{Runner: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := w.Append(t.Context(), &wire.Event{Payload: &wire.AgentText{Content: "text"}}); err != nil {
			t.Fatal(err)
		}
	}

	dir := t.TempDir()
	s, err := openSpools(dir, log.incarnation)
	if err != nil {
		t.Fatal(err)
	}
	q := newQueue(s.laneSpool(0, 1<<20), 1<<20)
	for e, err := range log.Read(t.Context(), Query{Run: "r", Node: "n", From: 2}) {
		if err != nil {
			t.Fatal(err)
		}
		f := &frame{run: "r", node: "n", epoch: 1, seq: e.Event.Seq, subject: e.Subject, data: e.Data, afterSeq: 3, afterPos: 3}
		if _, err := q.putUnit([]*frame{f}, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(q.spillWindow(), q.disk.closeSegment()); err != nil {
		t.Fatal(err)
	}
	s.close()

	again := open(Options{SpoolDir: dir})
	if w, err = again.Claim(t.Context(), "r", "n", Claim{Runner: "r1"}); err != nil {
		t.Fatal(err)
	}
	if seq, pos := w.Last(); seq != 5 || pos != 5 {
		t.Errorf("the claim is %d at %d, want 5 at 5", seq, pos)
	}
	letters, err := js.Stream(t.Context(), again.names.DeadLetterStream())
	if err != nil {
		t.Fatal(err)
	}
	if n := letters.CachedInfo().State.Msgs; n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

// What a process left is found, and the next one writes beside it, whatever the folder is called.
func TestSpoolFolderIsNoPattern(t *testing.T) {
	for _, name := range []string{"plain", "wake [old]", `w\ake*?`} {
		dir := filepath.Join(t.TempDir(), name)
		s := openTestSpools(t, dir)
		disk := s.laneSpool(0, 1<<20)
		unit := func(seq uint64) []*frame {
			return []*frame{{run: "r", node: "n", epoch: 1, seq: seq, subject: "s", data: []byte("event")}}
		}
		if err := errors.Join(disk.appendUnit(unit(1)), disk.leaveFiles()); err != nil {
			t.Fatal(err)
		}
		s.close()
		next := openTestSpools(t, dir)
		if next.leftoverSpool() == nil {
			t.Errorf("%s: the event of the process before isn't found", name)
		}
		if err := next.laneSpool(0, 1<<20).appendUnit(unit(2)); err != nil {
			t.Errorf("%s: nothing can be written: %v", name, err)
		}
		next.close()
	}
}
