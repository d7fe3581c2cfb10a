package recorder_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// split records a tape up to n at once, and the rest for later.
func (p *tape) split(s *recorder.Store, n int) {
	p.t.Helper()
	for _, b := range []recorder.Batch{{Entries: p.entries[:n]}, {Entries: p.entries[n:], Later: true}} {
		b.Incarnation = incarnation
		if _, err := s.Index.Record(p.t.Context(), b); err != nil {
			p.t.Fatal(err)
		}
	}
}

// answers are what a store says about the runs that it lists, as of a time.
func answers(t *testing.T, s *recorder.Store, now time.Time) (all []string) {
	t.Helper()
	runs, err := s.Answers.Runs(t.Context(), wire.RunsRequest{}, now, 1<<20)
	for i := range runs.Runs {
		runs.Runs[i].Events = 0 // they are recorded
	}
	all = append(all, fmt.Sprintf("runs %+v %v", runs, err))
	for _, run := range listed(t, s, wire.RunsRequest{}) {
		log, err := s.Answers.Log(t.Context(), wire.LogRequest{Run: run, Limit: new(1000), Details: true}, now, 1<<20)
		for i := range log.Lines {
			all = append(all, fmt.Sprintf("%s %+v", run, log.Lines[i]))
		}
		all = append(all, fmt.Sprintf("%s %d lines, %v", run, log.TotalLines, err))
		status, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: run}, now, 1<<20)
		status.Position = wire.Position{}                                                                           // up to there or to the run's last event
		status.Agents = slices.DeleteFunc(status.Agents, func(a wire.AgentStatus) bool { return a.StartedAt == 0 }) // known by name only
		all = append(all, fmt.Sprintf("%s %+v %v", run, status, err))
	}
	return all
}

// A store that has recorded more than it has derived answers as if it had recorded
// as much as it has derived, whoever asks; but it has the events.
func TestWhatIsDerivedLater(t *testing.T) {
	p := talk(t)
	now := time.UnixMilli(p.clock)
	for _, n := range []int{0, 5, 60, 150, len(p.entries) - 1} {
		half, s := openStore(t), openStore(t)
		s.Answers.HoldLive(1000)
		p.split(s, n)
		whole := slices.Clone(p.entries)
		for at := n; at <= len(p.entries); at += 40 {
			cut := *p
			cut.entries = whole[:at]
			cut.store(half, 50)
			if diff := cmp.Diff(answers(t, half, now), answers(t, s, now)); diff != "" && at > 0 {
				t.Fatalf("%d recorded at once, derived up to %d (-recorded up to there +got):\n%.3000s", n, at, diff)
			}
			if v := sound(t, s, fmt.Sprint("derived up to ", at)); v.Derived != uint64(at) || v.Position.Seq != p.pos {
				t.Errorf("verified up to %d of %d, want %d of %d", v.Derived, v.Position.Seq, at, p.pos)
			}
			events, err := s.Answers.Events(t.Context(), wire.EventsRequest{}, false, 1<<20)
			if err != nil || len(events.Events) != len(p.entries) {
				t.Errorf("%d events, %v; want %d", len(events.Events), err, len(p.entries))
			}
			if r, err := s.Index.Derive(t.Context(), 40); err != nil || r.Derived != min(uint64(at)+40, p.pos) {
				t.Fatalf("derived up to %d, %v", r.Derived, err)
			}
		}
		derived(t, s)
	}
}

// What is derived from the events that are held is what is derived from those that are read again.
func TestDerivedFromMemory(t *testing.T) {
	p := talk(t)
	var dumps []map[string][]string
	for _, reopened := range []bool{false, true} {
		path := newTarget(t)
		s := openAt(t, path)
		for rest := p.entries; len(rest) > 0; {
			n := min(70, len(rest))
			if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: rest[:n], Later: true}); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		for at := uint64(0); at < p.pos; {
			if reopened {
				closed(t, s)
				s = openAt(t, path)
			}
			r, err := s.Index.Derive(t.Context(), 50)
			if err != nil || r.Derived <= at {
				t.Fatalf("derived up to %d, then %d, %v", at, r.Derived, err)
			}
			at = r.Derived
		}
		sound(t, s, "derived")
		closed(t, s)
		dumps = append(dumps, dump(t, path))
	}
	if diff := cmp.Diff(dumps[1], dumps[0]); diff != "" {
		t.Errorf("(-read again +held):\n%.3000s", diff)
	}
}

