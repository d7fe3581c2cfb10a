package recorder

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"

	"wake/pkg/wire"
)

// runCheck is the check of one run.
type runCheck struct {
	id         int64
	run        string
	events     int64 // as its row says, like the others
	head       []byte
	segments   int64
	tailEvents int64
	tailBytes  int64
	gaps       int64

	link     link   // after the last event that was read
	pos      uint64 // of it
	found    int64  // events
	tailSize int64  // bytes
	broken   bool   // events are damaged: nothing can be derived from them
	replay   *replay
}

// run checks the events of a run, and what is derived from them.
func (v *verifier) run(ctx context.Context, r *runCheck) error {
	v.Runs++
	v.Gaps += r.gaps
	r.link = firstLink(v.Position.Incarnation, r.run)
	var err error
	if r.replay, err = v.newReplay(ctx, r); err != nil {
		return err
	}
	defer r.replay.t.Rollback() //nolint:errcheck // it is only compared with
	tailEvents, err := v.events(ctx, r)
	if err != nil {
		return err
	}
	v.Events += r.found
	wrong := func(column string, is, want int64) {
		if is != want {
			v.damage(Damage{Table: "runs", Run: r.run, Column: column, Problem: fmt.Sprintf("it is %d, there are %d", is, want)})
		}
	}
	wrong("tail_events", r.tailEvents, tailEvents)
	wrong("tail_bytes", r.tailBytes, r.tailSize)
	if !bytes.Equal(r.head, r.link[:]) {
		v.damage(Damage{Table: "runs", Run: r.run, Column: "head", From: r.pos, Problem: "it isn't the hash after the last event: it was changed, or events are missing at the end"})
	}
	if r.broken {
		wrong("events", r.events, r.found)
		return nil // what is derived can't be compared
	}
	return v.derived(ctx, r)
}

// events reads the events of a run, from segments and tail.
func (v *verifier) events(ctx context.Context, r *runCheck) (tailEvents int64, err error) {
	n := int64(0)
	for rows, err := range v.t.query(ctx, `SELECT n, first_pos, last_pos, first_time, last_time, events, prev, hash, codec, data FROM segments WHERE run = ?1 ORDER BY n`, r.id) {
		if err != nil {
			r.broken = true
			return 0, v.failed(ctx, Damage{Table: "segments", Run: r.run}, err)
		}
		if err := v.segment(ctx, r, rows, n+1); err != nil {
			return 0, err
		}
		n++
	}
	v.Segments += int(n)
	if n != r.segments {
		r.broken = r.broken || n < r.segments
		v.damage(Damage{Table: "runs", Run: r.run, Column: "segments", Problem: fmt.Sprintf("it is %d, there are %d", r.segments, n)})
	}
	for rows, err := range v.t.query(ctx, `SELECT pos, time, mark, note, hash, data FROM tail WHERE run = ?1 ORDER BY pos`, r.id) {
		var s stored
		var hash []byte
		if err == nil {
			err = rows.Scan(&s.pos, &s.time, &s.mark, &s.note, &hash, &s.data)
		}
		if err != nil {
			r.broken = true
			return tailEvents, v.failed(ctx, Damage{Table: "tail", Run: r.run}, err)
		}
		tailEvents++
		r.tailSize += int64(len(s.data))
		at := Damage{Table: "tail", Run: r.run, From: s.pos}
		if err := v.event(ctx, r, &s, at); err != nil {
			return tailEvents, err
		}
		if !bytes.Equal(hash, r.link[:]) {
			r.broken = true
			at.Problem = "the event doesn't have the hash that was computed when it was recorded: it was changed, or what was before it"
			v.damage(at)
			copy(r.link[:], hash)
		}
	}
	return tailEvents, r.replay.flush(ctx)
}

// segment checks one segment, which should be number n.
func (v *verifier) segment(ctx context.Context, r *runCheck, rows *sql.Rows, n int64) error {
	var is struct {
		n, firstTime, lastTime, events int64
		first, last                    uint64
		codec                          int
		prev, hash, data               sql.RawBytes
	}
	at := Damage{Table: "segments", Run: r.run, Segment: n}
	if err := rows.Scan(&is.n, &is.first, &is.last, &is.firstTime, &is.lastTime, &is.events, &is.prev, &is.hash, &is.codec, &is.data); err != nil {
		r.broken = true
		return v.failed(ctx, at, err)
	}
	at.Segment, at.From, at.To = is.n, is.first, is.last
	wrong := func(column, format string, args ...any) {
		d := at
		d.Column, d.Problem = column, fmt.Sprintf(format, args...)
		r.broken = true
		v.damage(d)
	}
	if is.n != n {
		wrong("n", "it should be segment %d: one is missing, or there is one too many", n)
	}
	if !bytes.Equal(is.prev, r.link[:]) {
		wrong("prev", "it isn't the hash after the event before")
		copy(r.link[:], is.prev)
	}
	list, err := v.t.zip.unpack(is.codec, is.data)
	if err != nil {
		wrong("data", "%v", err)
	}
	for i := range list {
		if err := v.event(ctx, r, &list[i], at); err != nil {
			return err
		}
	}
	if len(list) > 0 {
		first, last := &list[0], &list[len(list)-1]
		for _, c := range []struct {
			column   string
			is, want int64
		}{
			{"first_pos", int64(is.first), int64(first.pos)},
			{"last_pos", int64(is.last), int64(last.pos)},
			{"first_time", is.firstTime, first.time},
			{"last_time", is.lastTime, last.time},
			{"events", is.events, int64(len(list))},
		} {
			if c.is != c.want {
				wrong(c.column, "it is %d, the events say %d", c.is, c.want)
			}
		}
		if !bytes.Equal(is.hash, r.link[:]) {
			wrong("hash", "the events don't have the hash that was computed when they were recorded: one of them was changed, or the hash")
		}
	}
	copy(r.link[:], is.hash)
	return nil
}

// event checks one event. at is where it is.
func (v *verifier) event(ctx context.Context, r *runCheck, s *stored, at Damage) error {
	at.From, at.To = s.pos, s.pos
	if s.pos <= r.pos {
		r.broken = true
		at.Problem = fmt.Sprintf("the event comes after the one at %d: events are doubled or swapped", r.pos)
		v.damage(at)
	}
	r.found++
	r.pos = s.pos
	r.link = v.chain.next(r.link, s)
	switch s.mark {
	case markVoid:
		v.Void++
	case markBad:
		v.bad++
	}
	if v.seen != nil {
		v.mark(s, at)
	}
	if r.broken {
		return nil
	}
	return r.replay.add(ctx, s, at)
}

// mark notes which positions are there.
func (v *verifier) mark(s *stored, at Damage) {
	if !v.seen.add(s.pos) {
		at.Problem = "another run has the same position"
		v.damage(at)
	}
	if s.mark != markRecorder {
		return
	}
	e, err := wire.Decode(s.data)
	if err != nil {
		at.Problem = err.Error()
		v.damage(at)
		return
	}
	p, ok := e.Payload.(*wire.LogTruncated)
	if !ok || p.Lost == 0 || p.Lost > s.pos {
		at.Problem = "it doesn't say what was lost"
		v.damage(at)
		return
	}
	v.lost += int64(p.Lost)
	for pos := s.pos - p.Lost + 1; pos < s.pos; pos++ {
		v.seen.add(pos)
	}
}
