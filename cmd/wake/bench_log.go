package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"

	"code.wake.dev/wake/internal/bench"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// measureIngest stores events without waiting for each one.
func (b *benchmark) measureIngest(ctx context.Context, l *lab) (rows []bench.Row, err error) {
	in, err := bench.NewIngest(ctx, l.log, "ingest", 64)
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
	stored := bench.NewRow("events stored, 64 writers", "/s", v[0]...)
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

// measureLatency awaits events one by one.
func (b *benchmark) measureLatency(ctx context.Context, l *lab) ([]bench.Row, error) {
	w, err := l.log.Claim(ctx, "awaited", "coder", eventlog.Claim{Runner: "bench"})
	if err != nil {
		return nil, err
	}
	data, err := bench.Encoded()
	if err != nil {
		return nil, err
	}
	stored := func() (bench.Latencies, error) {
		return bench.Times(b.size.acks, func() error { _, err := w.Append(ctx, bench.Text()); return err })
	}
	raw := func() (bench.Latencies, error) {
		return bench.Times(b.size.acks, func() error { return l.Publish(ctx, data) })
	}
	idle, err := b.ackRows("idle", "one raw publish", stored, raw)
	if err != nil {
		return nil, err
	}
	in, err := bench.NewIngest(ctx, l.log, "load", loaders)
	if err != nil {
		return nil, err
	}
	how := fmt.Sprintf("under %d events/s", b.size.load)
	busy, err := b.ackRows(how, "one raw publish under as many raw ones",
		func() (got bench.Latencies, err error) {
			err = in.Load().Under(ctx, b.size.load, func() error { got, err = stored(); return err })
			return got, err
		},
		func() (got bench.Latencies, err error) {
			err = l.Load(data, loaders).Under(ctx, b.size.load, func() error { got, err = raw(); return err })
			return got, err
		})
	return append(idle, busy...), err
}

// loaders is the number of writers that put the log under load.
const loaders = 16

// ackRows returns the rows of acknowledgements, which are measured in turn.
func (b *benchmark) ackRows(how, against string, stored, raw func() (bench.Latencies, error)) ([]bench.Row, error) {
	s, r := make([][]float64, len(bench.Quantiles)), make([][]float64, len(bench.Quantiles))
	for range b.size.rounds {
		ours, err := stored()
		if err != nil {
			return nil, err
		}
		theirs, err := raw()
		if err != nil {
			return nil, err
		}
		for i, q := range bench.Quantiles {
			s[i], r[i] = append(s[i], bench.Quantile(ours, q)), append(r[i], bench.Quantile(theirs, q))
		}
	}
	var rows []bench.Row
	for i, q := range bench.Quantiles {
		name := fmt.Sprintf("acknowledged append, %s, p%v", how, math.Round(q*1000)/10)
		row := bench.NewRow(name, "ms", s[i]...).Versus(against, s[i], r[i])
		if q == 0.99 {
			row = row.AtMost(3)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// measureResume wakes runs of several lengths, and forks and replays the last.
func (b *benchmark) measureResume(ctx context.Context, l *lab) ([]bench.Row, error) {
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

// measureSizes weighs events.
func (b *benchmark) measureSizes(ctx context.Context, l *lab) ([]bench.Row, error) {
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
	_, file, err := b.recordLog(ctx, l, last, derivedTo)
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
