// Package archive is what a recorder keeps for good: the events of runs, sealed in
// segments, which form a hash chain, and their large fields.
package archive

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/internal/database"
)

// Archive is an open database that has events.
type Archive struct {
	*database.DB

	Codec  *Codec
	alerts *alertStatements // nil until alerts are recorded
}

// Tx is a transaction, or a view for reading, of an archive.
type Tx struct {
	*database.Tx

	Codec *Codec
}

// New returns what db has as an archive, which closes it.
func New(db *database.DB) (*Archive, error) {
	codec, err := NewCodec()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("recorder: open %s: %w", db.Name, err), db.Close())
	}
	return &Archive{DB: db, Codec: codec}, nil
}

// Close closes the archive. No caller may use it any more.
func (a *Archive) Close() error {
	a.Codec.Dec.Close()
	return errors.Join(a.DB.Close(), a.Codec.Enc.Close())
}

// View begins a transaction that only reads: all of its answers are of one
// moment. The caller rolls it back.
func (a *Archive) View(ctx context.Context) (*Tx, error) {
	t, err := a.DB.View(ctx)
	if err != nil {
		return nil, err
	}
	return &Tx{t, a.Codec}, nil
}

// TwoViews begins two views as of the same moment: in one, rows are read while the other is asked for more.
func (a *Archive) TwoViews(ctx context.Context) (one, other *Tx, err error) {
	t, u, err := a.DB.TwoViews(ctx)
	if err != nil {
		return nil, nil, err
	}
	return &Tx{t, a.Codec}, &Tx{u, a.Codec}, nil
}

// Ask returns what f reads in a [Archive.View].
func Ask[R any](ctx context.Context, a *Archive, f func(*Tx) (R, error)) (r R, err error) {
	t, err := a.View(ctx)
	if err != nil {
		return r, err
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	return f(t)
}

// Begin begins a transaction that writes. Other writers may begin one, too, until it is locked.
func (a *Archive) Begin(ctx context.Context) (*Tx, error) {
	t, err := a.DB.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &Tx{t, a.Codec}, nil
}

// Change runs f in a transaction that writes, and keeps other writers out meanwhile.
// Behind it, everything that was committed is on disk.
func (a *Archive) Change(ctx context.Context, f func(*Tx) error) error {
	return a.DB.Change(ctx, func(t *database.Tx) error { return f(&Tx{t, a.Codec}) })
}

// ChangeLater is [Archive.Change] for what can be had again if it is lost, see [database.DB.Begin].
func (a *Archive) ChangeLater(ctx context.Context, f func(*Tx) error) error {
	return a.DB.ChangeLater(ctx, func(t *database.Tx) error { return f(&Tx{t, a.Codec}) })
}

// Reached returns the position up to which everything is recorded, and the one up
// to which what follows from that is derived. Of an empty store they are zero.
func (t *Tx) Reached(ctx context.Context) (recorded wire.Position, derived uint64, err error) {
	err = t.Row(ctx, `SELECT incarnation, position, derived FROM streams`).Scan(&recorded.Incarnation, &recorded.Seq, &derived)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return recorded, derived, err
}

// Position returns the position up to which everything is recorded. Of an empty
// file it is zero.
func (a *Archive) Position(ctx context.Context) (wire.Position, error) {
	p, _, err := a.Reached(ctx)
	return p, err
}

// Derived returns the position up to which what follows from the recorded events is
// derived. Of an empty store it is zero.
func (a *Archive) Derived(ctx context.Context) (uint64, error) {
	_, derived, err := a.Reached(ctx)
	return derived, err
}

// Reached is [Tx.Reached] as of now.
func (a *Archive) Reached(ctx context.Context) (recorded wire.Position, derived uint64, err error) {
	recorded, err = Ask(ctx, a, func(t *Tx) (at wire.Position, err error) {
		at, derived, err = t.Reached(ctx)
		return at, err
	})
	if err != nil {
		return wire.Position{}, 0, fmt.Errorf("recorder: position: %w", err)
	}
	return recorded, derived, nil
}

// Size returns the bytes that the store takes.
func (a *Archive) Size(ctx context.Context) (bytes int64, err error) {
	if err = a.Reader.QueryRowContext(ctx, a.D.Size).Scan(&bytes); err != nil {
		return 0, fmt.Errorf("recorder: size: %w", err)
	}
	return bytes, nil
}

// OtherRuns stands in the table retired for the runs that a store of some runs
// doesn't have. No run has this id.
const OtherRuns = "_others"
