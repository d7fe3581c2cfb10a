package alerter

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"wake/internal/timeline"
	"wake/pkg/wire"
)

// builds finds how builds and tests went, by the exit status of their command. A
// failure is always told, a pass if it is the first or follows a failure.
type builds struct {
	Last map[string]string  `json:"last,omitempty"` // passed or failed, by agent and name of the command
	Exec map[string]ordered `json:"exec,omitempty"` // commands of nodes that are commands, by node
}

// ordered is a command of a node.
type ordered struct {
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
func (s builds) detect(in input) (builds, []finding, int64) {
	if in.Event == nil {
		return s, nil, 0
	}
	e := in.Event
	var found []finding
	switch p := e.Payload.(type) {
	case *wire.AgentStart:
		if !p.Resumed {
			s.Last = ofOthers(s.Last, e.Node())
		}
	case *wire.AgentTool:
		s, found = s.tool(in, p)
	case *wire.ExecStart:
		if o, ok := in.Limits.recognise(p.Command); ok {
			s.Exec = with(s.Exec, e.Node(), o)
		}
	case *wire.NodeComplete:
		s, found = s.node(in, p.Output, "")
	case *wire.NodeError:
		if p.ErrorType == "cancelled" || p.ErrorType == wire.ErrorInterrupted {
			s.Exec = without(s.Exec, e.Node())
		}
		s, found = s.node(in, p.Output, p.Error)
	}
	return s, found, 0
}

// recognise returns the build or the tests that a command runs, if it does.
func (l *limits) recognise(input string) (ordered, bool) {
	all := simpleCommands(input)
	for _, c := range l.commands {
		if slices.ContainsFunc(all, c.pattern.MatchString) {
			return ordered{Command: timeline.Line(input, maxError), Name: c.Name, Test: c.Test}, true
		}
	}
	return ordered{}, false
}

// tool looks at a call. One whose outcome is unknown counts for nothing: it was
// refused or interrupted, or goes on in the background.
func (s builds) tool(in input, p *wire.AgentTool) (builds, []finding) {
	if p.Denied || p.Error == wire.CallInterrupted || rejected(p.Error) || !slices.Contains(in.Limits.Build.Tools, p.ToolName) ||
		field(p.Structured, "backgroundTaskId") != "" {
		return s, nil
	}
	o, ok := in.Limits.recognise(field(p.ToolInput, "command"))
	if !ok {
		return s, nil
	}
	output := p.Error
	if output == "" {
		output = outputOf(p)
	}
	return s.outcome(in, agentOf(in.Event)+"\n"+o.Name, o, p.Error, read(output))
}

// node looks at the end of a node that is a command.
func (s builds) node(in input, output wire.Raw, problem string) (builds, []finding) {
	node := in.Event.Node()
	o, ok := s.Exec[node]
	if !ok {
		return s, nil
	}
	s.Exec = without(s.Exec, node)
	return s.outcome(in, node+"\n"+o.Name, o, problem, read(field(output, "stdout")+"\n"+field(output, "stderr")))
}

// outcome tells what has become of a build.
func (s builds) outcome(in input, key string, o ordered, problem string, r report) (builds, []finding) {
	passed := problem == ""
	suspect := passed && r.bad() || !passed && r.good()
	before := s.Last[key]
	now := outcomeFailed
	if passed && !suspect {
		now = outcomePassed
	}
	s.Last = with(s.Last, key, now)
	if now == outcomePassed && before == outcomePassed {
		return s, nil
	}
	text, summary := wording(o, passed, problem, r)
	f := finding{
		Kind: kindBuild, Severity: wire.SeverityInfo, NodeID: in.Event.Node(), ExecID: in.Event.ExecID, Armed: in.Pos,
		Text: text, Event: "build_result", Data: map[string]any{
			"command": o.Command, "passed": passed, "errors": r.Errors + r.Failed, "summary": summary,
		},
	}
	if now == outcomeFailed {
		f.Severity = wire.SeverityWarning
	}
	if suspect {
		f.Data["suspect"] = true
		f.Text += fmt.Sprintf(textSuspect, r.words(o.Test))
	}
	return s, []finding{f}
}

// wording returns the line and the summary of the supervisor event.
func wording(o ordered, passed bool, problem string, r report) (text, summary string) {
	switch {
	case passed && o.Test:
		words := "exit code 0"
		if r.good() {
			words = fmt.Sprintf("%d passed", r.Passed)
		}
		return fmt.Sprintf(textTestsPassed, words), "Tests passed"
	case passed:
		return fmt.Sprintf(textBuildPassed, "0 errors"), "Build passed"
	}
	if summary = exitStatus(problem); r.bad() {
		summary = r.words(o.Test)
	}
	if o.Test {
		return fmt.Sprintf(textTestsFailed, summary), summary
	}
	return fmt.Sprintf(textBuildFailed, summary), summary
}

// words says in short what the output told.
func (r report) words(test bool) string {
	switch {
	case r.Errors > 0 && (!test || r.Failed == 0):
		return r.errors()
	case r.Failed > 0:
		return r.failures()
	case r.Made:
		return "make failed"
	}
	return fmt.Sprintf("%d passed", r.Passed)
}

var exitCode = regexp.MustCompile(`^(?i)exit (?:code|status):? (\d+)`) //nolint:gochecknoglobals // constant

// exitStatus is "exit code 2", or what else is said about a failure.
func exitStatus(problem string) string {
	if m := exitCode.FindStringSubmatch(problem); m != nil {
		return "exit code " + m[1]
	}
	return timeline.Line(firstLine(problem), maxError)
}

// outputOf is what a tool has printed.
func outputOf(p *wire.AgentTool) string {
	if s, ok := p.ToolOutput.Text(); ok {
		return s
	}
	var all []string
	list, _ := p.ToolOutput.Any().([]any)
	for _, x := range list {
		block, _ := x.(map[string]any)
		if s, ok := block["text"].(string); ok {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return field(p.ToolOutput, "stdout") + field(p.ToolOutput, "output")
	}
	return strings.Join(all, "\n")
}
