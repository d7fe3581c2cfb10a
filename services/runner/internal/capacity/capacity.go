// Package capacity says what may begin: how full the stream of events is, and how far
// behind its recorder.
package capacity

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/pkg/subjects"
)

// What part of the stream's bytes may be in use for a run, and for an execution,
// to begin. The rest is for what has begun: claims, intents and ends.
const (
	fullForRuns  = 0.8
	fullForNodes = 0.9
)

// How often a runner looks how full the stream and its disks are: while runs and nodes begin, or may not; while nothing
// happens.
const (
	fillEvery = 5 * time.Second
	idleEvery = time.Minute
)

// Why no run may begin.
var (
	ErrFull   = errors.New("the stream of events is nearly full")
	ErrBehind = errors.New("the stream of events is about to drop what isn't recorded")
)

// Gauge knows what may begin at the moment.
type Gauge struct {
	log      *eventlog.Log
	logger   *slog.Logger
	filled   prometheus.Gauge
	behind   atomic.Bool // the recorder is too far behind for another run to begin
	refusing atomic.Bool // the stream is too full for another run to begin
	full     atomic.Bool // … for another execution to begin
	asked    atomic.Bool // a run, a node or a scrape of metrics has asked since the last look
	board    *health.Board
	folders  []string
	roomy    atomic.Bool               // all folders have room
	looking  chan struct{}             // holds a token while one run looks for all that are about to begin
	looks    atomic.Int64              // that have begun
	last     look                      // the last one; guarded by looking
	sure     atomic.Pointer[time.Time] // until then runs begin without another look
}

// New returns the gauge of a log, which shows by filled what part of its bytes is in use. What is
// begun writes into folders; the board is told if one of them has no room.
func New(log *eventlog.Log, logger *slog.Logger, filled prometheus.Gauge, board *health.Board, folders []string) *Gauge {
	return &Gauge{log: log, logger: logger, filled: filled, board: board, folders: folders, looking: make(chan struct{}, 1)}
}

// RefusesRuns reports whether no run begins at the moment.
func (g *Gauge) RefusesRuns() bool { return g.refusing.Load() || g.behind.Load() }

// RefusesNodes reports whether no execution begins at the moment.
func (g *Gauge) RefusesNodes() bool {
	g.asked.Store(true)
	return g.full.Load()
}

// Cramped reports whether this machine has no room for another execution at the moment.
func (g *Gauge) Cramped() bool { return !g.roomy.Load() }

// room is what a folder must be able to take for an execution to begin.
const room = 1 << 20

var zeros [room]byte

// noteDisk looks whether the folders have room.
func (g *Gauge) noteDisk() {
	var all error
	for _, dir := range g.folders {
		if err := tryWrite(filepath.Join(dir, ".room")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = errors.Join(all, fmt.Errorf("no room in %s, no node is begun here: %w", dir, err))
		}
	}
	g.roomy.Store(all == nil)
	g.board.Set("runner: disk", all)
}

// tryWrite writes a file and removes it: a quota or a mount may refuse what the file system has room for.
func tryWrite(file string) error {
	err := os.WriteFile(file, zeros[:], 0o600)
	_ = os.Remove(file) // also what there was room for
	return err
}

// Watch looks how full the stream is, how far behind the recorder, and whether there is room here,
// until ctx ends.
func (g *Gauge) Watch(ctx context.Context) error {
	tick := time.NewTicker(fillEvery)
	defer tick.Stop()
	var last time.Time
	for {
		idle := !g.asked.Swap(false) && !g.RefusesRuns() && !g.full.Load() && !g.Cramped()
		if !idle || time.Since(last) >= idleEvery {
			last = time.Now()
			g.lookAround(ctx)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (g *Gauge) lookAround(ctx context.Context) {
	g.noteDisk()
	wait, cancel := context.WithTimeout(ctx, fillEvery)
	defer cancel()
	if fill, _, err := g.log.Fill(wait); err == nil {
		g.noteFill(fill)
	}
	if lag, err := g.log.Lag(wait, subjects.RecorderConsumer); err == nil {
		g.noteLag(lag)
	}
}

// noteFill says once that nothing new is begun, and once that it is again.
func (g *Gauge) noteFill(fill float64) {
	g.filled.Set(fill)
	note := func(is *atomic.Bool, limit float64, what string) {
		full := fill >= limit
		if !is.CompareAndSwap(!full, full) {
			return
		}
		if full {
			g.logger.Error("the stream of events is nearly full: raise its max bytes with `wake init`, which works while it is in use",
				"full_percent", int(100*fill), "not_begun", what)
		} else {
			g.logger.Info("the stream of events has room again", "full_percent", int(100*fill), "begun_again", what)
		}
	}
	note(&g.refusing, fullForRuns, "runs")
	note(&g.full, fullForNodes, "nodes")
}

// noteLag says once that no runs are begun because the stream is about to drop what
// isn't recorded, and once that they are again.
func (g *Gauge) noteLag(lag eventlog.Lag) {
	behind := lag.Danger()
	if !g.behind.CompareAndSwap(!behind, behind) {
		return
	}
	if behind {
		g.logger.Error("the stream of events is about to drop what isn't recorded: start the recorder, or let the stream keep events for longer with `wake init --max-age`",
			"events_behind", lag.Events, "oldest", lag.Age.Round(time.Second).String(), "max_age_percent", int(100*lag.Part), "not_begun", "runs")
	} else {
		g.logger.Info("the recorder has caught up", "events_behind", lag.Events, "begun_again", "runs")
	}
}

// While there is much room, and the recorder is far from what the stream drops, runs begin for a moment without
// another look.
const (
	muchRoom   = 64 << 20 // bytes, more than is written in that time
	sureFor    = 250 * time.Millisecond
	littleLate = eventlog.NearExpiry / 2
)

// A look is what one run found for all that came before it began.
type look struct {
	number int64 // of those that have begun
	err    error
}

// RoomForRun fails with [ErrFull] or [ErrBehind] if no run may begin. Of many that are about to begin, one looks.
func (g *Gauge) RoomForRun(ctx context.Context) error {
	g.asked.Store(true)
	if g.isSure() {
		return nil
	}
	before := g.looks.Load()
	select {
	case g.looking <- struct{}{}:
		defer func() { <-g.looking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if g.last.number > before {
		return g.last.err
	}
	if g.isSure() {
		return nil
	}
	number := g.looks.Add(1)
	err := g.lookForRoom(ctx)
	if ctx.Err() == nil {
		g.last = look{number, err}
	}
	return err
}

func (g *Gauge) isSure() bool {
	sure := g.sure.Load()
	return sure != nil && time.Now().Before(*sure)
}

func (g *Gauge) lookForRoom(ctx context.Context) error {
	asked := time.Now()
	fill, left, err := g.log.Fill(ctx)
	if err != nil {
		return err
	}
	g.noteFill(fill)
	if fill >= fullForRuns {
		return ErrFull
	}
	lag, err := g.log.Lag(ctx, subjects.RecorderConsumer)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil // it was deleted; the recorder makes it again
	}
	if err != nil {
		return err
	}
	if g.noteLag(lag); lag.Danger() {
		return ErrBehind
	}
	if left > muchRoom && lag.Part < littleLate {
		until := asked.Add(sureFor)
		g.sure.Store(&until)
	}
	return nil
}
