package run

import (
	"fmt"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// Notice is what an agent is told of its interruption, as a part of the prompt with which it
// goes on.
type Notice struct {
	Cause   string         // one of the causes, or the reason of a pause; "": its runner died
	Calls   []Interruption // that were cut off, never began or were denied meanwhile
	Ended   []string       // calls that ended when no runner was there, see [Result]
	Answers []string       // to what it had asked people
	Folder  *Folder        // nil: it is where it was
	Noted   bool           // its own program has noted the interruption as the user's, see interrupted
}

// Why an agent was interrupted, beside the reasons of a run's pause.
const (
	CauseShutdown = "shutdown" // its runner ended in order
	CauseForced   = "forced"   // it didn't come to a safe point in time, and was ended
	CauseForked   = "forked"   // it goes on in a fork from where it was at work
)

// Folder is a folder in which an agent has to go on that had worked in another one.
type Folder struct {
	Path  string
	Clone bool // of the repository; else it is empty
}

// String is the text, "" if there is nothing to tell.
func (n Notice) String() string {
	var parts []string
	if len(n.Calls)+len(n.Ended) > 0 || n.Noted {
		parts = append(parts, "You were interrupted. "+n.causeText())
	}
	if n.Noted && len(n.Calls) == 0 { // else see unrefused
		parts = append(parts, unsaid)
	}
	if len(n.Calls) > 0 {
		parts = append(parts, "These tool calls were interrupted with you and have no result of their own. "+
			"Unless it says otherwise below, the outcome of a call is unknown: check what it has done before you repeat it.")
		for _, c := range n.Calls {
			parts = append(parts, c.String())
		}
		parts = append(parts, unrefused)
	}
	if len(n.Ended) > 0 {
		parts = append(parts, "These tool calls came to their end after you were interrupted. Their results count, also if this conversation lacks them; don't repeat them for that:")
		parts = append(parts, n.Ended...)
	}
	if len(n.Answers) > 0 {
		parts = append(parts, "What you had asked was answered while you were interrupted:")
		parts = append(parts, n.Answers...)
	}
	if n.Folder != nil {
		parts = append(parts, n.Folder.String())
	}
	return strings.Join(parts, "\n\n")
}

// interrupted is how Claude Code begins the note of an interruption, in the name of the user.
const interrupted = "[Request interrupted by user"

// unsaid tells an agent of such notes.
const unsaid = "Where this conversation notes " + interrupted + "], that is the note of an interruption of this kind: the user has not said anything."

// unrefused tells an agent of refusals that its own program has made up.
const unrefused = "Unless it says above that a call was denied, nobody has refused any of them. " +
	"If this conversation says of one that the user rejected it, didn't want to proceed or told you to stop, " +
	"or that it had no effect, those words came from the interruption and not from the user: go by what stands here, and go on."

// String tells the agent of the folder.
func (f *Folder) String() string {
	what := "empty"
	if f.Clone {
		what = "a fresh clone of the repository"
	}
	return fmt.Sprintf("You go on in another folder, %s. It is %s: what you had changed in the former one is not there.", f.Path, what)
}

// causeText says why the agent was interrupted.
func (n Notice) causeText() string {
	switch n.Cause {
	case "":
		return "The runner that you ran on died without warning."
	case CauseShutdown:
		return "The runner that you ran on was shut down in order."
	case CauseForced:
		return "You were to stop, didn't in time, and were ended."
	case CauseForked:
		return "Your run was forked from another one at this point: what that did afterwards isn't known here."
	case wire.PauseOperator:
		return "The run's operator has paused it."
	case wire.PauseParent:
		return "The run that has started yours was paused, and yours with it."
	case wire.PauseSharedBudget:
		return "What the run may spend together with others was spent. Now there is more."
	case wire.PauseBudget:
		return "The run had spent its budget. Its operator has granted more."
	}
	return "The run was paused: " + oneLine(n.Cause, maxNotice) + "."
}

// Interruption is what an agent is told of a call that was interrupted.
type Interruption struct {
	CallID          string
	Tool            string
	Input           wire.Raw
	Message         string
	Recommendations []string
}

// String is the item of a list that tells an agent of the call.
func (i Interruption) String() string {
	var b strings.Builder
	b.WriteString(listItem(i.Tool, i.Input, oneLine(i.Message, maxNotice)))
	for _, r := range i.Recommendations {
		b.WriteString("\n  - " + oneLine(r, maxNotice))
	}
	return b.String()
}

// AsInterruption reads the result of a call that was closed by [SealResult] or
// [DeniedResult], or was interrupted with its agent; c is the call before, as far as it is
// known. begun is that of [Seal].
func AsInterruption(c wire.ToolCall, p *wire.AgentTool, begun bool) (Interruption, bool) {
	i := Interruption{CallID: c.CallID, Tool: p.ToolName, Input: p.ToolInput}
	switch p.Error {
	case "":
		return Interruption{}, false
	case wire.CallInterrupted:
		if c.State == "" {
			c.State = wire.ToolExecuting
		}
		s := Seal(c, "", begun)
		i.Message, i.Recommendations = s.Message, s.Recommendations
		return i, true
	}
	status := p.ToolOutput.TextAt("data", "status")
	if status != string(wire.ToolSealedState) && status != string(wire.ToolDenied) {
		return Interruption{}, false
	}
	i.Message = p.Error
	list, _ := p.ToolOutput.Get("recommendations").Any().([]any)
	for _, v := range list {
		if s, ok := v.(string); ok {
			i.Recommendations = append(i.Recommendations, s)
		}
	}
	return i, true
}

// maxNotice is how long a line of a notice is at most, in runes.
const maxNotice = 200

// maxResult is how much of a call's result an agent is told again, in runes.
const maxResult = 1000

// Result is the item of a list that tells an agent of a call that has come to its
// end, in case it has forgotten that.
func Result(p *wire.AgentTool) string {
	text, plain := p.ToolOutput.Text()
	switch {
	case p.Error != "":
		text = "It failed: " + p.Error
	case Ref(p.ToolOutput) != "":
		text = "It has come to its end. Its result is too long to be repeated here."
	case !plain:
		text = "Its result: " + inputText(p.ToolOutput)
	default:
		text = "Its result: " + text
	}
	return listItem(p.ToolName, p.ToolInput, oneLine(text, maxResult))
}

func listItem(tool string, input wire.Raw, text string) string {
	return fmt.Sprintf("- %s %s\n  %s", oneLine(tool, maxNotice), oneLine(inputText(input), maxNotice), text)
}

// inputText is a call's input as JSON.
func inputText(input wire.Raw) string {
	text, err := wire.AppendJSON(nil, input)
	if err != nil || input == nil {
		return ""
	}
	return string(text)
}

// oneLine makes a line of a text, of so many runes at most.
func oneLine(s string, most int) string {
	r := []rune(strings.Join(strings.Fields(s), " "))
	if len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return string(r)
}
