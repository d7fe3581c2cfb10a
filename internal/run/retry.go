package run

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// Attempts is what the log tells of executions of an agent that have failed, to the worker that
// tries it again in the same session: a fold over their events.
type Attempts struct {
	Late bool // see [NewPast]: that a turn has begun doesn't say that the session has what the agent was asked

	Session string     // that the agent had last; "": it had none
	Run     string     // whose session that is: this one, or one that it was forked from
	Point   string     // the last one where the session can be forked
	Worked  bool       // it has done something in that session
	Inputs  []wire.Raw // of its calls

	problem string // of the last attempt
	ended   []Fact // calls that have a result, in the order of their ends
	open    []Fact // those that have none
}

// Facts are what the agent's session has to have.
func (a *Attempts) Facts() []Fact { return a.ended[max(0, len(a.ended)-maxFacts):] }

// Take follows the attempts by one event.
func (a *Attempts) Take(e *wire.Event) {
	if p, ok := e.Payload.(*wire.NodeError); ok {
		a.problem = p.Error
		return
	}
	if e.Parent != "" {
		return
	}
	switch p := e.Payload.(type) {
	case *wire.AgentStart:
		if e.SessionID != a.Session && !p.Resumed { // it began another one
			*a = Attempts{Late: a.Late, problem: a.problem}
		}
		a.Session, a.Run = e.SessionID, e.RunID
	case *wire.SessionBound:
		a.Session = p.NewSession
	case *wire.UserMessage:
		a.Point = cmp.Or(p.Point, a.Point)
	case *wire.TurnStart:
		a.Worked = a.Worked || !a.Late
	case *wire.AgentMessage, *wire.Usage:
		a.Worked = true
	case *wire.ToolIntent:
		a.Worked, a.Inputs = true, append(a.Inputs, p.ToolInput)
		a.open = append(a.open, Fact{e.CallID, listItem(p.ToolName, p.ToolInput, "It was cut off.")})
	case *wire.AgentTool:
		a.Worked, a.Point = true, cmp.Or(p.Point, a.Point)
		if p.Error == wire.CallInterrupted {
			return // it stays cut off
		}
		a.open = slices.DeleteFunc(a.open, func(f Fact) bool { return f.Mark == e.CallID })
		a.ended = append(a.ended, Fact{e.CallID, Result(p)})
	}
}

// maxEnded is how many calls that have ended an agent is told of: its session has them.
const maxEnded = 20

// Prompt is what the agent is told: what failed, and which of its calls have ended and were cut
// off. It is empty if the agent hasn't worked: then it is asked again for what it was asked for.
// folder is that of [Notice].
func (a *Attempts) Prompt(folder *Folder) string {
	if !a.Worked {
		return ""
	}
	problem := oneLine(a.problem, maxResult)
	if problem == "" {
		problem = "the cause isn't known"
	}
	parts := []string{
		"Your last attempt at this task failed: " + problem + "\n\n" +
			"This is the next one, in the same conversation. What you have done has happened: don't begin anew, go on where you were.",
	}
	if ended := a.ended[max(0, len(a.ended)-maxEnded):]; len(ended) > 0 {
		parts = append(parts, "These tool calls have ended (at most the last "+strconv.Itoa(maxEnded)+" are listed). Don't repeat them for the failure:")
		for _, c := range ended {
			parts = append(parts, c.Text)
		}
	}
	if len(a.open) > 0 {
		parts = append(parts, "These tool calls were cut off with the attempt and have no result. What they have done is unknown: check that before you repeat one.")
		for _, c := range a.open {
			parts = append(parts, c.Text)
		}
		parts = append(parts, unrefused)
	}
	if folder != nil {
		parts = append(parts, folder.String())
	}
	return strings.Join(parts, "\n\n")
}
