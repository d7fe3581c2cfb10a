// Package listener hears what the hooks of Claude Code's sessions report, and puts it on the runs of these sessions: which
// agent waits for a person and since when, what was asked and answered, that a session has ended. The answers are
// commands to the run, as everywhere in wake: the runner puts them on record, and the hook that waits is told.
//
// All of it stands on one node of the run, beside those that the watcher makes of the session's files: what those tell, hooks
// don't repeat. The listener holds nothing that the log doesn't have; if it is killed, its hooks report again to the
// next one.
package listener

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/report"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Config are the settings of a listener.
type Config struct {
	ID   string // of the process, in claims; required
	URL  string // of the server that hands it the requests of hooks; required
	File string // tells hooks where that is; required
	// Grace is how long a request that the log has stays open until its hook reports again; default 15 s.
	Grace time.Duration
}

// Listener is the service. It is the handler of the hooks' requests, too.
type Listener struct {
	cfg     Config
	address report.Address
	log     *eventlog.Log
	logger  *slog.Logger
	slots   chan struct{} // of requests that are dealt with at the same time

	seats sync.Map // calls that a hook waits for, by seatKey

	mu     sync.Mutex
	tales  map[string]*tale // by session
	began  time.Time        // of the second in which the requests are counted
	counts map[string]int   // of requests in it, by session
}

// The bounds of what hooks may ask at the same time. A session has a few processes, each of which asks once.
const (
	maxSlots    = 64  // requests under way, but for those that wait for a person
	maxPerTale  = 64  // requests that wait, of one session
	maxTales    = 512 // sessions that are held
	maxASecond  = 50  // requests of one session
	writeTime   = 10 * time.Second
	sweepTime   = time.Second
	restTime    = 10 * time.Minute // after which a session of which nothing is heard isn't held any more
	orphanTicks = 60
)

// New returns a listener that writes to a log. The log's Run must be running.
func New(cfg Config, log *eventlog.Log, logger *slog.Logger) (*Listener, error) {
	if cfg.ID == "" || cfg.URL == "" || cfg.File == "" {
		return nil, errors.New("listener: an id, a URL and a file are required")
	}
	cfg.Grace = cmp.Or(cfg.Grace, 15*time.Second)
	return &Listener{
		cfg: cfg, address: report.Address{URL: cfg.URL, Key: rand.Text()}, log: log, logger: logger,
		slots: make(chan struct{}, maxSlots), tales: map[string]*tale{}, counts: map[string]int{},
	}, nil
}

// Run tells hooks where it is, and has those that wait told what was decided, until ctx ends. If it fails it may be called
// again.
func (l *Listener) Run(ctx context.Context) error {
	_, last, err := l.log.Bounds(ctx)
	if err != nil {
		return err
	}
	defer l.address.Remove(l.cfg.File)
	defer l.closeTales(context.WithoutCancel(ctx))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var followed sync.WaitGroup
	defer followed.Wait()
	failed := make(chan error, 1)
	followed.Go(func() { failed <- l.followDecisions(ctx, last+1) })
	tick := time.NewTicker(sweepTime)
	defer tick.Stop()
	for n := 0; ; n++ {
		if err := l.address.Write(l.cfg.File); err != nil {
			l.logger.Warn("hooks aren't told where the listener is", "error", err)
		}
		if n%orphanTicks == 0 {
			if err := l.findOrphans(ctx); err != nil && ctx.Err() == nil {
				n-- // the recorder may be on its way
			}
		}
		l.sweep(ctx)
		select {
		case <-ctx.Done():
			stop()
			return nil
		case err := <-failed:
			if ctx.Err() != nil {
				return nil
			}
			return err
		case <-tick.C:
		}
	}
}

// followDecisions has hooks told what was decided from a position on.
func (l *Listener) followDecisions(ctx context.Context, from uint64) error {
	for e, err := range l.log.Follow(ctx, eventlog.Query{Run: subjects.NoRun, Node: wire.RunNode, Kinds: []wire.Kind{wire.KindFlow}, From: from}) {
		if err != nil {
			return err
		}
		if d, ok := decisionOf(e); ok {
			l.mu.Lock()
			t := l.tales[d.run]
			l.mu.Unlock()
			if t != nil {
				t.takeDecision(d)
			}
		}
	}
	return nil
}

// findOrphans takes note of requests that wait and of which no hook reports.
func (l *Listener) findOrphans(ctx context.Context) error {
	limited, stop := context.WithTimeout(ctx, writeTime)
	defer stop()
	all, err := api.Call[wire.ApprovalsResponse](limited, l.log.Conn(), l.log.Names(), wire.VerbApprovals, wire.ApprovalsRequest{})
	if err != nil {
		return err
	}
	for _, a := range all.Approvals {
		if a.NodeID != wire.HooksNode {
			continue
		}
		t, err := l.taleOf(a.RunID)
		if err == nil {
			err = t.openTale(limited)
		}
		if err != nil {
			l.logger.Warn("a session that waits isn't looked at", "run", a.RunID, "error", err)
		}
	}
	return nil
}

// sweep ends requests without hooks that wait, and forgets sessions of which nothing was heard for a while.
func (l *Listener) sweep(ctx context.Context) {
	l.mu.Lock()
	all := slices.Collect(maps.Values(l.tales))
	l.mu.Unlock()
	for _, t := range all {
		limited, stop := context.WithTimeout(ctx, writeTime)
		if err := t.sealOrphans(limited); err != nil && ctx.Err() == nil {
			l.logger.Warn("what a session asked isn't closed yet", "run", t.session, "error", err)
		}
		if t.isResting(restTime) {
			l.mu.Lock()
			delete(l.tales, t.session)
			l.mu.Unlock()
			t.close(limited)
		}
		stop()
	}
}

func (l *Listener) closeTales(ctx context.Context) {
	limited, stop := context.WithTimeout(ctx, writeTime)
	defer stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.tales {
		t.close(limited)
	}
	clear(l.tales)
}

// errMany is returned if there are too many sessions.
var errMany = errors.New("listener: too many sessions at the same time")

func (l *Listener) taleOf(session string) (*tale, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tales[session]
	if t == nil {
		if len(l.tales) >= maxTales {
			return nil, errMany
		}
		t = &tale{session: session, l: l, asked: map[string]*permissionRequest{}, heard: time.Now()}
		l.tales[session] = t
	}
	return t, nil
}

// isDriven reports whether a runner drives the session, and records it: it keeps the session's file.
func (l *Listener) isDriven(ctx context.Context, session string) (bool, error) {
	kept, err := l.log.JetStream().ObjectStore(ctx, l.log.Names().SessionsBucket())
	if err != nil {
		return false, err
	}
	_, err = kept.GetInfo(ctx, session)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return false, nil
	}
	return err == nil, err
}
