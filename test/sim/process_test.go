//go:build linux

package sim_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/services/recorder"
	"code.wake.dev/wake/services/runner"
	"code.wake.dev/wake/services/snapshotter"
)

// service is what a process runs.
type service interface {
	Run(ctx context.Context) error
}

// process is a program of the installation: it is started again whenever it ends,
// as an operator's machine does it.
type process struct {
	w     *world
	name  string
	build func(p *process, life *life, log *eventlog.Log) (service, error)
	// alone says that the next life must not begin before the last one has ended,
	// since they share a file.
	alone    bool
	isRunner bool
	// Of a runner: how long its frozen keepers wait for it, 0 if it has none, and whether it leaves agents to them when
	// it drains.
	orphan time.Duration
	leaves bool

	mu    sync.Mutex
	now   *life
	lives int
	spool string
	delay time.Duration // until the next start
}

// life is a process from its start to its end.
type life struct {
	p     *process
	link  *link
	nc    *nats.Conn
	end   context.CancelFunc // as by SIGTERM
	drop  context.CancelFunc // at once
	spool string
	done  chan struct{}
	gone  chan struct{} // closed when the process is dead for everybody else

	number   int // of the process's lives
	client   *keeper.Client
	children []string // folders of keepers that die with it
	count    int

	mu   sync.Mutex
	dead bool
}

// alive reports whether the process can still do anything.
func (l *life) alive() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.dead
}

// supervise keeps the process running until ctx ends.
func (p *process) supervise(ctx context.Context) {
	for ctx.Err() == nil {
		l := p.begin()
		err := p.live(ctx, l)
		if p.isRunner {
			p.unmountDisk()
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			p.w.note(p.name, "ended: %v", err)
		}
		p.mu.Lock()
		delay := max(p.delay, 100*time.Millisecond)
		p.delay = 0
		p.mu.Unlock()
		select {
		case <-time.After(delay):
		case <-ctx.Done():
		}
	}
}

func (p *process) begin() *life {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lives++
	if p.spool == "" {
		p.spool = filepath.Join(p.w.dir, p.name, "spool")
	}
	l := &life{p: p, spool: p.spool, done: make(chan struct{}), gone: make(chan struct{}), number: p.lives, client: p.w.machine.Client()}
	l.link = &link{server: p.w.server, bug: p.w.bugs[p.name], stored: p.w.stored, fatal: func(subject string) { p.w.note(p.name, "dies at a publish to %s", subject); l.die() }}
	p.now = l
	return l
}

// live returns when the process has ended, or is dead for everybody else.
func (p *process) live(ctx context.Context, l *life) error {
	result := make(chan error, 1)
	p.w.tasks.Go(func() {
		defer close(l.done)
		result <- p.work(ctx, l)
	})
	if p.alone {
		return <-result
	}
	select {
	case err := <-result:
		return err
	case <-l.gone:
		return nil
	}
}

// work composes a process as `wake runner` and its like do.
func (p *process) work(ctx context.Context, l *life) error {
	nc, err := l.connect()
	if err != nil {
		return err
	}
	defer nc.Close()
	log, err := eventlog.Open(ctx, nc, eventlog.Options{Logger: p.w.logger(p.name), SpoolDir: l.spool, BlobLimit: blobLimit})
	if err != nil {
		return err
	}
	s, err := p.build(p, l, log)
	if err != nil {
		return err
	}
	// The log outlives the service.
	base, drop := context.WithCancel(context.WithoutCancel(ctx))
	defer drop()
	live, end := context.WithCancel(ctx)
	defer end()
	l.mu.Lock()
	l.drop, l.end = drop, end
	dead := l.dead
	l.mu.Unlock()
	if dead {
		return nil
	}
	stored := make(chan error, 1)
	go func() {
		stored <- log.Run(base)
		end()
	}()
	err = s.Run(live)
	drop()
	err = errors.Join(err, <-stored)
	if !l.alive() {
		return nil
	}
	return err
}

// connect tries for a while, as programs do that are started before their server.
func (l *life) connect() (*nats.Conn, error) {
	for try := 0; ; try++ {
		nc, err := nats.Connect("", nats.InProcessServer(l.link), nats.Name(l.p.name), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
			nats.ReconnectJitter(0, 0), nats.ReconnectBufSize(-1), nats.PingInterval(10*time.Second),
			nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		if err == nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.nc = nc
			return nc, nil
		}
		if try == 50 || !l.alive() {
			return nil, err
		}
		<-time.After(200 * time.Millisecond)
	}
}

