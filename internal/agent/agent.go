// Package agent is what the runner knows of agents: given a prompt, options and
// a session id, a [Provider] yields a stream of normalised events.
//
// A session ends with exactly one of agent:complete, agent:paused (it was
// interrupted and can go on) or agent:error with severity error; [Outcome] reads
// that from the events. Errors of a session's iterator are those of the
// machinery: the agent's own failures are events.
package agent

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// ErrEnded is returned for a message to a session that takes no more.
var ErrEnded = errors.New("agent: the session has ended")

// ErrLost is the error of a session: its program is gone with its host, came to no end
// by itself, and what it does since isn't known.
var ErrLost = errors.New("agent: its host is gone")

// ErrorSessionNotFound is the error type of an agent that doesn't know the
// session it was to resume. If the log has no event of it since the binding, the
// session may be started afresh.
const ErrorSessionNotFound = wire.ErrorSessionNotFound

// The error types of a fork that isn't what was asked for. It begins with all
// that is left of the session, or with more than was asked for, and says so by a
// warning; or else it fails.
const (
	ErrorForkInexact       = "fork_inexact"
	ErrorForkPointNotFound = "fork_point_not_found"
)

// Provider starts sessions of one kind of agent.
type Provider interface {
	// Capabilities states what agents of this kind can do and others can't. It never changes.
	Capabilities() Capabilities
	// Start begins an execution. It fails only for a request that can't be
	// served at all; an agent that doesn't come up is an agent:error.
	Start(ctx context.Context, r Request) (Session, error)
}

// Capabilities are what the runner has to know of a kind of agent. The zero value is a program
// that keeps its sessions itself.
type Capabilities struct {
	// ResumesFromLog says that the log is the agent's session: it goes on from [Request.History],
	// and takes up calls that haven't begun.
	ResumesFromLog bool
	// StartsRuns says that it uses [Request.Delegate] and [Request.RunFlow], if it has them.
	StartsRuns bool
	// SaysBegin says that the session says of each call when it begins, in every permission mode.
	// Others say so only of calls that need a permission, if the mode asks for some.
	SaysBegin bool
	// TellsLate says that calls may have begun before the session tells of them, in every permission mode.
	TellsLate bool
	// KeepsLate says that the agent's session may lack what the agent was asked until it has answered.
	KeepsLate bool
	// Lingers says that the agent may stay for a while behind its last turn, and reads no message then. A session that goes on needs no
	// prompt: it begins with the message that comes by [Session.Send].
	Lingers bool
	// Recorded says that the agent repeats what was recorded: it touches no files and waits for
	// no answer.
	Recorded bool
	// Recover returns what the agent's own record of the session that a request goes on with has
	// of calls and the log lacks: calls, and results of those that are open, marked as recovered.
	// Nil: the log has all that there is.
	Recover func(ctx context.Context, r Request, calls Calls) ([]*wire.Event, error)
	// SubAgents returns what the agent keeps on this machine of the sub-agents of a session. Nil: nothing.
	SubAgents func(o Options, session string) ([]SubAgent, error)
}

// SubAgent is what an agent keeps of a sub-agent of a session.
type SubAgent struct {
	File    string // its name
	Call    string // that began the sub-agent; empty: not known
	Content []byte
}

// Calls are the calls of an execution that the log has, and the messages with a usage in it, by their ids.
type Calls struct {
	Open, Ended []string
	Counted     []string // the messages with a usage in the log
	Whole       bool     // the session began with the execution: the calls of its record are all the execution's
}

// Session is one execution of an agent.
type Session interface {
	// Events returns the events of the execution, once. When the consumer asks for the
	// next event, the one before has been taken care of: awaited ones are
	// stored. The iterator ends after the terminal event. It must be consumed
	// by one goroutine; leaving it early closes the session.
	Events() iter.Seq2[*wire.Event, error]
	// Send injects a user message. It returns when the agent has been given
	// it; that the agent took it is a user:message with the command's id. It
	// fails with [ErrEnded] if the execution is over.
	Send(ctx context.Context, m Message) error
	// Interrupt asks the agent to stop what it is doing. The session then
	// ends with agent:paused unless a message follows.
	Interrupt(ctx context.Context) error
	// Close ends the agent and every process it started and waits until they
	// are gone. Events then ends too. It may be called twice and from anywhere.
	Close() error
}

// Leaver is a session that its program may outlive.
type Leaver interface {
	// Leave gives the program up without ending it, for the next session of the execution, and reports whether
	// it lives on; then Events ends without a terminal event. Questions of the program stay open.
	Leave() bool
}

// CallProgram names the program of a call among those of its agent's execution, in an agent that resumes from the log.
func CallProgram(call string) string { return "call/" + call }

