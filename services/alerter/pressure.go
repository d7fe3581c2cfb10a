package alerter

import (
	"cmp"
	"fmt"

	"code.wake.dev/wake/pkg/wire"
)

// pressures finds agents that fill up their context window.
type pressures struct {
	Windows map[string]int64    `json:"windows,omitempty"` // tokens, by model, as agents tell it
	Nodes   map[string]pressure `json:"nodes,omitempty"`
}

// pressure is that of one agent.
type pressure struct {
	Armed uint64 `json:"armed"` // position since which it fills up
	Told  int    `json:"told,omitempty"`
	Past  int    `json:"past,omitempty"` // turn in which the context was compacted; what it had used before says nothing
}

// detect is a [detector].
func (s pressures) detect(in input) (pressures, []finding) {
	e := in.Event
	node := e.Node()
	switch p := e.Payload.(type) {
	case *wire.TurnEnd:
		s = s.learnWindows(p.ModelUsage)
	case *wire.AgentComplete:
		s = s.learnWindows(p.ModelUsage)
	case *wire.NodeComplete, *wire.NodeError, *wire.NodeCancelled:
		s.Nodes = withoutKey(s.Nodes, node)
	case *wire.AgentStart:
		if !p.Resumed {
			s.Nodes = withKey(s.Nodes, node, pressure{Armed: in.Pos})
		}
	case *wire.Compaction:
		if p.Error == "" && e.Parent == "" {
			s.Nodes = withKey(s.Nodes, node, pressure{Armed: in.Pos, Past: e.Turn})
		}
	case *wire.Usage:
		if e.Parent == "" { // sub-agents have windows of their own, and end soon
			return s.addUsage(in, p)
		}
	}
	return s, nil
}

func (s pressures) learnWindows(usage map[string]wire.ModelUsage) pressures {
	for _, model := range sortedKeys(usage) {
		if w := usage[model].ContextWindow; w > 0 && w != s.Windows[model] {
			s.Windows = withKey(s.Windows, model, w)
		}
	}
	return s
}

// windowSize returns the size of a model's window. An assumed one that is exceeded
// is none, and then the size is 0.
func (s pressures) windowSize(l Context, p *wire.Usage) int64 {
	if p.ContextWindow > 0 {
		return p.ContextWindow
	}
	if w := s.Windows[p.Model]; w > 0 {
		return w
	}
	w := cmp.Or(max(0, l.Windows[p.Model]), l.Window)
	if p.ContextTokens > w {
		return 0
	}
	return w
}

func (s pressures) addUsage(in input, p *wire.Usage) (pressures, []finding) {
	if p.ContextWindow > 0 && p.ContextWindow != s.Windows[p.Model] {
		s.Windows = withKey(s.Windows, p.Model, p.ContextWindow)
	}
	window := s.windowSize(in.Limits.Context, p)
	if window <= 0 || p.ContextTokens <= 0 {
		return s, nil
	}
	node := in.Event.Node()
	k, ok := s.Nodes[node]
	if !ok {
		k.Armed = in.Pos
	}
	if turn := in.Event.Turn; turn > 0 && turn <= k.Past { // older logs have it behind its compaction
		return s, nil
	}
	percent := int(min(p.ContextTokens, window) * 100 / window)
	level, hit := highestReached(in.Limits.Context.Percent, percent)
	if !hit || level <= k.Told {
		s.Nodes = withKey(s.Nodes, node, k)
		return s, nil
	}
	k.Told = level
	s.Nodes = withKey(s.Nodes, node, k)
	severity := wire.SeverityInfo
	if level >= 75 {
		severity = wire.SeverityWarning
	}
	data := map[string]any{"percent": percent, "threshold": level, "tokens": p.ContextTokens, "window": window}
	f := in.finding(kindContext, severity, fmt.Sprintf(textContext, percent), data)
	f.Armed, f.Level = k.Armed, fmt.Sprint(level)
	return s, []finding{f}
}
