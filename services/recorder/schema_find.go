package recorder

// sqliteFind are the tables that make things found fast: a part of the second
// step.
//
// A line that still grows is in lines_open and not in the full text; when it
// leaves that table it gets there. One that changes afterwards is indexed anew.
const sqliteFind = `
CREATE TABLE keyframes (               -- a cache: runs' states at earlier positions, packed with zstd
	run  INTEGER NOT NULL REFERENCES runs (id),
	pos  INTEGER NOT NULL,
	data BLOB    NOT NULL,
	PRIMARY KEY (run, pos)
) STRICT;

CREATE VIRTUAL TABLE lines_fts USING fts5 (
	text, content = 'lines', content_rowid = 'pos', tokenize = "unicode61 remove_diacritics 2 tokenchars '_'"
);
CREATE TABLE lines_open (              -- lines that grow
	pos    INTEGER PRIMARY KEY,
	writer INTEGER NOT NULL REFERENCES nodes (id)
) STRICT;
CREATE INDEX lines_open_writer ON lines_open (writer);
CREATE TRIGGER lines_added AFTER INSERT ON lines
	WHEN NOT EXISTS (SELECT 1 FROM lines_open WHERE pos = NEW.pos)
BEGIN
	INSERT INTO lines_fts (rowid, text) VALUES (NEW.pos, NEW.text);
END;
CREATE TRIGGER lines_closed AFTER DELETE ON lines_open BEGIN
	INSERT INTO lines_fts (rowid, text) SELECT pos, text FROM lines WHERE pos = OLD.pos;
END;
CREATE TRIGGER lines_changed AFTER UPDATE OF text ON lines
	WHEN NOT EXISTS (SELECT 1 FROM lines_open WHERE pos = NEW.pos)
BEGIN
	INSERT INTO lines_fts (lines_fts, rowid, text) VALUES ('delete', OLD.pos, OLD.text);
	INSERT INTO lines_fts (rowid, text) VALUES (NEW.pos, NEW.text);
END;
CREATE TRIGGER lines_removed AFTER DELETE ON lines
	WHEN NOT EXISTS (SELECT 1 FROM lines_open WHERE pos = OLD.pos)
BEGIN
	INSERT INTO lines_fts (lines_fts, rowid, text) VALUES ('delete', OLD.pos, OLD.text);
END;

CREATE TABLE tool_calls (              -- finished calls
	pos         INTEGER PRIMARY KEY,    -- of the agent:tool
	run         INTEGER NOT NULL REFERENCES runs (id),
	node        INTEGER NOT NULL REFERENCES nodes (id),
	exec        TEXT    NOT NULL,
	call        TEXT    NOT NULL,
	tool        TEXT    NOT NULL,
	ts          INTEGER NOT NULL,
	duration_ms INTEGER,                -- null: unknown
	outcome     TEXT    NOT NULL,       -- ok, error or denied
	error       TEXT    NOT NULL
) STRICT;
CREATE INDEX tool_calls_run ON tool_calls (run, tool);
CREATE INDEX tool_calls_ts ON tool_calls (ts);

CREATE TABLE spend (                   -- what model calls used, by day and model
	run        INTEGER NOT NULL REFERENCES runs (id),
	node       INTEGER NOT NULL REFERENCES nodes (id),
	day        INTEGER NOT NULL,        -- since 1970-01-01, UTC
	model      TEXT    NOT NULL,
	calls      INTEGER NOT NULL,
	tokens_in  INTEGER NOT NULL,        -- those of the cache included
	tokens_out INTEGER NOT NULL,
	cost_usd   REAL    NOT NULL,
	PRIMARY KEY (node, day, model)
) STRICT, WITHOUT ROWID;
CREATE INDEX spend_run ON spend (run);
CREATE TABLE usage_seen (              -- messages whose usage is counted in spend
	node    INTEGER NOT NULL REFERENCES nodes (id),
	message TEXT    NOT NULL,
	PRIMARY KEY (node, message)
) STRICT, WITHOUT ROWID;
`

// postgresFind are the same tables in PostgreSQL, where the full text is an index
// of the lines themselves, see postgresWords.
const postgresFind = `
CREATE TABLE tool_calls (                -- finished calls
	pos         BIGINT PRIMARY KEY,      -- of the agent:tool
	run         BIGINT NOT NULL,
	node        BIGINT NOT NULL,
	exec        TEXT   NOT NULL,
	call        TEXT   NOT NULL,
	tool        TEXT   NOT NULL,
	ts          BIGINT NOT NULL,
	duration_ms BIGINT,                  -- null: unknown
	outcome     TEXT   NOT NULL,         -- ok, error or denied
	error       TEXT   NOT NULL
);
CREATE INDEX tool_calls_run ON tool_calls (run);
CREATE INDEX tool_calls_tool ON tool_calls USING hash (tool); -- of any length
CREATE INDEX tool_calls_ts ON tool_calls (ts);
CREATE TABLE spend (                     -- what model calls used, by day and model
	run        BIGINT NOT NULL,
	node       BIGINT NOT NULL,
	day        BIGINT NOT NULL,          -- since 1970-01-01, UTC
	model      TEXT   NOT NULL,
	calls      BIGINT NOT NULL,
	tokens_in  BIGINT NOT NULL,          -- those of the cache included
	tokens_out BIGINT NOT NULL,
	cost_usd   DOUBLE PRECISION NOT NULL,
	PRIMARY KEY (node, day, model)
);
CREATE INDEX spend_run ON spend (run);
CREATE TABLE usage_seen (                -- messages whose usage is counted in spend
	node    BIGINT NOT NULL,
	message TEXT   NOT NULL,
	PRIMARY KEY (node, message)
);
`

// finder is how a database searches the text of lines.
type finder struct {
	tables  string // from which lines come: lines, joined with what the others need
	match   string // which match; %s is the parameter
	snippet string // the part of the text that matches; %s is the parameter
	order   string // of the newest first
	lags    bool   // lines get there after they were recorded, and those that grow are kept apart
	query   func(words []word) string
	excerpt func(text string, words []word) string // marks what matches in what snippet says; nil: it is marked
}

// What marks the words that match in a snippet.
const (
	markBegin = '\ue000'
	markEnd   = '\ue001'
)

func sqliteFinder() finder {
	return finder{
		tables: "lines_fts JOIN lines ON lines.pos = lines_fts.rowid", match: "lines_fts MATCH %s",
		snippet: "snippet(lines_fts, 0, char(57344), char(57345), '…', 24)", order: "lines_fts.rowid", lags: true, query: ftsQuery,
	}
}
