package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// statement is one that recording repeats.
type statement int

const (
	addTail statement = iota
	addSegment
	lastSegment
	dropTail
	moveOn
	findStream
	findRun
	addRun
	putRun
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
	isRetired
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
	isBound
	lastMessage
	addError
	addCheckpoint
	hideCheckpoints
	addSpend
	statementCount
)

// statementTexts returns the texts of the statements.
func statementTexts(tables table.Tables) [statementCount]string {
	insert := func(name string) string { return tables.Named(name).Insert() }
	find := func(name string) string { return "SELECT " + tables.Named(name).List() + " FROM " + name }
	return [statementCount]string{
		addTail:     insert("tail"),
		addSegment:  insert("segments"),
		lastSegment: `SELECT hash FROM segments WHERE run = ?1 AND n = ?2`,
		dropTail:    `DELETE FROM tail WHERE run = ?1`,
		moveOn:      `UPDATE streams SET position = ?1, derived = ?2, bad = bad + ?3, lost = lost + ?4 WHERE id = ?5`,
		findStream:  `SELECT id, incarnation, position, derived FROM streams`,
		findRun:     "SELECT " + tables.Named("runs").List() + `, EXISTS (SELECT 1 FROM retired WHERE retired.run = runs.run) FROM runs WHERE run = ?1`,
		addRun:      insert("runs"),
		putRun:      tables.Named("runs").Update(),
		findNode:    find("nodes") + ` WHERE run = ?1 AND node = ?2`,
		addNode:     insert("nodes"),
		putNode:     tables.Named("nodes").Update(),
		addLine:     insert("lines"),
		extendLine:  `UPDATE lines SET text = text || ?1 WHERE pos = ?2`,
		replaceLine: `UPDATE lines SET text = ?1 WHERE pos = ?2`,
		// From the end of the run back to the last line that stays: what is before it is never looked at.
		hideLines: `UPDATE lines SET hidden = 1 WHERE run = ?1 AND hidden = 0 AND writer = ?2 AND seq > ?3 AND pos > coalesce((
			SELECT pos FROM lines WHERE run = ?1 AND hidden = 0 AND writer = ?2 AND seq <= ?3 ORDER BY pos DESC LIMIT 1), 0)`,
		addLabel: insert("labels") + ` ON CONFLICT (run, key) DO UPDATE SET value = excluded.value`,
		addSession: insert("bindings") + ` ON CONFLICT (session, run, node) DO UPDATE SET
			model = CASE excluded.model WHEN '' THEN bindings.model ELSE excluded.model END,
			provider = CASE bindings.provider WHEN '' THEN excluded.provider ELSE bindings.provider END`,
		addBlob:    insert("blobs") + ` ON CONFLICT (sha256) DO UPDATE SET data = coalesce(blobs.data, excluded.data)`,
		addUse:     insert("blob_uses") + ` ON CONFLICT DO NOTHING`,
		addParent:  insert("lineage") + ` ON CONFLICT DO NOTHING`,
		isRetired:  `SELECT EXISTS (SELECT 1 FROM retired WHERE run = ?1)`,
		countLate:  `UPDATE retired SET events = events + ?1 WHERE run = ?2`,
		addFrame:   insert("keyframes") + ` ON CONFLICT DO NOTHING`,
		openLine:   insert("lines_open"),
		closeLines: `DELETE FROM lines_open WHERE writer = ?1 AND pos <> ?2`,
		addCall:    insert("tool_calls"),
		addSeen:    insert("usage_seen") + ` ON CONFLICT DO NOTHING`,
		addMessage: insert("chat_messages"),
		growMessage: `UPDATE chat_messages SET content = coalesce(CAST(?1 AS TEXT), content), args = CASE WHEN CAST(?2 AS TEXT) = '' THEN args
			WHEN args IS NULL THEN '[' || CAST(?2 AS TEXT) || ']' ELSE substr(args, 1, length(args) - 1) || ',' || CAST(?2 AS TEXT) || ']' END WHERE pos = ?3`,
		hideMessages:    `UPDATE chat_messages SET hidden = 1 WHERE node = ?1 AND seq > ?2 AND hidden = 0`,
		isBound:         `SELECT EXISTS (SELECT 1 FROM bindings WHERE session = ?1 AND run = ?2 AND node = ?3)`,
		lastMessage:     `SELECT coalesce((SELECT pos FROM chat_messages WHERE node = ?1 AND session = ?2 AND hidden = 0 ORDER BY seq DESC, pos DESC LIMIT 1), 0)`,
		addError:        insert("chat_errors"),
		addCheckpoint:   insert("chat_checkpoints"),
		hideCheckpoints: `UPDATE chat_checkpoints SET hidden = 1 WHERE node = ?1 AND seq > ?2 AND hidden = 0`,
		addSpend: insert("spend") + ` ON CONFLICT (node, day, model) DO UPDATE SET calls = spend.calls + excluded.calls,
			tokens_in = ` + boundedSum("tokens_in") + `, tokens_out = ` + boundedSum("tokens_out") + `, cost_usd = spend.cost_usd + excluded.cost_usd,
			computed_usd = spend.computed_usd + excluded.computed_usd, unpriced = spend.unpriced + excluded.unpriced`,
		putFold: insert("folds") + ` ON CONFLICT (run) DO UPDATE SET pos = excluded.pos, data = excluded.data`,
	}
}

// statements are prepared on the connection that writes.
type statements struct {
	one  [statementCount]*sql.Stmt
	many [statementCount]*sql.Stmt // of those that are bulky
}

func prepareStatements(ctx context.Context, d *database.Dialect, db *sql.DB) (*statements, error) {
	all, texts := new(statements), statementTexts(table.All())
	bulky := bulkStatements()
	for s := range statementCount {
		if (s == openLine || s == closeLines) && !d.Lags {
			continue // there is no such table
		}
		var err error
		if all.one[s], err = db.PrepareContext(ctx, d.Bind(texts[s])); err == nil && slices.Contains(bulky, s) {
			all.many[s], err = db.PrepareContext(ctx, d.Bind(manyRows(texts[s], d.Inserts)))
		}
		if err != nil {
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

// bulkRows is how many rows one statement inserts where there are as many:
// calling the database costs as much as inserting a few rows.
const bulkRows = 32

// bulkStatements are the statements that insert many rows together.
func bulkStatements() []statement {
	return []statement{addTail, addLine, addCall, addSeen, addMessage, addCheckpoint}
}

// manyRows returns the statement that inserts bulkRows rows, made of one that inserts
// a row with the values ?1, ?2, … in this order. insert is how it begins.
func manyRows(one, insert string) string {
	head, row, _ := strings.Cut(one, "VALUES ")
	end := strings.LastIndexByte(row, ')') + 1
	row, rest := row[:end], row[end:]
	columns := strings.Count(row, "?")
	number := regexp.MustCompile(`\?\d+`)
	rows := make([]string, bulkRows)
	for i := range rows {
		n := i * columns
		rows[i] = number.ReplaceAllStringFunc(row, func(string) string {
			n++
			return fmt.Sprintf("?%d", n)
		})
	}
	return strings.Replace(head, "INSERT", insert, 1) + "VALUES " + strings.Join(rows, ", ") + rest
}

// boundedSum adds a number of tokens to that of a row of spend; see [boundTokens].
func boundedSum(column string) string {
	most, sum := strconv.Itoa(ledger.MaxTokens), "spend."+column+" + excluded."+column
	return "CASE WHEN " + sum + " > " + most + " THEN " + most + " WHEN " + sum + " < -" + most + " THEN -" + most + " ELSE " + sum + " END"
}