// Events that are read again are read by whole segments, as they were recorded, though more may be derived at once.
func TestDerivedBySegments(t *testing.T) {
	p := newTape(t)
	for _, run := range []string{"r1", "r2"} {
		p.start(run, "coder", nil)
	}
	for i := range 600 {
		p.add([]string{"r1", "r2"}[i%2], "coder", "coder#1", &wire.AgentText{Content: "some words", Block: i})
	}
	path := newTarget(t)
	s := openAt(t, path)
	for _, part := range [][2]int{{0, 300}, {300, 600}, {600, len(p.entries)}} { // the last one is too short for a segment
		b := recorder.Batch{Incarnation: incarnation, Entries: p.entries[part[0]:part[1]], Later: true}
		if _, err := s.Index.Record(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	closed(t, s)
	s = openAt(t, path) // which holds none of them
	defer closed(t, s)
	var ends []uint64
	for at := uint64(0); at < p.pos; {
		r, err := s.Index.Derive(t.Context(), 450)
		if err != nil || r.Derived <= at {
			t.Fatalf("derived up to %d after %d, %v", r.Derived, at, err)
		}
		at = r.Derived
		ends = append(ends, at)
	}
	if diff := cmp.Diff([]uint64{300, 600, p.pos}, ends); diff != "" {
		t.Errorf("(-recorded up to +derived up to):\n%s", diff)
	}
	sound(t, s, "derived")
}

// While something isn't derived nobody decides what is deleted, what is derived
// again isn't derived twice, and a search says how far it has looked.
func TestWhatDependsOnWhatIsDerived(t *testing.T) {
	p := newTape(t)
	p.whole("r1", "alpha one")
	p.whole("r2", "alpha two")
	n := len(p.entries)
	p.add("r3", wire.RunNode, "", &wire.RunClaimed{Runner: "runner", Nonce: "n"})
	p.add("r3", wire.RunNode, "", &wire.FlowStart{FlowName: "review", Definition: wire.Null, DefinitionHash: "h", ParentRun: "r1"}) // which goes on
	p.add("r3", "coder", "coder#1", &wire.AgentText{Content: "alpha three"})
	path := newTarget(t)
	s := openAt(t, path)
	defer func() { closed(t, s) }()
	p.split(s, n)
	long := recorder.Retention{Age: time.Nanosecond, Grace: time.Nanosecond}
	if _, err := s.Retention.Delete(t.Context(), wire.DeleteRequest{Run: "r1"}, 0, time.Now()); codeOf(err) != wire.CodeCommandRejected {
		t.Errorf("deleted: %v", err)
	}
	if n, err := s.Retention.Expire(t.Context(), long, time.Now()); n != 0 || err != nil {
		t.Errorf("%d runs expired, %v", n, err)
	}
	if idle, err := s.Retention.IsIdle(t.Context(), "r1"); idle || err == nil {
		t.Errorf("it is known that nothing needs the folder of r1: %t, %v", idle, err)
	}
	if err := s.Index.Rebuild(t.Context(), "order", func(int64, int64) {}); err != nil {
		t.Fatal(err)
	}
	sound(t, s, "derived again")
	if diff := cmp.Diff([]string{"r2", "r1"}, found(t, s, "alpha")); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
	if r, err := s.Answers.Search(t.Context(), wire.SearchRequest{Text: "alpha"}, time.Now(), 1<<20); err != nil || r.Through != uint64(n) {
		t.Errorf("searched through %d, %v; want %d", r.Through, err, n)
	}
	derived(t, s)
	sound(t, s, "derived")
	if diff := cmp.Diff([]string{"r3", "r2", "r1"}, found(t, s, "alpha")); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
	if r, err := s.Answers.Search(t.Context(), wire.SearchRequest{Text: "alpha"}, time.Now(), 1<<20); err != nil || r.Through != 0 {
		t.Errorf("searched through %d, %v; want all", r.Through, err)
	}
	again := newTarget(t)
	whole := openAt(t, again)
	p.store(whole, 10)
	closed(t, whole)
	want, got := dump(t, again), dump(t, path)
	delete(want, "nodes") // their ids are new
	for table := range want {
		if slices.Contains([]string{"events", "streams", "runs", "labels"}, table) {
			if diff := cmp.Diff(want[table], got[table]); diff != "" {
				t.Errorf("%s (-recorded at once +derived later):\n%s", table, diff)
			}
		}
	}
	if n, err := s.Retention.Expire(t.Context(), long, time.Now()); n != 1 || err != nil {
		t.Errorf("%d runs expired, %v; want only r2, which nobody needs", n, err)
	}
	for id, want := range map[string]bool{"r1": false, "r2": true, "r3": false} {
		if idle, err := s.Retention.IsIdle(t.Context(), id); idle != want || err != nil {
			t.Errorf("nothing needs the folder of %s: %t, %v", id, idle, err)
		}
	}
}

// A large field is in the store with its event, whenever something is derived from
// it.
func TestLargeFieldsAreKeptAtOnce(t *testing.T) {
	p := newTape(t)
	blobs := map[string][]byte{}
	p.start("r1", "coder", nil)
	p.large("r1", strings.Repeat("large ", 1000), blobs)
	s := openStore(t)
	if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: p.entries, Blobs: blobs, Later: true}); err != nil {
		t.Fatal(err)
	}
	sound(t, s, "recorded")
	derived(t, s)
	sound(t, s, "derived")
	log, err := s.Answers.Log(t.Context(), wire.LogRequest{Run: "r1", Type: wire.LineText}, time.Now(), 1<<20)
	if err != nil || len(log.Lines) != 1 || !strings.HasPrefix(log.Lines[0].Text, "large large") {
		t.Errorf("%.200v, %v", log.Lines, err)
	}
}

