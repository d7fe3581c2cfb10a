// Package index derives what follows from recorded events: the rows of runs, nodes,
// sessions, lines and conversations, states, the full text. The same deriver does that
// while events are recorded, when a recorder catches up, when everything is derived
// again, and for `wake verify` to compare with.
package index

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/queries"
)

// Derivation is the version of what the rows are that follow from events: a release in which some come out otherwise, such
// as in other words, has a higher one than the release before it.
const Derivation = 1

// Index records events in an archive and derives from them. One goroutine may record,
// and one derive.
type Index struct {
	*archive.Archive

	answers *queries.Answers // are told what is derived
	stmts   *statements
	folds   *folds
	chain   archive.Chain
	spare   spare

	turn    sync.Mutex // held to record or to derive
	last    uint64     // position after the last transaction; 0: unknown
	derived uint64     // up to where what follows from the events was derived then

	scratch bool // events aren't kept, only what is derived from them
}

// New returns the index of an archive. It tells answers what is new. The caller closes
// the archive.
func New(ctx context.Context, kept *archive.Archive, answers *queries.Answers) (*Index, error) {
	x := &Index{Archive: kept, answers: answers, folds: newFolds()}
	var err error
	if x.stmts, err = prepareStatements(ctx, x.D, x.Writer); err != nil {
		return nil, fmt.Errorf("recorder: open %s: %w", x.Name, err)
	}
	return x, nil
}

// Scratch returns an empty index in a file of its own, which is its to close. Nothing in
// it is ever committed.
func Scratch(ctx context.Context, path string) (*Index, error) {
	db, err := database.Scratch(ctx, path)
	if err != nil {
		return nil, err
	}
	kept, err := archive.New(db)
	if err != nil {
		return nil, err
	}
	x, err := New(ctx, kept, queries.New(kept))
	if err != nil {
		return nil, errors.Join(err, kept.Close())
	}
	x.scratch = true
	return x, nil
}

// Close gives back what the index has of its archive.
func (x *Index) Close() error { return x.stmts.close() }

// dropCaches drops what is known of the store: a transaction that failed may have been
// committed.
func (x *Index) dropCaches() {
	x.folds.dropAll()
	x.answers.ForgetLive()
	x.last = 0
}

// ForgetStates drops the states that are held, so that runs of the same id may follow.
func (x *Index) ForgetStates() { x.folds.dropAll() }