// die is kill -9: from now on the process does nothing that anybody could see. May
// be called from within its own publish.
func (l *life) die() {
	l.mu.Lock()
	if l.dead {
		l.mu.Unlock()
		return
	}
	l.dead = true
	end, drop, nc, children := l.end, l.drop, l.nc, l.children
	l.mu.Unlock()
	_ = os.Remove(l.folder())
	if l.p.isRunner && l.p.current() == nil {
		l.p.unmountDisk() // at once: no other machine sees it any more
	}
	l.client.Kill()
	for _, dir := range children {
		l.p.w.machine.Kill(dir)
	}
	l.link.set(func(k *link) { k.dead = true })
	l.p.inherit(l)
	close(l.gone)
	l.p.w.tasks.Go(func() {
		l.link.kill()
		if nc != nil {
			nc.Close()
		}
		if end != nil {
			end()
			drop()
		}
	})
}

// inherit gives the next life what this one has on its disk at its death. What the
// dead one still writes there nobody sees.
func (p *process) inherit(l *life) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := filepath.Join(p.w.dir, p.name, fmt.Sprintf("spool-%d", p.lives))
	if err := os.CopyFS(next, os.DirFS(l.spool)); err != nil && !errors.Is(err, os.ErrNotExist) {
		p.w.note(p.name, "spool: %v", err)
	}
	p.spool = next
}

// current returns the life that the process is in, or nil.
func (p *process) current() *life {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil || !p.now.alive() {
		return nil
	}
	return p.now
}

// setDelay says how long the process is away after its next end.
func (p *process) setDelay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// stop ends the process as SIGTERM does.
func (l *life) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end != nil {
		l.end()
	}
}

const blobLimit = 16 << 10

func (w *world) runner(name string, slots int) *process {
	p := &process{w: w, name: name, isRunner: true, build: func(p *process, l *life, log *eventlog.Log) (service, error) {
		shelf, err := p.shelf(w.ctx, l)
		if err != nil {
			return nil, err
		}
		if err := p.mountDisk(); err != nil {
			return nil, err
		}
		r, err := runner.New(runner.Config{
			ID: name, MaxAgents: slots, Workspaces: p.disk(),
			Providers: map[string]agent.Provider{"claude": &provider{w: w, life: l}},
			Shelf:     shelf, LeaveAgents: p.leaves, KeepFolders: true, WorkspaceGrace: w.grace(), ParkAfter: w.parkAfter(),
		}, log, w.logger(name))
		if err == nil {
			w.mu.Lock()
			w.runners = append(w.runners, r)
			w.mu.Unlock()
		}
		return r, err
	}}
	if w.rng.IntN(4) > 0 || w.keepers {
		p.orphan, p.leaves = pick(w.rng, 10*time.Second, time.Minute, 10*time.Minute), w.rng.IntN(3) > 0
	}
	return p
}

func (w *world) recorder() *process {
	return &process{w: w, name: "recorder", alone: true, build: func(_ *process, _ *life, log *eventlog.Log) (service, error) {
		return recorder.New(recorder.Config{Path: w.recorderFile()}, log, w.logger("recorder"))
	}}
}

func (w *world) recorderFile() string { return filepath.Join(w.dir, "recorder.db") }

func (w *world) snapshotter() *process {
	return &process{w: w, name: "snapshotter", build: func(_ *process, _ *life, log *eventlog.Log) (service, error) {
		return snapshotter.New(snapshotter.Config{}, log, w.logger("snapshotter"))
	}}
}

func (w *world) alerter() *process {
	return &process{w: w, name: "alerter", build: func(_ *process, l *life, log *eventlog.Log) (service, error) {
		return w.alerting(l, log)
	}}
}

// sink is the terminal of an alerter.
type sink struct {
	w    *world
	life *life
}

// Write implements [io.Writer]; it is given whole lines.
func (s *sink) Write(b []byte) (int, error) {
	if s.life.alive() {
		s.w.ledger.Shown("terminal", string(bytes.TrimSuffix(b, []byte("\n"))))
	}
	return len(b), nil
}

// logger writes what a process logs into the history.
func (w *world) logger(name string) *slog.Logger {
	if !w.verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(lines(func(s string) { w.note(name, "%s", s) }), &slog.HandlerOptions{
		Level: slog.LevelInfo,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}

// lines is a writer of whole lines.
type lines func(string)

func (f lines) Write(b []byte) (int, error) {
	f(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}
