package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/bench"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// longRun is the run of many events that is asked about.
const longRun = "long"

// measureAnswers asks a recorder about many runs and a long one: at rest, while events come in, and when it has just started. Then it checks the store.
func (b *benchmark) measureAnswers(ctx context.Context, l *lab) (rows []bench.Row, err error) {
	path := filepath.Join(l.dir, "recorder.db")
	err = b.whileRecording(ctx, l, path, func(ctx context.Context) error {
		if err := b.fillAnswers(ctx, l); err != nil {
			return err
		}
		if err := l.awaitDerived(ctx, path); err != nil {
			return err
		}
		rows, err = b.askAll(ctx, l, "at rest")
		if err != nil {
			return err
		}
		busy, err := b.askWhileStoring(ctx, l)
		rows = append(rows, busy...)
		return errors.Join(err, l.awaitDerived(ctx, path))
	})
	if err != nil {
		return nil, err
	}
	first, err := b.askFirst(ctx, l, path)
	if err != nil {
		return nil, err
	}
	checked, err := verifyRate(ctx, path)
	return append(append(rows, first...), checked), err
}

// whileRecording calls f while a recorder records into a file.
func (b *benchmark) whileRecording(ctx context.Context, l *lab, path string, f func(context.Context) error) error {
	r, err := recorder.New(recorder.Config{Path: path}, l.log, b.app.log)
	if err != nil {
		return err
	}
	return whileRunning(ctx, r.Run, f)
}

// awaitDerived waits until the answers from a file take account of all that is stored.
func (l *lab) awaitDerived(ctx context.Context, path string) error {
	_, last, err := l.log.Bounds(ctx)
	if err != nil {
		return err
	}
	return awaitPosition(ctx, path, last, derivedTo)
}

// fillAnswers stores a long run, and many short ones of which one in ten goes on.
func (b *benchmark) fillAnswers(ctx context.Context, l *lab) error {
	if _, err := bench.Fill(ctx, l.log, []string{longRun}, b.size.long); err != nil {
		return err
	}
	going := map[string]bool{}
	var runs []string
	for i := range b.size.stored {
		runs = append(runs, fmt.Sprint("short", i))
		going[runs[i]] = i%10 == 0
	}
	return bench.StoreEach(runs, func(run string) error { return l.storeShortRun(ctx, run, !going[run]) })
}

// storeShortRun stores a run of an agent that says something and asks for a permission, or ends.
func (l *lab) storeShortRun(ctx context.Context, run string, ends bool) error {
	owner, node, err := bench.Begin(ctx, l.log, run)
	if err != nil {
		return err
	}
	said := []*wire.Event{
		{ExecID: "coder#1", Payload: &wire.AgentText{Content: "Half of it is done."}},
		{ExecID: "coder#1", Payload: &wire.Usage{MessageID: "m", Model: "claude-opus-4-1", InputTokens: 1200, OutputTokens: 240}},
	}
	if ends {
		said = append(said, &wire.Event{ExecID: "coder#1", Payload: &wire.AgentComplete{Result: "done"}})
	}
	if _, err := node.Append(ctx, said...); err != nil {
		return err
	}
	if ends {
		_, err = owner.Append(ctx, &wire.Event{Payload: &wire.FlowComplete{FlowName: "bench", Status: wire.FlowStatusComplete}})
	}
	return errors.Join(err, node.Close(ctx), owner.Close(ctx))
}

