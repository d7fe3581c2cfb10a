package database

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"code.wake.dev/wake/services/recorder/internal/table"
)

// baseline is the version of the first schema that is released. Only the developers
// ever had stores of lower ones.
const baseline = 19

// upgrades lead from one released version to the next, the first of them from
// baseline, in SQLite and in PostgreSQL. A step is never changed once it is
// released; the declarations of the tables are what it leads to.
func upgrades() []map[string]string {
	return []map[string]string{
		{
			table.SQLite: `CREATE TABLE remains (
	kind TEXT NOT NULL,
	name TEXT NOT NULL,
	run TEXT NOT NULL,
	at INTEGER NOT NULL,
	dropped INTEGER NOT NULL,
	PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX remains_dropped ON remains (dropped, at);
`,
			table.Postgres: `CREATE TABLE remains (
	kind TEXT NOT NULL,
	name TEXT COLLATE "C" NOT NULL,
	run TEXT NOT NULL,
	at BIGINT NOT NULL,
	dropped BIGINT NOT NULL,
	PRIMARY KEY (kind, name)
);
CREATE INDEX remains_dropped ON remains (dropped, at);
`,
		},
	}
}

// schemaVersion is that of the tables as they are declared.
func schemaVersion() int { return baseline + len(upgrades()) }

// ErrNewer is returned for a store that a newer wake has written.
var ErrNewer = errors.New("it was written by a newer wake: use that one, or another store")

// ErrUnreleased is returned for a store that was written by a wake from before the
// first release.
var ErrUnreleased = errors.New("it was written by a wake from before the first release, and can't be brought to this schema: " +
	"move it away, or name another one, and start again: the stream is recorded into a new one; what the stream has dropped since, only that wake can read and export")

// ErrForeign is returned for a file or a database that isn't a recorder's.
var ErrForeign = errors.New("it is not a recorder's: choose another one")

// ErrOlder is returned for a store that has to be brought to the current schema
// before it can be read.
var ErrOlder = errors.New("it has no tables, or was written by an older wake: start the recorder once, or open a copy of it for writing")

// migrateSchema makes the tables of an empty database, or brings those of an older one to
// the current schema, in one transaction.
func (s *DB) migrateSchema(ctx context.Context) error {
	t, err := s.Begin(ctx)
	if err != nil {
		return foreignError(err)
	}
	defer t.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	if s.D.migrating != "" {
		if _, err := t.Do(ctx, s.D.migrating); err != nil {
			return err
		}
	}
	version, err := s.storedVersion(ctx, t)
	if err != nil {
		return err
	}
	for _, text := range s.missingSteps(version) {
		if _, err := t.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return t.Commit()
}

// missingSteps are the statements that lead from a version to the current one.
func (s *DB) missingSteps(version int) (texts []string) {
	switch version {
	case schemaVersion():
		return nil
	case 0:
		texts = []string{s.D.Tables.Create(s.D.Name) + s.D.extras}
	default:
		for _, step := range upgrades()[version-baseline:] {
			texts = append(texts, step[s.D.Name])
		}
	}
	return append(texts, s.D.mark(schemaVersion()))
}

// storedVersion returns the store's version of the schema, 0 of an empty one.
func (s *DB) storedVersion(ctx context.Context, t *Tx) (int, error) {
	version, err := s.D.version(ctx, t)
	switch {
	case err != nil:
		return 0, err
	case version > schemaVersion():
		return 0, fmt.Errorf("%w (its schema is %d, this one knows up to %d)", ErrNewer, version, schemaVersion())
	case version > 0 && version < baseline:
		return 0, fmt.Errorf("%w (its schema is %d, the first that was released is %d)", ErrUnreleased, version, baseline)
	}
	return version, nil
}

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
