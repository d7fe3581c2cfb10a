package work

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/pkg/wire"
)

// hold is a worker's hold on the processes of its execution. They run in a keeper; it extends
// the keeper's deadline while the lease of the node is valid.
type hold struct {
	cfg   *Config
	log   *nodeLog
	label keeper.Label

	exec     *execution
	memory   int64 // bound of what the processes may use, bytes; 0: none
	optional bool  // where it can't be kept they run without
	host     process.Host
	keeper   *keeper.Keeper // nil: the programs are children of this process, or what is left of them
	// inherited says that the keeper is that of an earlier worker, with its programs.
	inherited bool
	mark      mark // how far the log has the journals of an earlier worker
	// decided are the decisions on calls that the log has since that worker's claim.
	decided map[string]*wire.PermissionDecided

	stop    context.CancelFunc
	tending sync.WaitGroup
	thaw    chan struct{} // holds one token when the keeper may be frozen
	// frozenAt is the last deadline that the keeper was given, on the clock of process.Uptime.
	frozenAt atomic.Int64

	mu   sync.Mutex
	left bool
}

// place is where an event of a journal is.
type place struct {
	offset uint64
	index  int
}

func placeOf(e *wire.Event) place { return place{e.JournalOffset, e.JournalIndex} }

func (p place) isBehind(other place) bool {
	return p.offset > other.offset || p.offset == other.offset && p.index > other.index
}

// mark is a point of a journal: the log has the events that were made of what came
// before, and of those of the same line the ones up to index.
type mark struct {
	place
	ends map[place]bool // of pieces of texts whose end had been held, and is there, too
}

// readMark returns the mark that an earlier worker has left on its keeper.
func readMark(l keeper.Label) mark {
	m := mark{place: place{l.Offset, l.Index}}
	for _, at := range l.Ends {
		m = m.addEnd(place{at.Offset, at.Index})
	}
	return m
}

// setLabel leaves the mark for the next worker. It needs each end: a piece without one may have been held, also if it was recorded
// before this worker began.
func (m mark) setLabel(l *keeper.Label) {
	l.Offset, l.Index, l.Ends = m.offset, m.index, nil
	for at := range m.ends {
		l.Ends = append(l.Ends, keeper.Place{Offset: at.offset, Index: at.index})
	}
}

// coversEvent reports whether the log has an event that was made of a journal.
func (m mark) coversEvent(e *wire.Event) bool {
	return e.JournalOffset != 0 && !placeOf(e).isBehind(m.place)
}

// addEvent returns the mark behind an event that the log has. Events of a journal don't all come in
// its order: the furthest counts.
func (m mark) addEvent(e *wire.Event) mark {
	switch {
	case !m.coversEvent(e):
		m.place = placeOf(e)
	case e.Type().Kind() == wire.KindDelta:
		m = m.addEnd(placeOf(e))
	}
	return m
}

func (m mark) addEnd(at place) mark {
	if m.ends == nil {
		m.ends = map[place]bool{}
	}
	m.ends[at] = true
	return m
}

// skipRecorded reports whether the log has an event that was made of a journal, and then passes it by.
func (h *hold) skipRecorded(ctx context.Context, e *wire.Event) (bool, error) {
	if h == nil || !h.mark.coversEvent(e) {
		return false, nil
	}
	return true, h.log.writer.Prime(ctx, e, h.mark.ends[placeOf(e)])
}

// The part of a lease's time that is left when a tree is frozen, and when what isn't
// frozen is ended.
const (
	freezeMargin = 0.35
	killMargin   = 0.08
)

// graspKeeper finds the keeper that an earlier worker of this runner has left, or what that has
// left of its journals. If another runner has claimed the node since, the keeper is ended: no worker
// drives its programs.
func graspKeeper(ctx context.Context, x *execution) (*hold, error) {
	_, pos := x.log.writer.Last()
	h := &hold{
		cfg: x.cfg, log: x.log, host: process.Direct{Home: x.cfg.Home}, exec: x,
		label: keeper.Label{Run: x.offer.RunID, Node: x.offer.NodeID, Exec: x.offer.ExecID, Position: pos, Since: x.since},
	}
	if p := x.node.Policy; p != nil {
		h.memory, h.optional = p.Memory, p.MemoryOptional
	}
	if h.cfg.Shelf == nil {
		return h, nil
	}
	old, found := h.cfg.Shelf.Find(h.label.Run, h.label.Node, h.label.Exec)
	if !found {
		return h, nil
	}
	k, err := h.cfg.Shelf.Attach(ctx, old)
	if err != nil && !errors.Is(err, keeper.ErrGone) {
		return nil, fmt.Errorf("keeper of %s: %w", h.label.Exec, err)
	}
	h.mark = readMark(old)
	// What stands at that position may be of the journal of a keeper before.
	ours, err := h.readSinceClaim(ctx, old.Position+1, pos)
	if err != nil {
		if k != nil {
			k.Leave()
		}
		return nil, err
	}
	if k != nil && ours && !x.isHoldOnly() {
		h.inheritTime(k, old)
		return h, h.takeOver(ctx, k)
	}
	if k != nil { // it is ended, also where the open calls of the agent are only to be dealt with
		if err := k.Quit(0); err != nil {
			return nil, err
		}
	}
	if !ours {
		return h, nil
	}
	h.useTail(old)
	return h, nil
}

