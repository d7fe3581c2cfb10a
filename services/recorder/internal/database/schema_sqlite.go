package database

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"code.wake.dev/wake/services/recorder/internal/table"
)

// sqliteDialect is the dialect of SQLite.
func sqliteDialect() *Dialect {
	return &Dialect{
		Name:   table.SQLite,
		Tables: table.All().Of(table.SQLite),
		extras: sqliteKeep + sqliteWords + sqliteViews(),
		Bind:   unnumberedParams,

		version: sqliteVersion,
		mark: func(version int) string {
			return fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID, version)
		},
		Unindexed: " NOT INDEXED",
		Inserts:   "INSERT OR FAIL", // which needs no journal to undo its first rows
		Lists:     true,
		Lags:      true,
		Prepares:  true,
		Integrity: "PRAGMA integrity_check",
		Size:      "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size",
		Labels:    "json_group_object(key, value)",
	}
}

// unnumberedParams returns a statement with ? for its parameters, if they are ?1, ?2, …
// in this order: binding looks up the names of numbered ones, which takes longer
// than inserting a row.
func unnumberedParams(text string) string {
	var plain strings.Builder
	n := 0
	for rest := text; ; {
		before, after, found := strings.Cut(rest, "?")
		plain.WriteString(before)
		if !found {
			return plain.String()
		}
		n++
		name := strconv.Itoa(n)
		if rest = strings.TrimPrefix(after, name); rest == after || rest != "" && rest[0] >= '0' && rest[0] <= '9' {
			return text
		}
		plain.WriteByte('?')
	}
}

// applicationID marks a SQLite file as the recorder's: "wake" in ASCII.
const applicationID = 0x77616b65

// sqliteVersion returns the version of a file's tables.
func sqliteVersion(ctx context.Context, t *Tx) (int, error) {
	var application, version, tables int
	err := t.Row(ctx, `SELECT (SELECT application_id FROM pragma_application_id),
		(SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)`).Scan(&application, &version, &tables)
	switch {
	case err != nil:
		return 0, foreignError(err)
	case application != applicationID && tables > 0:
		return 0, ErrForeign
	}
	return version, nil
}

// sqliteKeep refuses to change events, or to delete those that aren't kept
// elsewhere.
const sqliteKeep = `
CREATE TRIGGER segments_stay BEFORE DELETE ON segments
	WHEN NOT EXISTS (SELECT 1 FROM retired JOIN runs USING (run) WHERE runs.id = OLD.run)
BEGIN
	SELECT RAISE (ROLLBACK, 'events are never deleted');
END;
CREATE TRIGGER segments_once BEFORE INSERT ON segments -- OR REPLACE deletes without asking the trigger above
	WHEN EXISTS (SELECT 1 FROM segments WHERE run = NEW.run AND n = NEW.n)
	OR EXISTS (SELECT 1 FROM segments WHERE rowid = NEW.rowid)
BEGIN
	SELECT RAISE (ROLLBACK, 'events are never replaced');
END;
CREATE TRIGGER segments_keep BEFORE UPDATE ON segments BEGIN
	SELECT RAISE (ROLLBACK, 'events are never changed');
END;
CREATE TRIGGER tail_stay BEFORE DELETE ON tail
	WHEN NOT coalesce((SELECT first_pos <= OLD.first_pos FROM segments WHERE run = OLD.run AND last_pos >= OLD.last_pos ORDER BY last_pos LIMIT 1), 0)
	AND NOT EXISTS (SELECT 1 FROM retired JOIN runs USING (run) WHERE runs.id = OLD.run)
BEGIN
	SELECT RAISE (ROLLBACK, 'events are deleted only when they are sealed');
END;
CREATE TRIGGER tail_once BEFORE INSERT ON tail
	WHEN EXISTS (SELECT 1 FROM tail WHERE run = NEW.run AND first_pos = NEW.first_pos)
	OR EXISTS (SELECT 1 FROM tail WHERE rowid = NEW.rowid)
BEGIN
	SELECT RAISE (ROLLBACK, 'events are never replaced');
END;
CREATE TRIGGER tail_keep BEFORE UPDATE ON tail BEGIN
	SELECT RAISE (ROLLBACK, 'events are never changed');
END;
`

// sqliteWords is the full text, which lags behind: recording a line doesn't touch
// it, the recorder takes lines into it, many at once. Lines up to
// lines_indexed.pos are in it, but for those of lines_open, which get there when
// they leave that table. One that changes afterwards is indexed anew.
const sqliteWords = `
CREATE VIRTUAL TABLE lines_fts USING fts5 (
	text, input, output, content = 'lines', content_rowid = 'pos', columnsize = 0, tokenize = "unicode61 remove_diacritics 2 tokenchars '_'"
);
INSERT INTO lines_indexed (pos) VALUES (0);
CREATE TRIGGER lines_closed AFTER DELETE ON lines_open
	WHEN OLD.pos <= (SELECT pos FROM lines_indexed)
BEGIN
	INSERT INTO lines_fts (rowid, text, input, output) SELECT pos, text, input, output FROM lines WHERE pos = OLD.pos;
END;
CREATE TRIGGER lines_changed AFTER UPDATE OF text ON lines
	WHEN NEW.pos <= (SELECT pos FROM lines_indexed) AND NOT EXISTS (SELECT 1 FROM lines_open WHERE pos = NEW.pos)
BEGIN
	INSERT INTO lines_fts (lines_fts, rowid, text, input, output) VALUES ('delete', OLD.pos, OLD.text, OLD.input, OLD.output);
	INSERT INTO lines_fts (rowid, text, input, output) VALUES (NEW.pos, NEW.text, NEW.input, NEW.output);
END;
CREATE TRIGGER lines_removed AFTER DELETE ON lines
	WHEN OLD.pos <= (SELECT pos FROM lines_indexed) AND NOT EXISTS (SELECT 1 FROM lines_open WHERE pos = OLD.pos)
BEGIN
	INSERT INTO lines_fts (lines_fts, rowid, text, input, output) VALUES ('delete', OLD.pos, OLD.text, OLD.input, OLD.output);
END;
`
