package alerter

import (
	"fmt"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// loops finds agents with tools that fail again and again.
type loops struct {
	Agents map[string]streak `json:"agents,omitempty"` // by agent
}

// streak is a row of failed calls without a success between them.
type streak struct {
	Count int    `json:"count,omitempty"`
	First uint64 `json:"first,omitempty"` // position of the first failure
	Tool  string `json:"tool,omitempty"`  // of all failures; "" once they differ
	Batch string `json:"batch,omitempty"` // of the last failure that was counted
	// Open holds the batches of calls that have no result yet.
	Open map[string]string `json:"open,omitempty"`
}

// maxOpen bounds the calls that are remembered. An agent that opens more has no
// batches, and its siblings count one by one.
const maxOpen = 200

// detect is a [detector].
func (s loops) detect(in input) (loops, []finding) {
	e := in.Event
	switch p := e.Payload.(type) {
	case *wire.AgentStart:
		if !p.Resumed {
			s.Agents = withoutNode(s.Agents, e.Node())
		}
	case *wire.ToolIntent:
		if p.Batch != "" {
			s.Agents = withKey(s.Agents, agentOf(e), s.Agents[agentOf(e)].noteOpenCall(e.CallID, p.Batch))
		}
	case *wire.ToolSealed:
		if k, ok := s.Agents[agentOf(e)]; ok {
			k.Open = withoutKey(k.Open, e.CallID)
			s.Agents = withKey(s.Agents, agentOf(e), k)
		}
	case *wire.AgentTool:
		return s.addCall(in, p)
	case *wire.NodeComplete, *wire.NodeError:
		s.Agents = withoutNode(s.Agents, e.Node())
	}
	return s, nil
}

func (k streak) noteOpenCall(call, batch string) streak {
	if len(k.Open) >= maxOpen {
		k.Open = nil
	}
	k.Open = withKey(k.Open, call, batch)
	return k
}

// addCall counts a result. The calls of one message count once, and what a rule or
// a human refused doesn't count. The end of a call that started a sub-agent is
// the end of that.
func (s loops) addCall(in input, p *wire.AgentTool) (loops, []finding) {
	e, agent := in.Event, agentOf(in.Event)
	if e.CallID != "" {
		s.Agents = withoutKey(s.Agents, e.Node()+"\n"+e.CallID)
	}
	k := s.Agents[agent]
	batch := k.Open[e.CallID]
	k.Open = withoutKey(k.Open, e.CallID)
	switch {
	case !hasOutcome(p), p.ToolName == unknownTool: // says nothing about a tool
	case p.Error == "":
		k = streak{Open: k.Open}
	case batch != "" && batch == k.Batch:
		k.Tool = commonTool(k.Tool, p.ToolName)
	default:
		k = k.addFailure(in.Pos, p.ToolName, batch)
		if k.Count == in.Limits.Loop.Failures {
			s.Agents = withKey(s.Agents, agent, k)
			return s, []finding{k.finding(in, p)}
		}
	}
	s.Agents = withKey(s.Agents, agent, k)
	return s, nil
}

func (k streak) addFailure(pos uint64, tool, batch string) streak {
	if k.Count == 0 {
		k.First, k.Tool = pos, tool
	}
	k.Count++
	k.Tool, k.Batch = commonTool(k.Tool, tool), batch
	return k
}

func commonTool(a, b string) string {
	if a == b {
		return a
	}
	return ""
}

func (k streak) finding(in input, p *wire.AgentTool) finding {
	tool := "tool"
	if k.Tool != "" {
		tool = nameLine(k.Tool)
	}
	f := in.finding(kindFailureLoop, wire.SeverityWarning, fmt.Sprintf(textLoop, k.Count, tool), map[string]any{
		"consecutiveFailures": k.Count, "lastTool": nameLine(p.ToolName), "lastError": timeline.Line(p.Error, maxError),
	})
	f.Armed = k.First
	return f
}
