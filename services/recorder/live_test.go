package recorder_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// talk is a tape of two runs whose lines grow, are replaced, are hidden and are of
// several nodes. In the end one of them is over and the other asks something.
func talk(t testing.TB) *tape {
	p := newTape(t)
	for _, run := range []string{"r1", "r2"} {
		exec := p.start(run, "coder", map[string]string{"name": run + "-name"})
		p.add(run, wire.RunNode, "judge#1", &wire.NodeScheduled{Target: "judge", Attempt: 1})
		for i := range 12 {
			for range 4 {
				p.add(run, "coder", exec, &wire.AgentTextDelta{Content: fmt.Sprint("piece ", i, "\x1b[31m"), Block: i + 1})
				p.add(run, "coder", exec, &wire.AgentThinkingDelta{Content: strings.Repeat("hm ", 40), Block: 100 + i})
			}
			if i%3 == 0 {
				p.add(run, "coder", exec, &wire.AgentText{Content: "whole", Block: i + 1})
			}
			p.add(run, "coder", exec, &wire.ToolIntent{ToolName: "Bash", ToolInput: mustRaw(t, map[string]any{"command": "make"})})
			p.add(run, "coder", exec, &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null, Error: "exit code 1"})
			p.add(run, "coder", exec, &wire.Usage{MessageID: fmt.Sprint(i / 2), InputTokens: 10, OutputTokens: 1, ContextTokens: 500, ContextWindow: 1000})
			if i == 7 {
				seq := p.seqs[run+"/coder"]
				p.add(run, "coder", exec, &wire.LogTruncated{AtSeq: seq - 5, Reason: "rolled back"})
			}
		}
		p.add(run, "coder", exec, &wire.CCMessage{Text: "A or B?", Priority: wire.PriorityQuestion})
	}
	p.add("r1", wire.RunNode, "", &wire.FlowAborted{Reason: "enough"})
	return p
}

// questions are polls of a run as agents and people ask them.
func questions(run string) []wire.LogRequest {
	q := []wire.LogRequest{
		{Run: run},
		{Run: run, Limit: new(3)},
		{Run: run, Limit: new(0)},
		{Run: run, Details: true, Limit: new(1000)},
		{AgentID: run + "/coder", Limit: new(4)},
		{Run: run, Node: "judge"},
		{Run: run, Node: "nobody"},
		{Run: run, Type: wire.LineTool, Limit: new(2)},
		{Run: run, Grep: "piece [13]", Limit: new(2)},
		{Run: run, Since: 20_000},
	}
	for _, offset := range []int64{0, 5, 11, 40, 10_000} {
		q = append(q, wire.LogRequest{Run: run, Offset: new(offset), Limit: new(7)})
	}
	return q
}

// What memory answers is what the store answers, wherever the batches end and
// however few lines are held, from the beginning on or after a restart.
func TestLiveAnswersAreTheStores(t *testing.T) {
	p := talk(t)
	for _, tt := range []struct{ held, size int }{{1, 50}, {5, 11}, {1000, 23}} {
		warm, cold := openStore(t), openStore(t)
		warm.Answers.HoldLive(tt.held)
		for list := range slices.Chunk(p.entries, tt.size) {
			for _, s := range []*recorder.Store{warm, cold} {
				if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: list}); err != nil {
					t.Fatal(err)
				}
			}
			end := list[len(list)-1].Event
			same(t, fmt.Sprintf("%+v, %s/%d", tt, end.NodeID, end.Seq), warm, cold, time.UnixMilli(end.Timestamp+60))
			if t.Failed() {
				return
			}
		}
		now := time.UnixMilli(p.clock)
		for _, change := range []func(*recorder.Store) error{
			func(s *recorder.Store) error {
				_, err := s.Retention.Delete(t.Context(), wire.DeleteRequest{Run: "r1"}, time.Hour, now)
				return err
			},
			func(s *recorder.Store) error {
				_, err := s.Retention.Delete(t.Context(), wire.DeleteRequest{Run: "r1", Undo: true}, time.Hour, now)
				return err
			},
			func(s *recorder.Store) error { return s.Index.Rebuild(t.Context(), "again", func(int64, int64) {}) },
		} {
			if err := errors.Join(change(warm), change(cold)); err != nil {
				t.Fatal(err)
			}
			same(t, fmt.Sprintf("%+v, changed", tt), warm, cold, now)
		}
	}
}

