package compare

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// What a step is.
const (
	Tool   = "tool"   // a finished call
	Told   = "told"   // a message to an agent, or an answer
	Exec   = "exec"   // a command that was started, or its end
	Node   = "node"   // an execution that began, ended, failed or was skipped
	Edge   = "edge"   // an edge that fired or didn't, a loop that went round
	Change = "change" // of the user's state
	Run    = "run"    // the end of the run
	Said   = "said"   // words of an agent, output of a command: never a difference
)

// Step is something that a run did.
type Step struct {
	wire.DiffStep

	call string // what was asked for
	key  string // that and what came of it: equal for equal steps
}

// maxText bounds the text of a step in characters.
const maxText = 160

// maxWords bounds words, in characters.
const maxWords = 1000

// SayingOf is the step of words that begin with an event: of a line that a viewer reads beside what was
// done. [Step.SetText] says which words.
func SayingOf(pos uint64, e *wire.Event) Step {
	return Step{DiffStep: wire.DiffStep{Pos: pos, TS: e.Timestamp, RunID: e.RunID, Node: e.Node(), What: Said}}
}

// SetText sets the words of a step.
func (s *Step) SetText(text string) {
	s.Text = timeline.Line(text, maxWords)
	s.call = hashValues([]any{Said, text})
	s.key = s.call
}

// StepOf returns the step that an event is, if it is one. The event must not lack
// its large fields, or two that differ look the same.
func StepOf(pos uint64, e *wire.Event) (Step, bool) {
	s := Step{DiffStep: wire.DiffStep{Pos: pos, TS: e.Timestamp, RunID: e.RunID, Node: e.Node()}}
	var asked, came []any
	switch p := e.Payload.(type) {
	case *wire.AgentTool:
		s.What, s.Name, s.Failed = Tool, p.ToolName, p.Error != "" || p.Denied
		s.Text = timeline.Input(p.ToolInput)
		asked, came = []any{p.ToolName, p.ToolInput}, []any{p.ToolOutput, p.Error, p.Denied}
	case *wire.AgentStart:
		s.What, s.Text = Told, lineOf(e)
		asked = []any{p.Prompt}
	case *wire.UserMessage:
		s.What, s.Text = Told, p.Content
		asked = []any{p.Content}
	case *wire.InputReceived:
		s.What, s.Text = Told, lineOf(e)
		asked = []any{p.Content}
	case *wire.ExecStart:
		s.What, s.Text = Exec, "$ "+p.Command
		asked = []any{p.Command}
	case *wire.ExecExit:
		s.What, s.Text, s.Failed = Exec, lineOf(e), p.ExitCode != 0 || p.TimedOut
		came = []any{p.ExitCode, p.Signal, p.TimedOut}
	default:
		if asked, came = s.ofFlow(e); s.What == "" {
			return Step{}, false
		}
	}
	s.Text = timeline.Line(s.Text, maxText)
	s.call = hashValues(append([]any{s.What}, asked...))
	s.key = hashValues(append([]any{s.call}, came...))
	return s, true
}

// ofFlow is the step of an event of the run or one of its nodes.
func (s *Step) ofFlow(e *wire.Event) (asked, came []any) {
	switch p := e.Payload.(type) {
	case *wire.NodeStart:
		s.What, s.Text = Node, lineOf(e)
		return []any{"start", p.NodeType, p.Attempt, p.Iteration, p.Input}, nil
	case *wire.NodeComplete:
		s.What, s.Text = Node, s.Node+" complete: "+p.Output.Plain()
		return []any{"end"}, []any{essentialOutput(p.Output)}
	case *wire.NodeError:
		s.What, s.Text, s.Failed = Node, lineOf(e), true
		return []any{"end"}, []any{p.ErrorType, p.Error}
	case *wire.NodeSkipped:
		s.What, s.Text = Node, lineOf(e)
		return []any{"skipped"}, []any{p.Reason}
	case *wire.EdgeFire:
		s.What, s.Node, s.Text = Edge, p.From, p.From+" → "+p.To
		return []any{"fire", p.EdgeID, p.To}, nil
	case *wire.EdgeSkip:
		s.What, s.Node, s.Text = Edge, p.From, p.From+" → "+p.To+" doesn't fire"
		return []any{"skip", p.EdgeID, p.To}, nil
	case *wire.LoopIterate:
		s.What, s.Text = Edge, fmt.Sprintf("%s goes round, %d", p.EdgeID, p.Iteration)
		return []any{"loop", p.EdgeID, p.Iteration}, nil
	case *wire.StatePatch:
		s.What, s.Text = Change, p.Patch.Path+" = "+p.Patch.Value.Plain()
		return []any{string(p.Patch.Op), p.Patch.Path, p.Patch.Value}, nil
	case *wire.FlowComplete:
		s.What, s.Text, s.Failed = Run, lineOf(e), p.Status == wire.FlowStatusFailed
		return []any{"end"}, []any{string(p.Status), p.Error}
	case *wire.FlowAborted:
		s.What, s.Text, s.Failed = Run, lineOf(e), true
		return []any{"aborted"}, []any{p.Reason}
	}
	return nil, nil
}

func lineOf(e *wire.Event) string {
	_, text, _ := timeline.Of(e)
	return strings.ReplaceAll(text, "\n", " ")
}

// hashValues is a short stand-in for values, the same for the same ones.
func hashValues(values []any) string {
	h := sha256.New()
	for _, v := range values {
		if raw, ok := v.(wire.Raw); ok {
			_, _ = fmt.Fprintf(h, "%d:%s;", len(raw), []byte(raw)) // a hash takes everything
			continue
		}
		_, _ = fmt.Fprintf(h, "%#v;", v)
	}
	return string(h.Sum(nil))
}
