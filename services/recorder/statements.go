package recorder

import (
	"context"
	"database/sql"
	"errors"
)

// statements are those that recording repeats, prepared on its connection.
type statements struct {
	addEvent, moveOn                            *sql.Stmt
	findRun, addRun, putRun, putState           *sql.Stmt
	findNode, addNode, putNode                  *sql.Stmt
	addLine, extendLine, replaceLine, hideLines *sql.Stmt
	addLabel, addSession                        *sql.Stmt
	addBlob                                     *sql.Stmt
	putFold                                     *sql.Stmt
	all                                         []*sql.Stmt
}

func prepare(ctx context.Context, db *sql.DB) (*statements, error) {
	s := new(statements)
	for _, p := range []struct {
		stmt **sql.Stmt
		text string
	}{
		{&s.addEvent, `INSERT INTO events (stream, pos, time, run, node, seq, epoch, kind, type, mark, note, data)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`},
		{&s.moveOn, `UPDATE streams SET position = ?, bad = bad + ?, lost = lost + ? WHERE id = ?`},
		{&s.findRun, `SELECT id, activity, activity_at, events, void, refused, gaps, last_at, last_pos FROM runs WHERE run = ?`},
		{&s.addRun, `INSERT INTO runs (run, first_pos) VALUES (?, ?) RETURNING id`},
		{&s.putRun, `UPDATE runs SET activity = ?, activity_at = ?, events = ?, void = ?, refused = ?, gaps = ?, last_at = ?, last_pos = ? WHERE id = ?`},
		{&s.putState, `UPDATE runs SET flow = ?, status = ?, result = ?, reason = ?, error = ?, parent = ?, imported = ?,
			started_at = ?, ended_at = ?, cost_usd = ?, tokens_in = ?, tokens_out = ?, tools = ?, tool_errors = ? WHERE id = ?`},
		{&s.findNode, `SELECT id, epoch, seq, model, cwd, activity, activity_at, tokens_in, tokens_out, tools, tool_errors,
			context_tokens, context_window, timeline FROM nodes WHERE run = ? AND node = ?`},
		{&s.addNode, `INSERT INTO nodes (run, node, timeline) VALUES (?, ?, x'80') RETURNING id`},
		{&s.putNode, `UPDATE nodes SET epoch = ?, seq = ?, model = ?, cwd = ?, activity = ?, activity_at = ?, tokens_in = ?, tokens_out = ?,
			tools = ?, tool_errors = ?, context_tokens = ?, context_window = ?, timeline = ? WHERE id = ?`},
		{&s.addLine, `INSERT INTO lines (pos, run, node, writer, seq, exec, parent, ts, type, text) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`},
		{&s.extendLine, `UPDATE lines SET text = text || ? WHERE pos = ?`},
		{&s.replaceLine, `UPDATE lines SET text = ? WHERE pos = ?`},
		{&s.hideLines, `UPDATE lines SET hidden = 1 WHERE writer = ? AND seq > ?`},
		{&s.addLabel, `INSERT OR REPLACE INTO labels (run, key, value) VALUES (?, ?, ?)`},
		{&s.addSession, `INSERT OR IGNORE INTO bindings (session, run, node, exec, pos) VALUES (?, ?, ?, ?, ?)`},
		{&s.addBlob, `INSERT INTO blobs (sha256, size, data) VALUES (?, ?, ?)
			ON CONFLICT (sha256) DO UPDATE SET data = coalesce(data, excluded.data)`},
		{&s.putFold, `INSERT OR REPLACE INTO folds (run, pos, data) VALUES (?, ?, ?)`},
	} {
		stmt, err := db.PrepareContext(ctx, p.text)
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		*p.stmt = stmt
		s.all = append(s.all, stmt)
	}
	return s, nil
}

func (s *statements) close() error {
	var err error
	for _, stmt := range s.all {
		err = errors.Join(err, stmt.Close())
	}
	return err
}
