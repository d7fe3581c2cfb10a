package recorder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"wake/internal/run"
	"wake/pkg/wire"
)

// StateAt answers a [wire.StateRequest]: the fold of the run's events up to a
// position, from the nearest state that is kept.
func (s *Store) StateAt(ctx context.Context, q wire.StateRequest) (wire.StateResponse, error) {
	t, err := s.view(ctx)
	if err != nil {
		return wire.StateResponse{}, fmt.Errorf("recorder: state: %w", err)
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	r, err := stateAt(ctx, t, q)
	if err != nil {
		return wire.StateResponse{}, wrap("state", err)
	}
	return r, nil
}

func stateAt(ctx context.Context, t *tx, q wire.StateRequest) (wire.StateResponse, error) {
	found, err := resolve(ctx, t, q.Run, "", "")
	if err != nil {
		return wire.StateResponse{}, err
	}
	var first, to uint64
	if err := t.row(ctx, `SELECT first_pos, last_pos FROM runs WHERE id = ?1`, found.id).Scan(&first, &to); err != nil {
		return wire.StateResponse{}, err
	}
	if q.At > 0 {
		to = min(to, q.At)
	}
	if to < first {
		return wire.StateResponse{}, &wire.APIError{
			Code: wire.CodeNotFound, Message: fmt.Sprintf("run %s had not begun at position %d", shown(found.run), q.At),
		}
	}
	state, err := frame(ctx, t, found, to)
	if err != nil {
		return wire.StateResponse{}, err
	}
	if err := foldTail(ctx, t, state, found.id, to); err != nil {
		return wire.StateResponse{}, err
	}
	data, err := wire.Marshal(state)
	return wire.StateResponse{RunID: found.run, Position: state.Position, State: data}, err
}

// frame returns the latest state of a run that is kept and not beyond a position.
// One that can't be read is passed over, since it can be folded again.
func frame(ctx context.Context, t *tx, of target, to uint64) (*wire.State, error) {
	var data []byte
	err := t.row(ctx, `SELECT data FROM folds WHERE run = ?1 AND pos <= ?2`, of.id, to).Scan(&data)
	if errors.Is(err, sql.ErrNoRows) {
		var packed []byte
		err = t.row(ctx, `SELECT data FROM keyframes WHERE run = ?1 AND pos <= ?2 ORDER BY pos DESC LIMIT 1`, of.id, to).Scan(&packed)
		if err == nil {
			data, _ = t.zip.dec.DecodeAll(packed, nil)
		}
	}
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, err
	}
	if s, err := run.Decode(data); err == nil && s.RunID == of.run {
		return s, nil
	}
	return run.New(of.run), nil
}
