// Package kahn knows the agent transition events of KAHN (seeds/002): lines of
// JSON that say which agent did what, through which statuses each agent went, and whether
// it came to a stable answer.
//
// [Parse] and [Event.Append] are the lines, [Checker] is their life cycle, and a
// [Projector] makes them of a run of wake. The package does no I/O and knows no
// clock.
package kahn

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Event is one line. What a line says besides is in its body.
type Event struct {
	TS      string // RFC 3339 in UTC with milliseconds; orders nothing
	RunID   string
	AgentID string // "" is null: an [Audit] of the whole run
	Body    Body
	Unknown []Field // fields that this version doesn't know, as they came
}

// Field is a named JSON value.
type Field struct {
	Name  string
	Value json.RawMessage
}

// Body is what a kind of event says: *[RunStart], *[Transition],
// *[ToolInvocation], *[Audit] or *[RunEnd].
type Body interface {
	// Name is the value of the line's field event.
	Name() string
	visitFields(v visitor)
}

// The names of events.
const (
	NameRunStart       = "agent_run_start"
	NameTransition     = "agent_transition"
	NameToolInvocation = "tool_invocation"
	NameAudit          = "audit_checkpoint"
	NameRunEnd         = "agent_run_end"
)

// Status is where an agent is.
type Status string

// The statuses. Converged and failed are the last ones.
const (
	Thinking   Status = "thinking"
	ToolCall   Status = "tool_call"
	ToolResult Status = "tool_result"
	Response   Status = "response"
	Reflect    Status = "reflect"
	Blocked    Status = "blocked-on-clarification"
	Converged  Status = "converged"
	Failed     Status = "failed"
)

// Statuses lists all statuses.
var Statuses = []Status{Thinking, ToolCall, ToolResult, Response, Reflect, Blocked, Converged, Failed}

// Legal reports whether a status may follow another. An agent begins with
// thinking.
func Legal(from, to Status) bool {
	switch from {
	case Thinking:
		return to == ToolCall || to == Blocked || to == Failed
	case ToolCall:
		return to == ToolResult
	case ToolResult:
		return to == Response
	case Response:
		return to == Reflect
	case Reflect:
		return to == Thinking || to == Converged
	case Blocked:
		return to == Thinking
	default:
		return false
	}
}

// Outcome is what came of an agent: the product signal, not an exit code.
type Outcome string

// The outcomes.
const (
	OutcomeConverged Outcome = "converged"
	OutcomePartial   Outcome = "partial"
	OutcomeEscaped   Outcome = "escaped" // it left its scope, and ended gracefully
	OutcomeAborted   Outcome = "aborted" // it was ended from outside

	// OutcomeUnknown is reported for an agent without an end. No line has it.
	OutcomeUnknown Outcome = "unknown"
)

var outcomes = []Outcome{OutcomeConverged, OutcomePartial, OutcomeEscaped, OutcomeAborted}

// Result is the outcome of an audit.
type Result string

// The results of audits.
const (
	Pass Result = "pass"
	Fail Result = "fail"
	Warn Result = "warn"
)

var results = []Result{Pass, Fail, Warn}

// MaxSummary bounds the summaries of a tool's input and output, in characters.
const MaxSummary = 2048

// RunStart begins an agent.
type RunStart struct {
	Task  string
	Model *string
}

// Transition is a step from one status to another.
type Transition struct {
	Step     int64 // rises per run and agent
	From, To Status
	Reason   *string
}

// ToolInvocation is a finished tool call. It shares its step with the
// transition into [ToolCall].
type ToolInvocation struct {
	Step          int64
	ToolName      string
	DurationS     float64
	OK            bool
	InputSummary  *string // at most [MaxSummary] characters
	OutputSummary *string // likewise
	Error         *string
}

// Audit is a check of an agent's work or, of no agent, of the run.
type Audit struct {
	CheckpointID string
	Result       Result
	DurationS    float64
	Evidence     json.RawMessage // an object; nil: none
}

// RunEnd ends an agent. Its totals are those of the agent in the run so far.
type RunEnd struct {
	Outcome               Outcome
	TotalSteps            int64
	TotalToolCalls        int64
	TotalAuditCheckpoints int64 // those with result warn included
	AuditsPassed          int64
	AuditsFailed          int64
	TotalDurationS        float64
	ConvergenceScore      *float64 // from 0 to 1
}

// Name returns "agent_run_start".
func (*RunStart) Name() string { return NameRunStart }

// Name returns "agent_transition".
func (*Transition) Name() string { return NameTransition }

// Name returns "tool_invocation".
func (*ToolInvocation) Name() string { return NameToolInvocation }

// Name returns "audit_checkpoint".
func (*Audit) Name() string { return NameAudit }

// Name returns "agent_run_end".
func (*RunEnd) Name() string { return NameRunEnd }

