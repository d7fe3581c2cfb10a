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

// maxPlaced bounds the runs whose places are held.
const maxPlaced = 1000

// findPlace returns the position to begin at for a page behind l.offset of a run's total lines, and how many lines to skip
// from there. The positions of each [placeStep]th line are held, so that who pages through a long log doesn't pass over
// its beginning with every page.
func (l *logQuery) findPlace(ctx context.Context, tx *archive.Tx, of request.Target, total int64) (from uint64, skip int64, err error) {
	if !l.all || l.tail || l.offset < placeStep {
		return 0, l.offset, nil
	}
	places, _ := l.places.find(of.Run)
	for range 2 { // lines of a writer that had lost its node are hidden later: then all are looked for again
		all, rest, err := morePlaces(ctx, tx, of.ID, places)
		if err != nil {
			return 0, 0, err
		}
		if last := len(all) - 1; int64(last)*placeStep+rest == total {
			l.places.keep(of.Run, all[last], all, maxPlaced)
			n := min(l.offset/placeStep, int64(last))
			return all[n], l.offset - n*placeStep, nil
		}
		l.places.drop(of.Run)
		places = nil
	}
	return 0, l.offset, nil
}

// morePlaces adds the places behind those that are known, and returns how many lines there are from the last one on.
func morePlaces(ctx context.Context, tx *archive.Tx, run int64, places []uint64) (all []uint64, rest int64, err error) {
	if len(places) == 0 {
		places = []uint64{0}
	}
	all = slices.Clip(places) // others may be adding to it
	const from = ` FROM lines WHERE run = ?1 AND hidden = 0 AND pos >= ?2`
	for {
		var next uint64
		err := tx.Row(ctx, `SELECT pos`+from+` ORDER BY pos LIMIT 1 OFFSET ?3`, run, all[len(all)-1], placeStep).Scan(&next)
		if errors.Is(err, sql.ErrNoRows) {
			break
		}
		if err != nil {
			return nil, 0, err
		}
		all = append(all, next)
	}
	err = tx.Row(ctx, `SELECT count(*)`+from, run, all[len(all)-1]).Scan(&rest)
	return all, rest, err
}
