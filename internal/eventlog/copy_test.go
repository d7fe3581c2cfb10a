package eventlog_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
)

// recordedElsewhere is an event as another log has it.
func recordedElsewhere(t testing.TB, node string, seq, epoch uint64, p wire.Payload) []byte {
	t.Helper()
	data, err := wire.Encode(&wire.Event{RunID: "r1", NodeID: node, Seq: seq, Epoch: epoch, Timestamp: 5, Payload: p})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Events of several nodes and epochs are stored as they are, in the order of the
// calls, on one server and on three.
func TestCopy(t *testing.T) {
	for _, replicas := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d replicas", replicas), func(t *testing.T) {
			var p process
			if replicas == 1 {
				p = one(t, eventlog.Options{})
			} else {
				nc := natstest.NewCluster(t, replicas).Conn(t)
				setUp(t, nc, topology.Config{Replicas: replicas})
				p = start(t, nc, eventlog.Options{})
			}
			var want [][]byte
			c := p.Copy("r1")
			for i := range uint64(1234) {
				node, seq := fmt.Sprintf("n%d", i%3), i/3+1
				data := recordedElsewhere(t, node, seq, 1+seq/100, &wire.AgentText{Content: strings.Repeat("x", int(i))})
				want = append(want, data)
				if err := c.Add(t.Context(), data, nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			n := 0
			for e, err := range p.Read(t.Context(), eventlog.Query{Run: "r1"}) {
				if err != nil || n == len(want) || !bytes.Equal(e.Data, want[n]) {
					t.Fatalf("event %d is another: %v", n, err)
				}
				n++
			}
			if n != len(want) {
				t.Errorf("%d events of %d", n, len(want))
			}
			// A process that claims a node goes on behind what was copied.
			w := p.claim("r1", "n0")
			if seq, _ := w.Last(); seq != 413 || w.Epoch() != 6 {
				t.Errorf("claimed with seq %d, epoch %d", seq, w.Epoch())
			}
		})
	}
}

// A node may begin with any seq, and then has no gap.
func TestCopyGap(t *testing.T) {
	p := one(t, eventlog.Options{})
	add := func(c *eventlog.Copier, seq uint64) error {
		return c.Add(t.Context(), recordedElsewhere(t, "a", seq, 1, &wire.AgentText{Content: "x"}), nil)
	}
	c := p.Copy("r1")
	if err := errors.Join(add(c, 57), add(c, 58), c.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, seq := range []uint64{1, 58, 60} {
		if err := add(p.Copy("r1"), seq); !errors.Is(err, eventlog.ErrGapped) {
			t.Errorf("seq %d: %v", seq, err)
		}
	}
	c = p.Copy("r1")
	if err := errors.Join(add(c, 59), c.Flush(t.Context())); err != nil {
		t.Error(err)
	}
	if err := p.Copy("r2").Add(t.Context(), recordedElsewhere(t, "a", 1, 1, &wire.AgentText{}), nil); err == nil {
		t.Error("an event of another run was taken")
	}
	if err := p.Copy("r1").Add(t.Context(), []byte("words"), nil); err == nil {
		t.Error("what isn't an event was taken")
	}
}

// Nothing is added behind the back of a node's writer.
func TestCopyIsFenced(t *testing.T) {
	p := one(t, eventlog.Options{})
	c := p.Copy("r1")
	data := recordedElsewhere(t, "a", 1, 1, &wire.AgentText{Content: "x"})
	if err := c.Add(t.Context(), data, nil); err != nil {
		t.Fatal(err)
	}
	p.claim("r1", "a")
	if err := c.Flush(t.Context()); !errors.Is(err, eventlog.ErrFenced) {
		t.Errorf("%v", err)
	}
	if got := p.read(eventlog.Query{Run: "r1"}); len(got) != 1 {
		t.Errorf("%q", got)
	}
}

// Large fields go to the object store, as if the event were written here.
func TestStoredForm(t *testing.T) {
	p := one(t, eventlog.Options{BlobLimit: 4 << 10})
	large := recordedElsewhere(t, "a", 1, 1, &wire.AgentText{Content: strings.Repeat("x", 50_000)})
	small, blobs, err := p.StoredForm(large)
	if err != nil || len(small) > 4<<10 || len(blobs) != 1 {
		t.Fatalf("%d bytes, %d blobs, %v", len(small), len(blobs), err)
	}
	c := p.Copy("r1")
	if err := errors.Join(c.Add(t.Context(), small, blobs), c.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	for e, err := range p.Read(t.Context(), eventlog.Query{Run: "r1"}) {
		if err != nil {
			t.Fatal(err)
		}
		whole, err := p.Inline(t.Context(), e.Event)
		if text, is := whole.Payload.(*wire.AgentText); err != nil || !is || len(text.Content) != 50_000 {
			t.Errorf("%v", err)
		}
	}
	if same, blobs, err := p.StoredForm(small); err != nil || len(blobs) > 0 || !bytes.Equal(same, small) {
		t.Errorf("the stored form of the stored form is another: %v", err)
	}
}
