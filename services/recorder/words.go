package recorder

import (
	"context"
	"fmt"
	"time"
)

// sqliteWords lets the full text lag behind: recording a line doesn't touch it,
// [Store.Index] takes lines into it, many at once. Lines up to lines_indexed.pos
// are in it, but for those of lines_open, which get there when they leave that
// table. One that changes afterwards is indexed anew.
const sqliteWords = `
DROP TRIGGER lines_added;
DROP TRIGGER lines_closed;
DROP TRIGGER lines_changed;
DROP TRIGGER lines_removed;
DROP TABLE lines_fts;
CREATE VIRTUAL TABLE lines_fts USING fts5 (
	text, content = 'lines', content_rowid = 'pos', columnsize = 0, tokenize = "unicode61 remove_diacritics 2 tokenchars '_'"
);
CREATE TABLE lines_indexed (           -- one row
	pos INTEGER NOT NULL
) STRICT;
INSERT INTO lines_indexed (pos) VALUES (0);
CREATE TRIGGER lines_closed AFTER DELETE ON lines_open
	WHEN OLD.pos <= (SELECT pos FROM lines_indexed)
BEGIN
	INSERT INTO lines_fts (rowid, text) SELECT pos, text FROM lines WHERE pos = OLD.pos;
END;
CREATE TRIGGER lines_changed AFTER UPDATE OF text ON lines
	WHEN NEW.pos <= (SELECT pos FROM lines_indexed) AND NOT EXISTS (SELECT 1 FROM lines_open WHERE pos = NEW.pos)
BEGIN
	INSERT INTO lines_fts (lines_fts, rowid, text) VALUES ('delete', OLD.pos, OLD.text);
	INSERT INTO lines_fts (rowid, text) VALUES (NEW.pos, NEW.text);
END;
CREATE TRIGGER lines_removed AFTER DELETE ON lines
	WHEN OLD.pos <= (SELECT pos FROM lines_indexed) AND NOT EXISTS (SELECT 1 FROM lines_open WHERE pos = OLD.pos)
BEGIN
	INSERT INTO lines_fts (lines_fts, rowid, text) VALUES ('delete', OLD.pos, OLD.text);
END;
`

// indexLines bounds the lines that get into the full text in one transaction:
// recording waits for it.
const indexLines = 2000

// Index takes recorded lines into the full text, some of them at once. It reports
// whether there are more. A store that indexes lines as they are recorded has
// none.
func (s *Store) Index(ctx context.Context) (more bool, err error) {
	if !s.d.find.lags {
		return false, nil
	}
	more, err = s.index(ctx)
	if err != nil {
		return false, fmt.Errorf("recorder: index: %w", err)
	}
	return more, nil
}

func (s *Store) index(ctx context.Context) (more bool, err error) {
	begun, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	t := &tx{begun, s.d, s.zip}
	defer t.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	var from, to uint64
	var lines int
	err = t.row(ctx, `SELECT i.pos, coalesce(max(l.pos), 0), count(l.pos) FROM lines_indexed i
		LEFT JOIN (SELECT pos FROM lines WHERE pos > (SELECT pos FROM lines_indexed) ORDER BY pos LIMIT ?1) l`, indexLines).Scan(&from, &to, &lines)
	if err != nil || lines == 0 {
		return false, err
	}
	// One statement for all of them: the index writes what it has gathered at the
	// end of each.
	if _, err := t.exec(ctx, `INSERT INTO lines_fts (rowid, text)
		SELECT pos, text FROM lines WHERE pos > ?1 AND pos <= ?2 AND pos NOT IN (SELECT pos FROM lines_open) ORDER BY pos`, from, to); err != nil {
		return false, err
	}
	if _, err := t.exec(ctx, `UPDATE lines_indexed SET pos = ?1`, to); err != nil {
		return false, err
	}
	return lines == indexLines, t.Commit()
}

// through returns the position up to which a search looks at lines, or 0 if it
// looks at all that are recorded.
func (t *tx) through(ctx context.Context) (pos uint64, err error) {
	recorded, derived, err := t.reached(ctx)
	if derived < recorded.Seq {
		pos = derived
	}
	if err != nil || !t.d.find.lags {
		return pos, err
	}
	var indexed, last uint64
	err = t.row(ctx, `SELECT (SELECT pos FROM lines_indexed), coalesce((SELECT max(pos) FROM lines), 0)`).Scan(&indexed, &last)
	if indexed < last {
		pos = indexed
	}
	return pos, err
}

// indexEvery is how often lines get into the full text when nobody asks.
const indexEvery = time.Second

// index takes what is recorded into the full text until ctx ends. While there is
// much to catch up with, recording goes first.
func (r *Recorder) index(ctx context.Context) error {
	tick := time.NewTicker(indexEvery)
	defer tick.Stop()
	for seen := uint64(0); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		_, busy := r.recorded.at()
		pos, _ := r.derived.at()
		if pos == seen {
			continue
		}
		more, err := true, error(nil)
		for more && err == nil {
			if more, err = r.store.Index(ctx); busy {
				break
			}
			_, busy = r.recorded.at()
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case !more:
			seen = pos
		}
	}
}

// indexed takes what is recorded into the full text before a search, for as long
// as a question waits. What there is no time for, the answer says.
func (r *Recorder) indexed(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, maxCatchUp)
	defer cancel()
	for more, err := true, error(nil); more && err == nil; {
		more, err = r.store.Index(ctx)
	}
}
