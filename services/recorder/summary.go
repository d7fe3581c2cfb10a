package recorder

import (
	"context"
	"database/sql"
	"errors"

	"wake/internal/summary"
	"wake/internal/timeline"
	"wake/pkg/wire"
)

// maxLastWords bounds the last words in characters.
const maxLastWords = 1000

// summarize answers a request for a summary.
func (l *logQuery) summarize(ctx context.Context, t *tx, of target, r *wire.LogResponse, now int64) error {
	var b summary.Builder
	last := r.Position
	for e, err := range t.events(ctx, of.id, 1, last) {
		if err != nil {
			return err
		}
		if k := e.kind(); e.mark != "" || e.time < l.since || k == wire.KindText || k == wire.KindDelta {
			continue
		}
		event, err := wire.Decode(e.data)
		if err != nil {
			return err
		}
		if !of.has(event.Node()) {
			continue
		}
		if event, err = inline(event, e.data, func(sha string) ([]byte, error) { return findBlob(ctx, t, sha) }); err != nil {
			return err
		}
		b.Add(event)
	}
	s := b.Summary()
	if err := l.lastWords(ctx, t, &s); err != nil {
		return err
	}
	st, err := status(ctx, t, wire.StatusRequest{Run: of.run, Node: of.node}, now, stateOf)
	if err != nil {
		return err
	}
	a := st.AgentStatus
	if of.node != "" && len(st.Agents) == 1 {
		a = st.Agents[0]
	}
	s.State, s.CostUsd, s.TokensIn, s.TokensOut, s.ToolsUsed, s.ToolErrors = a.State, a.CostUsd, a.TokensIn, a.TokensOut, a.ToolsUsed, a.ToolErrors
	s.Text = summary.Text(s)
	r.Summary = &s
	return nil
}

// has reports whether a node is what the question is about.
func (t target) has(node string) bool {
	return t.node == "" || node == t.node || len(node) > len(t.node) && node[:len(t.node)+1] == t.node+"/"
}

// lastWords finds what was last said, as the filters allow.
func (l *logQuery) lastWords(ctx context.Context, t *tx, s *wire.LogSummary) error {
	var text string
	err := t.row(ctx, `SELECT text FROM lines WHERE `+l.where+` AND type = 'text' ORDER BY pos DESC LIMIT 1`, l.args...).Scan(&text)
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
