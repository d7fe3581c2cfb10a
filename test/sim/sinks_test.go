//go:build linux

package sim_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/deliver"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/services/alerter"
)

// rules are those of the world's alerter: an alerter that delivers to the hasty sink gives up
// soon.
const rules = `
sinks:
  patient: {type: webhook, url: http://patient/}
  hasty: {type: webhook, url: http://hasty/, attempts: 3}
rules:
  - sinks: [patient, hasty]
`

// sinks lists the names of the sinks.
func sinks() []string { return []string{"patient", "hasty"} }

// mood is what a sink does with what it is sent.
type mood int

const (
	takes   mood = iota
	refuses      // what it may take later
	rejects      // for good
	dumb         // it never answers
	mumbles      // it takes, and its answer is lost
)

// web is the world of the sinks, which has nothing to do with the server.
type web struct {
	w *world

	mu        sync.Mutex
	moods     map[string]mood
	countdown int  // requests until the alerter that makes them dies; 0: it doesn't
	before    bool // before the request is dealt with, else behind that
	bug       func(sink, id string, body []byte) (taken bool)
}

// alerting is what `wake alerter --rules` runs.
type alerting struct {
	alerter *alerter.Alerter
	sinks   *deliver.Deliverer
}

func (w *world) alerting(l *life, log *eventlog.Log) (service, error) {
	settings := alerter.Defaults()
	parsed, err := deliver.Parse("rules.yaml", []byte(rules), func(string) (string, bool) { return "", false }, &settings)
	if err != nil {
		return nil, err
	}
	a, err := alerter.New(alerter.Config{Out: &sink{w: w, life: l}, Settings: &settings}, log, w.logger("alerter"))
	if err != nil {
		return nil, err
	}
	return &alerting{a, deliver.New(deliver.Config{Transport: &way{&w.web, l}}, parsed, log, w.logger("alerter"))}, nil
}

// Run implements [service].
func (a *alerting) Run(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	delivered := make(chan error, 1)
	go func() {
		defer end()
		delivered <- a.sinks.Run(ctx)
	}()
	err := a.alerter.Run(ctx)
	end()
	return errors.Join(err, <-delivered)
}

// way is that from one process to the sinks.
type way struct {
	web  *web
	life *life
}

// RoundTrip implements [http.RoundTripper].
func (y *way) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	dies, before := y.web.dies()
	if dies && before {
		y.life.die()
	}
	if !y.life.alive() {
		return nil, errNoWay
	}
	m, err := y.web.deal(r.URL.Hostname(), body)
	if err != nil {
		return nil, err
	}
	if dies {
		y.life.die()
	}
	switch m {
	case refuses:
		return answer(r, http.StatusServiceUnavailable), nil
	case rejects:
		return answer(r, http.StatusBadRequest), nil
	case dumb:
		<-r.Context().Done()
		return nil, r.Context().Err()
	case mumbles:
		return nil, errNoWay
	case takes:
	}
	return answer(r, http.StatusOK), nil
}

func answer(r *http.Request, status int) *http.Response {
	return &http.Response{
		Status: fmt.Sprintf("%d %s", status, http.StatusText(status)), StatusCode: status, Header: http.Header{},
		ProtoMajor: 1, ProtoMinor: 1, Body: io.NopCloser(strings.NewReader("")), Request: r,
	}
}

// dies reports whether the alerter that makes this request dies, and when.
func (b *web) dies() (dies, before bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.countdown > 0 {
		b.countdown--
		dies = b.countdown == 0
	}
	return dies, b.before
}

// deal lets a sink deal with what it is sent.
func (b *web) deal(sink string, body []byte) (mood, error) {
	var e struct{ ID string }
	if err := json.Unmarshal(body, &e); err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.moods[sink]
	if m != takes && m != mumbles || b.bug != nil && !b.bug(sink, e.ID, body) {
		return m, nil
	}
	b.w.ledger.Took(sink, e.ID, body)
	return m, nil
}

// upset changes what a sink does for a while.
func (w *world) upset() {
	sink, m, d := pick(w.rng, sinks()...), pick(w.rng, refuses, refuses, rejects, dumb, mumbles), duration(w.rng, 2*time.Minute)
	w.fault("upset sink", "%s is of mood %d for %s", sink, m, d)
	w.web.set(func(b *web) { b.moods[sink] = m })
	w.tasks.Go(func() {
		select {
		case <-time.After(d):
		case <-w.ctx.Done():
		}
		w.web.set(func(b *web) { b.moods[sink] = takes })
	})
}

// crashAtSink lets the alerter die of one of its next requests to a sink.
func (w *world) crashAtSink() {
	n, before, delay := 1+w.rng.IntN(10), w.rng.IntN(2) == 0, duration(w.rng, time.Minute)
	w.fault("crash at a sink", "at the next %d., before %t, for %s", n, before, delay)
	for _, p := range w.processes {
		if p.name == "alerter" {
			p.setDelay(delay)
		}
	}
	w.web.set(func(b *web) { b.countdown, b.before = n, before })
}

func (b *web) set(change func(*web)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(b)
}

// heal ends what faults are still there.
func (b *web) heal() {
	b.set(func(b *web) {
		clear(b.moods)
		b.countdown = 0
	})
}

// connected waits until the sinks are to get whatever is raised from now on.
func (w *world) connected() {
	for _, name := range sinks() {
		w.ledger.Listens(name)
	}
	for w.ctx.Err() == nil {
		if all, err := deliver.StoredStatuses(w.ctx, w.log); err == nil && len(all) == len(sinks()) {
			return
		}
		<-time.After(100 * time.Millisecond)
	}
}

// delivered waits until the sinks have been sent all that there is, for a while.
func (w *world) delivered() {
	for range 60 {
		all, err := deliver.StoredStatuses(w.ctx, w.log)
		behind := err != nil && !errors.Is(err, jetstream.ErrNoKeysFound)
		for _, s := range all {
			behind = behind || s.Behind > 0
		}
		if !behind {
			return
		}
		<-time.After(5 * time.Second)
	}
	w.note("operator", "the sinks are behind")
}
