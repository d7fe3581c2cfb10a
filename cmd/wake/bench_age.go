package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/bench"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// measureAge lets all services of an installation run flows of one step until so and so
// many runs are stored, and measures what one more costs.
func (b *benchmark) measureAge(ctx context.Context, l *lab) (rows []bench.Row, err error) {
	group, err := b.passiveServices(l)
	if err != nil {
		return nil, err
	}
	work, err := runner.New(runner.Config{ID: "bench", Workspaces: filepath.Join(l.dir, "workspaces"), DrainTimeout: time.Second}, l.log, b.app.log)
	if err != nil {
		return nil, err
	}
	group.Add("runner", work.Run)
	err = whileRunning(ctx, group.Run, func(ctx context.Context) error {
		rows, err = b.measureAges(ctx, l)
		return err
	})
	return rows, err
}

// runStarter starts runs of one step and hears of their ends.
type runStarter struct {
	lab        *lab
	definition wire.Raw
	ended      chan string
	next       int
}

func newRunStarter(l *lab) (*runStarter, *nats.Subscription, error) {
	definition, err := wire.Marshal(map[string]any{
		"name": "bench", "nodes": []any{map[string]any{"id": "step", "type": "set", "input": map[string]any{"set": map[string]any{"x": 1}}}},
	})
	if err != nil {
		return nil, nil, err
	}
	s := &runStarter{lab: l, definition: definition, ended: make(chan string, 1024)}
	sub, err := l.JS.Conn().Subscribe(l.Names.KindEvents(string(wire.KindFlow)), func(m *nats.Msg) {
		if e, err := wire.Decode(m.Data); err == nil && e.Type() == wire.TypeFlowComplete {
			s.ended <- e.RunID
		}
	})
	return s, sub, err
}

// finishRuns starts runs, at most atOnce side by side, and waits for their ends. It returns how long each took, in ms.
func (s *runStarter) finishRuns(ctx context.Context, runs, atOnce int) (took []float64, err error) {
	began := map[string]time.Time{}
	for asked := 0; len(took) < runs; {
		for ; asked < runs && len(began) < atOnce; asked++ {
			id := fmt.Sprint("aged", s.next)
			s.next++
			data, err := wire.Marshal(wire.RunRequest{V: wire.Version, RunID: id, Definition: s.definition})
			began[id] = time.Now()
			if err == nil {
				_, err = s.lab.log.Send(ctx, s.lab.Names.QueueRun(), data)
			}
			if err != nil {
				return nil, err
			}
		}
		select {
		case id := <-s.ended:
			if at, ours := began[id]; ours {
				took = append(took, bench.MillisSince(at))
				delete(began, id)
			}
		case <-time.After(runPatience):
			return nil, fmt.Errorf("none of %d runs has ended within %s, %s for one", len(began), runPatience, slices.Sorted(maps.Keys(began))[0])
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return took, nil
}

// runPatience is how long the end of any run is waited for.
const runPatience = time.Minute

// measureAges measures runs one after the other, and many side by side, at each age.
func (b *benchmark) measureAges(ctx context.Context, l *lab) (rows []bench.Row, err error) {
	s, sub, err := newRunStarter(l)
	if err != nil {
		return nil, err
	}
	defer sub.Unsubscribe()                                               //nolint:errcheck // of a connection that is about to be closed
	if _, err := s.finishRuns(ctx, b.size.more, sideBySide); err != nil { // those that come first pay for what is opened
		return nil, err
	}
	var first []float64
	for _, age := range b.size.ages {
		began, young := time.Now(), s.next
		if _, err := s.finishRuns(ctx, max(age-s.next, b.size.more), sideBySide); err != nil {
			return nil, err
		}
		rate := float64(s.next-young) / time.Since(began).Seconds()
		if err := l.caughtUpAll(ctx); err != nil {
			return nil, err
		}
		var cpu, alone []float64
		for range b.size.rounds {
			used := processorTime()
			took, err := s.finishRuns(ctx, b.size.more, 1)
			if err != nil {
				return nil, err
			}
			if err := l.caughtUpAll(ctx); err != nil {
				return nil, err
			}
			cpu = append(cpu, float64(processorTime()-used)/float64(time.Millisecond)/float64(b.size.more))
			slices.Sort(took)
			alone = append(alone, bench.Quantile(took, 0.5))
		}
		if first == nil {
			first = cpu
		}
		rows = append(rows,
			bench.NewRow(fmt.Sprintf("runs of one step, %d side by side, until %d are stored", sideBySide, age), "/s", rate),
			bench.NewRow(fmt.Sprintf("one more run with %d stored, p50", age), "ms", alone...),
			bench.NewRow(fmt.Sprintf("one more run with %d stored, processor time of all", age), "ms", cpu...).Versus("with few", cpu, first).AtMost(1.1))
	}
	return rows, nil
}

// sideBySide is how many runs go on at once while an installation ages.
const sideBySide = 64

// caughtUpAll waits until all services have read what there is, as far as they show that.
func (l *lab) caughtUpAll(ctx context.Context) error {
	for _, durable := range []string{subjects.RecorderConsumer, subjects.SnapshotterConsumer, subjects.AlerterConsumer} {
		for {
			lag, err := eventlog.LagOf(ctx, l.JS, l.Names, durable)
			if err != nil {
				return err
			}
			if lag.Events == 0 {
				break
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}