// askWhileStoring asks while events come in, and tells how many came.
func (b *benchmark) askWhileStoring(ctx context.Context, l *lab) (rows []bench.Row, err error) {
	in, err := bench.NewIngest(ctx, l.log, "load", 64)
	if err != nil {
		return nil, err
	}
	_, before, err := l.log.Bounds(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	err = in.Load().Under(ctx, b.size.incoming, func() (err error) {
		rows, err = b.askAll(ctx, l, "under load")
		return err
	})
	took := time.Since(began)
	if err := errors.Join(err, in.Close(ctx)); err != nil {
		return nil, err
	}
	_, after, err := l.log.Bounds(ctx)
	load := bench.NewRow("load: events that came in", "/s", float64(after-before)/took.Seconds())
	return append([]bench.Row{load}, rows...), err
}

// question asks a recorder something.
type question struct {
	name string
	ask  func(ctx context.Context) error
}

// questionTo returns a question, of which next takes what the answer says about the next page.
func questionTo[A any](l *lab, name, verb string, q func() any, next func(A)) question {
	return question{name, func(ctx context.Context) error {
		answer, err := api.Call[A](ctx, l.JS.Conn(), l.Names, verb, q())
		if err == nil && next != nil {
			next(answer)
		}
		return err
	}}
}

// questions are those about many runs and about the long one.
func (b *benchmark) questions(l *lab) []question {
	always := func(q any) func() any { return func() any { return q } }
	cursor, before := "", uint64(0)
	return []question{
		questionTo[wire.StatusResponse](l, "status of a short run", wire.VerbStatus, always(wire.StatusRequest{Run: "short0"}), nil),
		questionTo[wire.StatusResponse](l, "status", wire.VerbStatus, always(wire.StatusRequest{Run: longRun}), nil),
		questionTo[wire.StateResponse](l, "state", wire.VerbState, always(wire.StateRequest{Run: longRun}), nil),
		questionTo[wire.StateResponse](l, "state in the middle", wire.VerbState, always(wire.StateRequest{Run: longRun, At: uint64(b.size.long / 2)}), nil),
		questionTo[wire.LogResponse](l, "log", wire.VerbLog, always(wire.LogRequest{Run: longRun}), nil),
		questionTo[wire.LogResponse](l, "log, from the middle", wire.VerbLog, always(wire.LogRequest{Run: longRun, Offset: new(int64(b.size.long / 6))}), nil),
		questionTo(l, "bookmarks", wire.VerbBookmarks, always(wire.BookmarksRequest{Run: longRun}), func(r wire.BookmarksResponse) { before = r.Before }),
		questionTo[wire.BookmarksResponse](l, "bookmarks, a page before", wire.VerbBookmarks, func() any { return wire.BookmarksRequest{Run: longRun, Before: before} }, nil),
		questionTo[wire.TimelineResponse](l, "timeline", wire.VerbTimeline, always(wire.TimelineRequest{Run: longRun}), nil),
		questionTo[wire.EventsResponse](l, "events of the middle", wire.VerbEvents, always(wire.EventsRequest{Run: longRun, From: uint64(b.size.long / 2), Limit: 100}), nil),
		questionTo(l, "runs", wire.VerbRuns, always(wire.RunsRequest{}), func(r wire.RunsResponse) { cursor = r.Cursor }),
		questionTo[wire.RunsResponse](l, "runs, the next page", wire.VerbRuns, func() any { return wire.RunsRequest{Cursor: cursor} }, nil),
		questionTo[wire.TopResponse](l, "top", wire.VerbTop, always(wire.TopRequest{}), nil),
		questionTo[wire.FleetResponse](l, "fleet", wire.VerbFleet, always(wire.FleetRequest{}), nil),
		questionTo[wire.ApprovalsResponse](l, "approvals", wire.VerbApprovals, always(wire.ApprovalsRequest{}), nil),
		questionTo[wire.StatsResponse](l, "stats", wire.VerbStats, always(wire.StatsRequest{}), nil),
	}
}

// askAll asks everything several times, one question after the other in each round.
func (b *benchmark) askAll(ctx context.Context, l *lab, when string) (rows []bench.Row, err error) {
	all := b.questions(l)
	took, cpu := make([][]float64, len(all)), make([][]float64, len(all))
	for round := range b.size.asked + 1 {
		for i, q := range all {
			used, began := processorTime(), time.Now()
			if err := q.ask(ctx); err != nil {
				return nil, fmt.Errorf("%s, %s: %w", q.name, when, err)
			}
			if round > 0 { // what comes first is measured by itself
				took[i] = append(took[i], bench.MillisSince(began))
				cpu[i] = append(cpu[i], float64(processorTime()-used)/float64(time.Millisecond))
			}
		}
	}
	for i, q := range all {
		slices.Sort(took[i])
		slices.Sort(cpu[i])
		for _, part := range []float64{0.5, 0.99} {
			rows = append(rows, bench.NewRow(fmt.Sprintf("%s, %s, p%v", q.name, when, part*100), "ms", bench.Quantile(took[i], part)))
		}
		if when == "at rest" {
			rows = append(rows, bench.NewRow(fmt.Sprintf("%s, %s, processor time of all, p50", q.name, when), "ms", bench.Quantile(cpu[i], 0.5)))
		}
	}
	return rows, nil
}

// askFirst starts a recorder for each question, and asks that alone.
func (b *benchmark) askFirst(ctx context.Context, l *lab, path string) (rows []bench.Row, err error) {
	var starts []float64
	for i := range b.questions(l) {
		began := time.Now()
		err := b.whileRecording(ctx, l, path, func(ctx context.Context) error {
			if err := l.awaitAnswer(ctx, "short1"); err != nil {
				return err
			}
			starts = append(starts, bench.MillisSince(began))
			q := b.questions(l)[i]
			began := time.Now()
			err := q.ask(ctx)
			rows = append(rows, bench.NewRow(q.name+", the first question behind a start", "ms", bench.MillisSince(began)))
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return append(rows, bench.NewRow("start of a recorder, until it answers", "ms", starts...)), nil
}

// verifyRate checks the store that was asked, in µs of processor time per event.
func verifyRate(ctx context.Context, path string) (row bench.Row, err error) {
	store, err := recorder.OpenReadOnly(ctx, path)
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	used := processorTime()
	v, err := store.Checker.Verify(ctx, "")
	if err == nil && len(v.Damages) > 0 {
		err = fmt.Errorf("the store isn't as it was recorded: %s", v.Damages[0])
	}
	return bench.NewRow("verify, processor time per event", "µs", float64(processorTime()-used)/float64(time.Microsecond)/float64(max(v.Events, 1))), err
}
