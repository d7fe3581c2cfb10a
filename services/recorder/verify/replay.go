package verify

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/index"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// replay records the events of runs again, into the scratch store, and has what follows from them compared, while further events are
// read. It compares many short runs at once: to ask a database takes longer than to read the rows of one.
type replay struct {
	verifier // with damages and a view of its own

	beside   *part
	parts    chan []runPart
	next     []runPart // that aren't sent yet
	waiting  int       // events and ends in them
	pending  []replayed
	size     int         // bytes of their data
	flushed  bool        // of the runs that aren't compared, some events are recorded
	runs     []*runCheck // whose events are recorded again, or pending, and that aren't compared yet
	again    *archive.Tx // in the scratch store; nil: it is empty
	recorded int         // events in it
	last     int64       // the highest number of a run in it that is compared
}

// runPart are events of a run that were found to be as they were recorded, or the end of the run.
type runPart struct {
	run    *runCheck
	events []replayed
	ended  bool
}

// replayed is an event that is recorded again, and what it says.
type replayed struct {
	r     *runCheck
	kept  archive.Event
	entry eventlog.Entry
}

// keptState is a state of a run that is in a table.
type keptState struct {
	pos   uint64
	table string
}

// Bounds of what is recorded again at once, and of what the scratch store has before it is emptied.
const (
	replayEvents  = 1000
	replayBytes   = 4 << 20
	scratchEvents = 20_000
)

// startReplay begins to take what is sent, until no more will come.
func (p *replay) startReplay(ctx context.Context) {
	p.parts = make(chan []runPart, 1)
	p.beside = startPart(ctx, func(ctx context.Context) error {
		defer p.emptyScratch() //nolint:errcheck // it is only compared with
		for some := range p.parts {
			for _, next := range some {
				if err := p.takePart(ctx, next); err != nil {
					return err
				}
			}
		}
		return p.comparePending(ctx)
	})
}

// sendAtOnce is how many events, and ends of runs, are sent at once: to hand over few takes as long as to read them.
const sendAtOnce = 500

// sendPart sends what is next of a run, its events in their order.
func (p *replay) sendPart(next runPart) error {
	p.next = append(p.next, next)
	if p.waiting += 1 + len(next.events); p.waiting < sendAtOnce {
		return nil
	}
	return p.sendRest()
}

// sendRest sends what wasn't enough to be sent.
func (p *replay) sendRest() error {
	some := p.next
	p.next, p.waiting = nil, 0
	select {
	case p.parts <- some:
		return nil
	case <-p.beside.over:
		return p.beside.cause()
	}
}

func (p *replay) takePart(ctx context.Context, next runPart) error {
	if next.ended {
		return p.endRun(ctx, next.run)
	}
	for _, e := range next.events {
		p.pending = append(p.pending, e)
		if p.size += len(e.kept.Data); len(p.pending) < replayEvents && p.size < replayBytes {
			continue
		}
		if err := p.flushPending(ctx); err != nil {
			return err
		}
	}
	return nil
}

// foreignTo says why what is kept isn't an event of a run, or "".
func (s *replayed) foreignTo(run string) string {
	switch {
	case s.kept.Mark == archive.Bad || s.kept.Mark == archive.Recorder:
	case s.entry.Err != nil:
		return "it is no event: " + s.entry.Err.Error()
	case s.entry.RunID != run:
		return fmt.Sprintf("it is an event of run %q", request.Shown(s.entry.RunID))
	}
	return ""
}

// endRun ends a run, of which all events were added. If there is enough to compare, it compares this run and those before.
func (p *replay) endRun(ctx context.Context, r *runCheck) error {
	if !r.broken {
		p.runs = append(p.runs, r)
	}
	if !p.flushed && len(p.runs) < replayEvents { // a run of which a part is recorded has a state that others must not lose
		return nil
	}
	return p.comparePending(ctx)
}

// comparePending compares what follows from the events of the runs that wait for it.
func (p *replay) comparePending(ctx context.Context) error {
	if err := p.flushPending(ctx); err != nil {
		return err
	}
	err := p.checkDerived(ctx)
	p.runs, p.flushed = p.runs[:0], false
	p.scratch.ForgetStates()
	if p.recorded > scratchEvents {
		err = errors.Join(err, p.emptyScratch())
	}
	return err
}

// beginScratch begins to fill the scratch store, in one transaction for many runs: what it is asked of each is prepared once.
func (p *replay) beginScratch(ctx context.Context) (err error) {
	if p.again == nil {
		p.again, err = p.scratch.Begin(ctx)
	}
	return err
}

// emptyScratch drops what was recorded again.
func (p *replay) emptyScratch() (err error) {
	if p.again != nil {
		err = p.again.Rollback()
	}
	p.again, p.recorded, p.last = nil, 0, 0
	return err
}