// boundMemory refuses a node if this runner can't bound its memory, unless its policy lets it run all the same.
func (h *hold) boundMemory() error {
	if h == nil || h.memory == 0 || h.cfg.Shelf != nil && h.cfg.Shelf.Bounds() {
		return nil
	}
	if !h.optional {
		return &failure{message: unboundedText, kind: wire.ErrorStartFailed}
	}
	h.cfg.Logger.Warn("the node runs without its bound of memory: this host has no control group for it", "run", h.label.Run, "node", h.label.Node)
	h.memory = 0
	return nil
}

// unboundedText is why a node is refused.
const unboundedText = "policy.memory can't be kept by this runner: it can write no control group with a memory controller (`wake doctor` tells more). " +
	"Let it have one (docs/operations.md), name a pool of runners that have one, or let the node run without the bound with `memoryOptional: true`"

// useTail takes what a keeper that is gone has left, if that can be read.
func (h *hold) useTail(old keeper.Label) {
	tail, err := h.cfg.Shelf.Tail(old)
	if err != nil {
		h.cfg.Logger.Warn("journal not readable", "run", h.label.Run, "node", h.label.Node, "error", err)
		return
	}
	h.host = tail
}

// replaceLost has what the keeper has left take its place, if it is gone.
func (h *hold) replaceLost() {
	if h == nil || h.keeper == nil || h.isAlive() {
		return
	}
	h.stopTending()
	h.keeper, h.host = nil, process.Direct{Home: h.cfg.Home}
	h.useTail(h.label)
}

// processHost returns where programs begin that are to end with the execution's others: in its keeper, if that lives.
func (x *execution) processHost() process.Host {
	if x.hold != nil && x.hold.isAlive() {
		return patientHost{x.hold.keeper, x}
	}
	return process.Direct{Home: x.cfg.Home}
}

// isAlive reports whether there is a keeper.
func (h *hold) isAlive() bool {
	if h.keeper == nil {
		return false
	}
	select {
	case <-h.keeper.Gone():
		return false
	default:
		return true
	}
}

// hasProgram reports whether there is a program of that name already, or what is left of it.
func (h *hold) hasProgram(name string) bool { return h != nil && h.host.Has(name) }

// hasCall reports whether the command of an agent's call is at work, or has come to its end.
func (h *hold) hasCall(id string) bool {
	if h == nil {
		return false
	}
	if tail, gone := h.host.(*keeper.Tail); gone {
		return tail.Ended(agent.CallProgram(id))
	}
	return h.host.Has(agent.CallProgram(id))
}

// readSinceClaim reads what was recorded of the node since an earlier claim of this runner. It reports
// false if another runner has claimed the node since.
func (h *hold) readSinceClaim(ctx context.Context, from, to uint64) (ours bool, err error) {
	query := eventlog.Query{Run: h.label.Run, Node: h.label.Node, From: from, To: to}
	for e, err := range h.cfg.Log.Read(ctx, query) {
		if err != nil {
			return false, err
		}
		if e.Event == nil {
			continue
		}
		if p, ok := e.Event.Payload.(*wire.NodeClaimed); ok && p.Runner != h.cfg.ID {
			return false, nil
		}
		if e.Event.ExecID != h.label.Exec {
			continue
		}
		if p, ok := e.Event.Payload.(*wire.PermissionDecided); ok {
			if h.decided == nil {
				h.decided = map[string]*wire.PermissionDecided{}
			}
			h.decided[e.Event.CallID] = p
		}
		if e.Event.JournalOffset != 0 {
			h.mark = h.mark.addEvent(e.Event)
		}
	}
	return true, nil
}

