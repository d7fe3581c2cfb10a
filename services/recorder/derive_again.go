package recorder

import (
	"context"
)

// sayEvery is the number of events after which deriving says how far it is.
const sayEvery = 100_000

// deriveAgain derives from the recorded events of all runs what follows from
// them. Runs have no rows but their own and those of their nodes, all as if
// nothing had been recorded; one that has more is passed over.
func deriveAgain(ctx context.Context, s *Store, t *tx) error {
	var runs []target
	for rows, err := range t.query(ctx, `SELECT id, run FROM runs WHERE events = 0 AND run NOT IN (SELECT run FROM retired) ORDER BY first_pos`) {
		var of target
		if err == nil {
			err = rows.Scan(&of.id, &of.run)
		}
		if err != nil {
			return err
		}
		runs = append(runs, of)
	}
	if len(runs) == 0 {
		return nil
	}
	d := deriving{s: s, t: t}
	if err := t.row(ctx, `SELECT incarnation, position FROM streams`).Scan(&d.incarnation, &d.position); err != nil {
		return err
	}
	s.said.InfoContext(ctx, "bringing the store to the current schema", "runs", len(runs), "position", d.position)
	s.scratch = true
	defer func() {
		s.scratch, s.last = false, 0
		s.folds.forget()
	}()
	for i, of := range runs {
		if err := d.run(ctx, of); err != nil {
			return err
		}
		d.say(ctx, i+1, len(runs))
	}
	s.said.InfoContext(ctx, "brought the store to the current schema", "runs", len(runs), "events", d.events)
	_, err := t.exec(ctx, `UPDATE streams SET position = ?1`, d.position)
	return err
}

// deriving is a deriveAgain under way.
type deriving struct {
	s           *Store
	t           *tx
	incarnation string
	position    uint64
	events      int
	said        int // events when it was last said how far it is
}

func (d *deriving) say(ctx context.Context, runs, of int) {
	if d.events-d.said < sayEvery {
		return
	}
	d.said = d.events
	d.s.said.InfoContext(ctx, "bringing the store to the current schema", "done", runs, "runs", of, "events", d.events)
}

// run derives what follows from the events of a run.
func (d *deriving) run(ctx context.Context, of target) error {
	first := firstLink(d.incarnation, of.run)
	if _, err := d.t.exec(ctx, `UPDATE runs SET head = ?1 WHERE id = ?2`, first[:], of.id); err != nil {
		return err
	}
	for from, more := uint64(0), true; more; {
		var list []stored
		var err error
		if list, more, err = d.t.chunk(ctx, of.id, from, 1<<63-1); err != nil {
			return err
		}
		if len(list) == 0 {
			return nil
		}
		if err := d.record(ctx, list); err != nil {
			return err
		}
		from = list[len(list)-1].pos + 1
	}
	return nil
}

func (d *deriving) record(ctx context.Context, list []stored) error {
	w, err := d.s.begin(ctx, d.t, Batch{Incarnation: d.incarnation, Part: true})
	if err != nil {
		return err
	}
	for i := range list {
		s := &list[i]
		w.pos = s.pos
		if s.mark == markBad || s.mark == markRecorder {
			err = w.aside(*s)
		} else {
			e := s.entry()
			if err = e.Err; err == nil {
				err = w.event(&e)
			}
		}
		if err != nil {
			return err
		}
	}
	d.events += len(list)
	return w.finish()
}
