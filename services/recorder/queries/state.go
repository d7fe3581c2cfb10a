package queries

import (
	"context"
	"fmt"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// StateAt answers a [wire.StateRequest]: the fold of the run's events up to a
// position, from the nearest state that is kept.
func (a *Answers) StateAt(ctx context.Context, q wire.StateRequest) (wire.StateResponse, error) {
	t, err := a.View(ctx)
	if err != nil {
		return wire.StateResponse{}, fmt.Errorf("recorder: state: %w", err)
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	r, err := a.stateAt(ctx, t, q)
	if err != nil {
		return wire.StateResponse{}, request.Wrap("state", err)
	}
	return r, nil
}

func (a *Answers) stateAt(ctx context.Context, t *archive.Tx, q wire.StateRequest) (wire.StateResponse, error) {
	found, err := request.Resolve(ctx, t, q.Run, "", "")
	if err != nil {
		return wire.StateResponse{}, err
	}
	var first, to uint64
	if err := t.Row(ctx, `SELECT first_pos, last_pos FROM runs WHERE id = ?1`, found.ID).Scan(&first, &to); err != nil {
		return wire.StateResponse{}, err
	}
	if q.At > 0 {
		to = min(to, q.At)
	}
	if to < first {
		return wire.StateResponse{}, &wire.APIError{
			Code: wire.CodeNotFound, Message: fmt.Sprintf("run %s had not begun at position %d", request.Shown(found.Run), q.At),
		}
	}
	state, err := a.views.stateUpTo(ctx, t, found, to)
	if err != nil {
		return wire.StateResponse{}, err
	}
	data, err := wire.Marshal(state)
	return wire.StateResponse{RunID: found.Run, Position: state.Position, State: data}, err
}
