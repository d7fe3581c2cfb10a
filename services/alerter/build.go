package alerter

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"sync"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// builds finds how builds and tests went, by the exit status of their command. A
// failure is always told, a pass if it is the first or follows a failure.
type builds struct {
	Last map[string]string       `json:"last,omitempty"` // passed or failed, by agent and name of the command
	Exec map[string]buildCommand `json:"exec,omitempty"` // commands of nodes that are commands, by node
}

// buildCommand is a command of a node.
type buildCommand struct {
	Command string `json:"command"`
	Name    string `json:"name"`
	Test    bool   `json:"test,omitempty"`
}

// The outcomes that are remembered.
const (
	outcomePassed = "passed"
	outcomeFailed = "failed"
)

// detect is a [detector].
func (s builds) detect(in input) (builds, []finding) {
	e := in.Event
	var found []finding
	switch p := e.Payload.(type) {
	case *wire.AgentStart:
		if !p.Resumed {
			s.Last = withoutNode(s.Last, e.Node())
		}
	case *wire.AgentTool:
		s, found = s.addCall(in, p)
	case *wire.ExecStart:
		if o, ok := in.Limits.matchCommand(p.Command); ok {
			s.Exec = withKey(s.Exec, e.Node(), o)
		}
	case *wire.NodeComplete:
		s, found = s.endNode(in, p.Output, "")
	case *wire.NodeError:
		if p.ErrorType == wire.ErrorCancelled || p.ErrorType == wire.ErrorInterrupted {
			s.Exec = withoutKey(s.Exec, e.Node())
		}
		s, found = s.endNode(in, p.Output, p.Error)
	}
	return s, found
}

// matchCommand returns the build or the tests that a command runs, if it does.
func (l *limits) matchCommand(input string) (buildCommand, bool) {
	all := simpleCommands(input)
	for _, c := range l.commands {
		if slices.ContainsFunc(all, c.pattern.MatchString) {
			return buildCommand{Command: timeline.Line(input, maxError), Name: c.Name, Test: c.Test}, true
		}
	}
	return buildCommand{}, false
}

// addCall looks at a call. A call of unknown outcome counts for nothing: it was
// refused or interrupted, or goes on in the background.
func (s builds) addCall(in input, p *wire.AgentTool) (builds, []finding) {
	if !hasOutcome(p) || !slices.Contains(in.Limits.Build.Tools, p.ToolName) || p.Structured.TextAt("backgroundTaskId") != "" {
		return s, nil
	}
	o, ok := in.Limits.matchCommand(p.ToolInput.TextAt("command"))
	if !ok {
		return s, nil
	}
	return s.noteOutcome(in, agentOf(in.Event)+"\n"+o.Name, o, p.Error, parseOutput(cmp.Or(p.Error, outputOf(p))))
}

// endNode looks at the end of a node that is a command.
func (s builds) endNode(in input, output wire.Raw, problem string) (builds, []finding) {
	node := in.Event.Node()
	o, ok := s.Exec[node]
	if !ok {
		return s, nil
	}
	s.Exec = withoutKey(s.Exec, node)
	return s.noteOutcome(in, node+"\n"+o.Name, o, problem, parseOutput(output.TextAt("stdout")+"\n"+output.TextAt("stderr")))
}

// noteOutcome tells what has become of a build.
func (s builds) noteOutcome(in input, key string, o buildCommand, problem string, r report) (builds, []finding) {
	passed := problem == ""
	suspect := passed && r.hasFailure() || !passed && r.hasSuccess()
	before := s.Last[key]
	now := outcomeFailed
	if passed && !suspect {
		now = outcomePassed
	}
	s.Last = withKey(s.Last, key, now)
	if now == outcomePassed && before == outcomePassed {
		return s, nil
	}
	text, summary := buildText(o, passed, problem, r)
	data := map[string]any{"command": o.Command, "passed": passed, "errors": r.Errors + r.Failed, "summary": summary}
	f := in.finding(kindBuild, wire.SeverityInfo, text, data)
	if now == outcomeFailed {
		f.Severity = wire.SeverityWarning
	}
	if suspect {
		f.Data["suspect"] = true
		f.Text += fmt.Sprintf(textSuspect, r.summaryText(o.Test))
	}
	return s, []finding{f}
}

// buildText returns the line and the summary of the supervisor event.
func buildText(o buildCommand, passed bool, problem string, r report) (text, summary string) {
	switch {
	case passed && o.Test:
		words := "exit code 0"
		if r.hasSuccess() {
			words = fmt.Sprintf("%d passed", r.Passed)
		}
		return fmt.Sprintf(textTestsPassed, words), "Tests passed"
	case passed:
		return fmt.Sprintf(textBuildPassed, "0 errors"), "Build passed"
	}
	if summary = exitStatus(problem); r.hasFailure() {
		summary = r.summaryText(o.Test)
	}
	if o.Test {
		return fmt.Sprintf(textTestsFailed, summary), summary
	}
	return fmt.Sprintf(textBuildFailed, summary), summary
}

// summaryText says in short what the output told.
func (r report) summaryText(test bool) string {
	switch {
	case r.Errors > 0 && (!test || r.Failed == 0):
		return r.errorText()
	case r.Failed > 0:
		return r.failureText()
	case r.Made:
		return "make failed"
	}
	return fmt.Sprintf("%d passed", r.Passed)
}

var exitCode = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?i)exit (?:code|status):? (\d+)`) })

// exitStatus is "exit code 2", or what else is said about a failure.
func exitStatus(problem string) string {
	if m := exitCode().FindStringSubmatch(problem); m != nil {
		return "exit code " + m[1]
	}
	return timeline.Line(firstLine(problem), maxError)
}
