package recorder_test

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/bench"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

const incarnation = "8f14e45f-0000-4000-8000-000000000001"

// tape makes a stream out of events.
type tape struct {
	t       testing.TB
	pos     uint64
	seqs    map[string]uint64
	clock   int64
	entries []eventlog.Entry
}

func newTape(t testing.TB) *tape {
	return &tape{t: t, seqs: map[string]uint64{}, clock: 1767400000000}
}

// add appends an event of a run's node, one second after the one before.
func (p *tape) add(run, node, exec string, payload wire.Payload) *wire.Event {
	p.seqs[run+"/"+node]++
	e := &wire.Event{
		RunID: run, NodeID: node, ExecID: exec, Seq: p.seqs[run+"/"+node], Epoch: 1,
		SessionID: "session-" + run, CallID: fmt.Sprintf("call-%d", p.seqs[run+"/"+node]), Payload: payload,
	}
	p.clock += 1000
	e.Timestamp = p.clock
	p.put(e)
	return e
}

// put appends an event as it is.
func (p *tape) put(e *wire.Event) {
	p.t.Helper()
	data, err := wire.Encode(e)
	if err != nil {
		p.t.Fatal(err)
	}
	kind := e.Type().Kind()
	p.pos++
	p.entries = append(p.entries, eventlog.Entry{
		Pos: p.pos, Time: time.UnixMilli(e.Timestamp), RunID: e.RunID, NodeID: e.NodeID, Kind: kind,
		Subject: subjects.Default.Event(e.RunID, e.NodeID, string(kind)), Data: data, Event: e,
	})
}

// start appends the beginning of a run with one agent node.
func (p *tape) start(run, node string, labels map[string]string) (exec string) {
	exec = node + "#1"
	p.add(run, wire.RunNode, "", &wire.RunClaimed{Runner: "runner", Nonce: "n"})
	p.add(run, wire.RunNode, "", &wire.FlowStart{FlowName: "review", Definition: wire.Null, DefinitionHash: "h", Labels: labels})
	p.add(run, wire.RunNode, exec, &wire.NodeScheduled{Target: node, Attempt: 1})
	p.add(run, node, exec, &wire.NodeClaimed{Runner: "runner", Nonce: "n"})
	p.add(run, node, exec, &wire.NodeStart{NodeType: "agent", Attempt: 1})
	p.add(run, node, exec, &wire.AgentStart{Prompt: wire.RawString("Do it."), Model: "opus"})
	return exec
}

