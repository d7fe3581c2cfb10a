package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// accounts remembers every text that a writer took.
type accounts struct {
	mu    sync.Mutex
	taken map[string]bool
}

func (a *accounts) take(s string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.taken[s] = true
}

// usurp claims the node and writes until another process claims it or ctx ends.
// It claims again and again what others have.
func (a *accounts) usurp(ctx context.Context, p process, node, name string) error {
	w, err := p.Claim(p.t.Context(), "r", node, eventlog.Claim{Runner: name})
	if errors.Is(err, eventlog.ErrFenced) {
		return nil
	}
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		s := fmt.Sprint(name, "/", i)
		err := w.Enqueue(p.t.Context(), text(s))
		switch {
		case errors.Is(err, eventlog.ErrFenced):
			return nil
		case err != nil:
			return err
		}
		a.take(s)
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			if err := w.Close(p.t.Context()); !errors.Is(err, eventlog.ErrFenced) {
				return err
			}
			return nil
		}
	}
}

// Two processes claim the nodes of a run from each other while both write and the
// leader steps down. Every event is stored once or a dead letter, and never an
// event of an older epoch after a claim.
func TestClusterZombies(t *testing.T) {
	c := cluster(t)
	processes := []process{start(t, c.Conn(t), eventlog.Options{Lanes: 2}), start(t, c.Conn(t), eventlog.Options{Lanes: 2})}
	nc := c.Conn(t)
	stop := every(t.Context(), 300*time.Millisecond, func(ctx context.Context) {
		step, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
		defer cancel()
		_ = c.StepDown(step, nc, "WAKE_EVENTS")
	})
	a := &accounts{taken: map[string]bool{}}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	var writing sync.WaitGroup
	for n := range 4 {
		node := fmt.Sprint("n", n)
		writing.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				name := fmt.Sprint(node, "/", k)
				writing.Go(func() {
					if err := a.usurp(ctx, processes[k%2], node, name); err != nil {
						t.Error(err)
					}
				})
				<-time.After(250 * time.Millisecond)
			}
		})
	}
	writing.Wait()
	steps := stop()
	stored := a.stored(t, processes[0])
	t.Logf("%d events stored, %d dead letters, %d changes of leader", stored, len(a.taken), steps)
	for _, l := range processes[0].deadLetters(len(a.taken)) {
		e, err := wire.Decode(l.Data)
		if err != nil {
			t.Fatal(err)
		}
		s := e.Payload.(*wire.AgentText).Content
		if !a.taken[s] {
			t.Errorf("%s is a dead letter and stored, or twice a dead letter", s)
		}
		delete(a.taken, s)
	}
}

// stored checks the log and returns how many texts it has; it strikes them off,
// so that those that must be dead letters are left.
func (a *accounts) stored(t *testing.T, p process) (n int) {
	t.Helper()
	type end struct{ seq, epoch uint64 }
	nodes := map[string]end{}
	var struck []string
	for e, err := range p.Read(t.Context(), eventlog.Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		last := nodes[e.NodeID]
		_, claim := e.Event.Payload.(*wire.NodeClaimed)
		if e.Event.Seq != last.seq+1 || claim && e.Event.Epoch <= last.epoch || !claim && e.Event.Epoch != last.epoch {
			t.Fatalf("position %d: %s after %d.%d", e.Pos, entryLine(e), last.epoch, last.seq)
		}
		nodes[e.NodeID] = end{e.Event.Seq, e.Event.Epoch}
		if p, ok := e.Event.Payload.(*wire.AgentText); ok {
			struck = append(struck, p.Content)
		}
	}
	for _, s := range struck {
		if !a.taken[s] {
			t.Errorf("%s is stored twice", s)
		}
		delete(a.taken, s)
	}
	return len(struck)
}
