package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"

	"wake/internal/bench"
	"wake/internal/eventlog"
	"wake/pkg/wire"
)

// ingest stores events that nobody waits for one by one.
func (b *benchmark) ingest(ctx context.Context, l *lab) (rows []bench.Row, err error) {
	in, err := bench.NewIngest(ctx, l.log, "ingest", 16)
	if err != nil {
		return nil, err
	}
	data, err := bench.Encoded()
	if err != nil {
		return nil, err
	}
	db, err := bench.NewSQLite(ctx, l.dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	line, err := jsonLine()
	if err != nil {
		return nil, err
	}
	n := b.size
	v, err := bench.Interleave(ctx, n.rounds,
		func(ctx context.Context) (float64, error) { return in.Store(ctx, n.events) },
		func(ctx context.Context) (float64, error) { return l.PublishAsync(ctx, data, n.alone) },
		func(ctx context.Context) (float64, error) { return l.PublishBatches(ctx, data, n.together) },
		func(ctx context.Context) (float64, error) { return db.Insert(ctx, string(line), n.alone/2) },
		func(ctx context.Context) (float64, error) { return bench.JSONLines(ctx, l.dir, line, n.alone/2) })
	if err != nil {
		return nil, err
	}
	stored := bench.NewRow("events stored, 16 writers", "/s", v[0]...)
	return []bench.Row{
		stored.Versus("raw, one by one, asynchronous", v[0], v[1]).AtLeast(10),
		stored.Versus("raw, atomic batches of 1000", v[0], v[2]).AtLeast(0.8),
		stored.Versus("SQLite, an insert per event", v[0], v[3]),
		stored.Versus("JSON lines, fsync per event", v[0], v[4]),
	}, in.Close(ctx)
}

func jsonLine() ([]byte, error) {
	data, err := bench.Encoded()
	if err != nil {
		return nil, err
	}
	e, err := wire.Decode(data)
	if err != nil {
		return nil, err
	}
	return wire.EncodeJSON(e)
}

// latency awaits events one by one.
func (b *benchmark) latency(ctx context.Context, l *lab) ([]bench.Row, error) {
	w, err := l.log.Claim(ctx, "awaited", "coder", eventlog.Claim{Runner: "bench"})
	if err != nil {
		return nil, err
	}
	idle, err := b.acks(ctx, l, w, "idle")
	if err != nil {
		return nil, err
	}
	load, err := bench.NewIngest(ctx, l.log, "load", 16)
	if err != nil {
		return nil, err
	}
	var busy []bench.Row
	err = load.Under(ctx, b.size.load, func(ctx context.Context) error {
		busy, err = b.acks(ctx, l, w, fmt.Sprintf("under %d events/s", b.size.load))
		return err
	})
	return append(idle, busy...), err
}

// acks returns the rows of the acknowledgements of a writer.
func (b *benchmark) acks(ctx context.Context, l *lab, w *eventlog.Writer, how string) ([]bench.Row, error) {
	stored, raw := make([][]float64, len(bench.Quantiles)), make([][]float64, len(bench.Quantiles))
	for range b.size.rounds {
		s, r, err := l.Acks(ctx, w, b.size.acks)
		if err != nil {
			return nil, err
		}
		for i, q := range bench.Quantiles {
			stored[i], raw[i] = append(stored[i], bench.Quantile(s, q)), append(raw[i], bench.Quantile(r, q))
		}
	}
	var rows []bench.Row
	for i, q := range bench.Quantiles {
		name := fmt.Sprintf("acknowledged append, %s, p%v", how, math.Round(q*1000)/10)
		row := bench.NewRow(name, "ms", stored[i]...).Versus("one raw publish", stored[i], raw[i])
		if q == 0.99 {
			row = row.AtMost(3)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// resume wakes runs of several lengths, and forks and replays the last.
func (b *benchmark) resume(ctx context.Context, l *lab) ([]bench.Row, error) {
	var measures []bench.Measure
	for _, events := range b.size.runs {
		id := fmt.Sprint("run", events)
		if err := bench.Prepare(ctx, l.log, id, events); err != nil {
			return nil, err
		}
		measures = append(measures, func(ctx context.Context) (float64, error) { return bench.Resume(ctx, l.log, id) })
	}
	v, err := bench.Interleave(ctx, 3*b.size.rounds, measures...)
	if err != nil {
		return nil, err
	}
	var rows []bench.Row
	for i, events := range b.size.runs {
		row := bench.NewRow(fmt.Sprintf("resume, %d events: claim, snapshot, tail", events), "ms", v[i]...)
		if i > 0 {
			row = row.Versus(fmt.Sprintf("that of %d events", b.size.runs[0]), v[i], v[0])
		}
		rows = append(rows, row)
	}
	for _, events := range b.size.runs {
		more, err := b.forkAndReplay(ctx, l, events)
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

func (b *benchmark) forkAndReplay(ctx context.Context, l *lab, events int) ([]bench.Row, error) {
	id, rounds := fmt.Sprint("run", events), b.size.rounds
	if events > 100_000 {
		rounds = min(rounds, 3)
	}
	v, err := bench.Interleave(ctx, rounds,
		func(ctx context.Context) (float64, error) { return bench.Fork(ctx, l.log, id, "") },
		func(ctx context.Context) (float64, error) { return bench.Fork(ctx, l.log, id, "sfp-1") },
		func(ctx context.Context) (float64, error) { return bench.Replay(ctx, l.log, id) },
		func(ctx context.Context) (float64, error) { return l.Drink(ctx, events, l.Names.RunEvents(id)) })
	if err != nil {
		return nil, err
	}
	replayed := bench.NewRow(fmt.Sprintf("replay, %d events", events), "/s", v[2]...)
	return []bench.Row{
		bench.NewRow(fmt.Sprintf("state to fork at, %d events: the present", events), "ms", v[0]...),
		bench.NewRow(fmt.Sprintf("state to fork at, %d events: the first point", events), "ms", v[1]...),
		replayed.Versus("a raw consumer", v[2], v[3]),
	}, nil
}

// sizes weighs events.
func (b *benchmark) sizes(ctx context.Context, l *lab) ([]bench.Row, error) {
	const sample = 1000
	size, err := bench.EventSizes(sample)
	if err != nil {
		return nil, err
	}
	const runs = 4
	var ids []string
	for i := range runs {
		ids = append(ids, fmt.Sprint("size", i))
	}
	last, err := bench.Fill(ctx, l.log, ids, b.size.backlog/runs)
	if err != nil {
		return nil, err
	}
	stored, err := l.StoredSize(ctx)
	if err != nil {
		return nil, err
	}
	file, err := b.recorded(ctx, l, last)
	if err != nil {
		return nil, err
	}
	row := func(name string, bytes float64) bench.Row {
		return bench.NewRow(name, "B", bytes).Versus("its JSON", []float64{bytes}, []float64{size.JSON})
	}
	return []bench.Row{
		row("an event on the wire", size.Wire),
		row("an event in the stream, with subject, headers and index", stored),
		row("an event in the recorder's file, with its index", file/float64(last)),
	}, nil
}

// fileSize returns the bytes of the files.
func fileSize(paths ...string) (sum float64, err error) {
	for _, path := range paths {
		info, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		sum += float64(info.Size())
	}
	return sum, nil
}
