package kahn

import (
	"fmt"
	"strings"
)

// Severity grades a [Finding].
type Severity string

// The severities.
const (
	Violation Severity = "violation" // the life cycle of an agent doesn't allow it
	Warning   Severity = "warning"   // allowed, but odd
	Extension Severity = "extension" // a transition that KAHN doesn't know, marked as such by its reason
)

// ExtensionPrefix begins the reasons of transitions that KAHN doesn't know and
// that a producer makes knowingly.
const ExtensionPrefix = "ext:"

// Finding is something about a line.
type Finding struct {
	Line     int      `json:"line"` // from 1
	Severity Severity `json:"severity"`
	RunID    string   `json:"runId"`
	AgentID  string   `json:"agentId,omitempty"`
	Problem  string   `json:"problem"`
}

// Agent is what the lines say of an agent in a run.
type Agent struct {
	RunID     string  `json:"runId"`
	AgentID   string  `json:"agentId"`
	Status    Status  `json:"status"`
	Outcome   Outcome `json:"outcome"` // unknown without an agent_run_end
	Steps     int64   `json:"steps"`   // last one + 1; 0: none
	ToolCalls int64   `json:"toolCalls"`
	Audits    int64   `json:"audits"`
	Passed    int64   `json:"passed"`
	Failed    int64   `json:"failed"`
	Ended     bool    `json:"ended"`

	started bool
	closed  int64 // last step before the last agent_run_end; -1: none
}

// Checker follows lines in the order of their file, which alone orders them, and
// finds what their life cycle doesn't allow. The zero value is ready.
type Checker struct {
	agents map[[2]string]*Agent
	order  []*Agent
	found  []Finding
	line   int
}

// Add takes the next line and returns what is wrong with it.
func (c *Checker) Add(e *Event) []Finding {
	c.line++
	c.found = nil
	if _, audit := e.Body.(*Audit); audit && e.AgentID == "" {
		return nil
	}
	a := c.agentOf(e)
	if start, ok := e.Body.(*RunStart); ok {
		c.beginAgent(e, a, start)
		return c.found
	}
	if !a.started {
		a.started = true
		c.addFinding(e, Violation, "%s before agent_run_start", e.Body.Name())
	}
	if a.Ended {
		c.addFinding(e, Violation, "%s after agent_run_end", e.Body.Name())
	}
	switch b := e.Body.(type) {
	case *Transition:
		c.checkStep(e, a, b.Step)
		c.checkTransition(e, a, b)
	case *ToolInvocation:
		c.checkStep(e, a, b.Step)
		a.ToolCalls++
	case *Audit:
		c.countAudit(a, b)
	case *RunEnd:
		c.checkEnd(e, a, b)
	}
	return c.found
}

// Skip counts a line that is no event.
func (c *Checker) Skip() { c.line++ }

// Agents returns the agents in the order in which they came.
func (c *Checker) Agents() []Agent {
	all := make([]Agent, len(c.order))
	for i, a := range c.order {
		all[i] = *a
	}
	return all
}

func (c *Checker) addFinding(e *Event, s Severity, format string, args ...any) {
	c.found = append(c.found, Finding{
		Line: c.line, Severity: s, RunID: e.RunID, AgentID: e.AgentID, Problem: fmt.Sprintf(format, args...),
	})
}

// agentOf returns the agent of a line. Agents of one name in two runs are two.
func (c *Checker) agentOf(e *Event) *Agent {
	key := [2]string{e.RunID, e.AgentID}
	a := c.agents[key]
	if a == nil {
		a = &Agent{RunID: e.RunID, AgentID: e.AgentID, Status: Thinking, Outcome: OutcomeUnknown, closed: -1}
		if c.agents == nil {
			c.agents = map[[2]string]*Agent{}
		}
		c.agents[key] = a
		c.order = append(c.order, a)
	}
	return a
}

// beginAgent begins an agent, or begins it again after its end: its steps go on.
func (c *Checker) beginAgent(e *Event, a *Agent, _ *RunStart) {
	if a.started && !a.Ended {
		c.addFinding(e, Violation, "agent_run_start of an agent that has not ended")
	}
	if a.Ended {
		a.closed = a.Steps - 1
	}
	a.started, a.Ended = true, false
	a.Status, a.Outcome = Thinking, OutcomeUnknown
}

func (c *Checker) checkStep(e *Event, a *Agent, step int64) {
	switch {
	case step <= a.closed:
		c.addFinding(e, Violation, "step %d was used before agent_run_end", step)
	case step < a.Steps-1:
		c.addFinding(e, Violation, "step %d follows step %d", step, a.Steps-1)
	}
	a.Steps = max(a.Steps, step+1)
}

func (c *Checker) checkTransition(e *Event, a *Agent, t *Transition) {
	extension := t.Reason != nil && strings.HasPrefix(*t.Reason, ExtensionPrefix)
	switch {
	case t.From != a.Status:
		c.addFinding(e, Violation, "from %s, but the agent is in %s", t.From, a.Status)
	case !Legal(t.From, t.To) && extension:
		c.addFinding(e, Extension, "%s→%s: %s", t.From, t.To, *t.Reason)
	case !Legal(t.From, t.To):
		c.addFinding(e, Violation, "%s can't follow %s", t.To, t.From)
	}
	a.Status = t.To
}

func (c *Checker) countAudit(a *Agent, b *Audit) {
	a.Audits++
	switch b.Result {
	case Pass:
		a.Passed++
	case Fail:
		a.Failed++
	case Warn:
	}
}

func (c *Checker) checkEnd(e *Event, a *Agent, b *RunEnd) {
	for _, total := range []struct {
		name      string
		said, was int64
	}{
		{"total_steps", b.TotalSteps, a.Steps},
		{"total_tool_calls", b.TotalToolCalls, a.ToolCalls},
		{"total_audit_checkpoints", b.TotalAuditCheckpoints, a.Audits},
		{"audits_passed", b.AuditsPassed, a.Passed},
		{"audits_failed", b.AuditsFailed, a.Failed},
	} {
		if total.said != total.was {
			c.addFinding(e, Violation, "%s is %d, the lines have %d", total.name, total.said, total.was)
		}
	}
	if b.TotalAuditCheckpoints < b.AuditsPassed+b.AuditsFailed {
		c.addFinding(e, Violation, "fewer audits than passed and failed")
	}
	if b.Outcome == OutcomeConverged && b.ConvergenceScore != nil && *b.ConvergenceScore < 1 {
		c.addFinding(e, Warning, "converged with a score of %g", *b.ConvergenceScore)
	}
	a.Outcome, a.Ended = b.Outcome, true
}
