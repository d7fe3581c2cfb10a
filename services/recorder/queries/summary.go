package queries

import (
	"context"
	"database/sql"
	"errors"

	"code.wake.dev/wake/internal/summary"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// maxLastWords bounds the last words in characters.
const maxLastWords = 1000

// summarizeRun answers a request for a summary.
func (l *logQuery) summarizeRun(ctx context.Context, t *archive.Tx, of request.Target, r *wire.LogResponse, now int64) error {
	var b summary.Builder
	last := r.Position
	for e, err := range t.Events(ctx, of.ID, 1, last) {
		if err != nil {
			return err
		}
		if k := e.Kind(); e.Mark != "" || e.Time < l.since || k == wire.KindText || k == wire.KindDelta {
			continue
		}
		event, err := wire.Decode(e.Data)
		if err != nil {
			return err
		}
		if !of.Has(event.Node()) {
			continue
		}
		if event, err = archive.Inline(event, e.Data, func(sha string) ([]byte, error) { return t.Blob(ctx, sha) }); err != nil {
			return err
		}
		b.Add(event)
	}
	s := b.Summary()
	if err := l.lastWords(ctx, t, &s); err != nil {
		return err
	}
	st, err := readStatus(ctx, t, wire.StatusRequest{Run: of.Run, Node: of.Node}, now, stateOf)
	if err != nil {
		return err
	}
	a := st.AgentStatus
	if of.Node != "" && len(st.Agents) == 1 {
		a = st.Agents[0]
	}
	s.CostBasis = a.CostBasis
	s.State, s.CostUsd, s.TokensIn, s.TokensOut, s.ToolsUsed, s.ToolErrors = a.State, a.CostUsd, a.TokensIn, a.TokensOut, a.ToolsUsed, a.ToolErrors
	s.Text = summary.Text(s)
	r.Summary = &s
	return nil
}

// lastWords finds what was last said, as the filters allow.
func (l *logQuery) lastWords(ctx context.Context, t *archive.Tx, s *wire.LogSummary) error {
	var text string
	err := t.Row(ctx, `SELECT text FROM lines WHERE `+l.where+` AND type = 'text' ORDER BY pos DESC LIMIT 1`, l.args...).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	words := []rune(timeline.Sanitize(text))
	if len(words) > maxLastWords {
		words = append([]rune("…"), words[len(words)-maxLastWords+1:]...)
	}
	s.LastWords = string(words)
	return err
}