func newBody(name string) Body {
	switch name {
	case NameRunStart:
		return new(RunStart)
	case NameTransition:
		return new(Transition)
	case NameToolInvocation:
		return new(ToolInvocation)
	case NameAudit:
		return new(Audit)
	case NameRunEnd:
		return new(RunEnd)
	}
	return nil
}

var (
	tsPattern = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{3}Z$`)
	})
	runPattern        = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$`) })
	agentPattern      = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9:-]{0,63}$`) })
	checkpointPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9:.-]{0,127}$`) })
)

func (b *RunStart) visitFields(v visitor) {
	v.visitText("task", &b.Task, nil)
	v.visitOptText("model", &b.Model, 0)
}

func (b *Transition) visitFields(v visitor) {
	v.visitCount("step", &b.Step)
	visitEnum(v, "from", &b.From, Statuses)
	visitEnum(v, "to", &b.To, Statuses)
	v.visitOptText("reason", &b.Reason, 0)
}

func (b *ToolInvocation) visitFields(v visitor) {
	v.visitCount("step", &b.Step)
	v.visitText("tool_name", &b.ToolName, nil)
	v.visitSeconds("duration_s", &b.DurationS)
	v.visitFlag("ok", &b.OK)
	v.visitOptText("input_summary", &b.InputSummary, MaxSummary)
	v.visitOptText("output_summary", &b.OutputSummary, MaxSummary)
	v.visitOptText("error", &b.Error, 0)
}

func (b *Audit) visitFields(v visitor) {
	v.visitText("checkpoint_id", &b.CheckpointID, patternCheck(checkpointPattern(), "lower-case letters, digits, :, . and -, at most 128"))
	visitEnum(v, "result", &b.Result, results)
	v.visitSeconds("duration_s", &b.DurationS)
	v.visitOptObject("evidence", &b.Evidence)
}

func (b *RunEnd) visitFields(v visitor) {
	visitEnum(v, "outcome", &b.Outcome, outcomes)
	v.visitCount("total_steps", &b.TotalSteps)
	v.visitCount("total_tool_calls", &b.TotalToolCalls)
	v.visitCount("total_audit_checkpoints", &b.TotalAuditCheckpoints)
	v.visitCount("audits_passed", &b.AuditsPassed)
	v.visitCount("audits_failed", &b.AuditsFailed)
	v.visitSeconds("total_duration_s", &b.TotalDurationS)
	v.visitOptShare("convergence_score", &b.ConvergenceScore)
}

func (e *Event) visitHeader(v visitor) {
	v.visitText("ts", &e.TS, checkTime)
	v.visitText("run_id", &e.RunID, patternCheck(runPattern(), "letters, digits, _ and -, at most 64"))
	name := ""
	if e.Body != nil {
		name = e.Body.Name()
	}
	v.visitText("event", &name, func(s string) string {
		if newBody(s) == nil {
			return "is no event of an agent"
		}
		return ""
	})
	if e.Body == nil {
		e.Body = newBody(name)
	}
	_, audit := e.Body.(*Audit)
	v.visitAgent("agent_id", &e.AgentID, audit)
}

const agentRule = "lower-case letters, digits, : and -, at most 64"

func patternCheck(pattern *regexp.Regexp, rule string) func(string) string {
	return func(s string) string {
		if !pattern.MatchString(s) {
			return "must be " + rule
		}
		return ""
	}
}

func visitEnum[T ~string](v visitor, name string, p *T, allowed []T) {
	s := string(*p)
	v.visitText(name, &s, func(s string) string {
		if !slices.Contains(allowed, T(s)) {
			return "is none of those that are known"
		}
		return ""
	})
	*p = T(s)
}

// maxID is the length of run and agent ids.
const maxID = 64

// AgentID makes an agent id of any name: lower-case, other characters replaced by
// a hyphen, at most 64.
func AgentID(name string) string {
	return sanitizeID(strings.ToLower(name), func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == ':' || c == '-'
	})
}

// RunID makes a run id of any id; one that had to be changed gets a suffix, so that
// two stay two.
func RunID(id string) string {
	if runPattern().MatchString(id) {
		return id
	}
	return withHashSuffix(sanitizeID(id, func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
	}), id)
}

func sanitizeID(s string, allowed func(byte) bool) string {
	b := make([]byte, 0, maxID)
	for _, r := range s {
		if len(b) == maxID {
			break
		}
		c := byte('-')
		if r < 0x80 && allowed(byte(r)) {
			c = byte(r)
		}
		if len(b) == 0 && (c == '-' || c == ':' || c == '_') {
			continue // the first is a letter or a digit
		}
		b = append(b, c)
	}
	if len(b) == 0 {
		return "x"
	}
	return string(b)
}

// withHashSuffix tells an id from another one by what it was made of.
func withHashSuffix(id, of string) string {
	sum := sha256.Sum256([]byte(of))
	suffix := "-" + hex.EncodeToString(sum[:4])
	return id[:min(len(id), maxID-len(suffix))] + suffix
}
