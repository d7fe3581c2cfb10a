// Package purse knows what is left of the budgets that runs share.
package purse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/budget"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/turn"
)

const (
	// every is how often the recorder is asked, while there are budgets.
	every = time.Second
	// patience is how long it may take to answer.
	patience = 5 * time.Second
)

// Purse asks the recorder what is spent of shared budgets. It adds up nothing itself: so any number of runners
// know the same, and one that begins anew knows it too.
type Purse struct {
	Loops turn.Loops // called with News

	log *eventlog.Log

	mu      sync.Mutex
	known   bool // it is known which budgets there are, and what was spent of them
	budgets []wire.SharedBudget
	news    chan struct{} // closed when another budget is spent, or one isn't any more
}

// New returns a purse of which nothing is known yet.
func New(log *eventlog.Log) *Purse {
	return &Purse{log: log, news: make(chan struct{})}
}

// News is closed once what is spent, or not, may have changed for some run.
func (p *Purse) News() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.news
}

// Spent returns the budget that a run with these labels has to stop for, nil if there is none; one that ends runs comes
// before others. It reports whether that is known: while it isn't, no run is stopped on a guess, and
// none that has stopped goes on.
func (p *Purse) Spent(labels map[string]string, now time.Time) (spent *wire.SharedBudget, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.budgets {
		if budget.Covers(b, labels) && budget.IsReached(b, now) && (spent == nil || b.Then == wire.BudgetAbort && spent.Then != wire.BudgetAbort) {
			spent = &b
		}
	}
	return spent, p.known
}

// Covers reports whether a run with these labels may have to stop for a budget: there is one for it, or that isn't known.
func (p *Purse) Covers(labels map[string]string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.known || slices.ContainsFunc(p.budgets, func(b wire.SharedBudget) bool { return budget.Covers(b, labels) })
}

// Follow keeps up with budgets and what is spent of them until ctx ends. It fails if the recorder doesn't answer: what it said last
// holds meanwhile.
func (p *Purse) Follow(ctx context.Context) error {
	store, err := budget.Open(ctx, p.log.JetStream(), p.log.Names(), p.log.Keys())
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	changes := make(chan bool)
	var watching sync.WaitGroup
	var lost error // why the watch has ended; to be read behind watching
	watching.Go(func() {
		defer close(changes)
		for all, err := range store.Watch(ctx) {
			if err != nil {
				lost = err
				return
			}
			select {
			case changes <- len(all) > 0:
			case <-ctx.Done():
				return
			}
		}
	})
	err = p.askOnAndOn(ctx, changes)
	stop()
	watching.Wait()
	return errors.Join(err, lost)
}

// askOnAndOn asks the recorder at each change, and again and again while there are budgets.
func (p *Purse) askOnAndOn(ctx context.Context, changes <-chan bool) error {
	tick := time.NewTicker(every)
	tick.Stop()
	defer tick.Stop()
	for {
		select {
		case some, ok := <-changes:
			switch {
			case !ok:
				return nil
			case !some:
				tick.Stop()
				p.set(nil)
				continue
			}
			tick.Reset(every)
		case <-tick.C:
		}
		wait, cancel := context.WithTimeout(ctx, patience)
		answer, err := api.Call[wire.BudgetsResponse](wait, p.log.Conn(), p.log.Names(), wire.VerbBudgets, wire.BudgetsRequest{})
		cancel()
		if err != nil {
			return fmt.Errorf("budgets that runs share aren't kept: %w", err)
		}
		p.set(answer.Budgets)
	}
}

func (p *Purse) set(all []wire.SharedBudget) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	before, first := p.budgets, !p.known
	p.budgets, p.known = all, true
	if first || !slices.Equal(spentNames(before, now), spentNames(all, now)) {
		close(p.news)
		p.news = make(chan struct{})
		p.Loops.Call()
	}
}

func spentNames(all []wire.SharedBudget, now time.Time) (names []string) {
	for _, b := range all {
		if budget.IsReached(b, now) {
			names = append(names, b.Name+"\x00"+b.Label+"\x00"+b.Then)
		}
	}
	return names
}
