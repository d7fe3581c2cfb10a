package main

import (
	"context"
	"fmt"
	"iter"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/bench"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// memory is what a process holds, after a collection.
type memory struct {
	bytes      float64 // heap and stacks in use
	goroutines float64
}

func measureMemory() memory {
	for range 4 { // what pools held is gone after the second, and each halves stacks that are too large
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return memory{float64(m.HeapAlloc + m.StackInuse), float64(runtime.NumGoroutine())}
}

// serverMemory measures what runs cost a server while their nodes are at rest: with an
// embedded server, that is what the process holds when all writers are closed.
func (b *benchmark) serverMemory(ctx context.Context, l *lab) ([]bench.Row, error) {
	if !b.embedded {
		return nil, nil
	}
	const events = 16
	runs := func(from, to int) error {
		var ids []string
		for i := from; i < to; i++ {
			ids = append(ids, fmt.Sprint("at-rest", i))
		}
		_, err := bench.Fill(ctx, l.log, ids, events)
		return err
	}
	const first = 10
	if err := runs(0, first); err != nil {
		return nil, err
	}
	before := measureMemory()
	if err := runs(first, first+b.size.subjects); err != nil {
		return nil, err
	}
	grown := measureMemory().bytes - before.bytes
	return []bench.Row{bench.NewRow(fmt.Sprintf("server's memory per run of %d events on 6 subjects", events), "B", grown/float64(b.size.subjects))}, nil
}

// activeRuns measures what runs cost a runner while an agent works in each.
func (b *benchmark) activeRuns(ctx context.Context, l *lab) (rows []bench.Row, err error) {
	most := b.size.active[len(b.size.active)-1]
	idle := &idleAgents{started: make(chan struct{}, most)}
	r, err := runner.New(runner.Config{
		ID: "bench", MaxAgents: most, Workspaces: filepath.Join(l.dir, "workspaces"),
		Providers: map[string]agent.Provider{"claude": idle}, DrainTimeout: time.Second, KeepFolders: true,
	}, l.log, b.app.log)
	if err != nil {
		return nil, err
	}
	definition, err := wire.Marshal(map[string]any{
		"name": "bench", "nodes": []any{map[string]any{"id": "coder", "type": "agent", "input": map[string]any{"provider": "claude", "prompt": "Wait."}}},
	})
	if err != nil {
		return nil, err
	}
	err = whileRunning(ctx, r.Run, func(ctx context.Context) error {
		rows, err = b.activateRuns(ctx, l, definition, idle)
		return err
	})
	return rows, err
}

// restTime is how long nothing happens in runs until all that they don't need for it is gone.
const restTime = 4 * time.Second

// manyRuns are enough for that to matter.
const manyRuns = 100

func (b *benchmark) activateRuns(ctx context.Context, l *lab, definition wire.Raw, idle *idleAgents) (rows []bench.Row, err error) {
	const atOnce = 64 // that haven't begun: as many as people might start
	started := 0
	start := func(to int) error {
		for asked := started; started < to; {
			for ; asked < min(to, started+atOnce); asked++ {
				data, err := wire.Marshal(wire.RunRequest{V: wire.Version, RunID: fmt.Sprint("active", asked), Definition: definition})
				if err == nil {
					_, err = l.log.Send(ctx, l.Names.QueueRun(), data)
				}
				if err != nil {
					return err
				}
			}
			select {
			case <-idle.started:
				started++
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	var one memory
	for _, runs := range b.size.active {
		began, more := time.Now(), runs-started
		if err := start(runs); err != nil {
			return nil, err
		}
		rate := float64(more) / time.Since(began).Seconds()
		if runs >= manyRuns { // few don't change the figure
			pull.Sleep(ctx, restTime)
		}
		m := measureMemory()
		name := fmt.Sprintf("a runner with %d active runs%s: ", runs, b.withServer())
		rows = append(rows, bench.NewRow(name+"memory", "B", m.bytes), bench.NewRow(name+"goroutines", "", m.goroutines))
		if runs == 1 {
			one = m
			continue
		}
		rows = append(rows,
			bench.NewRow(name+"memory per further run", "B", (m.bytes-one.bytes)/float64(runs-1)),
			bench.NewRow(name+"goroutines per further run", "", (m.goroutines-one.goroutines)/float64(runs-1)),
			bench.NewRow(fmt.Sprintf("runs begun, up to the agent's start, %d in all", more), "/s", rate))
	}
	return rows, nil
}

// withServer says what else is in the process.
func (b *benchmark) withServer() string {
	if b.embedded {
		return ", server included"
	}
	return ""
}

// idleAgents are agents that wait until they are interrupted.
type idleAgents struct {
	started chan struct{} // one value each; it has room
}

// Capabilities implements [agent.Provider].
func (*idleAgents) Capabilities() agent.Capabilities { return agent.Capabilities{} }

// Start implements [agent.Provider].
func (p *idleAgents) Start(_ context.Context, r agent.Request) (agent.Session, error) {
	return &idleAgent{provider: p, id: r.SessionID, prompt: r.Prompt, end: make(chan struct{})}, nil
}

type idleAgent struct {
	provider *idleAgents
	id       string
	prompt   wire.Raw
	once     sync.Once
	end      chan struct{}
}

// Events implements [agent.Session].
func (s *idleAgent) Events() iter.Seq2[*wire.Event, error] {
	return func(yield func(*wire.Event, error) bool) {
		event := func(p wire.Payload) *wire.Event { return &wire.Event{SessionID: s.id, Payload: p} }
		if !yield(event(&wire.AgentStart{Prompt: s.prompt, Model: "idle"}), nil) {
			return
		}
		select {
		case s.provider.started <- struct{}{}:
		default: // it was interrupted and is resumed
		}
		<-s.end
		yield(event(&wire.AgentPaused{Reason: "interrupted"}), nil)
	}
}

// Send implements [agent.Session].
func (*idleAgent) Send(context.Context, agent.Message) error { return nil }

// Interrupt implements [agent.Session].
func (s *idleAgent) Interrupt(context.Context) error { return s.Close() }

// Close implements [agent.Session].
func (s *idleAgent) Close() error {
	s.once.Do(func() { close(s.end) })
	return nil
}