// Message is a message to a running agent.
type Message struct {
	CommandID string // the command that sent it; may be empty
	Content   string
	Interrupt bool // the agent stops what it is doing first
	// Answers is the question to the parent that the message answers; empty: all that
	// the agent has asked.
	Answers string
	// Notice says that it tells the agent something and answers nothing.
	Notice bool
}

// Request is what an execution is asked for.
type Request struct {
	RunID, NodeID string
	ExecID        string   // <node>#<n>
	SessionID     string   // chosen by the runner and stored before the start
	Resume        bool     // the session exists
	ForkOf        string   // the session begins as a copy of this one; SessionID itself: it is rolled back to ForkAt
	ForkAt        string   // of which this is the last message, by the agent's own id (a Point of its events); empty: all of it
	Prompt        wire.Raw // a string or an array of message inputs; null: none, see Lingers
	Facts         []Fact   // of a session that goes on, oldest first: what it has to know
	Calls         Calls    // likewise: those that the log has
	Denied        []string // likewise: calls that a decision refused
	Asked         []string // likewise: what it has asked its parent (see [wire.CCMessage]) and wasn't answered, by id
	Expects       bool     // a message to the agent comes by [Session.Send], which it doesn't end before
	Options       Options
	Transcript    Transcript
	Hooks         *hook.Set // asked about what the agent does; nil: none
	// StartTimeout is how long a program of the agent may say nothing after its start; 0: a minute.
	StartTimeout time.Duration
	// Host is where the programs of the execution run; nil: [process.Direct]. If it already has the
	// agent's program, the session goes on with that: it has been started and prompted.
	Host process.Host
	// Stored reports whether the log has all events that the session has yielded so far; nil: it does.
	Stored func() bool
	// Decided is what the log has of decisions on calls, by their id. One that the agent wasn't told, since
	// the runner died before, is told to the program that the session goes on with.
	Decided map[string]*wire.PermissionDecided
	// History yields what the log has of the execution, oldest first and whole; if its run
	// is a fork, what its ancestors' logs have of it comes first. Nil: nothing.
	History iter.Seq2[*wire.Event, error]
	// Delegate has another agent of the same kind work on a prompt, in a run of its own, and
	// waits for its answer. Asked again for the same call, in whatever process, it is the same
	// run. Nil: not possible.
	Delegate func(ctx context.Context, call, prompt string) (Part, error)
	// RunFlow is [Request.Delegate] for one of Flows, by its name, on an input; "" is none.
	RunFlow func(ctx context.Context, call, name string, input wire.Raw) (Part, error)
	Flows   []flow.Child
}

// The tools of agents that have runs of their own do a part of the work.
const (
	ToolAgent   = "agent"    // see [Request.Delegate]
	ToolRunFlow = "run_flow" // see [Request.RunFlow]
)

// Part is what a run that a call of an agent has started has come to.
type Part struct {
	Run     string
	Output  wire.Raw // the answer, a text; of a flow {runId, status, outputs, state}
	Failed  string   // why it failed; "": it didn't
	CostUsd *float64 // nil: it isn't known
	Tokens  int64    // what models were given and made
}

// Fact is something that the log has of a session. An agent's own record may lack its
// end, since the agent or its machine died before it was written; then the agent
// is told.
type Fact struct {
	Mark string // the id of a call that has a result, or of a message, in the agent's record
	Text string // what an agent without it is told
}

// maxLapse bounds what an agent is told that it has lost, in bytes; the newest is
// told.
const maxLapse = 20 << 10

// DescribeLapse tells an agent of the facts that it doesn't know. It is empty if there are none.
func DescribeLapse(facts []Fact, knows func(Fact) bool) string {
	var lost []string
	size := 0
	for _, f := range slices.Backward(facts) {
		if knows(f) {
			continue
		}
		if size += len(f.Text); size > maxLapse {
			lost = append(lost, "- More that came before.")
			break
		}
		lost = append(lost, f.Text)
	}
	if len(lost) == 0 {
		return ""
	}
	slices.Reverse(lost)
	return "Your record of this conversation lacks what came last. What is listed here has happened; do not do it again:\n\n" + strings.Join(lost, "\n\n")
}

// Transcript keeps what an agent program needs to go on with a session on
// another machine. The zero value keeps nothing.
type Transcript struct {
	// Load returns what is kept of a session; nil if nothing is.
	Load func(ctx context.Context, session string) ([]byte, error)
	// Save adds to what is kept of a session: data stands at offset. What was
	// kept from there on is replaced.
	Save func(ctx context.Context, session string, offset int64, data []byte) error
}

