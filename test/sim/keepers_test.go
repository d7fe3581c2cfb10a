//go:build linux

package sim_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"code.wake.dev/wake/internal/keeper"
	programs "code.wake.dev/wake/internal/process"
)

// shelf returns the keepers of a runner, as the life that it is in has them. A dead life
// has none any more.
func (p *process) shelf(ctx context.Context, l *life) (*keeper.Shelf, error) {
	if p.orphan == 0 {
		return nil, nil
	}
	dir := filepath.Join(p.w.dir, p.name, "keepers")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Symlink(dir, l.folder()); err != nil {
		return nil, err
	}
	return keeper.NewShelf(ctx, keeper.ShelfConfig{Dir: l.folder(), Home: p.name, Client: l.client, Orphan: p.orphan})
}

// folder is the name by which a life knows the folder of its keepers.
func (l *life) folder() string {
	return filepath.Join(l.p.w.dir, l.p.name, fmt.Sprintf("keepers-%d", l.number))
}

// runsCommands reports whether exec nodes may be executed: a runner without keepers would start real processes.
func (w *world) runsCommands() bool {
	return !slices.ContainsFunc(w.processes, func(p *process) bool { return p.isRunner && p.orphan == 0 })
}

// hasKeepers reports whether a runner has keepers.
func (w *world) hasKeepers(runner string) bool {
	return slices.ContainsFunc(w.processes, func(p *process) bool { return p.name == runner && p.orphan > 0 })
}

// own starts a keeper for a program of a runner that has none: they die together.
func (l *life) own(ctx context.Context) (*keeper.Keeper, error) {
	l.mu.Lock()
	l.count++
	dir := filepath.Join(l.p.w.dir, l.p.name, fmt.Sprintf("program-%d-%d", l.number, l.count))
	dead := l.dead
	if !dead {
		l.children = append(l.children, dir)
	}
	l.mu.Unlock()
	if dead {
		return nil, programs.ErrGone
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return nil, err
	}
	far := programs.Uptime() + 1000*time.Hour
	return keeper.Open(ctx, keeper.Config{Dir: dir, Home: l.p.name, Client: l.client, Orphan: time.Minute, Freeze: far, Kill: far})
}

// killKeeper ends a keeper at once.
func (w *world) killKeeper() {
	if dir := w.someKeeper(); dir != "" {
		w.fault("keeper killed", "%s", dir)
		w.machine.Kill(dir)
	}
}

func (w *world) someKeeper() string {
	dirs := slices.DeleteFunc(w.machine.Keepers(), func(dir string) bool { return filepath.Base(dir) != "keeper" }) // the others are those of [life.own]
	if len(dirs) == 0 {
		return ""
	}
	slices.Sort(dirs)
	return pick(w.rng, dirs...)
}

// relay has a runner be away until another one has taken over its work and has given that back: its leases are free
// when it comes back, and its agents others'.
func (w *world) relay() {
	l := w.victim()
	if l == nil || l.p.orphan == 0 {
		return
	}
	w.fault("relay", "from %s", l.p.name)
	l.link.set(func(k *link) { k.cut = true })
	l.link.hangUp()
	<-time.After(pick(w.rng, 12*time.Second, 15*time.Second, 25*time.Second))
	for _, p := range w.processes {
		if other := p.current(); p.orphan > 0 && p != l.p && other != nil {
			p.setDelay(time.Minute)
			other.stop()
		}
	}
	<-time.After(25 * time.Second)
	l.link.set(func(k *link) { k.cut = false })
}

// tear has a runner die between what an agent has said and the log: storage stalls until one of its agents has said
// something. It is back before its lease is over.
func (w *world) tear() {
	l := w.victim()
	if l == nil || l.p.orphan == 0 {
		return
	}
	delay := duration(w.rng, 2*time.Second)
	w.fault("tear", "%s for %s", l.p.name, delay)
	l.link.set(func(k *link) { k.stalled = true })
	w.awaitWord(4 * time.Second)
	l.p.setDelay(delay)
	l.die()
}

// replace kills a runner, the keeper of an agent that it has attached to since, and then the runner again, which has begun another
// one: what the log has of the first journal says nothing of the second.
func (w *world) replace() {
	l := w.victim()
	dir := w.someKeeper()
	if l == nil || l.p.orphan == 0 || dir == "" {
		return
	}
	w.fault("replace", "%s, %s", l.p.name, dir)
	l.die()
	<-time.After(2 * time.Second)
	w.machine.Kill(dir)
	<-time.After(time.Second)
	w.awaitWord(4 * time.Second)
	if l := l.p.current(); l != nil {
		l.die()
	}
}

// awaitWord waits until an agent has said something, but not for long.
func (w *world) awaitWord(most time.Duration) {
	const look = 50 * time.Millisecond
	for before := w.said.Load(); most > 0 && w.said.Load() == before; most -= look {
		<-time.After(look)
	}
}

// intrude has another runner attach to a keeper, and speak to its agent, for a while: one runner at a time may.
func (w *world) intrude() {
	dir := w.someKeeper()
	if dir == "" {
		return
	}
	d, name := duration(w.rng, 20*time.Second), fmt.Sprintf("intruder/%d", w.sessions.Add(1))
	w.fault("intruder", "at %s for %s", dir, d)
	w.tasks.Go(func() {
		client := w.machine.Client()
		defer client.Kill()
		k, err := keeper.Attach(w.ctx, keeper.Config{Dir: dir, Client: client})
		if err != nil {
			return
		}
		defer k.Leave()
		p, err := k.Start(programs.Config{Name: programName, Journal: true})
		if err != nil {
			return
		}
		go func() {
			for range p.Frames {
				// it only speaks
			}
		}()
		for _, wait := range []time.Duration{d, 0} {
			b, err := json.Marshal(line{Kind: "hello", From: name})
			if err == nil {
				_, _ = p.Stdin.Write(append(b, '\n'))
			}
			select {
			case <-time.After(wait):
			case <-w.ctx.Done():
			}
		}
	})
}
