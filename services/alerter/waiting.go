package alerter

import (
	"fmt"
	"strconv"
	"strings"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// waitingFindings finds that a run can't go on until a human has decided something. It
// needs no memory.
func waitingFindings(in input) []finding {
	f := in.finding(kindWaiting, wire.SeverityWarning, "", nil)
	f.Event = "waiting_for_human"
	switch p := in.Event.Payload.(type) {
	case *wire.FlowPaused:
		if !wire.NeedsPerson(p.Reason) {
			return nil
		}
		message := timeline.Line(p.Message, maxMessage)
		f.NodeID, f.Severity = wire.RunNode, wire.SeverityError
		f.Text = fmt.Sprintf(textPaused, message)
		f.Data = map[string]any{"reason": nameLine(p.Reason), "message": message}
	case *wire.InputRequested:
		question := timeline.Line(p.Prompt, maxMessage)
		f.Text = fmt.Sprintf(textQuestion, question)
		f.Data = map[string]any{"promptId": nameLine(p.PromptID), "message": question}
	case *wire.PermissionRequired:
		if questions, err := ask.Questions(p.ToolInput); err == nil && p.ToolName == ask.Tool {
			question := timeline.Line(ask.Line(questions), maxMessage)
			f.Text = fmt.Sprintf(textAsked, question, nameLine(in.Event.CallID))
			f.Data = map[string]any{"toolName": ask.Tool, "callId": nameLine(in.Event.CallID), "message": question}
			return []finding{f}
		}
		tool := nameLine(p.ToolName)
		input := timeline.Line(timeline.WholeInput(p.ToolName, p.ToolInput), maxMessage)
		f.Text = fmt.Sprintf(textPermission, strings.TrimSpace(tool+" "+input), nameLine(in.Event.CallID))
		f.Data = map[string]any{"toolName": tool, "callId": nameLine(in.Event.CallID)}
		if input != "" {
			f.Data["input"] = input
		}
	case *wire.RunForked:
		return inheritedQuestions(f, p)
	default:
		return nil
	}
	return []finding{f}
}

// inheritedQuestions finds what a fork asks a human since its parent did, and it was forked meanwhile: the answer to one isn't
// that to the other. Calls that waited for a decision are asked for again.
func inheritedQuestions(f finding, p *wire.RunForked) (found []finding) {
	var s wire.State
	if wire.Unmarshal(p.State, &s) != nil {
		return nil
	}
	for _, a := range ask.Pending(&s) {
		if a.Kind != wire.ApprovalAsk {
			continue
		}
		question := timeline.Line(a.Text, maxMessage)
		if len(found) > 0 {
			f.Level = strconv.Itoa(len(found) + 1)
		}
		f.NodeID, f.ExecID = a.NodeID, s.Nodes[a.NodeID].Exec
		f.Text = fmt.Sprintf(textQuestion, question)
		f.Data = map[string]any{"promptId": nameLine(a.CallID), "message": question}
		found = append(found, f)
	}
	return found
}

// mirrorFindings finds that a program has lost a part of its session's transcript on the way to its store: a program that
// goes on with the session from there doesn't know that part. It needs no memory.
func mirrorFindings(in input) []finding {
	p, is := in.Event.Payload.(*wire.RawMessage)
	if !is || p.Name != wire.MirrorError {
		return nil
	}
	why := timeline.Line(p.Data.TextAt("error"), maxError)
	return []finding{in.finding(kindMirror, wire.SeverityError, fmt.Sprintf(textMirror, why), map[string]any{"message": why})}
}