// Options are the settings of an agent node, by their names in a flow's input.
// Zero values are the agent's own defaults.
type Options struct {
	Model              string            `json:"model,omitempty"`
	Cwd                string            `json:"cwd,omitempty"`
	MaxTurns           int               `json:"maxTurns,omitempty"`
	MaxBudgetUsd       float64           `json:"maxBudgetUsd,omitempty"`
	PermissionMode     string            `json:"permissionMode,omitempty"` // "" is bypassPermissions
	SystemPrompt       string            `json:"systemPrompt,omitempty"`
	AppendSystemPrompt string            `json:"appendSystemPrompt,omitempty"`
	AllowedTools       []string          `json:"allowedTools,omitempty"`
	DisallowedTools    []string          `json:"disallowedTools,omitempty"`
	AddDirs            []string          `json:"addDirs,omitempty"`
	FallbackModel      string            `json:"fallbackModel,omitempty"`
	OutputSchema       wire.Raw          `json:"outputSchema,omitempty"` // JSON Schema of the answer
	Env                map[string]string `json:"env,omitempty"`          // added to the agent's environment
	Blocks             Blocks            `json:"blocks,omitempty"`

	// Of native agents.
	RequireApproval []string `json:"requireApproval,omitempty"` // tools with calls that wait for a human
	MaxTokens       int64    `json:"maxTokens,omitempty"`       // of an answer
	ContextWindow   int64    `json:"contextWindow,omitempty"`   // tokens, if the model's API doesn't tell
	Thinking        wire.Raw `json:"thinking,omitempty"`        // adaptive, or a number of tokens, also as a text; absent or "": none
	Effort          string   `json:"effort,omitempty"`          // low, medium, high …
	Retries         *int     `json:"retries,omitempty"`         // of a failed model call; nil: 3
	// Prices of models, by the names that Model gives them; those of Anthropic's are known.
	Prices Prices `json:"prices,omitempty"`

	// Of agents that speak the Agent Client Protocol.
	Command    []string `json:"command,omitempty"`    // the agent's program and its arguments; or
	Agent      string   `json:"agent,omitempty"`      // one that is known by name
	Auth       string   `json:"auth,omitempty"`       // the way to log in, by the agent's id of it; "": it is logged in
	NewSession bool     `json:"newSession,omitempty"` // where its session can't be gone on with, it gets a new one and what the log has

	MCPServers map[string]MCPServer `json:"mcpServers,omitempty"` // the agent has their tools; by name

	// Decide answers a question for permission, and an agent's question to a person
	// (AskUserQuestion): what it allows then is the input with the answers. Where the
	// permission mode allows everything, it is asked for the latter only. Nil: what it
	// would be asked is denied. It may take its time; the agent waits.
	Decide func(context.Context, Permission) Verdict `json:"-"`
}

// FirstBound names an option that is set and that few programs have a word for; "" if none is. A caller with a bound counts on it.
func (o Options) FirstBound() string {
	for _, x := range []struct {
		name string
		set  bool
	}{
		{"maxTurns", o.MaxTurns > 0},
		{"maxBudgetUsd", o.MaxBudgetUsd > 0},
		{"allowedTools", len(o.AllowedTools) > 0},
		{"disallowedTools", len(o.DisallowedTools) > 0},
		{"requireApproval", len(o.RequireApproval) > 0},
		{"systemPrompt", o.SystemPrompt != ""},
		{"appendSystemPrompt", o.AppendSystemPrompt != ""},
		{"outputSchema", len(o.OutputSchema) > 0},
		{"fallbackModel", o.FallbackModel != ""},
		{"maxTokens", o.MaxTokens > 0},
	} {
		if x.set {
			return x.name
		}
	}
	return ""
}

// MCPServer is a server of the Model Context Protocol: a command that is spoken with
// over its pipes, or a URL.
type MCPServer struct {
	Command []string          `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"` // of the command, besides what commands get
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
}

// Blocks says when a whole block of text or thinking is an event of its own.
type Blocks string

// The ways to emit blocks.
const (
	// BlocksFallback emits a whole block if it wasn't streamed. It is the default.
	BlocksFallback Blocks = "fallback"
	// BlocksAlways emits every block whole, after its pieces.
	BlocksAlways Blocks = "always"
	// BlocksNever emits pieces only; a block that wasn't streamed is one piece.
	BlocksNever Blocks = "never"
)

// Permission is a tool call that asks for permission.
type Permission struct {
	CallID   string
	ToolName string
	Input    wire.Raw
}

// Verdict is the answer to a [Permission].
type Verdict struct {
	Allow        bool
	By           string   // the decider
	Note         string   // why; the agent is told when it is denied
	UpdatedInput wire.Raw // allow this input instead; nil: as asked
}
