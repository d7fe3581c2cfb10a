package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/bench"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/alerter"
	"code.wake.dev/wake/services/recorder"
	"code.wake.dev/wake/services/snapshotter"
)

// passiveServices are those that follow the log.
func (b *benchmark) passiveServices(l *lab) (*service.Group, error) {
	r, err := recorder.New(recorder.Config{Path: filepath.Join(l.dir, "recorder.db")}, l.log, b.app.log)
	if err != nil {
		return nil, err
	}
	s, err := snapshotter.New(snapshotter.Config{}, l.log, b.app.log)
	if err != nil {
		return nil, err
	}
	alerts, err := alerter.New(alerter.Config{}, l.log, b.app.log)
	if err != nil {
		return nil, err
	}
	group := &service.Group{Log: b.app.log}
	group.Add("recorder", r.Run)
	group.Add("snapshotter", s.Run)
	group.Add("alerter", alerts.Run)
	return group, nil
}

// endToEnd tells services about failures and waits until each has heard of it.
func (b *benchmark) endToEnd(ctx context.Context, l *lab) (rows []bench.Row, err error) {
	group, err := b.passiveServices(l)
	if err != nil {
		return nil, err
	}
	err = whileRunning(ctx, group.Run, func(ctx context.Context) error {
		rows, err = b.measureFailures(ctx, l)
		return err
	})
	return rows, err
}

// stages are what an event goes through, in ms from its publishing.
type stages struct{ stored, recorded, snapshot, alert, all []float64 }

// measureFailures lets the node of one run after the other fail.
func (b *benchmark) measureFailures(ctx context.Context, l *lab) ([]bench.Row, error) {
	kv, err := l.JS.KeyValue(ctx, l.Names.SnapshotsBucket())
	if err != nil {
		return nil, err
	}
	var s stages
	for i := range b.size.alerts + 2 {
		if err := l.measureFailure(ctx, kv, fmt.Sprint("failing", i), &s); err != nil {
			return nil, err
		}
		if i == 1 {
			s = stages{} // the services had to come up
		}
	}
	var rows []bench.Row
	for _, stage := range []struct {
		name   string
		values []float64
	}{
		{"published → stored", s.stored},
		{"published → recorded, in the answer to a question", s.recorded},
		{"published → snapshot", s.snapshot},
		{"published → alert", s.alert},
		{"published → all three", s.all},
	} {
		slices.Sort(stage.values)
		for _, q := range []float64{0.5, 0.99} {
			rows = append(rows, bench.NewRow(fmt.Sprintf("%s, p%v", stage.name, q*100), "ms", bench.Quantile(stage.values, q)))
		}
	}
	return rows, nil
}

// awaitAnswer waits until the recorder knows a run. It may have to come up first.
func (l *lab) awaitAnswer(ctx context.Context, run string) error {
	for {
		status, err := api.Call[wire.StatusResponse](ctx, l.JS.Conn(), l.Names, wire.VerbStatus, wire.StatusRequest{Run: run})
		refusal, ok := errors.AsType[*wire.APIError](err)
		switch {
		case ok && refusal.Code == wire.CodeUnreachable && ctx.Err() == nil:
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
			}
		case err == nil && status.RunID != run:
			return errors.New("the answer is about another run")
		default:
			return err
		}
	}
}

