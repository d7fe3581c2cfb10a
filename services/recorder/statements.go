package recorder

import (
	"context"
	"database/sql"
	"errors"
	"slices"
)

// statement is one that recording repeats.
type statement int

const (
	addTail statement = iota
	addSegment
	lastSegment
	sealedTail
	dropTail
	moveOn
	findRun
	addRun
	putRun
	putState
	findNode
	addNode
	putNode
	addLine
	extendLine
	replaceLine
	hideLines
	addLabel
	addSession
	addBlob
	addUse
	addParent
	countLate
	putFold
	addFrame
	openLine
	closeLines
	addCall
	addSeen
	addMessage
	growMessage
	hideMessages
	lastMessage
	addError
	addCheckpoint
	hideCheckpoints
	addSpend
	sumSpend
	statementCount
)

// statementText returns the text of a statement.
func statementText(s statement) string {
	return [statementCount]string{
		addTail: `INSERT INTO tail (pos, run, time, mark, note, hash, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)`,
		addSegment: `INSERT INTO segments (run, n, first_pos, last_pos, first_time, last_time, events, prev, hash, codec, data)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)`,
		lastSegment: `SELECT hash FROM segments WHERE run = ?1 AND n = ?2`,
		sealedTail:  `SELECT pos, time, mark, note, hash, data FROM tail WHERE run = ?1 ORDER BY pos`,
		dropTail:    `DELETE FROM tail WHERE run = ?1`,
		moveOn:      `UPDATE streams SET position = ?1, derived = ?2, bad = bad + ?3, lost = lost + ?4 WHERE id = ?5`,
		findRun: `SELECT id, activity, activity_at, events, void, refused, gaps, lines, last_at, last_pos, head, segments, tail_events, tail_bytes,
			EXISTS (SELECT 1 FROM retired WHERE retired.run = runs.run) FROM runs WHERE run = ?1`,
		addRun: `INSERT INTO runs (run, first_pos) VALUES (?1, ?2) RETURNING id`,
		putRun: `UPDATE runs SET activity = ?1, activity_at = ?2, events = ?3, void = ?4, refused = ?5, gaps = ?6, lines = ?7, last_at = ?8, last_pos = ?9,
			head = ?10, segments = ?11, tail_events = ?12, tail_bytes = ?13 WHERE id = ?14`,
		putState: `UPDATE runs SET flow = ?1, status = ?2, result = ?3, reason = ?4, error = ?5, parent = ?6, imported = ?7,
			started_at = ?8, ended_at = ?9, cost_usd = ?10, tokens_in = ?11, tokens_out = ?12, tools = ?13, tool_errors = ?14 WHERE id = ?15`,
		findNode: `SELECT id, epoch, seq, model, cwd, activity, activity_at, tokens_in, tokens_out, tools, tool_errors,
			context_tokens, context_window, timeline, talk FROM nodes WHERE run = ?1 AND node = ?2`,
		addNode: `INSERT INTO nodes (run, node, timeline) VALUES (?1, ?2, ?3) RETURNING id`,
		putNode: `UPDATE nodes SET epoch = ?1, seq = ?2, model = ?3, cwd = ?4, activity = ?5, activity_at = ?6, tokens_in = ?7, tokens_out = ?8,
			tools = ?9, tool_errors = ?10, context_tokens = ?11, context_window = ?12, timeline = ?13, talk = ?14 WHERE id = ?15`,
		addLine: `INSERT INTO lines (pos, run, node, writer, seq, exec, parent, ts, type, text, message)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)`,
		extendLine:  `UPDATE lines SET text = text || ?1 WHERE pos = ?2`,
		replaceLine: `UPDATE lines SET text = ?1 WHERE pos = ?2`,
		hideLines:   `UPDATE lines SET hidden = 1 WHERE run = ?1 AND hidden = 0 AND writer = ?2 AND seq > ?3`,
		addLabel:    `INSERT INTO labels (run, key, value) VALUES (?1, ?2, ?3) ON CONFLICT (run, key) DO UPDATE SET value = excluded.value`,
		addSession: `INSERT INTO bindings (session, run, node, exec, pos, agent, model, provider, ts) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
			ON CONFLICT (session, run, node) DO UPDATE SET model = CASE excluded.model WHEN '' THEN bindings.model ELSE excluded.model END,
			provider = CASE bindings.provider WHEN '' THEN excluded.provider ELSE bindings.provider END`,
		addBlob: `INSERT INTO blobs (sha256, size, data) VALUES (?1, ?2, ?3)
			ON CONFLICT (sha256) DO UPDATE SET data = coalesce(blobs.data, excluded.data)`,
		addUse:     `INSERT INTO blob_uses (sha256, run) VALUES (?1, ?2) ON CONFLICT DO NOTHING`,
		addParent:  `INSERT INTO lineage (run, ancestor) VALUES (?1, ?2) ON CONFLICT DO NOTHING`,
		countLate:  `UPDATE retired SET events = events + ?1 WHERE run = ?2 RETURNING events`,
		addFrame:   `INSERT INTO keyframes (run, pos, data) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING`,
		openLine:   `INSERT INTO lines_open (pos, writer) VALUES (?1, ?2)`,
		closeLines: `DELETE FROM lines_open WHERE writer = ?1 AND pos <> ?2`,
		addCall: `INSERT INTO tool_calls (pos, run, node, exec, call, tool, ts, duration_ms, outcome, error)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)`,
		addSeen: `INSERT INTO usage_seen (node, message, run, pos, session, agent, turn, model, tokens_in, tokens_out, ts)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) ON CONFLICT DO NOTHING`,
		addMessage: `INSERT INTO chat_messages (pos, run, node, seq, session, agent, turn, role, content, call, tool, args, ts)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)`,
		growMessage: `UPDATE chat_messages SET content = coalesce(CAST(?1 AS TEXT), content), args = CASE WHEN CAST(?2 AS TEXT) = '' THEN args
			WHEN args IS NULL THEN '[' || CAST(?2 AS TEXT) || ']' ELSE substr(args, 1, length(args) - 1) || ',' || CAST(?2 AS TEXT) || ']' END WHERE pos = ?3`,
		hideMessages: `UPDATE chat_messages SET hidden = 1 WHERE node = ?1 AND seq > ?2 AND hidden = 0`,
		lastMessage:  `SELECT coalesce(max(pos), 0) FROM chat_messages WHERE node = ?1 AND session = ?2 AND hidden = 0`,
		addError: `INSERT INTO chat_errors (pos, run, node, session, agent, turn, context, type, message, attempt, ts)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)`,
		addCheckpoint: `INSERT INTO chat_checkpoints (pos, run, node, seq, session, agent, turn, last, kind, label, sub_idx, sub_call, ts)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)`,
		hideCheckpoints: `UPDATE chat_checkpoints SET hidden = 1 WHERE node = ?1 AND seq > ?2 AND hidden = 0`,
		addSpend: `INSERT INTO spend (run, node, day, model, calls, tokens_in, tokens_out, cost_usd) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
			ON CONFLICT (node, day, model) DO UPDATE SET calls = spend.calls + excluded.calls, tokens_in = spend.tokens_in + excluded.tokens_in,
			tokens_out = spend.tokens_out + excluded.tokens_out, cost_usd = spend.cost_usd + excluded.cost_usd`,
		sumSpend: `SELECT coalesce(sum(cost_usd), 0) FROM spend WHERE node = ?1`,
		putFold:  `INSERT INTO folds (run, pos, data) VALUES (?1, ?2, ?3) ON CONFLICT (run) DO UPDATE SET pos = excluded.pos, data = excluded.data`,
	}[s]
}