// Calls that are held are those of the runs, wherever the batches end, and behind a run that was derived anew.
func TestStatsOfHeldCalls(t *testing.T) {
	p := talk(t)
	s := openStore(t)
	now := time.UnixMilli(p.clock)
	check := func() {
		t.Helper()
		held, err := s.Answers.Stats(t.Context(), wire.StatsRequest{}, now)
		if err != nil {
			t.Fatal(err)
		}
		read := map[string]wire.ToolStats{}
		for _, run := range []string{"r1", "r2"} {
			of, err := s.Answers.Stats(t.Context(), wire.StatsRequest{Run: run}, now)
			if err != nil && codeOf(err) != wire.CodeRunNotFound {
				t.Fatal(err)
			}
			for _, tool := range of.Tools {
				sum := read[tool.Tool]
				sum.Calls, sum.Failed, sum.Denied = sum.Calls+tool.Calls, sum.Failed+tool.Failed, sum.Denied+tool.Denied
				read[tool.Tool] = sum
			}
		}
		for _, tool := range held.Tools {
			if sum := read[tool.Tool]; tool.Calls != sum.Calls || tool.Failed != sum.Failed || tool.Denied != sum.Denied {
				t.Errorf("of %s %+v is held, the runs have %+v", tool.Tool, tool, sum)
			}
			delete(read, tool.Tool)
		}
		if len(read) > 0 {
			t.Errorf("not held: %v", read)
		}
	}
	for list := range slices.Chunk(p.entries, 23) {
		if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: list}); err != nil {
			t.Fatal(err)
		}
		check()
	}
	s.Answers.Forget("r1")
	check()
	if _, err := s.Retention.Delete(t.Context(), wire.DeleteRequest{Run: "r1"}, time.Hour, now); err != nil {
		t.Fatal(err)
	}
	if held, err := s.Answers.Stats(t.Context(), wire.StatsRequest{}, now); err != nil || held.Runs.Runs != 1 || held.Tools[0].Calls != 12 {
		t.Errorf("behind a deletion %+v of %+v, %v", held.Tools, held.Runs, err)
	}
	if since, err := s.Answers.Stats(t.Context(), wire.StatsRequest{Since: 1}, now.Add(time.Hour)); err != nil || len(since.Tools) > 0 {
		t.Errorf("of the last ms: %+v, %v", since.Tools, err)
	}
}

// same asks two stores the same.
func same(t *testing.T, what string, warm, cold *recorder.Store, now time.Time) {
	t.Helper()
	for _, run := range []string{"r1", "r2"} {
		for _, q := range []wire.StatusRequest{{Run: run}, {Run: run, Node: "coder"}, {AgentID: run + "/coder"}, {AgentID: run + "-name"}, {Run: run, Node: "nobody"}} {
			a, errA := warm.Answers.Status(t.Context(), q, now, 1<<20)
			b, errB := cold.Answers.Status(t.Context(), q, now, 1<<20)
			if diff := cmp.Diff(b, a); diff != "" || fmt.Sprint(errA) != fmt.Sprint(errB) {
				t.Errorf("%s: status %+v: %v, %v (-store +memory):\n%s", what, q, errA, errB, diff)
			}
		}
		for _, q := range questions(run) {
			a, errA := warm.Answers.Log(t.Context(), q, now, 1<<20)
			b, errB := cold.Answers.Log(t.Context(), q, now, 1<<20)
			if diff := cmp.Diff(b, a); diff != "" || fmt.Sprint(errA) != fmt.Sprint(errB) {
				t.Errorf("%s: log %+v: %v, %v (-store +memory):\n%s", what, q, errA, errB, diff)
			}
		}
	}
	for name, ask := range map[string]func(*recorder.Store) (any, error){
		"top": func(s *recorder.Store) (any, error) {
			return s.Answers.Top(t.Context(), wire.TopRequest{Since: 1000}, now, 1<<20)
		},
		"fleet": func(s *recorder.Store) (any, error) {
			return s.Answers.Fleet(t.Context(), wire.FleetRequest{}, now, 1<<20)
		},
		"stats": func(s *recorder.Store) (any, error) { return s.Answers.Stats(t.Context(), wire.StatsRequest{}, now) },
		"approvals": func(s *recorder.Store) (any, error) {
			return s.Answers.Approvals(t.Context(), wire.ApprovalsRequest{}, now, 1<<20)
		},
		"approvals of a run": func(s *recorder.Store) (any, error) {
			return s.Answers.Approvals(t.Context(), wire.ApprovalsRequest{Run: "r2"}, now, 1<<20)
		},
	} {
		a, errA := ask(warm)
		b, errB := ask(cold)
		if diff := cmp.Diff(b, a); diff != "" || fmt.Sprint(errA) != fmt.Sprint(errB) {
			t.Errorf("%s: %s: %v, %v (-store +memory):\n%s", what, name, errA, errB, diff)
		}
	}
}

