package registry

import (
	"container/heap"
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"time"
	"unique"

	"code.wake.dev/wake/pkg/wire"
)

const (
	// spread is over how long runs are woken that are due at the same moment.
	spread = time.Second
	// firstAgain and lastAgain are how soon a run is tried again that wasn't woken.
	firstAgain = time.Second
	lastAgain  = time.Minute
)

// alarm says when a parked run is woken.
type alarm struct {
	key   string
	at    int64         // Unix ms; [math.MaxInt64]: not by the time
	tried int64         // when it was tried last, Unix ms
	again time.Duration // how soon after that it is tried once more
	index int           // in the heap
}

// alarms is a heap of them, the next one first.
type alarms []*alarm

func (a alarms) Len() int           { return len(a) }
func (a alarms) Less(i, j int) bool { return a[i].at < a[j].at }
func (a alarms) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].index, a[j].index = i, j
}

// Push implements [heap.Interface].
func (a *alarms) Push(x any) {
	one := x.(*alarm) // it is one
	one.index = len(*a)
	*a = append(*a, one)
}

// Pop implements [heap.Interface].
func (a *alarms) Pop() any {
	last := len(*a) - 1
	one := (*a)[last]
	(*a)[last] = nil
	*a = (*a)[:last]
	return one
}

// Park registers that the owner of a run has let it go, since it does nothing but wait. It fails if the run was
// registered again since a revision: then another owner has it.
func (g *Registry) Park(ctx context.Context, reg Registration, revision uint64) error {
	value, err := wire.Marshal(reg)
	if err != nil {
		return err
	}
	revision, err = g.kv.Update(ctx, g.stateKey(reg.Run), value, revision)
	if err != nil {
		return fmt.Errorf("park run %s: %w", reg.Run, err)
	}
	g.keepNewer(g.stateKey(reg.Run), knownRun{Registration: reg, revision: revision})
	return nil
}

// TakeDue returns a parked run that is to be woken, and otherwise when the next one is (Unix ms). It comes again after a
// while, unless it is registered anew meanwhile: so one that wasn't woken isn't forgotten.
func (g *Registry) TakeDue(now int64) (reg Registration, found bool, next int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now < g.clock {
		g.setBack(now)
	}
	g.clock = now
	if len(g.alarms) == 0 {
		return reg, false, math.MaxInt64
	}
	one := g.alarms[0]
	if one.at > now {
		return reg, false, one.at
	}
	one.again = min(max(2*one.again, firstAgain), lastAgain)
	one.tried, one.at = now, now+one.again.Milliseconds()
	heap.Fix(&g.alarms, one.index)
	return g.runs[one.key].Registration, true, 0
}

// setBack says that the clock was set back: what was put off by what it told before is put off no more. Under mu.
func (g *Registry) setBack(now int64) {
	for _, one := range g.alarms {
		if at := alarmAt(g.runs[one.key].Registration); one.at < at {
			one.at = min(one.at, now) // a command has come
		} else {
			one.at = at
		}
		one.tried, one.again = 0, 0
	}
	heap.Init(&g.alarms)
}

// Wake has a parked run be woken at a time (Unix ms), unless it is to be sooner, or was tried just before.
func (g *Registry) Wake(run string, at int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.runs[g.stateKey(run)].alarm
	if one == nil {
		return
	}
	if at = max(at, one.tried+firstAgain.Milliseconds()); at < one.at {
		one.at = at
		heap.Fix(&g.alarms, one.index)
		g.tellAlarm(one)
	}
}

// Postpone has a parked run be woken at a time (Unix ms), as if it hadn't been tried.
func (g *Registry) Postpone(run string, at int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if one := g.runs[g.stateKey(run)].alarm; one != nil {
		one.at, one.again, one.tried = at, 0, 0
		heap.Fix(&g.alarms, one.index)
	}
}

// Alarms holds a token when the next parked run is to be woken sooner than was said.
func (g *Registry) Alarms() <-chan struct{} { return g.sooner }

// Parked returns how many runs are parked, by whatever runner.
func (g *Registry) Parked() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.alarms)
}

// Late returns how long the most overdue of the parked runs has been due.
func (g *Registry) Late(now time.Time) (late time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, one := range g.alarms {
		if due := g.runs[one.key].Due; due != 0 {
			late = max(late, now.Sub(time.UnixMilli(due)))
		}
	}
	return late
}

// isParked reports whether a run waits without an owner. One of another log doesn't: it is to be taken out.
func (g *Registry) isParked(k knownRun) bool {
	return !k.gone && k.Parked > 0 && k.Incarnation == g.incarnation
}

// index puts a run among those to be owned, or to be woken, under mu; it returns it with its alarm.
func (g *Registry) index(key string, k knownRun) knownRun {
	g.forget(key)
	switch {
	case k.gone:
	case !g.isParked(k):
		g.awake[key] = struct{}{}
	default:
		k.alarm = &alarm{key: key, at: alarmAt(k.Registration)}
		heap.Push(&g.alarms, k.alarm)
		g.tellAlarm(k.alarm)
	}
	return k
}

// forget takes a run out of what index put it into, under mu.
func (g *Registry) forget(key string) {
	delete(g.awake, key)
	old := g.runs[key]
	if old.alarm == nil {
		return
	}
	heap.Remove(&g.alarms, old.alarm.index)
}

func (g *Registry) tellAlarm(one *alarm) {
	if one.index != 0 {
		return
	}
	select {
	case g.sooner <- struct{}{}:
	default:
	}
}

// alarmAt is when a run is woken by the time. Those that are due at the same moment are spread, each by its id.
func alarmAt(reg Registration) int64 {
	if reg.Due == 0 {
		return math.MaxInt64
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(reg.Run))
	return reg.Due + int64(h.Sum32())%spread.Milliseconds()
}

// shareTexts has registrations share what they have in common.
func shareTexts(reg *Registration) {
	for _, s := range []*string{&reg.Runner, &reg.Folder, &reg.Process, &reg.Incarnation} {
		*s = unique.Make(*s).Value()
	}
}
