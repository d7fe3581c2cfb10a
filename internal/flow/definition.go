// Package flow knows what a flow is and decides what comes next in a run of one.
//
// It is pure: no clock, no I/O, no logger. [Parse] reads a flow file and tells
// everything that is wrong with it, with places; what it accepts can be run.
// [Decide] looks at a definition and at the state of a run and returns the
// decisions that follow. It never remembers anything: the log is the memory.
package flow

import (
	"cmp"
	"math"

	"code.wake.dev/wake/internal/document"
	"code.wake.dev/wake/pkg/wire"
)

// Definition is a flow. It comes from [Parse] or [FromRaw] and is not changed.
type Definition struct {
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Nodes       []Node            `json:"nodes"`
	Edges       []Edge            `json:"edges,omitempty"`
	State       wire.Raw          `json:"state,omitempty"`     // initial user state, an object
	Workspace   string            `json:"workspace,omitempty"` // run (default), shared, node or git: URL@ref
	Pool        string            `json:"pool,omitempty"`      // of nodes that name none
	Labels      map[string]string `json:"labels,omitempty"`    // of its runs
	Hooks       []Hook            `json:"hooks,omitempty"`     // of its agents
	Budget      *Budget           `json:"budget,omitempty"`    // of each run
	TimeoutMs   int64             `json:"timeoutMs,omitempty"` // of each run, but for the time that it is paused; 0 is no limit

	graph graph
	raw   wire.Raw
	hash  string

	embedded map[string]document.Place // where flows within it stand
}

// Budget is what a run may spend, and what follows when it is spent; see [ledger.Budget].
type Budget struct {
	Usd    float64 `json:"usd,omitempty"`
	Tokens int64   `json:"tokens,omitempty"`
	Then   string  `json:"then,omitempty"`
}

// WorkspaceShared is the workspace of a flow with a folder that all runners see.
const WorkspaceShared = "shared"

// IsBound reports whether the nodes of the flow's runs stay with the folder of their run.
func (d *Definition) IsBound() bool { return d.Workspace == "" || d.Workspace == "run" }

// NodeType says what executes a node.
type NodeType string

// The types of nodes. Agents and commands are executed by workers, the others by
// the owner of the run.
const (
	TypeAgent NodeType = "agent" // an agent, by a provider
	TypeExec  NodeType = "exec"  // a command
	TypeSet   NodeType = "set"   // changes the user's state
	TypeAsk   NodeType = "ask"   // a human answers
	TypeSleep NodeType = "sleep" // nothing: a span of time passes
	TypeAt    NodeType = "at"    // nothing: a time comes
	TypeFlow  NodeType = "flow"  // a child run
)

// Node is a vertex of the flow.
type Node struct {
	ID         string   `json:"id"`
	Type       NodeType `json:"type"`
	Input      wire.Raw `json:"input,omitempty"` // an object, with bindings
	When       wire.Raw `json:"when,omitempty"`  // skipped if it doesn't hold
	Policy     *Policy  `json:"policy,omitempty"`
	Idempotent bool     `json:"idempotent,omitempty"` // may be run again after a crash
	Goal       string   `json:"goal,omitempty"`       // expression: has the agent converged
	Score      string   `json:"score,omitempty"`      // expression: how far, from 0 to 1
	Scope      *Scope   `json:"scope,omitempty"`
	Audits     []Audit  `json:"audits,omitempty"`
	Pool       string   `json:"pool,omitempty"`  // which runners may take it
	Hooks      []Hook   `json:"hooks,omitempty"` // of its agent, after those of the flow
	Flows      []Child  `json:"flows,omitempty"` // which its agent may start
	UI         wire.Raw `json:"ui,omitempty"`    // for editors; not looked at
}

// Policy is what happens when an execution fails or takes long.
type Policy struct {
	Retry     *Retry `json:"retry,omitempty"`
	TimeoutMs int64  `json:"timeoutMs,omitempty"` // of one execution; 0 is no limit
	// StartTimeoutMs is how long an agent's program may say nothing at all after its start;
	// 0 is a minute.
	StartTimeoutMs  int64 `json:"startTimeoutMs,omitempty"`
	ContinueOnError bool  `json:"continueOnError,omitempty"`
	// MaxRetryWaitMs is how long an agent may wait, by its model's API, before it asks that again: one that has to wait longer fails.
	// 0 is no bound.
	MaxRetryWaitMs int64 `json:"maxRetryWaitMs,omitempty"`
	// OutputBytes is how much of what a command prints is recorded, of its beginning and its
	// end; 0 is [OutputBytes].
	OutputBytes int64 `json:"outputBytes,omitempty"`
	// Memory is how many bytes of memory the processes of one execution may use together; 0 is no bound. A runner that
	// can't keep it refuses the node, unless MemoryOptional has it run without one there.
	Memory         int64 `json:"memory,omitempty"`
	MemoryOptional bool  `json:"memoryOptional,omitempty"`
	// Interrupted is what becomes of the open tool calls of an agent that was
	// interrupted: seal (default), rollback or rerun.
	Interrupted string `json:"interrupted,omitempty"`
}

// OutputBytes is how much of what a command prints is recorded unless its policy says otherwise.
const OutputBytes = 16 << 20

