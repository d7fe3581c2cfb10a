// Package states folds the recorded events of runs into their states.
package states

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/database"
)

// Apply folds an event; only where the fold has to look into a blob, the whole
// one.
func Apply(s *wire.State, pos wire.Position, e, whole *wire.Event) error {
	if run.NeedsInline(e) {
		e = whole
	}
	return run.Apply(s, pos, e)
}

// View is the state of a run as of a position, which may be beyond the state's own:
// what agents say changes no state.
type View struct {
	Pos   uint64
	State *wire.State
}

// Load returns the state of a run as of position to: the latest one in the store and
// the events after it. saved is the number of events in the former.
func Load(ctx context.Context, t *archive.Tx, id int64, name string, to uint64) (s *wire.State, saved uint64, err error) {
	v, err := Latest(ctx, t, id, name, 0, to)
	if err != nil {
		return nil, 0, err
	}
	saved = v.State.EventCount
	return v.State, saved, v.Advance(ctx, t, id, to)
}

// Latest returns the latest state of a run that the store keeps, as of after a position and
// not beyond another one; that before its first event if there is none. One that can't be
// read is passed over, since it can be folded again.
func Latest(ctx context.Context, t *archive.Tx, id int64, name string, after, to uint64) (View, error) {
	for _, text := range []string{
		`SELECT pos, data, 0 FROM folds WHERE run = ?1 AND pos > ?2 AND pos <= ?3`,
		`SELECT pos, data, 1 FROM keyframes WHERE run = ?1 AND pos > ?2 AND pos <= ?3 ORDER BY pos DESC LIMIT 1`,
	} {
		var pos uint64
		var data []byte
		var packed int
		err := t.Row(ctx, text, id, database.Clamp(after), database.Clamp(to)).Scan(&pos, &data, &packed)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return View{}, err
		}
		if packed != 0 {
			data, _ = t.Codec.Dec.DecodeAll(data, nil)
		}
		if s, err := run.Decode(data); err == nil && s.RunID == name {
			return View{Pos: pos, State: s}, nil
		}
	}
	return View{State: run.New(name)}, nil
}

// Advance folds the recorded events after the view up to a position, as far as there are any that change the state. If it
// fails, the view is as far as it got.
func (v *View) Advance(ctx context.Context, t *archive.Tx, id int64, to uint64) error {
	var incarnation string
	var derived, changed uint64
	err := t.Row(ctx, `SELECT incarnation, derived, state_pos FROM streams, runs WHERE runs.id = ?1`, id).Scan(&incarnation, &derived, &changed)
	if err != nil {
		return err
	}
	end := to
	if to <= derived { // else it isn't known yet what changes it
		end = min(to, changed)
	}
	if v.Pos >= end {
		v.Pos = max(v.Pos, to)
		return nil
	}
	for e, err := range t.Events(ctx, id, v.Pos+1, end) {
		if err != nil {
			return err
		}
		if k := e.Kind(); e.Mark == "" && k != wire.KindText && k != wire.KindDelta {
			if err := foldStored(ctx, t, v.State, wire.Position{Incarnation: incarnation, Seq: e.Pos}, e); err != nil {
				return fmt.Errorf("event at %d: %w", e.Pos, err)
			}
		}
		v.Pos = e.Pos
	}
	v.Pos = max(v.Pos, to)
	return nil
}

func foldStored(ctx context.Context, t *archive.Tx, s *wire.State, pos wire.Position, kept *archive.Event) error {
	e, err := wire.Decode(kept.Data)
	if err != nil {
		return err
	}
	whole := e
	if run.NeedsInline(e) {
		if whole, err = archive.Inline(e, kept.Data, func(sha string) ([]byte, error) { return t.Blob(ctx, sha) }); err != nil {
			return err
		}
	}
	_ = Apply(s, pos, e, whole) // refused now as it was then
	return nil
}
