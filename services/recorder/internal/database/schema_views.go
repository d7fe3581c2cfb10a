package database

import "strings"

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
