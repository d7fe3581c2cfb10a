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

// checkWords checks that the full text of a file is that of its lines, as far as they are in it, with a folder for temporary
// files. The index of a database of PostgreSQL is the database's own affair.
func (v *verifier) checkWords(ctx context.Context, dir string) error {
	if v.s.Path == "" {
		return nil
	}
	db, err := sql.Open("sqlite", database.DSN(filepath.Join(dir, "words.db"), "_pragma=synchronous(OFF)", "_pragma=journal_mode(OFF)"))
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	err = v.checkIndexed(ctx, db)
	return errors.Join(err, db.Close())
}

// fullText are the columns and the options of the file's full text.
const fullText = `text, input, output, columnsize = 0, tokenize = "unicode61 remove_diacritics 2 tokenchars '_'"`

// linesIndexed are the lines that are in the full text, and one of the same kind beside it.
const linesIndexed = `
CREATE TEMP VIEW lines_in AS SELECT pos, text, input, output FROM store.lines
	WHERE pos <= (SELECT pos FROM store.lines_indexed) AND pos NOT IN (SELECT pos FROM store.lines_open);
CREATE VIRTUAL TABLE temp.lines_now USING fts5 (` + fullText + `, content = 'lines_in', content_rowid = 'pos');
`

// copyWords makes the one beside it a copy of it: the database checks only what it may write to.
const copyWords = `
DELETE FROM temp.lines_now_data; INSERT INTO temp.lines_now_data SELECT * FROM store.lines_fts_data;
DELETE FROM temp.lines_now_idx; INSERT INTO temp.lines_now_idx SELECT * FROM store.lines_fts_idx;
DELETE FROM temp.lines_now_config; INSERT INTO temp.lines_now_config SELECT * FROM store.lines_fts_config;
`

// checkIndexed has the database compare the words of the lines with those of the full text, by their sums. Only if
// these differ, the words are looked at one by one.
func (v *verifier) checkIndexed(ctx context.Context, db *sql.DB) error {
	file := url.URL{Scheme: "file", Path: v.s.Path, RawQuery: "mode=ro"}
	if _, err := db.ExecContext(ctx, "ATTACH ? AS store", file.String()); err != nil {
		return err
	}
	unreadable := Damage{Table: "lines_fts"}
	if _, err := db.ExecContext(ctx, linesIndexed); err != nil {
		return v.noteFailure(ctx, unreadable, err)
	}
	begun, err := db.BeginTx(ctx, nil) // the file is seen as of one moment
	if err != nil {
		return err
	}
	defer begun.Rollback() //nolint:errcheck // it is only compared with
	if _, err := begun.ExecContext(ctx, copyWords); err != nil {
		return v.noteFailure(ctx, unreadable, err)
	}
	_, differs := begun.ExecContext(ctx, `INSERT INTO temp.lines_now (lines_now, rank) VALUES ('integrity-check', 1)`)
	if differs == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	found := v.countDamages()
	if err := v.compareWords(ctx, begun); err != nil || found != v.countDamages() {
		return err
	}
	return v.noteFailure(ctx, unreadable, differs)
}

// wordsBeside makes the full text anew beside that of the file.
const wordsBeside = `
CREATE VIRTUAL TABLE lines_again USING fts5 (` + fullText + `, content = '');
CREATE VIRTUAL TABLE temp.words_is USING fts5vocab (store, lines_fts, instance);
CREATE VIRTUAL TABLE temp.words_want USING fts5vocab (main, lines_again, instance);
INSERT INTO lines_again (rowid, text, input, output) SELECT pos, text, input, output FROM lines_in ORDER BY pos;
`

// compareWords compares the words one by one.
func (v *verifier) compareWords(ctx context.Context, begun *sql.Tx) error {
	unreadable := func(err error) error { return v.noteFailure(ctx, Damage{Table: "lines_fts"}, err) }
	if _, err := begun.ExecContext(ctx, wordsBeside); err != nil {
		return unreadable(err)
	}
	t := &archive.Tx{Tx: &database.Tx{Tx: begun, D: v.s.D}}
	kept, want := wordsOf(ctx, t, "temp.words_is"), wordsOf(ctx, t, "temp.words_want")
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
