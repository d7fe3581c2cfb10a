package queries

import (
	"context"
	"database/sql"
	"errors"
	"slices"

	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// placeStep is the number of lines from one place to the next: to skip as many takes half a millisecond.
const placeStep = 1 << 14

// maxPlaced is how many runs the answers hold places of.
const maxPlaced = 1000

// findPlace returns the position to begin at for a page behind l.offset of a run's total lines, and how many lines to skip
// from there. The answers hold the position of each [placeStep]th line, so that a reader of a long log doesn't make them
// pass over its beginning with every page.
func (l *logQuery) findPlace(ctx context.Context, tx *archive.Tx, of request.Target, total int64) (from uint64, skip int64, err error) {
	if !l.all || l.tail || l.offset < placeStep {
		return 0, l.offset, nil
	}
	places, _ := l.places.find(of.Run)
	if len(places) > 0 {
		if places, err = morePlaces(ctx, tx, of.ID, places, total); err != nil {
			return 0, 0, err
		}
		var rest int64
		last := len(places) - 1
		if err := tx.Row(ctx, `SELECT count(*)`+linesFrom, of.ID, places[last]).Scan(&rest); err != nil {
			return 0, 0, err
		}
		if int64(last)*placeStep+rest != total { // lines of a writer that had lost its node were hidden
			l.places.drop(of.Run)
			places = nil
		}
	}
	if len(places) == 0 {
		if places, err = morePlaces(ctx, tx, of.ID, []uint64{0}, l.offset); err != nil {
			return 0, 0, err
		}
	}
	last := int64(len(places) - 1)
	l.places.keep(of.Run, places[last], places, maxPlaced)
	n := min(l.offset/placeStep, last)
	return places[n], l.offset - n*placeStep, nil
}

// linesFrom selects the lines of a run that are shown, from a position on.
const linesFrom = ` FROM lines WHERE run = ?1 AND hidden = 0 AND pos >= ?2`

// morePlaces adds those of the first most lines to the places that are known.
func morePlaces(ctx context.Context, tx *archive.Tx, run int64, places []uint64, most int64) ([]uint64, error) {
	places = slices.Clip(places) // another question may add to it
	for int64(len(places))*placeStep <= most {
		var next uint64
		err := tx.Row(ctx, `SELECT pos`+linesFrom+` ORDER BY pos LIMIT 1 OFFSET ?3`, run, places[len(places)-1], placeStep).Scan(&next)
		if errors.Is(err, sql.ErrNoRows) {
			break
		}
		if err != nil {
			return nil, err
		}
		places = append(places, next)
	}
	return places, nil
}
