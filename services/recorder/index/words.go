package index

import (
	"context"
	"fmt"
)

// indexLines bounds the lines that get into the full text in one transaction:
// recording waits for it.
const indexLines = 2000

// IndexLines takes recorded lines into the full text, some of them at once. It reports
// whether there are more. A store that indexes lines as they are recorded has
// none.
func (x *Index) IndexLines(ctx context.Context) (more bool, err error) {
	if !x.D.Lags {
		return false, nil
	}
	more, err = x.indexSome(ctx)
	if err != nil {
		return false, fmt.Errorf("recorder: index: %w", err)
	}
	return more, nil
}

func (x *Index) indexSome(ctx context.Context) (more bool, err error) {
	t, err := x.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer t.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	var from, to uint64
	var lines int
	err = t.Row(ctx, `SELECT i.pos, coalesce(max(l.pos), 0), count(l.pos) FROM lines_indexed i
		LEFT JOIN (SELECT pos FROM lines WHERE pos > (SELECT pos FROM lines_indexed) ORDER BY pos LIMIT ?1) l`, indexLines).Scan(&from, &to, &lines)
	if err != nil || lines == 0 {
		return false, err
	}
	// One statement for all of them: the index writes what it has gathered at the
	// end of each.
	if _, err := t.Do(ctx, `INSERT INTO lines_fts (rowid, text, input, output)
		SELECT pos, text, input, output FROM lines WHERE pos > ?1 AND pos <= ?2 AND pos NOT IN (SELECT pos FROM lines_open) ORDER BY pos`, from, to); err != nil {
		return false, err
	}
	if _, err := t.Do(ctx, `UPDATE lines_indexed SET pos = ?1`, to); err != nil {
		return false, err
	}
	return lines == indexLines, t.Commit()
}