// measureFailure stores the error of a node and notes when it is seen where.
func (l *lab) measureFailure(ctx context.Context, kv jetstream.KeyValue, run string, s *stages) error {
	owner, node, err := bench.Begin(ctx, l.log, run)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	snapshots, err := kv.Watch(ctx, l.Names.SnapshotKey(run), jetstream.UpdatesOnly())
	if err != nil {
		return err
	}
	defer snapshots.Stop() //nolint:errcheck // of a connection that is about to be closed
	raised, err := l.JS.Conn().SubscribeSync(l.Names.RunAlerts(run))
	if err != nil {
		return err
	}
	defer raised.Unsubscribe() //nolint:errcheck // the same

	began := time.Now()
	pos, err := node.Append(ctx, &wire.Event{ExecID: "coder#1", Payload: &wire.NodeError{Error: "it broke", ErrorType: "failed"}})
	if err != nil {
		return err
	}
	stored := bench.MillisSince(began)
	recorded := l.timeUntil(ctx, began, func(ctx context.Context) error { return l.awaitAnswer(ctx, run) })
	shot := l.timeUntil(ctx, began, func(ctx context.Context) error {
		for {
			select {
			case <-snapshots.Updates():
				if state, found, err := snapshot.Load(ctx, l.log, run); err != nil || found && state.Position.Seq >= pos {
					return err
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	alert := l.timeUntil(ctx, began, func(ctx context.Context) error {
		_, err := raised.NextMsgWithContext(ctx)
		return err
	})
	all := 0.0
	for _, w := range []struct {
		what chan benchSighting
		into *[]float64
	}{{recorded, &s.recorded}, {shot, &s.snapshot}, {alert, &s.alert}} {
		got := <-w.what
		err = errors.Join(err, got.err)
		*w.into = append(*w.into, got.after)
		all = max(all, got.after)
	}
	s.stored, s.all = append(s.stored, stored), append(s.all, all)
	return errors.Join(err, node.Close(ctx), owner.Close(ctx))
}

// benchSighting is when something was seen, in ms.
type benchSighting struct {
	after float64
	err   error
}

// timeUntil calls f and tells when it returned. The caller receives one value.
func (*lab) timeUntil(ctx context.Context, began time.Time, f func(context.Context) error) chan benchSighting {
	c := make(chan benchSighting, 1)
	go func() {
		err := f(ctx)
		c <- benchSighting{bench.MillisSince(began), err}
	}()
	return c
}

// catchUp lets services read a log from its beginning.
func (b *benchmark) catchUp(ctx context.Context, l *lab) ([]bench.Row, error) {
	const runs = 20
	var ids []string
	for i := range runs {
		ids = append(ids, fmt.Sprint("behind", i))
	}
	last, err := bench.Fill(ctx, l.log, ids, b.size.backlog/runs)
	if err != nil {
		return nil, err
	}
	folded, err := l.countEvents(ctx, last)
	if err != nil {
		return nil, err
	}
	var kinds []string
	for _, k := range snapshot.Kinds {
		kinds = append(kinds, l.Names.KindEvents(string(k)))
	}
	v, err := bench.Interleave(ctx, b.size.rounds,
		func(ctx context.Context) (float64, error) { return b.recordRate(ctx, l, last, recordedTo) },
		func(ctx context.Context) (float64, error) { return l.Drink(ctx, int(last)) },
		func(ctx context.Context) (float64, error) { return b.foldRate(ctx, l, folded) },
		func(ctx context.Context) (float64, error) { return l.Drink(ctx, folded, kinds...) },
		func(ctx context.Context) (float64, error) { return b.recordRate(ctx, l, last, derivedTo) })
	if err != nil {
		return nil, err
	}
	return []bench.Row{
		bench.NewRow("recorder, events caught up with", "/s", v[0]...).Versus("a raw consumer", v[0], v[1]).AtLeast(0.8),
		bench.NewRow("recorder, until answers take account of them", "/s", v[4]...).Versus("a raw consumer", v[4], v[1]),
		bench.NewRow("snapshotter, events that change a state", "/s", v[2]...).Versus("a raw consumer of the same", v[2], v[3]).AtLeast(0.8),
	}, nil
}

// countEvents counts the events up to last that a snapshotter wants.
func (l *lab) countEvents(ctx context.Context, last uint64) (n int, err error) {
	for _, err := range l.log.Read(ctx, eventlog.Query{Kinds: snapshot.Kinds, To: last}) {
		if err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}

// recordRate records the log into a new file until the file is at the last position.
func (b *benchmark) recordRate(ctx context.Context, l *lab, last uint64, at position) (rate float64, err error) {
	took, _, err := b.recordLog(ctx, l, last, at)
	return float64(last) / took.Seconds(), err
}

// position is how far a store is.
type position func(ctx context.Context, s *recorder.Store) (uint64, error)

// recordedTo is the position up to which a store has everything.
func recordedTo(ctx context.Context, s *recorder.Store) (uint64, error) {
	pos, err := s.Archive.Position(ctx)
	return pos.Seq, err
}

// derivedTo is the position up to which its answers take account of it.
func derivedTo(ctx context.Context, s *recorder.Store) (uint64, error) { return s.Archive.Derived(ctx) }

// recordLog records the log into a new file. It returns how long it took from
// making the file until it was at the last position, and the file's size in bytes.
func (b *benchmark) recordLog(ctx context.Context, l *lab, last uint64, at position) (took time.Duration, size float64, err error) {
	path := filepath.Join(l.dir, time.Now().Format("150405.000000")+".db")
	r, err := recorder.New(recorder.Config{Path: path}, l.log, b.app.log)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	err = whileRunning(ctx, r.Run, func(ctx context.Context) error {
		err := awaitPosition(ctx, path, last, at)
		took = time.Since(began)
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	size, err = fileSize(path, path+"-wal")
	return took, size, err
}

// awaitPosition waits until a file that a recorder writes is at a position.
func awaitPosition(ctx context.Context, path string, last uint64, at position) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var store *recorder.Store
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if store == nil {
			var err error
			if store, err = recorder.OpenReadOnly(ctx, path); err != nil {
				continue // it isn't there yet
			}
			defer store.Close() //nolint:errcheck // it was only read
		}
		if pos, err := at(ctx, store); err != nil || pos >= last {
			return err
		}
	}
}

// foldRate makes snapshots of a log that has none.
func (b *benchmark) foldRate(ctx context.Context, l *lab, n int) (float64, error) {
	for _, bucket := range []string{l.Names.SnapshotsBucket(), l.Names.StateBucket()} {
		if err := l.purgeBucket(ctx, bucket); err != nil {
			return 0, err
		}
	}
	s, err := snapshotter.New(snapshotter.Config{}, l.log, b.app.log)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	err = whileRunning(ctx, s.Run, func(ctx context.Context) error { return l.caughtUp(ctx, subjects.SnapshotterConsumer, 0) })
	return float64(n) / time.Since(began).Seconds(), err
}

func (l *lab) purgeBucket(ctx context.Context, bucket string) error {
	stream, err := l.JS.Stream(ctx, "KV_"+bucket)
	if err != nil {
		return err
	}
	return stream.Purge(ctx)
}

// caughtUp waits until a service has been given, and has acknowledged, all that
// there is. Its consumer was reset since began: one of an earlier round has
// caught up too.
func (l *lab) caughtUp(ctx context.Context, durable string, last uint64) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	reset := false
	for {
		c, err := l.JS.Consumer(ctx, l.Names.EventsStream(), durable)
		if err != nil {
			return err
		}
		info := c.CachedInfo()
		behind := info.NumPending > 0 || info.NumAckPending > 0
		if reset = reset || behind; reset && !behind && info.AckFloor.Stream >= last {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// measureQueries asks a recorder's file about logs of several lengths.
func (b *benchmark) measureQueries(ctx context.Context, l *lab) ([]bench.Row, error) {
	var rows []bench.Row
	for _, lines := range b.size.lines {
		more, err := b.queriesOf(ctx, filepath.Join(l.dir, fmt.Sprint(lines, ".db")), lines)
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

func (b *benchmark) queriesOf(ctx context.Context, path string, lines int) (rows []bench.Row, err error) {
	store, err := recorder.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	began := time.Now()
	events, err := writeLines(ctx, store, lines)
	if err != nil {
		return nil, err
	}
	rows = append(rows, bench.NewRow(fmt.Sprintf("writing %d lines into the recorder's file", lines), "/s", float64(events)/time.Since(began).Seconds()))
	const limit = 1 << 20
	now := time.UnixMilli(firstLine + int64(lines)*1000)
	for _, q := range []struct {
		name string
		ask  func() error
	}{
		{"log, the last lines", func() error { _, err := store.Answers.Log(ctx, wire.LogRequest{Run: "asked"}, now, limit); return err }},
		{"log, lines from the middle", func() error {
			_, err := store.Answers.Log(ctx, wire.LogRequest{Run: "asked", Offset: new(int64(lines / 2))}, now, limit)
			return err
		}},
		{"search, a word that a line in 1000 has", func() error {
			_, err := store.Answers.Log(ctx, wire.LogRequest{Run: "asked", Grep: "needle", Limit: new(10)}, now, limit)
			return err
		}},
		{"search, a word that no line has", func() error {
			_, err := store.Answers.Log(ctx, wire.LogRequest{Run: "asked", Grep: "haystack", Limit: new(10)}, now, limit)
			return err
		}},
		{"status", func() error {
			_, err := store.Answers.Status(ctx, wire.StatusRequest{Run: "asked"}, now, limit)
			return err
		}},
	} {
		var took []float64
		for range b.size.queries {
			began := time.Now()
			if err := q.ask(); err != nil {
				return nil, fmt.Errorf("%s: %w", q.name, err)
			}
			took = append(took, bench.MillisSince(began))
		}
		rows = append(rows, bench.NewRow(fmt.Sprintf("%s, of %d", q.name, lines), "ms", took...))
	}
	return rows, nil
}

// firstLine is when the first line was written, in Unix ms.
const firstLine = 1767400000000

// writeLines records a run with the given number of log lines.
func writeLines(ctx context.Context, store *recorder.Store, lines int) (events int, err error) {
	batch := recorder.Batch{Incarnation: "bench"}
	add := func(node string, seq uint64, payload wire.Payload) error {
		events++
		e := &wire.Event{
			RunID: "asked", NodeID: node, ExecID: "coder#1", Seq: seq, Epoch: 1, Timestamp: firstLine + int64(events)*1000,
			SessionID: "6f1ed002-ab5f-4b2d-a4d3-2f1e6a9f1c11", Payload: payload,
		}
		if node == wire.RunNode {
			e.ExecID, e.SessionID = "", ""
		}
		data, err := wire.Encode(e)
		if err != nil {
			return err
		}
		kind := e.Type().Kind()
		batch.Entries = append(batch.Entries, eventlog.Entry{
			Pos: uint64(events), Time: time.UnixMilli(e.Timestamp), RunID: e.RunID, NodeID: node, Kind: kind,
			Subject: subjects.Default.Event(e.RunID, node, string(kind)), Data: data, Event: e,
		})
		if len(batch.Entries) < 1000 {
			return nil
		}
		_, err = store.Index.Record(ctx, batch)
		batch.Entries = batch.Entries[:0]
		return err
	}
	if err := add(wire.RunNode, 1, &wire.RunClaimed{Runner: "bench", Nonce: "n"}); err != nil {
		return 0, err
	}
	if err := add(wire.RunNode, 2, &wire.FlowStart{FlowName: "bench", Definition: wire.Null, DefinitionHash: "bench"}); err != nil {
		return 0, err
	}
	for i := range lines {
		text := fmt.Sprintf("Line %d of the answer, which is about as long as such a line is%s.", i, strings.Repeat(" with a needle", (i%1000)/999))
		if err := add("coder", uint64(i)+1, &wire.AgentText{Content: text}); err != nil {
			return 0, err
		}
	}
	_, err = store.Index.Record(ctx, batch)
	return events, err
}