func openStore(t testing.TB) *recorder.Store {
	t.Helper()
	s, err := recorder.Open(t.Context(), newTarget(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// store records everything on the tape in batches.
func (p *tape) store(s *recorder.Store, size int) recorder.Report {
	p.t.Helper()
	var sum recorder.Report
	for rest := p.entries; len(rest) > 0; {
		n := min(size, len(rest))
		r, err := s.Index.Record(p.t.Context(), recorder.Batch{Incarnation: incarnation, Entries: rest[:n]})
		if err != nil {
			p.t.Fatal(err)
		}
		sum.Events, sum.Void, sum.Bad, sum.Refused = sum.Events+r.Events, sum.Void+r.Void, sum.Bad+r.Bad, sum.Refused+r.Refused
		sum.Gaps, sum.Lost, sum.Position = sum.Gaps+r.Gaps, sum.Lost+r.Lost, r.Position
		rest = rest[n:]
	}
	return sum
}

// long is a run whose log has the given number of lines. One event in ten of
// the tape makes a line, as deltas are about nine of ten.
func long(t testing.TB, run string, lines int) *tape {
	p := newTape(t)
	exec := p.start(run, "coder", nil)
	for i := range lines {
		switch i % 4 {
		case 0:
			for range 36 {
				p.add(run, "coder", exec, &wire.AgentTextDelta{Content: "some words ", Block: i + 1})
			}
		case 1:
			input, _ := wire.Marshal(map[string]any{"command": fmt.Sprintf("go test ./pkg/%d", i)})
			p.add(run, "coder", exec, &wire.ToolIntent{ToolName: "Bash", ToolInput: input})
			p.entries[len(p.entries)-1].Event.CallID = "c"
			ok := &wire.AgentTool{ToolName: "Bash", ToolInput: input, ToolOutput: wire.RawString("ok"), DurationMs: new(int64(2100))}
			p.add(run, "coder", exec, ok)
		case 2:
			p.add(run, "coder", exec, &wire.AgentText{Content: fmt.Sprintf("Line %d of the answer, which is about as long as such a line is.", i)})
		case 3:
			p.add(run, "coder", exec, &wire.AgentThinking{Content: "Let me think about what could be the reason for this error."})
		}
	}
	return p
}

func BenchmarkRecord(b *testing.B) {
	p := long(b, "r1", 10_000)
	b.ResetTimer()
	for b.Loop() {
		p.store(openStore(b), 1000)
	}
	b.ReportMetric(float64(len(p.entries)*b.N)/b.Elapsed().Seconds(), "events/s")
}

// workTape returns a tape of runs whose agents are at work.
func workTape(b testing.TB, runs, events int) *tape {
	p := newTape(b)
	var execs []string
	for run := range runs {
		execs = append(execs, p.start(fmt.Sprint("r", run), "coder", nil))
	}
	for i := range events {
		for run, exec := range execs {
			e, err := bench.Work(i)
			if err != nil {
				b.Fatal(err)
			}
			e.RunID, e.NodeID, e.ExecID, e.Epoch, e.Timestamp = fmt.Sprint("r", run), "coder", exec, 1, p.clock
			key := e.RunID + "/coder"
			p.seqs[key]++
			e.Seq = p.seqs[key]
			p.clock++
			p.put(e)
		}
	}
	return p
}

// BenchmarkRecordWork records agents at work: twenty runs, batches as they are
// when the recorder has much to catch up with, and as events come in; and a fleet of 64 runs with 14 events each in a batch.
func BenchmarkRecordWork(b *testing.B) {
	few, many := workTape(b, 20, 5000), workTape(b, 64, 1600)
	for name, c := range map[string]struct {
		tape *tape
		size int
	}{"behind": {few, 4000}, "live": {few, 40}, "fleet": {many, 900}} {
		b.Run(name, func(b *testing.B) {
			p, size := c.tape, c.size
			spent := time.Duration(0)
			for b.Loop() {
				s, began := openStore(b), used(b)
				p.store(s, size)
				spent += used(b) - began
			}
			b.ReportMetric(float64(len(p.entries)*b.N)/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64(spent.Nanoseconds())/float64(len(p.entries)*b.N), "cpu-ns/event")
		})
	}
}

// BenchmarkDerive records the same events first, and derives then what follows from them.
func BenchmarkDerive(b *testing.B) {
	p := workTape(b, 20, 5000)
	var recorded, derived time.Duration
	for b.Loop() {
		s := openStore(b)
		began := used(b)
		for rest := p.entries; len(rest) > 0; {
			n := min(10_000, len(rest))
			if _, err := s.Index.Record(b.Context(), recorder.Batch{Incarnation: incarnation, Entries: rest[:n], Later: true}); err != nil {
				b.Fatal(err)
			}
			rest = rest[n:]
		}
		recorded, began = recorded+used(b)-began, used(b)
		for at := (recorder.Report{}); at.Derived == 0 || at.Derived < at.Position.Seq; {
			var err error
			if at, err = s.Index.Derive(b.Context(), 16<<10); err != nil {
				b.Fatal(err)
			}
		}
		derived += used(b) - began
	}
	b.ReportMetric(float64(recorded.Nanoseconds())/float64(len(p.entries)*b.N), "record-ns/event")
	b.ReportMetric(float64(derived.Nanoseconds())/float64(len(p.entries)*b.N), "derive-ns/event")
}

// BenchmarkCatchUp records what the stream holds already.
func BenchmarkCatchUp(b *testing.B) {
	p := newPlant(b)
	var runs []string
	for i := range 20 {
		runs = append(runs, fmt.Sprint("behind", i))
	}
	last, err := bench.Fill(b.Context(), p.log, runs, 10_000)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("recorder", func(b *testing.B) {
		recordAgain(b, p, last, func(s *recorder.Store) (uint64, error) {
			pos, err := s.Archive.Position(b.Context())
			return pos.Seq, err
		})
	})
	b.Run("derived", func(b *testing.B) {
		recordAgain(b, p, last, func(s *recorder.Store) (uint64, error) { return s.Archive.Derived(b.Context()) })
	})
	b.Run("raw", func(b *testing.B) { // a consumer that only reads
		js, err := jetstream.New(p.nc)
		if err != nil {
			b.Fatal(err)
		}
		s := &bench.Scratch{JS: js, Names: subjects.Default}
		began := used(b)
		for b.Loop() {
			if _, err := s.Drink(b.Context(), int(last)); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(int(last)*b.N)/b.Elapsed().Seconds(), "events/s")
		b.ReportMetric(float64((used(b)-began).Nanoseconds())/float64(int(last)*b.N), "cpu-ns/event")
	})
}

// recordAgain records what the stream holds until the store is at the position last. That a recorder ends, which gives its memory
// back, is not in it.
func recordAgain(b *testing.B, p *plant, last uint64, at func(*recorder.Store) (uint64, error)) {
	spent := time.Duration(0)
	for b.Loop() {
		target, began := newTarget(b), used(b)
		stop := p.record(recorder.Config{Path: target})
		awaited(b, target, last, at)
		spent += used(b) - began
		b.StopTimer()
		if err := stop(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(int(last)*b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(spent.Nanoseconds())/float64(int(last)*b.N), "cpu-ns/event")
}

// used is the processor time that the process has taken: on a machine that others
// use, too, it says more than the clock.
func used(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// awaited waits until a store that somebody records into is at a position.
func awaited(b *testing.B, target string, last uint64, at func(*recorder.Store) (uint64, error)) {
	var s *recorder.Store
	for tick := time.Tick(5 * time.Millisecond); ; <-tick {
		var err error
		if s == nil {
			if s, err = recorder.OpenReadOnly(b.Context(), target); err != nil {
				s = nil // it isn't there yet
				continue
			}
			defer s.Close()
		}
		if pos, err := at(s); err != nil || pos >= last {
			return
		}
	}
}

// BenchmarkIndex takes lines into the full text.
func BenchmarkIndex(b *testing.B) {
	p := long(b, "r1", 20_000)
	for b.Loop() {
		b.StopTimer()
		s := openStore(b)
		p.store(s, 4000)
		b.StartTimer()
		indexed(b, s)
	}
	b.ReportMetric(float64(20_000*b.N)/b.Elapsed().Seconds(), "lines/s")
}

// BenchmarkVerify checks agents at work, first what is of single runs, then the full text besides.
func BenchmarkVerify(b *testing.B) {
	if path := os.Getenv("WAKE_VERIFY_STORE"); path != "" { // a store that is there
		benchmarkVerify(b, path)
		return
	}
	for name, p := range map[string]*tape{"20 long runs": workTape(b, 20, 5000), "10000 short runs": shortRuns(b, 10)} {
		target := newTarget(b)
		s := openAt(b, target)
		p.store(s, 4000)
		indexed(b, s)
		closed(b, s)
		b.Run(name, func(b *testing.B) { benchmarkVerify(b, target) })
	}
}

func benchmarkVerify(b *testing.B, target string) {
	events := 0
	s, err := recorder.OpenReadOnly(b.Context(), target)
	if err != nil {
		b.Fatal(err)
	}
	defer closed(b, s)
	spent, part, began := map[string]time.Duration{}, "", time.Duration(0)
	count := func(next string) {
		now := used(b)
		spent[part] += now - began
		part, began = next, now
	}
	s.Checker.Progress = func(next string, _, _ int64) {
		if next != part {
			count(next)
		}
	}
	for b.Loop() {
		part, began = "", used(b)
		v, err := s.Checker.Verify(b.Context(), "")
		if err != nil || len(v.Damages) > 0 {
			b.Fatal(err, v.Damages)
		}
		events = int(v.Events)
		count("")
	}
	for part, time := range spent {
		name := strings.ReplaceAll(cmp.Or(part, "start"), " ", "-")
		b.ReportMetric(float64(time.Nanoseconds())/float64(events*b.N), name+"-ns/event")
	}
}

func BenchmarkLog(b *testing.B) {
	s := openStore(b)
	p := long(b, "r1", 100_000)
	p.store(s, 1000)
	now := time.UnixMilli(p.clock)
	for name, q := range map[string]wire.LogRequest{
		"tail":       {Run: "r1"},
		"offset":     {Run: "r1", Offset: new(int64(50_000))},
		"type":       {Run: "r1", Type: wire.LineTool},
		"grep":       {Run: "r1", Grep: "error|fail", Limit: new(10)},
		"grep-since": {Run: "r1", Grep: "error|fail", Since: 3_600_000},
		"grep-text":  {Run: "r1", Grep: "error|fail", Type: wire.LineText},
		"grep-most":  {Run: "r1", Grep: "error|fail", Since: 1_000 * 3_600_000},
		"grep-three": {Run: "r1", Grep: "error|fail", Since: 1_000 * 3_600_000, Type: wire.LineText, Node: "coder"},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Answers.Log(b.Context(), q, now, 1<<20); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("status", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Answers.Status(b.Context(), wire.StatusRequest{Run: "r1"}, now, 1<<20); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// poison is an entry that is no event.
func poison(pos uint64) eventlog.Entry {
	return eventlog.Entry{
		Pos: pos, Time: time.UnixMilli(1767400000000), Subject: "wake.events.r1.coder.agent", RunID: "r1", NodeID: "coder", Kind: wire.KindAgent,
		Data: []byte("\xc1 no event"), Err: wire.ErrSyntax,
	}
}
