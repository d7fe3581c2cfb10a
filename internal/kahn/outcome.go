package kahn

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/conversation"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

// ending is how an agent ends.
type ending struct {
	kind  endKind
	cause string
}

type endKind int

const (
	graceful endKind = iota // it completed
	limited                 // it came to its limit of turns or costs
	failing                 // an error of its own
	external                // it was ended
)

// endingOf is what an error of a node says of its agent.
func endingOf(errorType string) ending {
	switch errorType {
	case wire.ErrorMaxTurns, wire.ErrorMaxBudget:
		return ending{limited, errorType}
	case wire.ErrorTimeout, wire.ErrorProcessDied, wire.ErrorInterrupted, wire.ErrorSessionNotFound, wire.ErrorCancelled:
		return ending{external, errorType}
	case "":
		return ending{failing, wire.ErrorExecution}
	}
	return ending{failing, errorType}
}

// endAgent ends an agent, and with it its sub-agents.
func (p *Projector) endAgent(a *agent, e *wire.Event, end ending) {
	if !a.active {
		return
	}
	for _, sub := range p.activeSubs(a) {
		p.endAgent(sub, e, ending{external, "aborted"})
	}
	at := e.Timestamp
	p.goesOn(a, at)
	p.flushPending(a)
	verdict := p.judgeAgent(a, e, end)
	b := &RunEnd{Outcome: a.runOutcome(verdict, end), ConvergenceScore: verdict.Score}
	switch {
	case b.Outcome == OutcomeConverged:
		p.convergeAgent(a, at)
	case end.kind == graceful || end.kind == limited:
		p.walkToStatus(a, at, Reflect)
	default:
		p.failAgent(a, at, end.cause)
	}
	a.durationMs += max(0, at-a.began)
	b.TotalSteps, b.TotalToolCalls = a.told, a.calls
	b.TotalAuditCheckpoints, b.AuditsPassed, b.AuditsFailed = a.audits, a.passed, a.failed
	b.TotalDurationS = secondsOf(a.durationMs)
	if passed, of := a.passed, a.passed+a.failed; b.ConvergenceScore == nil && p.AuditScore && of > 0 {
		b.ConvergenceScore = new(float64(passed) / float64(of))
	}
	a.active = false
	line := p.newLine(at, a, b)
	if x := spendingOf(a.spent); x != nil {
		line.addExtension(x)
	}
	p.emitLine(line)
}

// judgeAgent asks the goal and the score of a node after its own agent completed.
func (p *Projector) judgeAgent(a *agent, e *wire.Event, end ending) flow.Verdict {
	if p.def == nil || a.key.call != "" || end.kind != graceful {
		return flow.Verdict{Met: true}
	}
	v, err := p.def.Judge(p.state, a.key.node, e.Timestamp)
	if err != nil {
		p.err = errors.Join(p.err, fmt.Errorf("node %s: %w", a.key.node, err))
	}
	return v
}

func (a *agent) runOutcome(v flow.Verdict, end ending) Outcome {
	switch {
	case end.kind == external:
		return OutcomeAborted
	case end.kind == failing:
		return OutcomePartial
	case a.breach:
		return OutcomeEscaped
	case end.kind == limited, a.failedNow > 0, !v.Met:
		return OutcomePartial
	}
	return OutcomeConverged
}

// convergeAgent brings an agent to converged. KAHN has no way there from thinking.
func (p *Projector) convergeAgent(a *agent, at int64) {
	p.walkToStatus(a, at, Reflect)
	reason := ""
	if a.status == Thinking {
		reason = ExtensionPrefix + "no_response"
	}
	p.moveToStatus(a, at, Converged, reason)
}

// failAgent brings an agent to failed, which KAHN knows from thinking only.
func (p *Projector) failAgent(a *agent, at int64, cause string) {
	reason := "error:" + cause
	if a.status != Thinking {
		reason = ExtensionPrefix + cause
	}
	p.moveToStatus(a, at, Failed, Redact(reason))
}

// checkScope looks whether a call that was made leaves the scope of its node. What a
// command does to files isn't seen.
func (p *Projector) checkScope(a *agent, step conversation.Step) {
	if p.def == nil || step.Result.Denied {
		return
	}
	n := p.def.Node(a.key.node)
	if n == nil || n.Scope == nil || isInScope(n.Scope, p.cwdOf(a), step.Call) {
		return
	}
	a.breach = true
	if own := p.agents[agentKey{a.key.node, ""}]; own != nil {
		own.breach = true
	}
}

func (p *Projector) cwdOf(a *agent) string {
	if own := p.agents[agentKey{a.key.node, ""}]; own != nil {
		return own.cwd
	}
	return a.cwd
}

// isInScope reports whether a call stays in a scope: its tool is one of the tools and
// its file below one of the paths, as far as the scope names any.
func isInScope(s *flow.Scope, cwd string, call conversation.Call) bool {
	if len(s.Tools) > 0 && !matchesAny(s.Tools, call.Tool) {
		return false
	}
	if len(s.Paths) == 0 {
		return true
	}
	for _, field := range []string{"file_path", "notebook_path", "path"} {
		name, ok := call.Input.Get(field).Text()
		if !ok || name == "" {
			continue
		}
		if !filepath.IsAbs(name) {
			name = filepath.Join(cwd, name)
		}
		rel, err := filepath.Rel(cwd, filepath.Clean(name))
		if cwd == "" || err != nil {
			rel = filepath.Clean(name)
		}
		if !matchesAny(s.Paths, filepath.ToSlash(rel)) && !matchesAny(s.Paths, filepath.ToSlash(filepath.Clean(name))) {
			return false
		}
	}
	return true
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matchesPath(strings.Split(p, "/"), strings.Split(name, "/")) })
}

// matchesPath matches a name with a pattern part by part; ** stands for any number of
// parts.
func matchesPath(pattern, name []string) bool {
	star, from := -1, 0 // the last **, and where what it stands for ends
	i, k := 0, 0
	for k < len(name) {
		switch {
		case i < len(pattern) && pattern[i] == "**":
			star, from = i, k
			i++
		case i < len(pattern) && matchesSegment(pattern[i], name[k]):
			i++
			k++
		case star >= 0:
			from++
			i, k = star+1, from
		default:
			return false
		}
	}
	for i < len(pattern) && pattern[i] == "**" {
		i++
	}
	return i == len(pattern)
}

func matchesSegment(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}
