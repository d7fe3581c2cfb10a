package alerter

import (
	"cmp"
	"fmt"
	"maps"
	"time"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// silences finds agents that do nothing although it is their turn, and calls
// that take too long. Only what an agent, a tool or a human does is progress: an
// agent that is alive, counts tokens or tries a request again makes none.
type silences struct {
	Nodes  map[string]silence `json:"nodes,omitempty"`
	Paused bool               `json:"paused,omitempty"` // the run
}

// silence is that of an agent or a command.
type silence struct {
	Turn   bool              `json:"turn,omitempty"` // it has something to do
	Asked  bool              `json:"asked,omitempty"`
	Exec   string            `json:"exec,omitempty"`
	Cwd    string            `json:"cwd,omitempty"`
	Since  int64             `json:"since"` // of the last progress, Unix ms
	Pos    uint64            `json:"pos"`   // of the last progress
	Last   string            `json:"last,omitempty"`
	Told   int               `json:"told,omitempty"`   // stages of this silence
	Again  uint64            `json:"again,omitempty"`  // position of the resumption since which it counts
	Warned int64             `json:"warned,omitempty"` // when the last warning was raised
	Calls  map[string]flight `json:"calls,omitempty"`
}

// flight is a call under way.
type flight struct {
	Tool    string `json:"tool"`
	Since   int64  `json:"since"` // of its last sign of life
	Pos     uint64 `json:"pos"`
	Waiting bool   `json:"waiting,omitempty"` // for permission
	Told    bool   `json:"told,omitempty"`
}

// The stages of a silence.
const (
	stageWarning = iota + 1
	stageCritical
)

// detect is a [timedDetector].
func (s silences) detect(in input) (silences, []finding, int64) {
	var found []finding
	if in.Event == nil {
		s, found = s.tellRipe(in)
	} else {
		s = s.applyEvent(in)
	}
	return s, found, s.nextDeadline(in.Limits.Stuck)
}

func (s silences) applyEvent(in input) silences {
	e := in.Event
	node := e.Node()
	switch p := e.Payload.(type) {
	case *wire.FlowPaused:
		s.Paused = true
		return s
	case *wire.FlowResumed:
		if !p.Hold {
			s = s.resumeRun(in)
		}
		return s
	case *wire.FlowComplete, *wire.FlowAborted:
		return silences{}
	case *wire.AgentPaused:
		if waiting := s.Nodes[node].waitingCalls(); len(waiting) > 0 {
			s.Nodes = withKey(s.Nodes, node, silence{Calls: waiting}) // it still waits when it goes on
			return s
		}
		s.Nodes = withoutKey(s.Nodes, node)
		return s
	case *wire.NodeComplete, *wire.NodeError, *wire.NodeCancelled, *wire.AgentComplete, *wire.AgentAborted:
		s.Nodes = withoutKey(s.Nodes, node)
		return s
	}
	k, known := s.Nodes[node]
	next, ok := k.applyEvent(in)
	if !ok && !known {
		return s
	}
	if text, telling := timeline.Activity(e, next.Cwd); telling {
		next.Last = text
	}
	s.Nodes = withKey(s.Nodes, node, next)
	return s
}

// resumeRun begins all silences anew.
func (s silences) resumeRun(in input) silences {
	s.Paused = false
	nodes := maps.Clone(s.Nodes)
	for node, k := range nodes {
		k.Since, k.Told, k.Again = in.At, 0, in.Pos
		nodes[node] = k
	}
	s.Nodes = nodes
	return s
}

// applyEvent is what an event of the node makes of a silence. It reports false for one
// that is no progress.
func (k silence) applyEvent(in input) (silence, bool) {
	e := in.Event
	switch p := e.Payload.(type) {
	case *wire.AgentStart:
		waiting := k.waitingCalls()
		if k = (silence{Cwd: p.Cwd, Warned: k.Warned}); p.Resumed {
			k.Calls = waiting
		}
	case *wire.UserMessage:
		k.Asked = false
	case *wire.ToolIntent:
		k.Calls = withCall(k.Calls, e.CallID, flight{Tool: p.ToolName, Since: in.At, Pos: in.Pos})
	case *wire.PermissionRequired:
		k.Calls = withCall(k.Calls, e.CallID, flight{Tool: p.ToolName, Since: in.At, Pos: in.Pos, Waiting: true})
	case *wire.PermissionDecided:
		if c, ok := k.Calls[e.CallID]; ok {
			k.Calls = withKey(k.Calls, e.CallID, flight{Tool: c.Tool, Since: in.At, Pos: in.Pos})
		}
	case *wire.AgentTool, *wire.ToolSealed:
		k.Calls = withoutKey(k.Calls, e.CallID)
	case *wire.CCMessage:
		k.Asked = k.Asked || p.Priority == wire.PriorityQuestion || p.Priority == wire.PriorityBlocker
	case *wire.ExecStart:
		k = silence{Cwd: p.Cwd, Calls: map[string]flight{execCall: {Tool: "Command", Since: in.At, Pos: in.Pos}}}
	case *wire.AgentMessage:
		if e.Parent == "" && p.StopReason == "end_turn" {
			k = k.noteProgress(in)
			k.Turn = false
			return k, true
		}
	case *wire.TurnEnd, *wire.ExecExit:
		k = k.noteProgress(in)
		k.Turn, k.Calls = false, nil
		return k, true
	case *wire.AgentError:
		if p.Severity == wire.SeverityWarning || p.Severity == wire.SeverityInfo {
			return k, false // it is tried again, which is no progress
		}
		k.Turn, k.Calls = false, nil
		return k, true
	case *wire.ExecOutput, *wire.TurnStart, *wire.AgentInit, *wire.AgentResumed, *wire.Compaction, *wire.TodoChanged, *wire.ToolState,
		*wire.AgentText, *wire.AgentTextDelta, *wire.AgentThinking, *wire.AgentThinkingDelta:
	default:
		return k, false
	}
	k = k.noteSignOfLife(in)
	return k.noteProgress(in), true
}

// execCall stands for the call of a command that is a node itself.
const execCall = "exec"

// noteSignOfLife notes a sign of life of the call that an event belongs to.
func (k silence) noteSignOfLife(in input) silence {
	call := in.Event.Parent
	if _, output := in.Event.Payload.(*wire.ExecOutput); output {
		call = execCall
	}
	if c, ok := k.Calls[call]; ok {
		c.Since, c.Pos, c.Told = in.At, in.Pos, false
		k.Calls = withKey(k.Calls, call, c)
	}
	return k
}

func (k silence) noteProgress(in input) silence {
	k.Turn, k.Since, k.Pos, k.Told, k.Again = true, in.At, in.Pos, 0, 0
	if in.Event.ExecID != "" && in.Event.Node() != wire.RunNode {
		k.Exec = in.Event.ExecID
	}
	return k
}

// waitingCalls are the calls that wait for permission.
func (k silence) waitingCalls() map[string]flight {
	return maps.Collect(func(yield func(string, flight) bool) {
		for id, c := range k.Calls {
			if c.Waiting && !yield(id, c) {
				return
			}
		}
	})
}

// isBlocked reports whether the agent waits for a decision or an answer.
func (k silence) isBlocked() bool {
	for _, c := range k.Calls {
		if c.Waiting {
			return true
		}
	}
	return k.Asked
}

// nextStage returns the next stage and when it is reached, or 0.
func (k silence) nextStage(l Stuck) (stage int, at int64) {
	if len(k.Calls) > 0 {
		return 0, 0
	}
	critical := deadlineAfter(k.Since, l.Critical)
	switch k.Told {
	case 0:
		warning := deadlineAfter(k.Since, l.After)
		if k.Warned > 0 {
			warning = max(warning, deadlineAfter(k.Warned, l.CoolDown))
		}
		if l.After > 0 && (critical == 0 || warning < critical) {
			return stageWarning, warning
		}
		return stageCritical, critical
	case stageWarning:
		return stageCritical, critical
	}
	return 0, 0
}

// deadlineAfter is the time after a duration, or 0 if that is none.
func deadlineAfter(since int64, d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return since + d.Milliseconds()
}

// canRipen reports whether time alone can make the silence worth an alert.
func (s silences) canRipen(k silence) bool { return !s.Paused && k.Turn && !k.isBlocked() }

func (s silences) nextDeadline(l Stuck) int64 {
	var next int64
	sooner := func(at int64) {
		if at > 0 {
			next = min(cmp.Or(next, at), at)
		}
	}
	for _, k := range s.Nodes {
		if !s.canRipen(k) {
			continue
		}
		_, at := k.nextStage(l)
		sooner(at)
		for _, c := range k.Calls {
			if !c.Told {
				sooner(deadlineAfter(c.Since, l.Tool))
			}
		}
	}
	return next
}

// ripeNodes returns the nodes about which the time has come to say something, unless
// they write: streamed text is the one sign of life that the alerter isn't given.
func (s silences) ripeNodes(l Stuck, at int64) []string {
	var nodes []string
	for _, node := range sortedKeys(s.Nodes) {
		one := silences{Nodes: map[string]silence{node: s.Nodes[node]}, Paused: s.Paused}
		if next := one.nextDeadline(l); next > 0 && next <= at {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

func (s silences) tellRipe(in input) (silences, []finding) {
	var found []finding
	for _, node := range s.ripeNodes(in.Limits.Stuck, in.At) {
		k, more := s.Nodes[node].tellStages(in, node)
		found = append(found, more...)
		s.Nodes = withKey(s.Nodes, node, k)
	}
	return s, found
}

func (k silence) tellStages(in input, node string) (silence, []finding) {
	var found []finding
	for stage, at := k.nextStage(in.Limits.Stuck); stage > 0 && at > 0 && at <= in.At; stage, at = k.nextStage(in.Limits.Stuck) {
		silent := in.At - k.Since
		f := finding{
			Kind: kindStuck, Severity: wire.SeverityWarning, NodeID: node, ExecID: k.Exec, Armed: k.Pos, Level: "warning",
			Text: fmt.Sprintf(textStuck, formatSpan(time.Duration(silent)*time.Millisecond), k.lastActivity()),
			Data: map[string]any{"silentMs": silent, "lastActivity": k.lastActivity()},
		}
		k.Told = stage
		if stage == stageCritical {
			f.Severity, f.Level = wire.SeverityCritical, "critical"
		} else {
			k.Warned = in.At
		}
		if k.Again > 0 { // a resumption arms many
			f.Level += fmt.Sprintf("-%d", k.Again)
		}
		found = append(found, f)
	}
	for _, id := range sortedKeys(k.Calls) {
		c := k.Calls[id]
		if limit := deadlineAfter(c.Since, in.Limits.Stuck.Tool); c.Told || limit == 0 || limit > in.At {
			continue
		}
		c.Told = true
		k.Calls = withKey(k.Calls, id, c)
		silent := in.At - c.Since
		found = append(found, finding{
			Kind: kindStuck, Severity: wire.SeverityWarning, NodeID: node, ExecID: k.Exec, Armed: c.Pos, Level: "tool",
			Text: fmt.Sprintf(textStuckTool, nameLine(c.Tool), formatSpan(time.Duration(silent)*time.Millisecond), k.lastActivity()),
			Data: map[string]any{"silentMs": silent, "lastActivity": k.lastActivity(), "toolName": nameLine(c.Tool)},
		})
	}
	return k, found
}

func (k silence) lastActivity() string { return cmp.Or(k.Last, "nothing yet") }
