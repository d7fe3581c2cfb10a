package queries

import (
	"context"
	"database/sql"
	"sync"

	"code.wake.dev/wake/services/recorder/archive"
)

// Bounds of the calls that are held. Agents choose the names of tools.
const (
	maxCalls     = 1_000_000
	maxToolNames = 16 << 20 // bytes
)

// calls are the finished calls of all runs, as far as stats asked for them: what is derived later comes behind them, and those of a run
// that is derived anew, or removed, drop them. The zero value holds none.
type calls struct {
	mu    sync.Mutex
	drops int    // so often all were dropped
	to    uint64 // position up to which all are there
	list  []heldCall
	tools nameTable
}

// heldCall is a call that has ended.
type heldCall struct {
	pos     uint64
	ts      int64
	run     int64
	took    int64 // ms; -1: unknown
	tool    int32
	outcome callOutcome
}

// callOutcome is what has come of a call.
type callOutcome uint8

const (
	callDone callOutcome = iota
	callFailed
	callDenied
)

func outcomeOf(name []byte) callOutcome {
	switch string(name) {
	case "error":
		return callFailed
	case "denied":
		return callDenied
	}
	return callDone
}

// dropped returns how often all were dropped: a view that is older than the last time may have what was dropped.
func (c *calls) dropped() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drops
}

// upTo returns the calls as of a view, in the order of the log, and their tools; false: there are too many, or they were dropped
// since it was known how often.
func (c *calls) upTo(ctx context.Context, t *archive.Tx, drops int) (list []heldCall, tools []string, ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.drops != drops {
		return nil, nil, false, nil
	}
	var derived uint64
	if err := t.Row(ctx, `SELECT coalesce((SELECT derived FROM streams), 0)`).Scan(&derived); err != nil {
		return nil, nil, false, err
	}
	if derived > c.to {
		if ok, err = c.readTo(ctx, t, derived); err != nil || !ok {
			return nil, nil, ok, err
		}
	}
	list = c.list
	for n := len(list); n > 0 && list[n-1].pos > derived; n-- { // another question has a later view
		list = list[:n-1]
	}
	return list, c.tools.all, true, nil
}

// readTo reads the calls behind those that are held.
func (c *calls) readTo(ctx context.Context, t *archive.Tx, to uint64) (ok bool, err error) {
	var n int
	if err := t.Row(ctx, `SELECT count(*) FROM (SELECT 1 FROM tool_calls WHERE pos > ?1 AND pos <= ?2 LIMIT ?3) AS some_calls`, c.to, to, maxCalls).Scan(&n); err != nil {
		return false, err
	}
	if len(c.list)+n >= maxCalls {
		c.to, c.list, c.tools = 0, nil, nameTable{}
		return false, nil
	}
	var h heldCall
	var tool, outcome sql.RawBytes
	before := len(c.list)
	text := `SELECT pos, ts, run, coalesce(duration_ms, -1), tool, outcome FROM tool_calls WHERE pos > ?1 AND pos <= ?2 ORDER BY pos`
	for err := range t.Each(ctx, text, []any{c.to, to}, &h.pos, &h.ts, &h.run, &h.took, &tool, &outcome) {
		if err != nil {
			c.list = c.list[:before]
			return false, err
		}
		h.tool, h.outcome = c.tools.numberOf(tool), outcomeOf(outcome)
		c.list = append(c.list, h)
	}
	if c.tools.bytes > maxToolNames {
		c.to, c.list, c.tools = 0, nil, nameTable{}
		return false, nil
	}
	c.to = to
	return true, nil
}

// drop drops all.
func (c *calls) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drops++
	c.to, c.list, c.tools = 0, nil, nameTable{}
}
