package flow

import (
	"errors"
	"fmt"
	"maps"
	"math"

	"code.wake.dev/wake/pkg/wire"
)

// Verdict is what the goal and the score of a node say of its last execution.
type Verdict struct {
	Met   bool     // the goal holds, or there is none
	Score *float64 // from 0 to 1; nil: the node has none
}

// errScore is the error of a score that is none.
var errScore = errors.New("score: must be a number from 0 to 1")

// Judge evaluates the goal and the score of a node, or of an item of a forEach,
// after its execution has ended at state s; in both, the node's id stands for the
// item's own output. now is Unix ms. A goal that can't be evaluated isn't met, and
// a score that is no number from 0 to 1 is none: the error says why.
func (d *Definition) Judge(s *wire.State, node string, now int64) (Verdict, error) {
	v := d.graph.vertexOf(node)
	if v == nil || v.goal.src == "" && v.score.src == "" {
		return Verdict{Met: true}, nil
	}
	p := &planner{d: d, s: s, now: now, cache: map[*byte]any{}}
	var it *item
	if n := s.Nodes[node]; node != v.ID && n.Index != nil {
		own := *s
		own.Outputs = maps.Clone(s.Outputs)
		own.Outputs[v.ID] = s.Outputs[node]
		p.s = &own
		it = &item{name: v.itemName(s), index: *n.Index, count: n.Count, value: n.Item}
	}
	sc := p.scopeOf(v, it)
	met, goalErr := true, error(nil)
	if v.goal.src != "" {
		if met, goalErr = (condition{op: "expr", expr: v.goal}).isTrue(sc); goalErr != nil {
			met, goalErr = false, fmt.Errorf("goal: %w", goalErr)
		}
	}
	score, scoreErr := v.evalScore(sc)
	return Verdict{Met: met, Score: score}, errors.Join(goalErr, scoreErr)
}

func (v *vertex) evalScore(sc *scope) (*float64, error) {
	if v.score.src == "" {
		return nil, nil
	}
	value, err := v.score.eval(sc)
	if err != nil {
		return nil, fmt.Errorf("score: %w", err)
	}
	var score float64
	switch x := value.Any().(type) {
	case int64:
		score = float64(x)
	case uint64:
		score = float64(x)
	case float64:
		score = x
	default:
		return nil, errScore
	}
	if math.IsNaN(score) || score < 0 || score > 1 {
		return nil, fmt.Errorf("%w, not %v", errScore, score)
	}
	return &score, nil
}
