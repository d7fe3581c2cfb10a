package recorder

import (
	"fmt"
	"strconv"
	"strings"
)

// sqliteDialect is the dialect of SQLite.
func sqliteDialect() *dialect {
	return &dialect{
		steps: []step{{text: sqlite1}, {text: sqlite2 + sqliteFind, then: refill}, {text: sqliteWords}, {text: sqliteRetain, then: fillNeeds}, {text: sqliteSessions + sqliteViews(), then: deriveAgain}, {text: sqliteLater}},
		bind:  unnumbered,

		version: sqliteVersion,
		mark: func(version int) string {
			return fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID, version)
		},
		unindexed: " NOT INDEXED",
		inserts:   "INSERT OR FAIL", // which needs no journal to undo its first rows
		find:      sqliteFinder(),
		integrity: "PRAGMA integrity_check",
		size:      "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size",
		labels:    "json_group_object(key, value)",
	}
}

// unnumbered returns a statement with ? for its parameters, if they are ?1, ?2, …
// in this order: binding looks up the names of numbered ones, which takes longer
// than inserting a row.
func unnumbered(text string) string {
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

// Times are Unix milliseconds. A position is a stream sequence of the file's
// stream; a file holds one incarnation.
const sqlite1 = `
CREATE TABLE streams (
	id          INTEGER PRIMARY KEY,
	incarnation TEXT    NOT NULL UNIQUE,
	position    INTEGER NOT NULL,             -- up to here everything is recorded
	bad         INTEGER NOT NULL DEFAULT 0,   -- messages that are no events
	lost        INTEGER NOT NULL DEFAULT 0    -- events that the stream dropped before they were recorded
) STRICT;

CREATE TABLE runs (
	id          INTEGER PRIMARY KEY,
	run         TEXT    NOT NULL UNIQUE,
	flow        TEXT    NOT NULL DEFAULT '',
	status      TEXT    NOT NULL DEFAULT 'idle',
	result      TEXT    NOT NULL DEFAULT '',
	reason      TEXT    NOT NULL DEFAULT '',
	error       TEXT    NOT NULL DEFAULT '',
	parent      TEXT    NOT NULL DEFAULT '',
	imported    TEXT    NOT NULL DEFAULT '',
	started_at  INTEGER NOT NULL DEFAULT 0,
	ended_at    INTEGER NOT NULL DEFAULT 0,
	last_at     INTEGER NOT NULL DEFAULT 0,   -- of the last event
	activity    TEXT    NOT NULL DEFAULT '',  -- what an agent last did
	activity_at INTEGER NOT NULL DEFAULT 0,
	cost_usd    REAL    NOT NULL DEFAULT 0,
	tokens_in   INTEGER NOT NULL DEFAULT 0,   -- those of the cache included
	tokens_out  INTEGER NOT NULL DEFAULT 0,
	tools       INTEGER NOT NULL DEFAULT 0,
	tool_errors INTEGER NOT NULL DEFAULT 0,
	events      INTEGER NOT NULL DEFAULT 0,   -- all of them, void ones included
	void        INTEGER NOT NULL DEFAULT 0,
	refused     INTEGER NOT NULL DEFAULT 0,   -- events that the run's history doesn't allow
	gaps        INTEGER NOT NULL DEFAULT 0,   -- events that are missing between others
	first_pos   INTEGER NOT NULL,
	last_pos    INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX runs_first ON runs (first_pos);

CREATE TABLE labels (
	run   INTEGER NOT NULL REFERENCES runs (id),
	key   TEXT    NOT NULL,
	value TEXT    NOT NULL,
	PRIMARY KEY (run, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX labels_value ON labels (value);

CREATE TABLE nodes (
	id             INTEGER PRIMARY KEY,
	run            INTEGER NOT NULL REFERENCES runs (id),
	node           TEXT    NOT NULL,
	epoch          INTEGER NOT NULL DEFAULT 0,  -- of its last claim
	seq            INTEGER NOT NULL DEFAULT 0,  -- of its last event that isn't void
	model          TEXT    NOT NULL DEFAULT '',
	cwd            TEXT    NOT NULL DEFAULT '',
	activity       TEXT    NOT NULL DEFAULT '',
	activity_at    INTEGER NOT NULL DEFAULT 0,
	tokens_in      INTEGER NOT NULL DEFAULT 0,
	tokens_out     INTEGER NOT NULL DEFAULT 0,
	tools          INTEGER NOT NULL DEFAULT 0,
	tool_errors    INTEGER NOT NULL DEFAULT 0,
	context_tokens INTEGER NOT NULL DEFAULT 0,
	context_window INTEGER NOT NULL DEFAULT 0,
	timeline       BLOB    NOT NULL,            -- lines that may still grow
	UNIQUE (run, node)
) STRICT;

CREATE TABLE events (
	stream INTEGER NOT NULL REFERENCES streams (id),
	pos    INTEGER NOT NULL,
	time   INTEGER NOT NULL,            -- when the stream stored it
	run    INTEGER REFERENCES runs (id),
	node   INTEGER REFERENCES nodes (id),
	seq    INTEGER,
	epoch  INTEGER,
	kind   TEXT NOT NULL,
	type   TEXT NOT NULL,
	mark   TEXT NOT NULL,               -- '', void, bad or recorder (written by it)
	note   TEXT NOT NULL,               -- why it is marked
	data   BLOB NOT NULL,               -- as stored
	PRIMARY KEY (stream, pos)
) STRICT;
CREATE UNIQUE INDEX events_seq ON events (node, seq) WHERE mark = '';
CREATE INDEX events_run ON events (run, pos);
CREATE INDEX events_fold ON events (run, pos) WHERE mark = '' AND kind NOT IN ('text', 'delta');

CREATE TRIGGER events_stay BEFORE DELETE ON events BEGIN
	SELECT RAISE (ABORT, 'events are never deleted');
END;
CREATE TRIGGER events_once BEFORE INSERT ON events -- OR REPLACE deletes without asking the trigger above
	WHEN EXISTS (SELECT 1 FROM events WHERE stream = NEW.stream AND pos = NEW.pos)
	OR EXISTS (SELECT 1 FROM events WHERE rowid = NEW.rowid)
	OR NEW.mark = '' AND EXISTS (SELECT 1 FROM events WHERE node = NEW.node AND seq = NEW.seq AND mark = '')
BEGIN
	SELECT RAISE (ABORT, 'events are never replaced');
END;
CREATE TRIGGER events_keep BEFORE UPDATE ON events BEGIN
	SELECT RAISE (ABORT, 'events are never changed');
END;

CREATE TABLE blobs (
	sha256 TEXT PRIMARY KEY,
	size   INTEGER NOT NULL,
	data   BLOB                         -- null: it was missing when it was needed
) STRICT, WITHOUT ROWID;

CREATE TABLE bindings (                -- which session an execution has, or had
	session TEXT    NOT NULL,
	run     INTEGER NOT NULL REFERENCES runs (id),
	node    INTEGER NOT NULL REFERENCES nodes (id),
	exec    TEXT    NOT NULL,
	pos     INTEGER NOT NULL,           -- where it was first heard of
	PRIMARY KEY (session, run, node)
) STRICT, WITHOUT ROWID;

CREATE TABLE lines (
	pos    INTEGER PRIMARY KEY,         -- of the line's first event
	run    INTEGER NOT NULL REFERENCES runs (id),
	node   INTEGER NOT NULL REFERENCES nodes (id),  -- the node it is about
	writer INTEGER NOT NULL REFERENCES nodes (id),  -- the node it was written on
	seq    INTEGER NOT NULL,
	exec   TEXT    NOT NULL,
	parent TEXT    NOT NULL,
	ts     INTEGER NOT NULL,
	type   TEXT    NOT NULL,
	hidden INTEGER NOT NULL DEFAULT 0,  -- by log:truncated
	text   TEXT    NOT NULL
) STRICT;
CREATE INDEX lines_run ON lines (run, hidden, pos, type, node, ts);
CREATE INDEX lines_writer ON lines (writer, seq);

CREATE TABLE folds (                   -- a cache: runs' states, a little behind
	run  INTEGER PRIMARY KEY REFERENCES runs (id),
	pos  INTEGER NOT NULL,
	data BLOB    NOT NULL
) STRICT;
`

// sqlite2 keeps events in segments instead of rows. What is derived from them is
// made again, from the rows of before.
const sqlite2 = `
DROP TRIGGER events_stay;
DROP TRIGGER events_once;
DROP TRIGGER events_keep;
CREATE TABLE events_1 AS SELECT pos, time, mark, note, data FROM events ORDER BY pos;
CREATE INDEX events_1_pos ON events_1 (pos);
UPDATE streams SET position = 0, bad = 0, lost = 0;
DROP TABLE events;
DROP TABLE folds;
DROP TABLE lines;
DROP TABLE bindings;
DROP TABLE labels;
DROP TABLE nodes;
DROP TABLE runs;

CREATE TABLE runs (
	id          INTEGER PRIMARY KEY,
	run         TEXT    NOT NULL UNIQUE,
	flow        TEXT    NOT NULL DEFAULT '',
	status      TEXT    NOT NULL DEFAULT 'idle',
	result      TEXT    NOT NULL DEFAULT '',
	reason      TEXT    NOT NULL DEFAULT '',
	error       TEXT    NOT NULL DEFAULT '',
	parent      TEXT    NOT NULL DEFAULT '',
	imported    TEXT    NOT NULL DEFAULT '',
	started_at  INTEGER NOT NULL DEFAULT 0,
	ended_at    INTEGER NOT NULL DEFAULT 0,
	last_at     INTEGER NOT NULL DEFAULT 0,   -- of the last event
	activity    TEXT    NOT NULL DEFAULT '',  -- what an agent last did
	activity_at INTEGER NOT NULL DEFAULT 0,
	cost_usd    REAL    NOT NULL DEFAULT 0,
	tokens_in   INTEGER NOT NULL DEFAULT 0,   -- those of the cache included
	tokens_out  INTEGER NOT NULL DEFAULT 0,
	tools       INTEGER NOT NULL DEFAULT 0,
	tool_errors INTEGER NOT NULL DEFAULT 0,
	events      INTEGER NOT NULL DEFAULT 0,   -- all of them, void ones included; of run _ what is no event, too
	void        INTEGER NOT NULL DEFAULT 0,
	refused     INTEGER NOT NULL DEFAULT 0,   -- events that the run's history doesn't allow
	gaps        INTEGER NOT NULL DEFAULT 0,   -- events that are missing between others
	lines       INTEGER NOT NULL DEFAULT 0,   -- of the log, without hidden ones
	first_pos   INTEGER NOT NULL,
	last_pos    INTEGER NOT NULL DEFAULT 0,
	head        BLOB    NOT NULL DEFAULT x'', -- of the hash chain, after the last event
	segments    INTEGER NOT NULL DEFAULT 0,
	tail_events INTEGER NOT NULL DEFAULT 0,
	tail_bytes  INTEGER NOT NULL DEFAULT 0    -- of their data
) STRICT;

CREATE TABLE nodes (
	id             INTEGER PRIMARY KEY,
	run            INTEGER NOT NULL REFERENCES runs (id),
	node           TEXT    NOT NULL,
	epoch          INTEGER NOT NULL DEFAULT 0,  -- of its last claim
	seq            INTEGER NOT NULL DEFAULT 0,  -- of its last event that isn't void
	model          TEXT    NOT NULL DEFAULT '',
	cwd            TEXT    NOT NULL DEFAULT '',
	activity       TEXT    NOT NULL DEFAULT '',
	activity_at    INTEGER NOT NULL DEFAULT 0,
	tokens_in      INTEGER NOT NULL DEFAULT 0,
	tokens_out     INTEGER NOT NULL DEFAULT 0,
	tools          INTEGER NOT NULL DEFAULT 0,
	tool_errors    INTEGER NOT NULL DEFAULT 0,
	context_tokens INTEGER NOT NULL DEFAULT 0,
	context_window INTEGER NOT NULL DEFAULT 0,
	timeline       BLOB    NOT NULL,            -- lines that may still grow
	UNIQUE (run, node)
) STRICT;

CREATE TABLE labels (
	run   INTEGER NOT NULL REFERENCES runs (id),
	key   TEXT    NOT NULL,
	value TEXT    NOT NULL,
	PRIMARY KEY (run, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX labels_value ON labels (value);

CREATE TABLE bindings (                -- which session an execution has, or had
	session TEXT    NOT NULL,
	run     INTEGER NOT NULL REFERENCES runs (id),
	node    INTEGER NOT NULL REFERENCES nodes (id),
	exec    TEXT    NOT NULL,
	pos     INTEGER NOT NULL,           -- where it was first heard of
	PRIMARY KEY (session, run, node)
) STRICT, WITHOUT ROWID;

CREATE TABLE lines (
	pos    INTEGER PRIMARY KEY,         -- of the line's first event
	run    INTEGER NOT NULL REFERENCES runs (id),
	node   INTEGER NOT NULL REFERENCES nodes (id),  -- the node it is about
	writer INTEGER NOT NULL REFERENCES nodes (id),  -- the node it was written on
	seq    INTEGER NOT NULL,
	exec   TEXT    NOT NULL,
	parent TEXT    NOT NULL,
	ts     INTEGER NOT NULL,
	type   TEXT    NOT NULL,
	hidden INTEGER NOT NULL DEFAULT 0,  -- by log:truncated
	text   TEXT    NOT NULL
) STRICT;
CREATE INDEX lines_run ON lines (run, hidden, pos, type, node, ts);

CREATE TABLE folds (                   -- a cache: runs' states, a little behind
	run  INTEGER PRIMARY KEY REFERENCES runs (id),
	pos  INTEGER NOT NULL,
	data BLOB    NOT NULL
) STRICT;

CREATE TABLE segments (                -- sealed events of a run; see segment.go for their data
	run        INTEGER NOT NULL REFERENCES runs (id),
	n          INTEGER NOT NULL,        -- 1, 2, …
	first_pos  INTEGER NOT NULL,
	last_pos   INTEGER NOT NULL,
	first_time INTEGER NOT NULL,
	last_time  INTEGER NOT NULL,
	events     INTEGER NOT NULL,
	prev       BLOB    NOT NULL,        -- of the hash chain, before the first event
	hash       BLOB    NOT NULL,        -- after the last one
	codec      INTEGER NOT NULL,
	data       BLOB    NOT NULL,
	PRIMARY KEY (run, n)
) STRICT;
CREATE INDEX segments_run ON segments (run, last_pos, first_pos);
CREATE INDEX segments_pos ON segments (last_pos, first_pos);

CREATE TABLE tail (                    -- events that aren't sealed yet
	pos  INTEGER PRIMARY KEY,
	run  INTEGER NOT NULL REFERENCES runs (id),
	time INTEGER NOT NULL,              -- when the stream stored it
	mark TEXT    NOT NULL,              -- '', void, bad or recorder (written by it)
	note TEXT    NOT NULL,              -- why it is marked
	hash BLOB    NOT NULL,              -- of the hash chain, after it
	data BLOB    NOT NULL               -- as stored
) STRICT;
CREATE INDEX tail_run ON tail (run, pos);

CREATE TABLE retired (                 -- runs whose events may be deleted
	run    TEXT    PRIMARY KEY,
	at     INTEGER NOT NULL,
	events INTEGER NOT NULL,
	head   BLOB    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER segments_stay BEFORE DELETE ON segments
	WHEN NOT EXISTS (SELECT 1 FROM retired JOIN runs USING (run) WHERE runs.id = OLD.run)
BEGIN
	SELECT RAISE (ABORT, 'events are never deleted');
END;
CREATE TRIGGER segments_once BEFORE INSERT ON segments -- OR REPLACE deletes without asking the trigger above
	WHEN EXISTS (SELECT 1 FROM segments WHERE run = NEW.run AND n = NEW.n)
	OR EXISTS (SELECT 1 FROM segments WHERE rowid = NEW.rowid)
BEGIN
	SELECT RAISE (ABORT, 'events are never replaced');
END;
CREATE TRIGGER segments_keep BEFORE UPDATE ON segments BEGIN
	SELECT RAISE (ABORT, 'events are never changed');
END;
CREATE TRIGGER tail_stay BEFORE DELETE ON tail
	WHEN NOT coalesce((SELECT first_pos <= OLD.pos FROM segments WHERE run = OLD.run AND last_pos >= OLD.pos ORDER BY last_pos LIMIT 1), 0)
	AND NOT EXISTS (SELECT 1 FROM retired JOIN runs USING (run) WHERE runs.id = OLD.run)
BEGIN
	SELECT RAISE (ABORT, 'events are deleted only when they are sealed');
END;
CREATE TRIGGER tail_once BEFORE INSERT ON tail
	WHEN EXISTS (SELECT 1 FROM tail WHERE pos = NEW.pos)
BEGIN
	SELECT RAISE (ABORT, 'events are never replaced');
END;
CREATE TRIGGER tail_keep BEFORE UPDATE ON tail BEGIN
	SELECT RAISE (ABORT, 'events are never changed');
END;
`