// flushPending records what is pending. Where an event can't be recorded, each run is recorded by itself.
func (p *replay) flushPending(ctx context.Context) error {
	list := slices.DeleteFunc(p.pending, func(s replayed) bool { return s.r.refused })
	failed, err := p.recordEvents(ctx, list)
	for failed && err == nil && len(list) > 0 {
		n := 1 + slices.IndexFunc(list[1:], func(s replayed) bool { return s.r != list[0].r })
		if n == 0 {
			n = len(list)
		}
		_, err = p.recordEvents(ctx, list[:n])
		list = list[n:]
	}
	clear(p.pending)
	p.pending, p.size, p.flushed = p.pending[:0], 0, true
	return err
}

// recordEvents records events, all or none. If one of them can't be recorded, that is damage if all are of the same run. If they are of
// several, recordEvents reports failed, and what it has found is forgotten: the caller records each run by itself.
func (p *replay) recordEvents(ctx context.Context, list []replayed) (failed bool, err error) {
	if len(list) == 0 {
		return false, nil
	}
	if err := p.beginScratch(ctx); err != nil {
		return false, err
	}
	if _, err := p.again.Do(ctx, "SAVEPOINT pending"); err != nil {
		return false, err
	}
	found, kept := p.countDamages(), map[*runCheck][]keptState{}
	for i := range list {
		kept[list[i].r] = list[i].r.kept
	}
	refused, cause, err := p.tryEvents(ctx, list)
	if err != nil {
		return false, err
	}
	if refused == nil {
		p.recorded += len(list)
		_, err := p.again.Do(ctx, "RELEASE pending")
		return false, err
	}
	p.scratch.ForgetStates()
	for _, text := range []string{"ROLLBACK TO pending", "RELEASE pending"} {
		if _, err := p.again.Do(ctx, text); err != nil {
			return false, err
		}
	}
	if list[0].r != list[len(list)-1].r {
		p.dropSince(found)
		for r, states := range kept {
			r.kept = states
		}
		return true, nil
	}
	refused.r.refused = true
	return false, p.noteFailure(ctx, Damage{Run: refused.r.RunID, From: refused.kept.Pos}, cause)
}

// tryEvents records events, up to one that can't be recorded, and says why.
func (p *replay) tryEvents(ctx context.Context, list []replayed) (refused *replayed, cause, err error) {
	b := index.Batch{Incarnation: p.Position.Incarnation, Blobs: map[string][]byte{}}
	again, err := p.scratch.Replay(ctx, p.again, b, p.Derived)
	if err != nil {
		return nil, nil, err
	}
	for i := range list {
		s := &list[i]
		if err := p.replayEvent(ctx, again, b.Blobs, s); err != nil {
			return s, err, nil
		}
		for len(s.r.kept) > 0 && s.r.kept[0].pos == s.kept.Pos {
			if err := p.checkState(ctx, again, s.r); err != nil {
				return nil, nil, err
			}
			s.r.kept = s.r.kept[1:]
		}
	}
	return nil, nil, again.Finish()
}

func (p *replay) replayEvent(ctx context.Context, again *index.Replay, blobs map[string][]byte, s *replayed) error {
	if s.entry.Err == nil {
		for _, b := range s.entry.Event.Blobs {
			if data, err := p.t.Blob(ctx, b.SHA256); err == nil {
				blobs[b.SHA256] = data
			}
		}
	}
	now, err := again.Add(&s.kept, &s.entry)
	if err == nil && (now.Mark != s.kept.Mark || now.Note != s.kept.Note) {
		s.r.differs = true
		p.addDamage(Damage{
			Run: s.r.RunID, From: s.kept.Pos, Column: "mark",
			Problem: fmt.Sprintf("it is marked %q (%s), it should be %q (%s)", s.kept.Mark, s.kept.Note, now.Mark, now.Note),
		})
	}
	return err
}

// checkState compares the next state that is kept of a run with the one that follows from the events.
func (p *replay) checkState(ctx context.Context, again *index.Replay, r *runCheck) error {
	kept := r.kept[0]
	at := Damage{Table: kept.table, Run: r.RunID, From: kept.pos, Column: "data", Problem: "the state isn't the fold of the events"}
	want, err := wire.Marshal(cmp.Or(again.State(r.RunID), run.New(r.RunID)))
	if err != nil {
		return err
	}
	var is []byte
	err = p.t.Row(ctx, `SELECT data FROM `+kept.table+` WHERE run = ?1 AND pos = ?2`, r.ID, kept.pos).Scan(&is)
	if err == nil && kept.table == "keyframes" {
		is, err = p.s.Codec.Dec.DecodeAll(is, nil)
	}
	if err != nil {
		r.differs = true
		return p.noteFailure(ctx, at, err)
	}
	if !bytes.Equal(want, is) && !r.isOther() {
		r.differs = true
		p.addDamage(at)
	}
	return nil
}
