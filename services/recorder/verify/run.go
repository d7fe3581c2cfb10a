package verify

import (
	"bytes"
	"context"
	"fmt"

	"code.wake.dev/wake/internal/chain"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/index"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// runCheck is the check of one run.
type runCheck struct {
	table.Run // as it says

	link     chain.Link // after the last event that was read
	pos      uint64     // of it
	found    int64      // events
	tailSize int64      // bytes
	broken   bool       // events are damaged: nothing can be derived from them
	sealed   bool       // there are segments
	tailed   bool       // there is a tail
	harmed   bool       // something of it is damaged, besides what follows from the events

	// What is the replay's to write.
	kept    []keptState // that are in the store, in the order of their positions, and aren't compared yet
	refused bool        // events can't be recorded again: nothing can be derived from them
	differs bool        // what is derived isn't what follows from the events
}

// isHarmed reports whether something of the run is damaged.
func (r *runCheck) isHarmed() bool { return r.broken || r.harmed || r.refused || r.differs }

// isOther reports whether another version has derived rows of the run, which may word them in another way.
func (r *runCheck) isOther() bool { return r.Derivation != index.Derivation }

// checkRun checks the events of a run, and what is derived from them.
func (v *verifier) checkRun(ctx context.Context, r *runCheck) error {
	found := v.countDamages()
	v.Runs++
	v.Gaps += r.Gaps
	r.link = chain.FirstLink(v.Position.Incarnation, r.RunID)
	tailEvents, err := v.checkEvents(ctx, r)
	if err != nil {
		return err
	}
	v.Events += r.found
	wrong := func(column string, is, want int64) {
		if is != want {
			v.addDamage(countDamage(r, column, is, want))
		}
	}
	wrong("tail_events", r.TailEvents, tailEvents)
	wrong("tail_bytes", r.TailBytes, r.tailSize)
	if !bytes.Equal(r.Head, r.link[:]) {
		v.addDamage(Damage{Table: "runs", Run: r.RunID, Column: "head", From: r.pos, Problem: "it isn't the hash after the last event: it was changed, or events are missing at the end"})
	}
	if r.broken {
		wrong("events", r.Events, r.found) // what is derived can't be compared
	}
	r.harmed = r.harmed || found != v.countDamages()
	return v.replay.sendPart(runPart{run: r, ended: true})
}

// countDamage says that a run has another number of something than it says.
func countDamage(r *runCheck, column string, is, want int64) Damage {
	return Damage{Table: "runs", Run: r.RunID, Column: column, Problem: fmt.Sprintf("it is %d, there are %d", is, want)}
}

// findParts looks what else there is of some runs, in the order of their numbers: of most there are no segments or no tail.
func (v *verifier) findParts(ctx context.Context, list []*runCheck) error {
	byNumber := map[int64]*runCheck{}
	for _, r := range list {
		byNumber[r.ID] = r
	}
	text := `SELECT DISTINCT run, 0, 'segments' FROM segments WHERE run BETWEEN ?1 AND ?2
		UNION ALL SELECT DISTINCT run, 0, 'tail' FROM tail WHERE run BETWEEN ?1 AND ?2
		UNION ALL SELECT run, pos, 'folds' FROM folds WHERE run BETWEEN ?1 AND ?2
		UNION ALL SELECT run, pos, 'keyframes' FROM keyframes WHERE run BETWEEN ?1 AND ?2 ORDER BY 1, 2, 3`
	var number int64
	var k keptState
	for err := range v.t.Each(ctx, text, []any{list[0].ID, list[len(list)-1].ID}, &number, &k.pos, &k.table) {
		r := byNumber[number]
		switch {
		case err != nil && len(list) > 1:
			return v.findEach(ctx, list)
		case err != nil:
			list[0].sealed, list[0].tailed, list[0].harmed = true, true, true // reading them says what can't be read
			return v.noteFailure(ctx, Damage{Table: "folds", Run: list[0].RunID}, err)
		case r == nil: // it was removed, or checked before
		case k.table == "segments":
			r.sealed = true
		case k.table == "tail":
			r.tailed = true
		default:
			r.kept = append(r.kept, k)
		}
	}
	return nil
}

// findEach looks what there is of each run by itself.
func (v *verifier) findEach(ctx context.Context, list []*runCheck) error {
	for _, r := range list {
		r.sealed, r.tailed, r.kept = false, false, nil
		if err := v.findParts(ctx, []*runCheck{r}); err != nil {
			return err
		}
	}
	return nil
}

// checkEvents reads the events of a run, from segments and tail.
func (v *verifier) checkEvents(ctx context.Context, r *runCheck) (tailEvents int64, err error) {
	if err := v.checkSegments(ctx, r); err != nil || !r.tailed {
		return 0, err
	}
	var is table.Tail
	for err := range v.t.Each(ctx, v.t.Whole("tail")+` WHERE run = ?1 ORDER BY first_pos`, []any{r.ID}, table.Fields(&is)...) {
		if err != nil {
			r.broken = true
			return tailEvents, v.noteFailure(ctx, Damage{Table: "tail", Run: r.RunID}, err)
		}
		list, err := v.checkPart(r, &table.Segment{
			FirstPos: is.FirstPos, LastPos: is.LastPos, LastTime: is.LastTime, Events: is.Events, Hash: is.Hash, Codec: archive.Loose, Data: is.Data,
		}, Damage{Table: "tail", Run: r.RunID, From: is.FirstPos, To: is.LastPos})
		if err != nil {
			return tailEvents, err
		}
		tailEvents += int64(len(list))
		for i := range list {
			r.tailSize += int64(len(list[i].Data))
		}
	}
	return tailEvents, nil
}

// checkSegments checks the segments of a run.
func (v *verifier) checkSegments(ctx context.Context, r *runCheck) error {
	n := int64(0)
	if r.sealed {
		var segment table.Segment
		for err := range v.t.Each(ctx, v.t.Whole("segments")+` WHERE run = ?1 ORDER BY n`, []any{r.ID}, table.Fields(&segment)...) {
			n++
			if err != nil {
				r.broken, r.tailed = true, false // what comes behind it would all be wrong
				return v.noteFailure(ctx, Damage{Table: "segments", Run: r.RunID, Segment: n}, err)
			}
			if err := v.checkSegment(r, &segment, n); err != nil {
				return err
			}
		}
	}
	v.Segments += int(n)
	if n != r.Segments {
		r.broken = r.broken || n < r.Segments
		v.addDamage(Damage{Table: "runs", Run: r.RunID, Column: "segments", Problem: fmt.Sprintf("it is %d, there are %d", r.Segments, n)})
	}
	return nil
}

// checkSegment checks one segment, which should be number n.
func (v *verifier) checkSegment(r *runCheck, is *table.Segment, n int64) error {
	at := Damage{Table: "segments", Run: r.RunID, Segment: is.N, From: is.FirstPos, To: is.LastPos}
	if is.N != n {
		v.addBreak(r, at, "n", "it should be segment %d: one is missing, or there is one too many", n)
	}
	if !bytes.Equal(is.Prev, r.link[:]) {
		v.addBreak(r, at, "prev", "it isn't the hash after the event before")
		copy(r.link[:], is.Prev)
	}
	list, err := v.checkPart(r, is, at)
	if err == nil && len(list) > 0 && is.FirstTime != list[0].Time {
		v.addBreak(r, at, "first_time", wrongBound, is.FirstTime, list[0].Time)
	}
	return err
}

const wrongBound = "it is %d, the events say %d"

// addBreak tells of a damage behind which nothing can be derived from the run's events.
func (v *verifier) addBreak(r *runCheck, at Damage, column, format string, args ...any) {
	r.broken = true
	at.Column, at.Problem = column, fmt.Sprintf(format, args...)
	v.addDamage(at)
}

// checkPart checks the events of a segment, or of a part of a tail, and what it says of them. It returns them.
func (v *verifier) checkPart(r *runCheck, is *table.Segment, at Damage) ([]archive.Event, error) {
	list, err := v.t.Codec.Unpack(nil, is.Codec, is.Data)
	if err != nil {
		v.addBreak(r, at, "data", "%v", err)
	}
	v.sound = make([]replayed, 0, len(list))
	for i := range list {
		v.checkEvent(r, &list[i], at)
	}
	if len(list) > 0 {
		last := &list[len(list)-1]
		for _, c := range []struct {
			column   string
			is, want int64
		}{
			{"first_pos", int64(is.FirstPos), int64(list[0].Pos)},
			{"last_pos", int64(is.LastPos), int64(last.Pos)},
			{"last_time", is.LastTime, last.Time},
			{"events", is.Events, int64(len(list))},
		} {
			if c.is != c.want {
				v.addBreak(r, at, c.column, wrongBound, c.is, c.want)
			}
		}
		if !bytes.Equal(is.Hash, r.link[:]) {
			v.addBreak(r, at, "hash", "the events don't have the hash that was computed when they were recorded: one of them was changed, or the hash")
		}
	}
	copy(r.link[:], is.Hash)
	if r.broken {
		return list, nil
	}
	return list, v.replay.sendPart(runPart{run: r, events: v.sound})
}

// checkEvent checks one event. at is where it is.
func (v *verifier) checkEvent(r *runCheck, s *archive.Event, at Damage) {
	at.From, at.To = s.Pos, s.Pos
	if s.Pos <= r.pos {
		r.broken = true
		at.Problem = fmt.Sprintf("the event comes after the one at %d: events are doubled or swapped", r.pos)
		v.addDamage(at)
	}
	r.found++
	if v.done++; v.done%1024 == 0 {
		v.progress(partEvents, v.done, v.all)
	}
	r.pos = s.Pos
	r.link = v.chain.Next(r.link, s.Pos, s.Time, s.Mark, s.Note, s.Data)
	v.checkAnchor(r, s, at)
	switch s.Mark {
	case archive.Void:
		v.Void++
	case archive.Bad:
		v.bad++
	}
	if v.seen != nil {
		v.markPosition(s, at)
	}
	if r.broken {
		return
	}
	s.Link = r.link
	e := replayed{r, *s, s.Entry()}
	if at.Problem = e.foreignTo(r.RunID); at.Problem != "" {
		r.broken = true
		v.addDamage(at)
		return
	}
	v.sound = append(v.sound, e)
}

// markPosition notes which positions are there.
func (v *verifier) markPosition(s *archive.Event, at Damage) {
	if !v.seen.add(s.Pos) {
		at.Problem = "another run has the same position"
		v.addDamage(at)
	}
	if s.Mark != archive.Recorder {
		return
	}
	e, err := wire.Decode(s.Data)
	if err != nil {
		at.Problem = err.Error()
		v.addDamage(at)
		return
	}
	p, ok := e.Payload.(*wire.LogTruncated)
	if !ok || p.Lost == 0 || p.Lost > s.Pos {
		at.Problem = "it doesn't say what was lost"
		v.addDamage(at)
		return
	}
	v.lost += int64(p.Lost)
	for pos := s.Pos - p.Lost + 1; pos < min(s.Pos, maxPosition); pos++ { // those beyond count for nothing
		v.seen.add(pos)
	}
}