// statements are prepared on the connection that writes.
type statements struct {
	one  [statementCount]*sql.Stmt
	many [statementCount]*sql.Stmt // of those that are bulky
}

func prepare(ctx context.Context, d *dialect, db *sql.DB) (*statements, error) {
	all := new(statements)
	for s := range statementCount {
		if (s == openLine || s == closeLines) && !d.find.lags {
			continue // there is no such table
		}
		var err error
		if all.one[s], err = db.PrepareContext(ctx, d.bind(statementText(s))); err != nil {
			return nil, errors.Join(err, all.close())
		}
	}
	for _, s := range bulky() {
		var err error
		if all.many[s], err = db.PrepareContext(ctx, d.bind(manyRows(statementText(s), d.inserts))); err != nil {
			return nil, errors.Join(err, all.close())
		}
	}
	return all, nil
}

func (s *statements) close() error {
	var err error
	for _, stmt := range slices.Concat(s.one[:], s.many[:]) {
		if stmt != nil {
			err = errors.Join(err, stmt.Close())
		}
	}
	return err
}

// stmt returns a statement as it is in the transaction.
func (w *writer) stmt(s statement) (*sql.Stmt, error) {
	if w.stmts[s] != nil {
		return w.stmts[s], nil
	}
	if w.s.stmts != nil {
		w.stmts[s] = w.tx.StmtContext(w.ctx, w.s.stmts.one[s])
		return w.stmts[s], nil
	}
	var err error // while the file is being brought to the current schema
	w.stmts[s], err = w.tx.PrepareContext(w.ctx, w.tx.d.bind(statementText(s)))
	return w.stmts[s], err
}

// exec runs a statement.
func (w *writer) exec(s statement, args ...any) error {
	stmt, err := w.stmt(s)
	if err != nil {
		return err
	}
	_, err = stmt.ExecContext(w.ctx, args...)
	return err
}

// scan runs a statement that returns one row.
func (w *writer) scan(s statement, args []any, into ...any) error {
	stmt, err := w.stmt(s)
	if err != nil {
		return err
	}
	return stmt.QueryRowContext(w.ctx, args...).Scan(into...)
}
