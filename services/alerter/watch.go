package alerter

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/budget"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// sampleEvery is how often wake itself is looked at.
const sampleEvery = 30 * time.Second

// watchSystem looks at wake itself until ctx ends. A look that fails is made again when
// the next one is due: other parts of wake say what is wrong.
func (a *Alerter) watchSystem(ctx context.Context) {
	told := uncertainAlerts{}
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			if err := a.checkSystem(ctx, told, now.UnixMilli()); err != nil && ctx.Err() == nil {
				a.logger.DebugContext(ctx, "can't look at the system", "error", err)
			}
			if err := a.checkShared(ctx, told, now.UnixMilli()); err != nil && ctx.Err() == nil {
				a.logger.DebugContext(ctx, "can't look at shared budgets", "error", err) // runners say so
			}
		case <-ctx.Done():
			return
		}
	}
}

// checkSystem tells what is wrong as far as could be looked: storage fills up where the recorder's consumer is gone, too.
func (a *Alerter) checkSystem(ctx context.Context, told uncertainAlerts, now int64) error {
	ctx, cancel := context.WithTimeout(ctx, sampleEvery)
	defer cancel()
	x, err := a.takeSample(ctx, now)
	return errors.Join(err, a.publishAll(ctx, told, input{At: now, Pos: x.Last, Run: systemRun()}, examineSystem(a.limits.Load().System, x)))
}

// takeSample returns what it could find out, also with an error.
func (a *Alerter) takeSample(ctx context.Context, now int64) (sample, error) {
	x := sample{At: now}
	js, name := a.log.JetStream(), a.log.Names().EventsStream()
	var err error
	if x.Reports, err = health.Reports(ctx, js, a.log.Names()); err != nil {
		return x, err
	}
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return x, err
	}
	info := stream.CachedInfo()
	x.Last, x.Bytes, x.MaxBytes = info.State.LastSeq, info.State.Bytes, uint64(max(info.Config.MaxBytes, 0))
	if x.Letter, err = a.lastLetter(ctx); err != nil {
		return x, err
	}
	recorder, err := js.Consumer(ctx, name, subjects.RecorderConsumer)
	if err != nil {
		return x, err
	}
	floor := recorder.CachedInfo().AckFloor.Stream
	if floor >= x.Last {
		return x, nil
	}
	for e, err := range a.log.Read(ctx, eventlog.Query{From: floor + 1}) {
		if err != nil {
			return x, err
		}
		x.Oldest, x.Waiting = e.Time.UnixMilli(), x.Last-floor
		break
	}
	return x, nil
}

func (a *Alerter) lastLetter(ctx context.Context) (letter, error) {
	names := a.log.Names()
	stream, err := a.log.JetStream().Stream(ctx, names.DeadLetterStream())
	if err != nil {
		return letter{}, err
	}
	m, err := stream.GetLastMsgForSubject(ctx, names.DeadLetter("recorder"))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return letter{}, nil
	}
	if err != nil {
		return letter{}, err
	}
	var p wire.Poison
	data, err := a.log.Unseal(m.Subject, m.Data)
	if err == nil {
		err = wire.Unmarshal(data, &p)
	}
	if err != nil {
		p.Reason = "what it was can't be read: " + err.Error()
	}
	return letter{At: m.Time.UnixMilli(), Reason: p.Reason}, nil
}

// lastWords returns the last text that an agent had streamed by some time, or
// that a command had printed, since its last progress. Text doesn't come with the
// other events: it is nine tenths of them all.
func (a *Alerter) lastWords(ctx context.Context, r runRecord, node string, at int64) (*eventlog.Entry, error) {
	var last *eventlog.Entry
	query := eventlog.Query{
		Run: r.Run.ID, Node: node, Kinds: []wire.Kind{wire.KindText, wire.KindDelta}, From: r.Silences.Nodes[node].Pos + 1,
	}
	for e, err := range a.log.Read(ctx, query) {
		switch {
		case err != nil:
			return nil, err
		case e.Err == nil && r.timeOf(e) > at:
			return last, nil
		case e.Err == nil:
			last = &e
		}
	}
	return last, nil
}

// addLastWords gives the record what agents wrote, where nothing else was heard of
// them until now.
func (a *Alerter) addLastWords(ctx context.Context, r runRecord, at int64) (runRecord, error) {
	l := a.limits.Load()
	for _, node := range r.Silences.ripeNodes(l.Stuck, at) {
		e, err := a.lastWords(ctx, r, node, at)
		if err != nil {
			return r, err
		}
		if e != nil {
			r, _ = r.applyInput(input{At: r.timeOf(*e), Pos: e.Pos, Event: e.Event, Limits: l}) // text is worth no alert
		}
	}
	return r, nil
}

// checkShared tells how much is spent of budgets that runs share. It has no memory: the recorder knows the sums, and
// what was told before is found under the same key.
func (a *Alerter) checkShared(ctx context.Context, told uncertainAlerts, now int64) error {
	ctx, cancel := context.WithTimeout(ctx, sampleEvery)
	defer cancel()
	store, err := budget.Open(ctx, a.log.JetStream(), a.log.Names(), a.log.Keys())
	if err != nil {
		return err
	}
	all, err := store.All(ctx)
	if err != nil || len(all) == 0 {
		return err
	}
	answer, err := api.Call[wire.BudgetsResponse](ctx, a.log.Conn(), a.log.Names(), wire.VerbBudgets, wire.BudgetsRequest{})
	if err != nil {
		return err
	}
	_, last, err := a.log.Bounds(ctx)
	if err != nil {
		return err
	}
	return a.publishAll(ctx, told, input{At: now, Pos: last, Run: systemRun()}, sharedFindings(a.limits.Load().Budget.Shares, answer.Budgets, now))
}

// sharedFindings finds the highest share of each budget that has been reached. A budget with changed amounts is another one.
func sharedFindings(shares []float64, all []wire.SharedBudget, at int64) (found []finding) {
	now := time.UnixMilli(at)
	for _, b := range all {
		spent, ofTokens := budget.Share(b, now)
		share, ok := highestReached(shares, spent+rounding)
		if !ok {
			continue
		}
		key := fnv.New32a()
		key.Write(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%v\x00%d", b.Name, b.Label, b.Per, b.Usd, b.Tokens))
		f := finding{
			Kind: kindBudget, Severity: wire.SeverityWarning, NodeID: wire.RunNode, Level: fmt.Sprintf("shared%08x-share%s", key.Sum32(), formatNumber(share)),
			Text: fmt.Sprintf(textShared, timeline.Line(budget.Text(b), maxMessage)), Event: "budget_alert",
		}
		if b.Per == wire.BudgetPerDay {
			f.Armed = uint64(max(at/dayMs, 0))
		}
		if share >= 1 {
			f.Severity = wire.SeverityError
		}
		if ofTokens {
			f.Data = map[string]any{"tokens": b.Spent.Tokens, "budgetTokens": b.Tokens, "costUsd": b.Spent.Usd, "currentCost": b.Spent.Usd}
		} else {
			f.Data = budgetData(b.Spent.Usd, b.Usd)
		}
		f.Data["name"], f.Data["label"], f.Data["per"] = nameLine(b.Name), nameLine(b.Label), b.Per
		found = append(found, f)
	}
	return found
}
