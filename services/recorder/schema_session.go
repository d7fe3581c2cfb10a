package recorder

import "strings"

// sqliteSessions are the conversations of agents, alerts, and the views that show
// them with the columns of the agents' own stores. All that is derived is made
// again: there is more of it than before.
const sqliteSessions = `
UPDATE lines_indexed SET pos = 0;
INSERT INTO lines_fts (lines_fts) VALUES ('delete-all');
DELETE FROM lines_open;
` + forgotten + `
ALTER TABLE lines ADD COLUMN message INTEGER NOT NULL DEFAULT 0;     -- the row of chat_messages it is a part of
CREATE INDEX lines_message ON lines (message) WHERE message > 0;
ALTER TABLE nodes ADD COLUMN talk BLOB NOT NULL DEFAULT x'80';       -- where its agent's conversation stands
UPDATE nodes SET timeline = x'80';

CREATE TABLE bindings (                -- which session an execution has, or had
	session  TEXT    NOT NULL,
	run      INTEGER NOT NULL REFERENCES runs (id),
	node     INTEGER NOT NULL REFERENCES nodes (id),
	exec     TEXT    NOT NULL,
	pos      INTEGER NOT NULL,          -- where it was first heard of
	agent    TEXT    NOT NULL,
	model    TEXT    NOT NULL,
	provider TEXT    NOT NULL,
	ts       INTEGER NOT NULL,
	PRIMARY KEY (session, run, node)
) STRICT, WITHOUT ROWID;

CREATE TABLE chat_messages (
	pos     INTEGER PRIMARY KEY,        -- of the event that begins it
	run     INTEGER NOT NULL REFERENCES runs (id),
	node    INTEGER NOT NULL REFERENCES nodes (id),
	seq     INTEGER NOT NULL,
	session TEXT    NOT NULL,
	agent   TEXT    NOT NULL,
	turn    INTEGER NOT NULL,
	role    TEXT    NOT NULL,           -- user, assistant or tool
	content TEXT,                       -- null: what the lines say whose message it is
	call    TEXT,
	tool    TEXT,
	args    TEXT,                       -- JSON, the calls of an assistant's message
	ts      INTEGER NOT NULL,
	hidden  INTEGER NOT NULL DEFAULT 0  -- by log:truncated
) STRICT;
CREATE INDEX chat_messages_node ON chat_messages (node, seq);

CREATE TABLE chat_errors (
	pos     INTEGER NOT NULL,
	run     INTEGER NOT NULL REFERENCES runs (id),
	node    INTEGER NOT NULL REFERENCES nodes (id),
	session TEXT    NOT NULL,
	agent   TEXT    NOT NULL,
	turn    INTEGER NOT NULL,
	context TEXT    NOT NULL,           -- llm_stream, max_turns, or the type
	type    TEXT    NOT NULL,           -- as the agent says
	message TEXT    NOT NULL,
	attempt INTEGER NOT NULL,           -- from 0
	ts      INTEGER NOT NULL,
	PRIMARY KEY (node, pos)
) STRICT, WITHOUT ROWID;

CREATE TABLE chat_checkpoints (
	pos      INTEGER NOT NULL,
	run      INTEGER NOT NULL REFERENCES runs (id),
	node     INTEGER NOT NULL REFERENCES nodes (id),
	seq      INTEGER NOT NULL,
	session  TEXT    NOT NULL,
	agent    TEXT    NOT NULL,
	turn     INTEGER NOT NULL,
	last     INTEGER NOT NULL,          -- message
	kind     TEXT    NOT NULL,          -- turn, subturn, sfp or labelled
	label    TEXT    NOT NULL,
	sub_idx  INTEGER,                   -- the last finished call of the turn, from 0; null: all are
	sub_call TEXT,                      -- its id
	ts       INTEGER NOT NULL,
	hidden   INTEGER NOT NULL DEFAULT 0,
	PRIMARY KEY (node, pos)
) STRICT, WITHOUT ROWID;

CREATE TABLE usage_seen (              -- model calls; those of one message count once
	node       INTEGER NOT NULL REFERENCES nodes (id),
	message    TEXT    NOT NULL,
	run        INTEGER NOT NULL REFERENCES runs (id),
	pos        INTEGER NOT NULL,
	session    TEXT    NOT NULL,
	agent      TEXT    NOT NULL,
	turn       INTEGER NOT NULL,
	model      TEXT    NOT NULL,
	tokens_in  INTEGER NOT NULL,        -- those of the cache included
	tokens_out INTEGER NOT NULL,
	ts         INTEGER NOT NULL,
	PRIMARY KEY (node, message)
) STRICT, WITHOUT ROWID;

CREATE TABLE alerts (
	key      TEXT    PRIMARY KEY,       -- the same for the same occurrence
	pos      INTEGER NOT NULL,          -- in the stream of alerts
	kind     TEXT    NOT NULL,
	severity TEXT    NOT NULL,
	run      TEXT    NOT NULL,          -- names, since its events may not be here
	node     TEXT    NOT NULL,
	exec     TEXT    NOT NULL,
	label    TEXT    NOT NULL,
	parent   TEXT    NOT NULL,          -- run that started this one
	event    INTEGER NOT NULL,          -- position of the event that raised it
	ts       INTEGER NOT NULL,
	text     TEXT    NOT NULL,
	data     TEXT    NOT NULL,          -- JSON
	raw      BLOB    NOT NULL,          -- as stored
	hash     BLOB    NOT NULL           -- SHA-256 of raw
) STRICT;
CREATE INDEX alerts_run ON alerts (run, pos);
CREATE TABLE alerts_read (             -- one row: up to where the stream of alerts is recorded
	id       INTEGER PRIMARY KEY,
	created  TEXT    NOT NULL,          -- of the stream
	position INTEGER NOT NULL
) STRICT;
`