// Retry runs a failed node again.
type Retry struct {
	MaxAttempts int   `json:"maxAttempts"`         // tries in all
	BackoffMs   int64 `json:"backoffMs,omitempty"` // between two
	// BackoffFactor is what each wait is longer than the one before, at most MaxBackoffMs; 0 and 1: all are the same. Without
	// MaxBackoffMs, waits grow to [LongestBackoff].
	BackoffFactor float64 `json:"backoffFactor,omitempty"`
	MaxBackoffMs  int64   `json:"maxBackoffMs,omitempty"`
	// Except are types of errors after which the node isn't run again.
	Except []string `json:"except,omitempty"`
	// Session is which session an agent has that is run again: continue (default), its own
	// with all that it has done, or new.
	Session string `json:"session,omitempty"`
}

// LongestBackoff is how long a wait that grows is at most unless its policy says otherwise, in milliseconds.
const LongestBackoff = 24 * 60 * 60 * 1000

// waitAfter is how long the node waits after a try, of which the first is 1, in milliseconds.
func (r *Retry) waitAfter(attempt int) int64 {
	if r.BackoffFactor <= 1 {
		return r.BackoffMs
	}
	wait := float64(r.BackoffMs) * math.Pow(r.BackoffFactor, float64(max(0, attempt-1)))
	return int64(min(wait, float64(cmp.Or(r.MaxBackoffMs, LongestBackoff))))
}

// The sessions of an agent that is run again; see [Retry].
const (
	RetryContinue = "continue"
	RetryNew      = "new"
)

// GoesOn reports whether an agent that is run again continues its session.
func (r *Retry) GoesOn() bool { return r.Session != RetryNew }

// Scope is what the agent of a node may touch.
type Scope struct {
	Tools []string `json:"tools,omitempty"`
	Paths []string `json:"paths,omitempty"`
}

// Audit is a command that checks the work of a node when that has completed: exit
// code 0 is a pass, and a JSON object on stdout is the evidence. A failed audit
// doesn't fail the node.
type Audit struct {
	ID        string `json:"id"`
	Command   string `json:"command"`
	Run       bool   `json:"run,omitempty"`       // it is about the whole run, as that of an exec node is anyway
	TimeoutMs int64  `json:"timeoutMs,omitempty"` // default 10 minutes
}

// Gate is which of the edges into a node have to fire.
type Gate string

// GateAny is met by one edge, the default by all. Both wait until every edge is decided.
const GateAny Gate = "any"

// Edge leads from one node to another. One with MaxIterations closes a loop.
type Edge struct {
	ID            string   `json:"id,omitempty"`
	From          string   `json:"from"`
	To            string   `json:"to"`
	When          wire.Raw `json:"when,omitempty"`
	Gate          Gate     `json:"gate,omitempty"`
	ForEach       *ForEach `json:"forEach,omitempty"`
	MaxIterations int      `json:"maxIterations,omitempty"`
}

// Key is the edge's id or "from->to", as in the state of a run.
func (e Edge) Key() string {
	if e.ID != "" {
		return e.ID
	}
	return e.From + "->" + e.To
}

// ForEach runs the node that the edge leads to once per item.
type ForEach struct {
	In string `json:"in"` // expression: a list
	As string `json:"as"` // name of the item in the node's expressions
	// Concurrency is how many items are at work at the same time; one that waits for its next try is. 0: all are.
	Concurrency int `json:"concurrency,omitempty"`
}

// Raw returns the definition as flow:start carries it. Equal definitions have
// equal bytes, however they were written.
func (d *Definition) Raw() wire.Raw { return d.raw }

// Hash returns the SHA-256 of [Definition.Raw] in lower-case hex.
func (d *Definition) Hash() string { return d.hash }

// Node returns the node with an id, which may be that of a forEach item, or nil.
func (d *Definition) Node(id string) *Node {
	v := d.graph.vertexOf(id)
	if v == nil {
		return nil
	}
	return v.Node
}

// Hook is asked when something happens to the agents of a flow, or of a node. It is
// one of a command, a URL and a NATS subject; [code.wake.dev/wake/internal/hook] asks it.
type Hook struct {
	Event   string `json:"event"`
	Matcher string `json:"matcher,omitempty"` // regular expression of whole names of tools; "": all. Of events with a tool only
	Name    string `json:"name,omitempty"`    // for the log; "": by what it is
	// Command is a program and its arguments. A text in a file is one for sh -c.
	Command   []string `json:"command,omitempty"`
	URL       string   `json:"url,omitempty"`
	Subject   string   `json:"subject,omitempty"`
	TimeoutMs int64    `json:"timeoutMs,omitempty"` // for its answer; 0: 10 s
}

// Child is a flow that the agent of a node may start, as a run of its own.
type Child struct {
	Name        string   `json:"name"`                  // by which the agent calls it
	Flow        wire.Raw `json:"flow,omitempty"`        // a flow; before [Definition.Embed] it may be the name of its file
	Node        string   `json:"node,omitempty"`        // or a node of the same flow, which is run alone
	Description string   `json:"description,omitempty"` // for the agent; default: that of the flow
	Input       wire.Raw `json:"input,omitempty"`       // JSON Schema of the run's input; absent: any
	MaxRuns     int      `json:"maxRuns,omitempty"`     // how often an execution of the agent may start it; 0: [DefaultMaxRuns]
}

// DefaultMaxRuns is how often an agent may start a flow that sets no limit.
const DefaultMaxRuns = 20

// Most is how often an execution of the agent may start the flow.
func (c Child) Most() int {
	if c.MaxRuns > 0 {
		return c.MaxRuns
	}
	return DefaultMaxRuns
}

// About is what the agent is told of the flow.
func (c Child) About() string {
	if c.Description != "" {
		return c.Description
	}
	s := c.Flow.TextAt("description")
	return s
}
