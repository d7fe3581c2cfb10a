package snapshot

import (
	"context"
	"errors"
	"fmt"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// Kinds are the kinds of events that change a state.
var Kinds = []wire.Kind{wire.KindFlow, wire.KindAgent, wire.KindTool}

// Apply folds an entry into a state. It puts back the fields that are in the
// object store where the fold has to look into them. See [Refused] for what its
// errors mean; the state is unchanged then.
func Apply(ctx context.Context, log eventlog.Reader, s *wire.State, e eventlog.Entry) error {
	if e.Err != nil {
		return &refusal{e.Err}
	}
	event := e.Event
	if run.NeedsInline(event) {
		var err error
		if event, err = Inline(ctx, log, event); err != nil {
			return err
		}
	}
	if err := run.Apply(s, wire.Position{Incarnation: log.Incarnation(), Seq: e.Pos}, event); err != nil {
		return &refusal{err}
	}
	return nil
}

// Inline puts back the fields of an event that are in the object store. See
// [Refused] for what its errors mean.
func Inline(ctx context.Context, log eventlog.Reader, e *wire.Event) (*wire.Event, error) {
	data, err := wire.Encode(e)
	if err != nil {
		return nil, &refusal{err}
	}
	var away error // the store didn't answer
	data, err = wire.Inline(data, func(sum string) ([]byte, error) {
		blob, err := log.Blob(ctx, sum)
		if err != nil && !errors.Is(err, eventlog.ErrBlobMissing) {
			away = err
		}
		return blob, err
	})
	if away != nil {
		return nil, away
	}
	if err != nil {
		return nil, &refusal{err}
	}
	whole, err := wire.Decode(data)
	if err != nil {
		return nil, &refusal{err}
	}
	return whole, nil
}

// refusal is the error of an event that no fold takes.
type refusal struct{ err error }

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// Refused reports whether an error of [Apply] is the event's fault: every folder
// leaves such an event out and goes on. Otherwise the event may be tried again.
func Refused(err error) bool {
	_, ok := errors.AsType[*refusal](err)
	return ok
}

// Fold folds the events of a run that follow in the log into its state, up to
// position to, 0 for the present end of the log. Events that are refused are
// left out.
func Fold(ctx context.Context, log eventlog.Reader, s *wire.State, to uint64) error {
	query := eventlog.Query{Run: s.RunID, Kinds: Kinds, From: s.Position.Seq + 1, To: to}
	for e, err := range log.Read(ctx, query) {
		if err != nil {
			return fmt.Errorf("snapshot: fold run %s: %w", s.RunID, err)
		}
		if err := Apply(ctx, log, s, e); err != nil && !Refused(err) {
			return fmt.Errorf("snapshot: fold run %s: %w", s.RunID, err)
		}
	}
	return nil
}