// postgresSessions are the same in PostgreSQL.
const postgresSessions = forgotten + `
ALTER TABLE lines ADD COLUMN message BIGINT NOT NULL DEFAULT 0;      -- the row of chat_messages it is a part of
CREATE INDEX lines_message ON lines (message) WHERE message > 0;
ALTER TABLE nodes ADD COLUMN talk BYTEA NOT NULL DEFAULT '\x80';     -- where its agent's conversation stands
UPDATE nodes SET timeline = '\x80';

CREATE TABLE bindings (                  -- which session an execution has, or had
	session  TEXT   COLLATE "C" NOT NULL,
	run      BIGINT NOT NULL,
	node     BIGINT NOT NULL,
	exec     TEXT   NOT NULL,
	pos      BIGINT NOT NULL,            -- where it was first heard of
	agent    TEXT   NOT NULL,
	model    TEXT   NOT NULL,
	provider TEXT   NOT NULL,
	ts       BIGINT NOT NULL,
	PRIMARY KEY (session, run, node)
);

CREATE TABLE chat_messages (
	pos     BIGINT PRIMARY KEY,          -- of the event that begins it
	run     BIGINT NOT NULL,
	node    BIGINT NOT NULL,
	seq     BIGINT NOT NULL,
	session TEXT   COLLATE "C" NOT NULL,
	agent   TEXT   NOT NULL,
	turn    BIGINT NOT NULL,
	role    TEXT   NOT NULL,             -- user, assistant or tool
	content TEXT,                        -- null: what the lines say whose message it is
	call    TEXT,
	tool    TEXT,
	args    TEXT,                        -- JSON, the calls of an assistant's message
	ts      BIGINT NOT NULL,
	hidden  BIGINT NOT NULL DEFAULT 0    -- by log:truncated
);
CREATE INDEX chat_messages_node ON chat_messages (node, seq);

CREATE TABLE chat_errors (
	pos     BIGINT NOT NULL,
	run     BIGINT NOT NULL,
	node    BIGINT NOT NULL,
	session TEXT   COLLATE "C" NOT NULL,
	agent   TEXT   NOT NULL,
	turn    BIGINT NOT NULL,
	context TEXT   NOT NULL,             -- llm_stream, max_turns, or the type
	type    TEXT   NOT NULL,             -- as the agent says
	message TEXT   NOT NULL,
	attempt BIGINT NOT NULL,             -- from 0
	ts      BIGINT NOT NULL,
	PRIMARY KEY (node, pos)
);

CREATE TABLE chat_checkpoints (
	pos      BIGINT NOT NULL,
	run      BIGINT NOT NULL,
	node     BIGINT NOT NULL,
	seq      BIGINT NOT NULL,
	session  TEXT   COLLATE "C" NOT NULL,
	agent    TEXT   NOT NULL,
	turn     BIGINT NOT NULL,
	last     BIGINT NOT NULL,            -- message
	kind     TEXT   NOT NULL,            -- turn, subturn, sfp or labelled
	label    TEXT   NOT NULL,
	sub_idx  BIGINT,                     -- the last finished call of the turn, from 0; null: all are
	sub_call TEXT,                       -- its id
	ts       BIGINT NOT NULL,
	hidden   BIGINT NOT NULL DEFAULT 0,
	PRIMARY KEY (node, pos)
);

CREATE TABLE usage_seen (                -- model calls; those of one message count once
	node       BIGINT NOT NULL,
	message    TEXT   COLLATE "C" NOT NULL,
	run        BIGINT NOT NULL,
	pos        BIGINT NOT NULL,
	session    TEXT   COLLATE "C" NOT NULL,
	agent      TEXT   NOT NULL,
	turn       BIGINT NOT NULL,
	model      TEXT   NOT NULL,
	tokens_in  BIGINT NOT NULL,          -- those of the cache included
	tokens_out BIGINT NOT NULL,
	ts         BIGINT NOT NULL,
	PRIMARY KEY (node, message)
);

CREATE TABLE alerts (
	key      TEXT   COLLATE "C" PRIMARY KEY, -- the same for the same occurrence
	pos      BIGINT NOT NULL,            -- in the stream of alerts
	kind     TEXT   NOT NULL,
	severity TEXT   NOT NULL,
	run      TEXT   COLLATE "C" NOT NULL, -- names, since its events may not be here
	node     TEXT   COLLATE "C" NOT NULL,
	exec     TEXT   NOT NULL,
	label    TEXT   NOT NULL,
	parent   TEXT   NOT NULL,            -- run that started this one
	event    BIGINT NOT NULL,            -- position of the event that raised it
	ts       BIGINT NOT NULL,
	text     TEXT   NOT NULL,
	data     TEXT   NOT NULL,            -- JSON
	raw      BYTEA  NOT NULL,            -- as stored
	hash     BYTEA  NOT NULL             -- SHA-256 of raw
);
CREATE INDEX alerts_run ON alerts (run, pos);
CREATE TABLE alerts_read (               -- one row: up to where the stream of alerts is recorded
	id       BIGINT PRIMARY KEY,
	created  TEXT   NOT NULL,            -- of the stream
	position BIGINT NOT NULL
);
`

