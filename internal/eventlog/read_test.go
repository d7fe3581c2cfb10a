package eventlog_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// What is read by kinds is the same whatever nodes a run has, and another run's isn't part of it. Nodes don't make it ask more.
func TestReadByKinds(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3, 8, 20} {
		p := one(t, eventlog.Options{})
		var want []string
		for _, run := range []string{"r", "rr"} {
			for i := range nodes {
				node := fmt.Sprint("n", i)
				w := p.claim(run, node)
				appendTo(t, w, text("left out"), delta("too"), &wire.Event{Payload: &wire.AgentComplete{Result: "done"}})
				if run == "r" {
					want = append(want, fmt.Sprintf("r/%s 1", node), fmt.Sprintf("r/%s 4", node))
				}
			}
		}
		read := func(q eventlog.Query) (got []string) {
			for e, err := range p.Read(t.Context(), q) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, fmt.Sprintf("%s/%s %d", e.RunID, e.NodeID, e.Event.Seq))
			}
			return got
		}
		q := eventlog.Query{Run: "r", Kinds: []wire.Kind{wire.KindFlow, wire.KindAgent, wire.KindTool}}
		asked, err := p.Conn().SubscribeSync("$JS.API.>")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, read(q)); diff != "" {
			t.Errorf("%d nodes:\n%s", nodes, diff)
		}
		if n, most := messageCount(t, p, asked), 1+2*2*len(q.Kinds); n > most {
			t.Errorf("%d nodes: %d questions, want at most %d", nodes, n, most)
		}
		q.From, q.To = 4, uint64(4*nodes)-1
		if diff := cmp.Diff(slices.Clip(want[1:len(want)-1]), read(q), cmp.Transformer("", func(s []string) []string { return append([]string{}, s...) })); diff != "" {
			t.Errorf("a part of %d nodes:\n%s", nodes, diff)
		}
		q = eventlog.Query{Run: "another", Kinds: q.Kinds}
		before := messageCount(t, p, asked)
		if got := read(q); got != nil {
			t.Errorf("of a run that isn't there: %v", got)
		}
		if n := messageCount(t, p, asked) - before; n != 1 {
			t.Errorf("%d questions for nothing", n)
		}
	}
}

// messageCount returns how many messages have come of what the process has sent so far.
func messageCount(t *testing.T, p process, s *nats.Subscription) int {
	t.Helper()
	if err := p.Conn().Flush(); err != nil {
		t.Fatal(err)
	}
	n, _, err := s.Pending()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A claim follows the message that its caller knows, without a question, or none: if the node has got on since, what the
// caller has judged by it no longer holds.
func TestClaimBehind(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{})
	asked, err := p.Conn().SubscribeSync("$JS.API.STREAM.MSG.GET.>")
	if err != nil {
		t.Fatal(err)
	}
	w, err := p.Claim(t.Context(), "r", "n", eventlog.Claim{Runner: "a", Last: &eventlog.Message{}})
	if err != nil {
		t.Fatal(err)
	}
	if n := messageCount(t, p, asked); n != 0 {
		t.Errorf("%d questions for the message that is known", n)
	}
	m, found, err := p.LastMessage(t.Context(), "r", "n")
	if err != nil || !found {
		t.Fatalf("%t, %v", found, err)
	}
	appendTo(t, w, text("since"))
	before := messageCount(t, p, asked)
	if _, err := p.Claim(t.Context(), "r", "n", eventlog.Claim{Runner: "b", Last: &m}); !errors.Is(err, eventlog.ErrFenced) {
		t.Errorf("the node has got on: %v", err)
	}
	if n := messageCount(t, p, asked) - before; n != 1 {
		t.Errorf("%d questions where the node has got on", n)
	}
	appendTo(t, w, text("after"))
	if m, _, err = p.LastMessage(t.Context(), "r", "n"); err != nil {
		t.Fatal(err)
	}
	next, err := p.Claim(t.Context(), "r", "n", eventlog.Claim{Runner: "b", Last: &m})
	if err != nil {
		t.Fatal(err)
	}
	appendTo(t, next, text("next"))
	want := []string{"1 1", "2 1", "3 1", "4 2", "5 2"}
	if diff := cmp.Diff(want, p.chain("r", "n")); diff != "" {
		t.Errorf("seq and epoch:\n%s", diff)
	}
}
