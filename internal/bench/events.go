package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// Text returns an event of about 300 bytes.
func Text() *wire.Event {
	return &wire.Event{Payload: &wire.AgentText{Content: strings.Repeat("0123456789abcdef", 13)}}
}

// Encoded is [Text] as a writer stores it.
func Encoded() ([]byte, error) {
	e := Text()
	e.RunID, e.NodeID, e.Seq, e.Epoch, e.Timestamp = "bench-run-000000", "coder", 100_000, 1, 1767400000000
	return wire.Encode(e)
}

// Work returns event i of an agent at work: of ten, six pieces of text, a whole
// text, a call of a tool with its result, and the tokens it took.
func Work(i int) (*wire.Event, error) {
	e := &wire.Event{ExecID: "coder#1", SessionID: "6f1ed002-ab5f-4b2d-a4d3-2f1e6a9f1c11", Turn: 1 + i/100}
	input, err := wire.Marshal(map[string]any{"command": fmt.Sprintf("go test ./pkg/part%d -run TestOf", i/10)})
	if err != nil {
		return nil, err
	}
	call := fmt.Sprintf("toolu_%020d", i/10)
	switch i % 10 {
	case 6:
		e.Payload = &wire.AgentText{Content: "The test of this part fails since the words are counted twice; I'll look at the reader first, then at the caller."}
	case 7:
		e.CallID, e.Payload = call, &wire.ToolIntent{ToolName: "Bash", ToolInput: input}
	case 8:
		e.CallID, e.Payload = call, &wire.AgentTool{
			ToolName: "Bash", ToolInput: input, ToolOutput: wire.RawString(strings.Repeat("ok  wake/pkg/wire 0.4s\n", 20)), DurationMs: new(int64(2100)),
		}
	case 9:
		e.Payload = &wire.Usage{MessageID: fmt.Sprintf("msg_%020d", i/10), Model: "claude-opus-4-1", InputTokens: 1200, OutputTokens: 240}
	default:
		e.Payload = &wire.AgentTextDelta{Content: "counted twice; I'll ", Block: i / 10}
	}
	return e, nil
}

// Begin claims the two nodes of a run and stores how it begins.
func Begin(ctx context.Context, log *eventlog.Log, run string) (owner, node *eventlog.Writer, err error) {
	if owner, err = log.Claim(ctx, run, wire.RunNode, eventlog.Claim{Runner: "bench"}); err != nil {
		return nil, nil, err
	}
	_, err = owner.Append(ctx,
		&wire.Event{Payload: &wire.FlowStart{FlowName: "bench", Definition: wire.Null, DefinitionHash: "bench"}},
		&wire.Event{ExecID: "coder#1", Payload: &wire.NodeScheduled{Target: "coder", Attempt: 1}})
	if err != nil {
		return nil, nil, err
	}
	if node, err = log.Claim(ctx, run, "coder", eventlog.Claim{Runner: "bench", ExecID: "coder#1"}); err != nil {
		return nil, nil, err
	}
	_, err = node.Append(ctx,
		&wire.Event{ExecID: "coder#1", Payload: &wire.NodeStart{NodeType: "agent", Attempt: 1}},
		&wire.Event{ExecID: "coder#1", SessionID: "6f1ed002-ab5f-4b2d-a4d3-2f1e6a9f1c11", Payload: &wire.AgentStart{Prompt: wire.RawString("Find the fault."), Model: "opus"}})
	return owner, node, err
}

// beginEvents is the number of events that Begin stores.
const beginEvents = 6

// fillParallel is the number of runs that [StoreEach] stores at once.
const fillParallel = 16

// Fill stores runs of the given number of events each, 16 at once, and returns
// the position of the last event of all.
func Fill(ctx context.Context, log *eventlog.Log, runs []string, events int) (last uint64, err error) {
	if err := StoreEach(runs, func(run string) error { return fillRun(ctx, log, run, events) }); err != nil {
		return 0, err
	}
	_, last, err = log.Bounds(ctx)
	return last, err
}

// StoreEach stores each of the runs, 16 at once, until one can't be stored.
func StoreEach(runs []string, store func(run string) error) error {
	next := make(chan string)
	errs := make(chan error, fillParallel)
	var working sync.WaitGroup
	for range fillParallel {
		working.Go(func() {
			for run := range next {
				if err := store(run); err != nil {
					errs <- err
					break
				}
			}
			for range next { // so that no sender waits
			}
		})
	}
	for _, run := range runs {
		next <- run
	}
	close(next)
	working.Wait()
	select {
	case err := <-errs:
		return fmt.Errorf("bench: fill: %w", err)
	default:
		return nil
	}
}

func fillRun(ctx context.Context, log *eventlog.Log, run string, events int) error {
	owner, node, err := Begin(ctx, log, run)
	if err != nil {
		return err
	}
	for i := range max(events-beginEvents, 0) {
		e, err := Work(i)
		if err != nil {
			return err
		}
		if err := node.Enqueue(ctx, e); err != nil {
			return err
		}
	}
	return errors.Join(node.Close(ctx), owner.Close(ctx))
}

// Ingest is a set of writers that don't wait for each event.
type Ingest struct{ Writers []*eventlog.Writer }

// NewIngest claims nodes of runs of their own for writers.
func NewIngest(ctx context.Context, log *eventlog.Log, id string, writers int) (*Ingest, error) {
	in := &Ingest{}
	for i := range writers {
		w, err := log.Claim(ctx, fmt.Sprint(id, i), "coder", eventlog.Claim{Runner: "bench"})
		if err != nil {
			return nil, err
		}
		in.Writers = append(in.Writers, w)
	}
	return in, nil
}

// Store stores n events of [Text] and returns the events per second.
func (in *Ingest) Store(ctx context.Context, n int) (float64, error) {
	began := time.Now()
	each := n / len(in.Writers)
	errs := make(chan error, len(in.Writers))
	var working sync.WaitGroup
	for _, w := range in.Writers {
		working.Go(func() {
			for range each {
				if err := w.Enqueue(ctx, Text()); err != nil {
					errs <- err
					return
				}
			}
			if err := w.Flush(ctx); err != nil {
				errs <- err
			}
		})
	}
	working.Wait()
	select {
	case err := <-errs:
		return 0, fmt.Errorf("bench: store: %w", err)
	default:
		return perSecond(each*len(in.Writers), began), nil
	}
}

// Close closes the writers.
func (in *Ingest) Close(ctx context.Context) error {
	for _, w := range in.Writers {
		if err := w.Close(ctx); err != nil {
			return err
		}
	}
	return nil
}