// However large the events are, only so much of them is read at once.
func TestLargeEventsAreDerivedInPieces(t *testing.T) {
	p := newTape(t)
	for _, run := range []string{"r1", "r2"} {
		p.start(run, "coder", nil)
	}
	for i := range 48 {
		p.add([]string{"r1", "r2"}[i%2], "coder", "coder#1", &wire.AgentText{Content: strings.Repeat("large ", 80<<10), Block: i})
	}
	s := openStore(t)
	if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: p.entries, Later: true}); err != nil {
		t.Fatal(err)
	}
	if pieces := derivedPieces(t, s, p); pieces < 2 || pieces > 8 {
		t.Errorf("%d pieces of 23 MiB", pieces)
	}
	sound(t, s, "derived")
}

// derivedPieces derives all of a tape, and returns in how many pieces.
func derivedPieces(t *testing.T, s *recorder.Store, p *tape) (pieces int) {
	t.Helper()
	for at := uint64(0); at < p.pos; pieces++ {
		r, err := s.Index.Derive(t.Context(), len(p.entries))
		if err != nil || r.Derived <= at {
			t.Fatalf("derived up to %d after %d, %v", r.Derived, at, err)
		}
		at = r.Derived
	}
	return pieces
}

// Large fields count, too: what they are in is derived in pieces.
func TestLargeFieldsAreDerivedInPieces(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	blobs := map[string][]byte{}
	for i := range 24 {
		p.add("r1", "coder", exec, &wire.AgentText{Content: strings.Repeat("large ", 300<<10) + strconv.Itoa(i), Block: i})
		e := &p.entries[len(p.entries)-1]
		small, large, err := wire.Externalize(e.Data, 16<<10)
		if err != nil {
			t.Fatal(err)
		}
		if e.Event, err = wire.Decode(small); err != nil {
			t.Fatal(err)
		}
		e.Data = small
		maps.Copy(blobs, large)
	}
	s := openStore(t)
	if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: p.entries, Blobs: blobs, Later: true}); err != nil {
		t.Fatal(err)
	}
	if pieces := derivedPieces(t, s, p); pieces < 2 || pieces > 4 {
		t.Errorf("%d pieces of 42 MiB", pieces)
	}
	sound(t, s, "derived")
}

// A recorder that has much to catch up with derives when it has, and at once from
// what comes in then.
func TestRecorderDerivesLater(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		pos := p.fill(100)
		stop := p.record(recorder.Config{Batch: 10})
		p.until(pos)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for len(p.lines("r1")) < 200 {
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("%d lines of 200 after a minute", len(p.lines("r1")))
			}
		}
		w := p.claim("r1", "c")
		p.write(w, text("and more"))
		if n := len(p.lines("r1")); n != 201 {
			t.Errorf("%d lines, want what was just stored, too", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		p.want(pos + 2)
		s := openAt(t, p.path())
		defer closed(t, s)
		if v := sound(t, s, "in the end"); v.Derived != pos+2 {
			t.Errorf("derived up to %d, want %d", v.Derived, pos+2)
		}
	})
}
