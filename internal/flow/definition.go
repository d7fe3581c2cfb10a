// Package flow knows what a flow is and decides what comes next in a run of one.
//
// It is pure: no clock, no I/O, no logger. [Parse] reads a flow file and tells
// everything that is wrong with it, with places; what it accepts can be run.
// [Decide] looks at a definition and at the state of a run and returns the
// decisions that follow. It never remembers anything: the log is the memory.
package flow

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
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

// The gates. Both wait until every edge is decided.
const (
	GateAll Gate = "all" // the default
	GateAny Gate = "any"
)

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

// maxSource bounds the size of a flow file in bytes.
const maxSource = 512 << 10

// Parse reads a flow in YAML, or in JSON if the name ends in .json or the text
// begins with a brace. The file is only named in problems. The error is an
// [*document.Error] with all of them.
func Parse(file string, src []byte) (*Definition, error) {
	ps := &document.Problems{File: file}
	t := document.Read(ps, src, maxSource)
	if t == nil {
		if ps.Count() == 0 {
			ps.Add(document.Place{Line: 1, Col: 1}, "", "the file is empty")
		}
		return nil, ps.Err()
	}
	return buildDefinition(ps, t)
}

// FromRaw reads a definition as flow:start carries it. It is checked like a
// file: a log may come from anywhere.
func FromRaw(raw wire.Raw) (*Definition, error) {
	return buildDefinition(&document.Problems{File: rawFile}, document.ValueOf(raw.Any()))
}

// rawFile stands for the file of a definition that has none.
const rawFile = "definition"

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

// buildDefinition makes a definition of a tree.
func buildDefinition(ps *document.Problems, t *document.Value) (*Definition, error) {
	d := readDefinition(ps, t)
	if err := ps.Err(); err != nil {
		return nil, err
	}
	d.embedded = embeddedIn(t)
	raw, err := wire.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("flow: %w", err)
	}
	sum := sha256.Sum256(raw)
	d.raw, d.hash = raw, hex.EncodeToString(sum[:])
	return d, nil
}
