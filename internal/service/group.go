package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/oklog/run"
)

// ErrOverdue is returned by [Group.Run] when an actor didn't end in time.
var ErrOverdue = errors.New("stop took too long")

// Group runs the actors of a process and stops them in order. An actor may use
// those that were added before it until it has ended itself.
//
// All actors start at once. The first to return, or the end of the context,
// stops the others, the last added first, each only when the one before has
// ended.
type Group struct {
	Log   *slog.Logger
	Grace time.Duration // bound of the whole stop; 0 is 25 s, below Kubernetes' 30 s

	actors []*actor
	// Owned by the interrupts, which run one after the other.
	timer *time.Timer   // of the grace, from the first interrupt on
	late  string        // the actor that was waited for when the grace was over
	cut   chan struct{} // closed then
}

type actor struct {
	name   string
	run    func(context.Context) error
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid when done is closed
}

// Add adds an actor, which returns soon after its context has ended. Its name
// is for messages.
func (g *Group) Add(name string, run func(context.Context) error) {
	g.actors = append(g.actors, &actor{name: name, run: run, done: make(chan struct{})})
}

// Run runs the actors until all have ended. Its error joins those of the actors,
// except that they were cancelled; with [ErrOverdue] some still run, and the
// process should end.
func (g *Group) Run(ctx context.Context) error {
	g.cut = make(chan struct{})
	var group run.Group
	group.Add(run.ContextHandler(ctx))
	for _, a := range slices.Backward(g.actors) { // interrupts run in this order
		var actorCtx context.Context
		actorCtx, a.cancel = context.WithCancel(context.WithoutCancel(ctx))
		group.Add(func() error { return a.execute(actorCtx) }, func(error) { g.endActor(a) })
	}

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = group.Run() // the actors keep their errors
	}()
	select {
	case <-ended:
		return g.actorErrors()
	case <-g.cut:
		return errors.Join(fmt.Errorf("%w: %s", ErrOverdue, g.late), g.actorErrors())
	}
}

func (a *actor) execute(ctx context.Context) error {
	defer close(a.done)
	if err := a.run(ctx); err != nil && (ctx.Err() == nil || !errors.Is(err, context.Canceled)) {
		a.err = fmt.Errorf("%s: %w", a.name, err)
	}
	return a.err
}

// endActor ends a and waits for it, so that the next interrupt finds it gone.
func (g *Group) endActor(a *actor) {
	if g.timer == nil {
		g.timer = time.NewTimer(cmp.Or(g.Grace, 25*time.Second))
	}
	a.cancel()
	select {
	case <-a.done:
		g.Log.Debug("stopped", "actor", a.name)
	case <-g.cut:
	case <-g.timer.C:
		g.late = a.name
		close(g.cut)
	}
}

func (g *Group) actorErrors() error {
	var all []error
	for _, a := range g.actors {
		select {
		case <-a.done:
			all = append(all, a.err)
		default:
		}
	}
	return errors.Join(all...)
}
