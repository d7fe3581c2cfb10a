package recorder_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/conversation"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/kahn"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// numbers are those of a run that several places show.
type numbers struct {
	Calls int64
	Turns int64 // of the node's own agent
}

// Whoever shows a run's calls and turns shows the same ones: the conversation, the state, the
// recorder's rows and stats, KAHN and OTLP.
func TestNumbersAgree(t *testing.T) {
	files, err := filepath.Glob("../../internal/agent/claude/testdata/stream/*.jsonl")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	runs, s, _ := ingested(t, files)
	var all numbers
	for id, log := range runs {
		t.Run(id, func(t *testing.T) {
			want := checkNumbers(t, s, id, log)
			all.Calls, all.Turns = all.Calls+want.Calls, all.Turns+want.Turns
		})
	}
	if all.Calls < 20 || all.Turns < 40 {
		t.Errorf("%+v are no test", all)
	}
}

// checkNumbers requires that all places show the calls and turns of a run that its conversation has, and returns these.
func checkNumbers(t *testing.T, s *recorder.Store, id string, log []eventlog.Entry) numbers {
	t.Helper()
	want := folded(log)
	for place, got := range map[string]numbers{
		"state": inState(t, log), "stats": inStats(t, s, id, want.Turns), "KAHN": inKAHN(t, log, want.Turns), "OTLP": inOTLP(t, id, log),
	} {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-conversation +%s):\n%s", place, diff)
		}
	}
	return want
}

// ingested records the runs of recordings, and returns their events, and the store by its name too.
func ingested(t testing.TB, files []string) (map[string][]eventlog.Entry, *recorder.Store, string) {
	t.Helper()
	log := logtest.Start(t)
	p := newTape(t)
	runs := map[string][]eventlog.Entry{}
	for i, file := range files {
		id := fmt.Sprintf("r%d", i)
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		_, err = ingest.Run(t.Context(), log, f, ingest.Options{RunID: id, Runner: "test"})
		_ = f.Close()
		if err != nil {
			t.Fatal(file, err)
		}
		for e, err := range log.Read(t.Context(), eventlog.Query{Run: id}) {
			if err != nil || e.Err != nil {
				t.Fatal(err, e.Err)
			}
			p.put(e.Event)
			runs[id] = append(runs[id], p.entries[len(p.entries)-1])
		}
	}
	target := newTarget(t)
	s := openAt(t, target)
	t.Cleanup(func() { closed(t, s) })
	p.store(s, 100)
	return runs, s, target
}

func folded(log []eventlog.Entry) (n numbers) {
	var c conversation.Conversation
	for _, e := range log {
		if e.NodeID == wire.RunNode {
			continue
		}
		step := c.Apply(e.Pos, e.Event)
		if step.Result != nil {
			n.Calls++
		}
		if step.Turns && e.Event.Turn > 0 { // what the program says by itself, as of /context, is no call of the model
			n.Turns++
		}
	}
	return n
}

func inState(t *testing.T, log []eventlog.Entry) numbers {
	t.Helper()
	s := run.New(log[0].RunID)
	for _, e := range log {
		if err := run.Apply(s, wire.Position{Seq: e.Pos}, e.Event); err != nil {
			t.Fatal(err)
		}
	}
	return numbers{s.Usage.ToolCalls, int64(s.Nodes["agent"].Turns)}
}

// inStats returns what the recorder counts. It shows no turns.
func inStats(t *testing.T, s *recorder.Store, id string, turns int64) numbers {
	t.Helper()
	r, err := s.Answers.Stats(t.Context(), wire.StatsRequest{Run: id}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	n := numbers{Turns: turns}
	for _, tool := range r.Tools {
		n.Calls += tool.Calls
	}
	return n
}

// inKAHN returns the calls of KAHN, which has no turns.
func inKAHN(t *testing.T, log []eventlog.Entry, turns int64) numbers {
	t.Helper()
	n := numbers{Turns: turns}
	p := kahn.NewProjector(kahn.Projection{})
	for _, e := range log {
		lines, err := p.Add(e.Pos, e.Event)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			if e, err := kahn.Parse(line); err != nil {
				t.Fatal(err)
			} else if end, ok := e.Body.(*kahn.RunEnd); ok {
				n.Calls += end.TotalToolCalls
			}
		}
	}
	return n
}

func inOTLP(t *testing.T, id string, log []eventlog.Entry) (n numbers) {
	t.Helper()
	entries := func(yield func(eventlog.Entry, error) bool) {
		for _, e := range log {
			if !yield(e, nil) {
				return
			}
		}
	}
	turns := map[string]bool{}
	_, err := export.OTLP(export.Run{ID: id}, entries, export.Spans{}, func(body []byte) error {
		var b struct {
			ResourceSpans []struct {
				ScopeSpans []struct {
					Spans []struct {
						Name       string
						Attributes []struct {
							Key   string
							Value struct{ IntValue string }
						}
					}
				}
			}
		}
		if err := json.Unmarshal(body, &b); err != nil {
			return err
		}
		for _, s := range b.ResourceSpans[0].ScopeSpans[0].Spans {
			if strings.HasPrefix(s.Name, "execute_tool ") {
				n.Calls++
			}
			for _, a := range s.Attributes {
				if a.Key == "wake.turn" {
					turns[a.Value.IntValue] = true
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	n.Turns = int64(len(turns))
	return n
}