// forgotten drops what is derived from events. Runs and nodes keep their numbers.
const forgotten = `
DELETE FROM lines;
DELETE FROM labels;
DELETE FROM folds;
DELETE FROM keyframes;
DELETE FROM tool_calls;
DELETE FROM spend;
DROP TABLE bindings;
DROP TABLE usage_seen;
UPDATE runs SET flow = '', status = 'idle', result = '', reason = '', error = '', parent = '', imported = '', started_at = 0, ended_at = 0,
	last_at = 0, activity = '', activity_at = 0, cost_usd = 0, tokens_in = 0, tokens_out = 0, tools = 0, tool_errors = 0,
	events = 0, void = 0, refused = 0, gaps = 0, lines = 0, last_pos = 0;
UPDATE nodes SET epoch = 0, seq = 0, model = '', cwd = '', activity = '', activity_at = 0, tokens_in = 0, tokens_out = 0,
	tools = 0, tool_errors = 0, context_tokens = 0, context_window = 0;
`

// sessionViews are the views of what agents said: those that have the columns of
// an agent's own store and show what counts, and those that show all, too. joined
// is what joins the lines of a message.
func sessionViews(joined string) string {
	const from = ` FROM bindings b JOIN chat_messages m ON m.node = b.node AND m.session = b.session`
	content := `CASE WHEN m.content IS NULL THEN coalesce((SELECT ` + joined + `), '') ELSE m.content END AS content`
	message := `m.pos AS id, m.session AS session_id, m.agent AS agent_id, m.turn AS turn, m.role AS role, ` + content +
		`, m.call AS tool_call_id, m.tool AS tool_name, m.args AS tool_args, m.ts / 1000 AS created_at`
	const names = ` JOIN nodes n ON n.id = b.node JOIN runs r ON r.id = b.run`
	const checkpoint = `c.pos AS id, c.session AS session_id, c.agent AS agent_id, c.turn AS turn, c.last AS last_msg_id, c.ts / 1000 AS created_at`
	const marks = ` FROM bindings b JOIN chat_checkpoints c ON c.node = b.node AND c.session = b.session`
	return strings.Join([]string{
		`CREATE VIEW sessions AS SELECT b.session AS id, b.agent AS agent_id, b.model AS model, b.provider AS provider, b.ts / 1000 AS created_at
			FROM bindings b WHERE NOT EXISTS (SELECT 1 FROM bindings o WHERE o.session = b.session AND (o.pos < b.pos OR o.pos = b.pos AND o.node < b.node))`,
		`CREATE VIEW messages AS SELECT ` + message + from + ` WHERE m.hidden = 0`,
		`CREATE VIEW audit_messages AS SELECT ` + message + `, r.run AS run, n.node AS node, m.hidden AS rolled_back` + from + names,
		`CREATE VIEW token_usage AS SELECT u.pos AS id, u.session AS session_id, u.agent AS agent_id, u.turn AS turn,
			u.tokens_in AS input_tokens, u.tokens_out AS output_tokens, u.ts / 1000 AS created_at
			FROM bindings b JOIN usage_seen u ON u.node = b.node AND u.session = b.session`,
		`CREATE VIEW errors AS SELECT e.pos AS id, e.session AS session_id, e.agent AS agent_id, e.turn AS turn, e.context AS context,
			e.message AS message, e.attempt AS attempt, e.ts / 1000 AS created_at
			FROM bindings b JOIN chat_errors e ON e.node = b.node AND e.session = b.session
			UNION ALL SELECT t.pos, m.session, m.agent, m.turn, t.tool, t.error, 0, t.ts / 1000` + from + ` JOIN tool_calls t ON t.pos = m.pos
			WHERE t.outcome = 'error'`,
		`CREATE VIEW checkpoints AS SELECT ` + checkpoint + marks + ` WHERE c.hidden = 0`,
		`CREATE VIEW audit_checkpoints AS SELECT ` + checkpoint + `, c.kind AS kind, c.label AS label, c.sub_idx AS subturn_tool_idx,
			c.sub_call AS subturn_call_id, r.run AS run, n.node AS node, c.hidden AS rolled_back` + marks + names,
		``,
	}, ";\n")
}

func sqliteViews() string {
	return sessionViews(`group_concat(text, char(10)) FROM (SELECT l.text FROM lines l WHERE l.message = m.pos AND l.message > 0 AND l.hidden <= m.hidden ORDER BY l.pos)`)
}

func postgresViews() string {
	return sessionViews(`string_agg(l.text, chr(10) ORDER BY l.pos) FROM lines l WHERE l.message = m.pos AND l.message > 0 AND l.hidden <= m.hidden`)
}
