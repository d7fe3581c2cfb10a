// Package deliver brings alerts to people and programs.
//
// Rules say which alerts go to which sinks; see [Parse] and docs/alerts.md. Each
// sink has a target, which reads WAKE_ALERTS by itself, from the position that it
// has stored, and sends one notification after the other: a sink that is dead
// delays no other, and what one sink gets is in order.
//
//	WAKE_ALERTS ─▶ target ─▶ plan (send, hold, ignore) ─▶ sink
//	                 │  ▲                                  │ given up
//	                 ▼  │ position, held, owner            ▼
//	         WAKE_STATE sink.<name>                 WAKE_DEADLETTER
//
// All that a target knows is one value in WAKE_STATE, its record, which is
// replaced by comparing revisions. The record names the process that owns the
// target; others that run the same rules wait until it says no more. A
// notification is sent, then recorded. So a crash may send one again, with the
// same id, and skips none.
package deliver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/metric"
	"code.wake.dev/wake/pkg/subjects"
)

// Deliverer sends alerts to sinks.
type Deliverer struct {
	cfg    Config
	log    *eventlog.Log
	logger *slog.Logger
	id     string // of this process, as owner

	metrics *metric.Set
	sent    *prometheus.CounterVec // this and the following by sink and type
	failed  *prometheus.CounterVec
	letters *prometheus.CounterVec

	mu      sync.Mutex
	rules   *Rules
	changed chan struct{} // closed when rules are replaced
}

// New returns a deliverer that follows rules.
func New(cfg Config, rules *Rules, log *eventlog.Log, logger *slog.Logger) *Deliverer {
	if cfg.Out == nil {
		cfg.Out = io.Discard
	}
	m := metric.New("sink")
	return &Deliverer{
		cfg: cfg, log: log, logger: logger, id: rand.Text(), rules: rules, changed: make(chan struct{}),
		metrics: m,
		sent:    m.CounterBy("sent_total", "Notifications that a sink took.", "sink", "type"),
		failed:  m.CounterBy("failures_total", "Attempts that a sink didn't take.", "sink", "type"),
		letters: m.CounterBy("dead_letters_total", "Notifications that were given up.", "sink", "type"),
	}
}

// Describe implements [prometheus.Collector].
func (d *Deliverer) Describe(ch chan<- *prometheus.Desc) { d.metrics.Describe(ch) }

// Collect implements [prometheus.Collector].
func (d *Deliverer) Collect(ch chan<- prometheus.Metric) { d.metrics.Collect(ch) }

// Replace makes the deliverer follow other rules. What is being sent is sent first.
func (d *Deliverer) Replace(rules *Rules) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rules = rules
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *Deliverer) currentRules() (*Rules, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rules, d.changed
}

// Run delivers until ctx ends. Then it finishes the attempts that have begun.
func (d *Deliverer) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		rules, changed := d.currentRules()
		if err := d.runTargets(ctx, rules, changed); err != nil {
			return err
		}
	}
	return nil
}

// runTargets runs the targets of rules until these change or ctx ends.
func (d *Deliverer) runTargets(ctx context.Context, rules *Rules, changed <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for name := range rules.Sinks {
		t, err := d.newTarget(name, rules)
		if err != nil {
			return err
		}
		running.Go(func() { t.runTarget(ctx) })
	}
	select {
	case <-changed:
	case <-ctx.Done():
	}
	return nil
}

func (d *Deliverer) newTarget(name string, rules *Rules) (*target, error) {
	cfg := rules.Sinks[name]
	s, err := newSender(d.cfg, cfg, d.log.Names())
	if err != nil {
		return nil, fmt.Errorf("sink %s: %s", name, cfg.scrubText(err.Error()))
	}
	for _, v := range []*prometheus.CounterVec{d.sent, d.failed, d.letters} {
		v.WithLabelValues(name, cfg.Type) // 0, so that the first one shows as more
	}
	return &target{
		d: d, name: name, cfg: cfg, sender: s, plan: plan{sink: name, cfg: cfg, rules: rules},
		logger: d.logger.With("sink", name), orders: make(chan sinkOrder),
		hint: make(chan struct{}, 1),
	}, nil
}

// Test sends a test to a sink of rules from here, in one attempt. Its error shows
// no secrets.
func Test(ctx context.Context, c Config, rules *Rules, name string, names subjects.Names) error {
	s, err := newSender(c, rules.Sinks[name], names)
	if err != nil {
		return errors.New(rules.Sinks[name].scrubText(err.Error()))
	}
	defer s.closeSender()
	return trySend(ctx, s, rules.Sinks[name], testNotification(name))
}
