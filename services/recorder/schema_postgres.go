package recorder

// postgresMark names the tables of a recorder as its own, and their version. A
// schema of the database that has other tables but not this one is somebody
// else's.
const postgresMark = "wake_schema"

// postgres1 is what the steps of SQLite lead to. Positions are stream sequences,
// times Unix milliseconds. Texts by which something is found compare bytewise.
// Rows are numbered without gaps, as in SQLite: who inserts one holds a lock on
// streams. References are for verify to check, as there.
const postgres1 = `
CREATE TABLE wake_schema (
	application TEXT   NOT NULL,
	version     BIGINT NOT NULL
);
INSERT INTO wake_schema VALUES ('wake', 0);

CREATE TABLE streams (
	id          BIGINT PRIMARY KEY,
	incarnation TEXT   NOT NULL UNIQUE,
	position    BIGINT NOT NULL,             -- up to here everything is recorded
	bad         BIGINT NOT NULL DEFAULT 0,   -- messages that are no events
	lost        BIGINT NOT NULL DEFAULT 0    -- events that the stream dropped before they were recorded
);

CREATE TABLE runs (
	id          BIGINT PRIMARY KEY,
	run         TEXT   COLLATE "C" NOT NULL UNIQUE,
	flow        TEXT   NOT NULL DEFAULT '',
	status      TEXT   NOT NULL DEFAULT 'idle',
	result      TEXT   NOT NULL DEFAULT '',
	reason      TEXT   NOT NULL DEFAULT '',
	error       TEXT   NOT NULL DEFAULT '',
	parent      TEXT   NOT NULL DEFAULT '',
	imported    TEXT   NOT NULL DEFAULT '',
	started_at  BIGINT NOT NULL DEFAULT 0,
	ended_at    BIGINT NOT NULL DEFAULT 0,
	last_at     BIGINT NOT NULL DEFAULT 0,   -- of the last event
	activity    TEXT   NOT NULL DEFAULT '',  -- what an agent last did
	activity_at BIGINT NOT NULL DEFAULT 0,
	cost_usd    DOUBLE PRECISION NOT NULL DEFAULT 0,
	tokens_in   BIGINT NOT NULL DEFAULT 0,   -- those of the cache included
	tokens_out  BIGINT NOT NULL DEFAULT 0,
	tools       BIGINT NOT NULL DEFAULT 0,
	tool_errors BIGINT NOT NULL DEFAULT 0,
	events      BIGINT NOT NULL DEFAULT 0,   -- all of them, void ones included; of run _ what is no event, too
	void        BIGINT NOT NULL DEFAULT 0,
	refused     BIGINT NOT NULL DEFAULT 0,   -- events that the run's history doesn't allow
	gaps        BIGINT NOT NULL DEFAULT 0,   -- events that are missing between others
	lines       BIGINT NOT NULL DEFAULT 0,   -- of the log, without hidden ones
	first_pos   BIGINT NOT NULL,
	last_pos    BIGINT NOT NULL DEFAULT 0,
	head        BYTEA  NOT NULL DEFAULT '',  -- of the hash chain, after the last event
	segments    BIGINT NOT NULL DEFAULT 0,
	tail_events BIGINT NOT NULL DEFAULT 0,
	tail_bytes  BIGINT NOT NULL DEFAULT 0    -- of their data
);
CREATE INDEX runs_first ON runs (first_pos);

CREATE TABLE nodes (
	id             BIGINT PRIMARY KEY,
	run            BIGINT NOT NULL,
	node           TEXT   COLLATE "C" NOT NULL,
	epoch          BIGINT NOT NULL DEFAULT 0,  -- of its last claim
	seq            BIGINT NOT NULL DEFAULT 0,  -- of its last event that isn't void
	model          TEXT   NOT NULL DEFAULT '',
	cwd            TEXT   NOT NULL DEFAULT '',
	activity       TEXT   NOT NULL DEFAULT '',
	activity_at    BIGINT NOT NULL DEFAULT 0,
	tokens_in      BIGINT NOT NULL DEFAULT 0,
	tokens_out     BIGINT NOT NULL DEFAULT 0,
	tools          BIGINT NOT NULL DEFAULT 0,
	tool_errors    BIGINT NOT NULL DEFAULT 0,
	context_tokens BIGINT NOT NULL DEFAULT 0,
	context_window BIGINT NOT NULL DEFAULT 0,
	timeline       BYTEA  NOT NULL,            -- lines that may still grow
	UNIQUE (run, node)
);

CREATE FUNCTION next_run() RETURNS BIGINT LANGUAGE sql VOLATILE SET search_path FROM CURRENT
	AS 'SELECT coalesce(max(id), 0) + 1 FROM runs';
CREATE FUNCTION next_node() RETURNS BIGINT LANGUAGE sql VOLATILE SET search_path FROM CURRENT
	AS 'SELECT coalesce(max(id), 0) + 1 FROM nodes';
ALTER TABLE runs ALTER id SET DEFAULT next_run();
ALTER TABLE nodes ALTER id SET DEFAULT next_node();

CREATE TABLE labels (
	run   BIGINT NOT NULL,
	key   TEXT   COLLATE "C" NOT NULL,
	value TEXT   COLLATE "C" NOT NULL,
	PRIMARY KEY (run, key)
);
CREATE INDEX labels_value ON labels USING hash (value); -- of any length

CREATE TABLE blobs (
	sha256 TEXT   COLLATE "C" PRIMARY KEY,
	size   BIGINT NOT NULL,
	data   BYTEA                         -- null: it was missing when it was needed
);

CREATE TABLE bindings (                  -- which session an execution has, or had
	session TEXT   COLLATE "C" NOT NULL,
	run     BIGINT NOT NULL,
	node    BIGINT NOT NULL,
	exec    TEXT   NOT NULL,
	pos     BIGINT NOT NULL,             -- where it was first heard of
	PRIMARY KEY (session, run, node)
);

CREATE TABLE lines (
	pos    BIGINT PRIMARY KEY,           -- of the line's first event
	run    BIGINT NOT NULL,
	node   BIGINT NOT NULL,              -- the node it is about
	writer BIGINT NOT NULL,              -- the node it was written on
	seq    BIGINT NOT NULL,
	exec   TEXT   NOT NULL,
	parent TEXT   NOT NULL,
	ts     BIGINT NOT NULL,
	type   TEXT   COLLATE "C" NOT NULL,
	hidden BIGINT NOT NULL DEFAULT 0,    -- by log:truncated
	text   TEXT   NOT NULL
);
CREATE INDEX lines_run ON lines (run, hidden, pos, type, node, ts);

CREATE TABLE folds (                     -- a cache: runs' states, a little behind
	run  BIGINT PRIMARY KEY,
	pos  BIGINT NOT NULL,
	data BYTEA  NOT NULL
);
CREATE TABLE keyframes (                 -- a cache: runs' states at earlier positions, packed with zstd
	run  BIGINT NOT NULL,
	pos  BIGINT NOT NULL,
	data BYTEA  NOT NULL,
	PRIMARY KEY (run, pos)
);

CREATE TABLE segments (                  -- sealed events of a run; see segment.go for their data
	run        BIGINT NOT NULL,
	n          BIGINT NOT NULL,          -- 1, 2, …
	first_pos  BIGINT NOT NULL,
	last_pos   BIGINT NOT NULL,
	first_time BIGINT NOT NULL,
	last_time  BIGINT NOT NULL,
	events     BIGINT NOT NULL,
	prev       BYTEA  NOT NULL,          -- of the hash chain, before the first event
	hash       BYTEA  NOT NULL,          -- after the last one
	codec      BIGINT NOT NULL,
	data       BYTEA  NOT NULL,
	PRIMARY KEY (run, n)
);
ALTER TABLE segments ALTER data SET STORAGE EXTERNAL; -- it is packed already
CREATE INDEX segments_run ON segments (run, last_pos, first_pos);
CREATE INDEX segments_pos ON segments (last_pos, first_pos);

CREATE TABLE tail (                      -- events that aren't sealed yet
	pos  BIGINT PRIMARY KEY,
	run  BIGINT NOT NULL,
	time BIGINT NOT NULL,                -- when the stream stored it
	mark TEXT   NOT NULL,                -- '', void, bad or recorder (written by it)
	note TEXT   NOT NULL,                -- why it is marked
	hash BYTEA  NOT NULL,                -- of the hash chain, after it
	data BYTEA  NOT NULL                 -- as stored
);
CREATE INDEX tail_run ON tail (run, pos);

CREATE TABLE retired (                   -- runs whose events may be deleted
	run    TEXT   COLLATE "C" PRIMARY KEY,
	at     BIGINT NOT NULL,
	events BIGINT NOT NULL,
	head   BYTEA  NOT NULL
);

CREATE FUNCTION events_keep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'events are never changed';
END $$;
CREATE FUNCTION segments_stay() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
	IF EXISTS (SELECT FROM retired JOIN runs USING (run) WHERE runs.id = OLD.run) THEN
		RETURN OLD;
	END IF;
	RAISE EXCEPTION 'events are never deleted';
END $$;
CREATE FUNCTION tail_stay() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
	IF (SELECT s.first_pos <= OLD.pos FROM segments s WHERE s.run = OLD.run AND s.last_pos >= OLD.pos ORDER BY s.last_pos LIMIT 1)
		OR EXISTS (SELECT FROM retired JOIN runs USING (run) WHERE runs.id = OLD.run) THEN
		RETURN OLD;
	END IF;
	RAISE EXCEPTION 'events are deleted only when they are sealed';
END $$;
CREATE TRIGGER segments_stay BEFORE DELETE ON segments FOR EACH ROW EXECUTE FUNCTION segments_stay();
CREATE TRIGGER segments_keep BEFORE UPDATE OR TRUNCATE ON segments EXECUTE FUNCTION events_keep();
CREATE TRIGGER tail_stay BEFORE DELETE ON tail FOR EACH ROW EXECUTE FUNCTION tail_stay();
CREATE TRIGGER tail_keep BEFORE UPDATE OR TRUNCATE ON tail EXECUTE FUNCTION events_keep();
`
