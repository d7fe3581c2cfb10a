package verify

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"path/filepath"

	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// checkWords checks that the full text of a file is that of its lines, as far as they
// are in it: they are taken into another one, and both have to say the same. The
// index of a database of PostgreSQL is the database's own affair.
func (v *verifier) checkWords(ctx context.Context, dir string) error {
	if v.s.Path == "" {
		return nil
	}
	db, err := sql.Open("sqlite", database.DSN(filepath.Join(dir, "words.db"), "_pragma=synchronous(OFF)", "_pragma=journal_mode(OFF)"))
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	err = v.compareWords(ctx, db)
	return errors.Join(err, db.Close())
}

// wordsBeside makes the full text anew beside that of the file.
const wordsBeside = `
CREATE VIRTUAL TABLE lines_again USING fts5 (text, input, output, content = '', columnsize = 0, tokenize = "unicode61 remove_diacritics 2 tokenchars '_'");
CREATE VIRTUAL TABLE temp.words_is USING fts5vocab (store, lines_fts, instance);
CREATE VIRTUAL TABLE temp.words_want USING fts5vocab (main, lines_again, instance);
INSERT INTO lines_again (rowid, text, input, output) SELECT pos, text, input, output FROM store.lines
	WHERE pos <= (SELECT pos FROM store.lines_indexed) AND pos NOT IN (SELECT pos FROM store.lines_open) ORDER BY pos;
`

func (v *verifier) compareWords(ctx context.Context, db *sql.DB) error {
	file := url.URL{Scheme: "file", Path: v.s.Path, RawQuery: "mode=ro"}
	if _, err := db.ExecContext(ctx, "ATTACH ? AS store", file.String()); err != nil {
		return err
	}
	begun, err := db.BeginTx(ctx, nil) // the file is seen as of one moment
	if err != nil {
		return err
	}
	defer begun.Rollback() //nolint:errcheck // it is only compared with
	if _, err := begun.ExecContext(ctx, wordsBeside); err != nil {
		return v.noteFailure(ctx, Damage{Table: "lines_fts"}, err)
	}
	t := &archive.Tx{Tx: &database.Tx{Tx: begun, D: v.s.D}}
	kept, want := wordsOf(ctx, t, "temp.words_is"), wordsOf(ctx, t, "temp.words_want")
	unreadable := func(err error) error { return v.noteFailure(ctx, Damage{Table: "lines_fts"}, err) }
	return compareOrdered(kept, want, unreadable, wordAt.compare, func(a, b wordAt, order int) {
		switch {
		case order < 0:
			v.addDamage(Damage{Table: "lines_fts", From: a.line, Problem: fmt.Sprintf("the full text has the word %q here, the line doesn't", request.Shown(a.word))})
		case order > 0:
			v.addDamage(Damage{Table: "lines_fts", From: b.line, Problem: fmt.Sprintf("the line has the word %q here, the full text doesn't", request.Shown(b.word))})
		}
	})
}

// wordAt is a word in a line.
type wordAt struct {
	word  string
	line  uint64
	part  int64 // of the line: text, input or output
	place int64
}

func (w wordAt) compare(o wordAt) int {
	return cmp.Or(cmp.Compare(w.word, o.word), cmp.Compare(w.line, o.line), cmp.Compare(w.part, o.part), cmp.Compare(w.place, o.place))
}

// wordsOf yields the words of a full text in order.
func wordsOf(ctx context.Context, t *archive.Tx, table string) iter.Seq2[wordAt, error] {
	return func(yield func(wordAt, error) bool) {
		text := `SELECT term, doc, CASE col WHEN 'text' THEN 0 WHEN 'input' THEN 1 ELSE 2 END, "offset" FROM ` + table
		var w wordAt
		for err := range t.Each(ctx, text, nil, &w.word, &w.line, &w.part, &w.place) {
			if !yield(w, err) || err != nil {
				return
			}
		}
	}
}