// Once a run was asked for, its answers need no database.
func TestLiveAnswersNeedNoStore(t *testing.T) {
	p := talk(t)
	p.entries = p.entries[:len(p.entries)-1] // r1 goes on
	target := newTarget(t)
	s, err := recorder.Open(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	s.Answers.HoldLive(20)
	p.store(s, 40)
	now := time.UnixMilli(p.clock)
	ask := func() error {
		_, err1 := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "r1"}, now, 1<<20)
		_, err2 := s.Answers.Log(t.Context(), wire.LogRequest{Run: "r1", Limit: new(10)}, now, 1<<20)
		_, err3 := s.Answers.Status(t.Context(), wire.StatusRequest{AgentID: "r1/coder"}, now, 1<<20)
		return errors.Join(err1, err2, err3)
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err != nil {
		t.Errorf("without a database: %v", err)
	}
	if _, err := s.Answers.Log(t.Context(), wire.LogRequest{Run: "r1", Limit: new(30)}, now, 1<<20); err == nil {
		t.Error("lines that aren't held were answered without a database")
	}
	if _, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "r2"}, now, 1<<20); err == nil {
		t.Error("a run that isn't held was answered without a database")
	}
}

// Questions may come while runs are recorded: each answer is one of some moment,
// and the last ones are right.
func TestLiveWhileRecording(t *testing.T) {
	p := talk(t)
	warm, cold := openStore(t), openStore(t)
	warm.Answers.HoldLive(30)
	p.store(cold, 1000)
	now := time.UnixMilli(p.clock)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for _, run := range []string{"r1", "r2"} {
		wg.Go(func() {
			for last := uint64(0); ; {
				select {
				case <-stop:
					return
				default:
				}
				r, err := warm.Answers.Log(t.Context(), wire.LogRequest{Run: run, Details: true}, now, 1<<20)
				if err != nil && codeOf(err) != wire.CodeRunNotFound || err == nil && r.Position < last {
					t.Errorf("position %d after %d, %v", r.Position, last, err)
					return
				}
				last = r.Position
			}
		})
	}
	p.store(warm, 3)
	close(stop)
	wg.Wait()
	same(t, "in the end", warm, cold, now)
}

// Another recorder of the same database may have recorded what this one has not:
// what is held is dropped then.
func TestLiveBesideAnotherRecorder(t *testing.T) {
	p := talk(t)
	target := newTarget(t)
	one, two := openAt(t, target), openAt(t, target)
	defer closed(t, two)
	defer closed(t, one)
	one.Answers.HoldLive(50)
	now := time.UnixMilli(p.clock)
	for i, list := range slices.Collect(slices.Chunk(p.entries, 30)) {
		s := []*recorder.Store{one, two}[i%2]
		for _, s := range []*recorder.Store{s, one} { // who comes second passes over it
			if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: list}); err != nil {
				t.Fatal(err)
			}
		}
		same(t, fmt.Sprint("after batch ", i), one, two, now)
	}
	if _, err := two.Retention.Delete(t.Context(), wire.DeleteRequest{Run: "r1", Now: true}, time.Hour, now); err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		var err error
		if _, more, err = two.Retention.Remove(t.Context(), now.Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	same(t, "behind a removal", one, two, now)
}

// Colours in an output part no words and join none to their codes.
func TestColoursAreNoWords(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "test", nil)
	p.add("r1", "test", exec, &wire.ExecOutput{Stream: "stdout", Content: "\x1b[31mfail\x1b[0m: \x1b[1mTestX\x1b[0m\n"})
	p.add("r1", "test", exec, &wire.ExecExit{ExitCode: 1})
	s := openStore(t)
	p.store(s, 10)
	for more := true; more; {
		var err error
		if more, err = s.Index.IndexLines(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r, err := s.Answers.Search(t.Context(), wire.SearchRequest{Text: "fail TestX"}, time.UnixMilli(p.clock), 1<<20)
	if err != nil || len(r.Hits) != 1 || r.Hits[0].Snippet != "fail: TestX\n" {
		t.Errorf("%+v, %v", r.Hits, err)
	}
}