// renewKeeper is [hold.replaceKeeper] when there is room for it.
func (h *hold) renewKeeper(ctx context.Context) error {
	if h == nil {
		return nil
	}
	return h.exec.awaitRoom(func() error { return h.replaceKeeper(ctx) })
}

// replaceKeeper has the programs run in a new keeper, in place of the old one, if any.
func (h *hold) replaceKeeper(ctx context.Context) error {
	if err := h.boundMemory(); err != nil || h.cfg.Shelf == nil {
		return err
	}
	h.stopTending()
	if h.keeper != nil {
		if err := h.keeper.Quit(0); err != nil {
			return err
		}
	}
	h.keeper, h.inherited, h.host, h.mark = nil, false, process.Direct{Home: h.cfg.Home}, mark{}
	// Its journals begin anew, and what the log is still to have of those before must not count as theirs.
	if err := h.log.writer.Flush(ctx); err != nil {
		return err
	}
	h.mark.setLabel(&h.label)
	_, h.label.Position = h.log.writer.Last()
	h.label.Since = h.exec.since
	return h.openKeeper(ctx)
}

// openKeeper opens a keeper for what the execution begins, once the lease is valid for long enough: shortly before its end the
// keeper's deadline is over, and it would end at once.
func (h *hold) openKeeper(ctx context.Context) error {
	var freeze, kill time.Duration
	renewed := h.log.lease.Renewed() // a renewal while the keeper starts counts, too
	for freeze <= process.Uptime() {
		if err := h.log.mayBegin(ctx); err != nil {
			return err
		}
		if freeze, kill = h.keeperDeadlines(); freeze <= process.Uptime() {
			if pull.Sleep(ctx, h.cfg.Leases.TTL()/freeLook); ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	k, err := h.cfg.Shelf.Open(ctx, h.label, h.memory, freeze, kill)
	if err != nil {
		return err
	}
	h.frozenAt.Store(int64(freeze))
	h.tendKeeper(ctx, k, renewed)
	return nil
}

// patientHost is a host that begins programs when there is room for them.
type patientHost struct {
	process.Host

	exec *execution
}

// Start starts a program; see [process.Host].
func (p patientHost) Start(c process.Config) (s *process.Process, err error) {
	err = p.exec.awaitRoom(func() (err error) {
		s, err = p.Host.Start(c)
		return err
	})
	return s, err
}

// carryOver has the programs of an agent that goes on from the log run in the keeper that there is. If it is gone, they run in
// a new one, and commands that had ended have their ends.
func (h *hold) carryOver(ctx context.Context) error {
	if err := h.boundMemory(); err != nil || h == nil || h.cfg.Shelf == nil || h.isAlive() {
		return err
	}
	tail, left := h.host.(*keeper.Tail)
	if left {
		var err error
		if tail, err = h.cfg.Shelf.SetAside(h.label); err != nil {
			return err
		}
	}
	if err := h.renewKeeper(ctx); err != nil || !left {
		return err
	}
	h.host = estate{h.host, tail}
	return nil
}

// estate is a keeper, and what the one before has left of programs that had ended.
type estate struct {
	process.Host

	before *keeper.Tail
}

// Has reports whether there is a program of that name, or its end.
func (e estate) Has(name string) bool { return e.Host.Has(name) || e.before.Ended(name) }

// Start starts a program, or gives the one that there is; see [process.Host].
func (e estate) Start(c process.Config) (*process.Process, error) {
	if !e.Host.Has(c.Name) && e.before.Ended(c.Name) {
		return e.before.Start(c)
	}
	return e.Host.Start(c)
}

// takeOver takes over a keeper of an earlier worker. The claim that this worker has stored is the
// proof that no other worker acts for the node.
func (h *hold) takeOver(ctx context.Context, k *keeper.Keeper) error {
	h.inherited = true
	renewed := h.log.lease.Renewed()
	err := h.extendDeadline(k)
	h.tendKeeper(ctx, k, renewed)
	h.mark.setLabel(&h.label)
	if err := h.cfg.Shelf.Mark(h.label); err != nil {
		h.cfg.Logger.Warn("keeper not marked", "run", h.label.Run, "node", h.label.Node, "error", err)
	}
	return err
}

// inheritTime has the time limit of the execution count from when the worker that opened the keeper began: the keeper's programs have
// worked on since.
func (h *hold) inheritTime(k *keeper.Keeper, old keeper.Label) {
	if old.Since > 0 {
		h.label.Since = old.Since
		h.exec.beginTime(old.Since + k.Stood())
	}
}

// extendDeadline moves the keeper's deadline to what the lease allows, and notes it.
func (h *hold) extendDeadline(k *keeper.Keeper) error {
	freeze, kill := h.keeperDeadlines()
	err := k.Extend(freeze, kill)
	if err == nil {
		h.frozenAt.Store(int64(freeze))
	}
	return err
}

// keeperDeadlines returns when the tree is to be frozen, and when what isn't frozen is to
// end.
func (h *hold) keeperDeadlines() (freeze, kill time.Duration) {
	until, ttl := h.log.lease.Until(), float64(h.cfg.Leases.TTL())
	return until - time.Duration(freezeMargin*ttl), until - time.Duration(killMargin*ttl)
}

// tendKeeper extends the keeper's deadline whenever the lease was renewed.
func (h *hold) tendKeeper(ctx context.Context, k *keeper.Keeper, renewed <-chan struct{}) {
	h.keeper, h.host, h.thaw = k, patientHost{k, h.exec}, make(chan struct{}, 1)
	k.Watch(func(s keeper.State) {
		h.exec.tellRoom(s.Full)
		if s.Frozen {
			h.cfg.Logger.Warn("the agent is frozen: the lease was not renewed in time", "run", h.label.Run, "node", h.label.Node)
			select {
			case h.thaw <- struct{}{}:
			default:
			}
		}
	})
	// It ends with release or leave, not with the execution: what the agent still does
	// until then is covered by the lease, too.
	ctx, h.stop = context.WithCancel(context.WithoutCancel(ctx))
	h.tending.Go(func() {
		for {
			select {
			case <-h.thaw:
			case <-renewed:
			case <-h.log.lease.Lost():
				return
			case <-h.log.writer.Fenced():
				return
			case <-k.Gone():
				// It says nothing if its timer has ended it, since the tree couldn't be frozen in time.
				h.cfg.Logger.Warn("the keeper is gone", "run", h.label.Run, "node", h.label.Node, "after_deadline", process.Uptime()-time.Duration(h.frozenAt.Load()))
				return
			case <-ctx.Done():
				return
			}
			if h.log.lease.Valid() {
				_ = h.extendDeadline(k) // if it is gone, that is told
			}
		}
	})
}

// canLeave reports whether the processes may outlive this one.
func (h *hold) canLeave() bool { return h != nil && h.keeper != nil && h.cfg.LeaveAgents }

// leaveKeeper gives the processes up without ending them, for a worker of this runner that comes
// back.
func (h *hold) leaveKeeper() {
	h.mu.Lock()
	left := h.left
	h.left = true
	h.mu.Unlock()
	if left {
		return
	}
	h.stopTending()
	h.keeper.Leave()
}

// isLeft reports whether the processes live on without this worker.
func (h *hold) isLeft() bool {
	if h == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.left
}

// stopTending ends the tending. It may be called again, when the keeper is another, or none.
func (h *hold) stopTending() {
	if stop := h.stop; stop != nil {
		h.stop = nil
		stop()
		h.tending.Wait()
		h.keeper.Watch(nil)
		h.exec.tellRoom("")
	}
}

// endKeeper ends the processes, unless they are left. One that can't be ended is waited for: its deadline isn't moved any more.
func (h *hold) endKeeper() {
	if h == nil || h.isLeft() {
		return
	}
	h.stopTending()
	if h.keeper == nil {
		return
	}
	if err := h.keeper.Quit(0); err != nil {
		h.cfg.Logger.Warn("keeper not ended", "run", h.label.Run, "node", h.label.Node, "error", err)
		over := time.NewTimer(h.cfg.Leases.TTL())
		defer over.Stop()
		select {
		case <-h.keeper.Gone():
		case <-over.C:
		}
	}
}

// removeJournals removes the journals of processes that have ended. They stay unless the log has all that
// they tell, or nothing of it counts any more.
func (h *hold) removeJournals(recorded bool) {
	if h == nil || h.isLeft() || h.cfg.Shelf == nil || !recorded {
		return
	}
	if err := h.cfg.Shelf.Remove(h.label); err != nil {
		h.cfg.Logger.Warn("journal not removed", "run", h.label.Run, "node", h.label.Node, "error", err)
	}
}

// agentProgram is the name of the agent among the programs of an execution.
const agentProgram = "agent"

// maxLost is how many keepers an execution may lose.
const maxLost = 3
