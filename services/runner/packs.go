package runner

import (
	"context"
	"errors"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/wire"
)

// servePacks answers clients that may see what is in the folders of runs: only runners read the object store.
func (r *Runner) servePacks(ctx context.Context, store *workspace.Store) error {
	return api.Service{Names: r.log.Names(), Name: "folders", Logger: r.logger, Tracer: r.log.Tracer(), Endpoints: []api.Endpoint{
		api.Hold(wire.VerbPack, func(ctx context.Context, q wire.PackRequest, f api.Form) (wire.PieceResponse, error) {
			return packPiece(ctx, store, q, f)
		}),
	}}.Run(ctx, r.log.Conn())
}

// packPiece returns as much of a pack as fits. A pack is about as large as an answer.
func packPiece(ctx context.Context, store *workspace.Store, q wire.PackRequest, f api.Form) (wire.PieceResponse, error) {
	data, err := store.Stored(ctx, q.Name)
	switch {
	case errors.Is(err, workspace.ErrMissing):
		return wire.PieceResponse{}, &wire.APIError{Code: wire.CodeNotFound, Message: "pack " + q.Name + " isn't kept"}
	case errors.Is(err, workspace.ErrDamaged):
		return wire.PieceResponse{}, &wire.APIError{Code: wire.CodeBadRequest, Message: "name has to name a pack"}
	case err != nil:
		return wire.PieceResponse{}, err
	case q.Offset < 0 || q.Offset > int64(len(data)):
		return wire.PieceResponse{}, &wire.APIError{Code: wire.CodeBadRequest, Message: "offset is beyond the end"}
	}
	room := int64(f.Limit - 1<<10)
	if f.JSON {
		room = room / 4 * 3 // base64
	}
	return wire.PieceResponse{Size: int64(len(data)), Data: data[q.Offset:min(q.Offset+room, int64(len(data)))]}, nil
}
