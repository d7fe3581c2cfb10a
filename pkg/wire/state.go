package wire

// Position is a place in a stream. Positions of different incarnations of a
// stream can't be compared.
type Position struct {
	Incarnation string `json:"incarnation,omitempty"` // UUID in the stream's metadata
	Seq         uint64 `json:"seq"`                   // stream sequence; 0 is before the first event
}

// RunStatus is the status of a run.
type RunStatus string

// The statuses of a run (seeds/000 §4).
const (
	RunIdle     RunStatus = "idle"
	RunRunning  RunStatus = "running"
	RunPaused   RunStatus = "paused"
	RunAborted  RunStatus = "aborted"
	RunComplete RunStatus = "complete"
)

// Ended reports whether a run in this status has come to its end.
func (s RunStatus) Ended() bool { return s == RunComplete || s == RunAborted }

// NodeStatus is the status of a node.
type NodeStatus string

// The statuses of a node. Finer states are a reason beside it.
const (
	NodePending NodeStatus = "pending"
	NodeRunning NodeStatus = "running"
	NodeDone    NodeStatus = "done"
	NodeFailed  NodeStatus = "failed"
)

// EdgeStatus is the status of an edge.
type EdgeStatus string

// The statuses of an edge.
const (
	EdgePending EdgeStatus = "pending"
	EdgeFired   EdgeStatus = "fired"
	EdgeSkipped EdgeStatus = "skipped"
)

// State is what a run has come to: the fold of its events up to Position, and
// nothing else. Its msgpack form, by [Marshal], is the value of the run's key in
// WAKE_SNAPSHOTS. It holds all of seeds/000's RunSnapshot under the same names.
type State struct {
	V        int      `json:"v"` // [Version]
	RunID    string   `json:"runId"`
	Position Position `json:"position"` // of the last event that was folded

	Status RunStatus  `json:"status"`
	Reason string     `json:"reason,omitempty"` // waiting, stalled, requires_action, operator …
	Result FlowStatus `json:"result,omitempty"` // once complete
	Error  string     `json:"error,omitempty"`  // why it failed

	FlowName       string            `json:"flowName,omitempty"`
	Definition     Raw               `json:"definition,omitempty"` // as in flow:start
	DefinitionHash string            `json:"definitionHash,omitempty"`
	Input          Raw               `json:"input,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	Limits         Raw               `json:"limits,omitempty"`
	BudgetFrom     *Spent            `json:"budgetFrom,omitempty"` // what had been spent when the budget was last granted again
	Deadline       int64             `json:"deadline,omitempty"`   // when the run has taken as long as its limits allow, Unix ms; 0: never, or it is paused
	TimeLeftMs     int64             `json:"timeLeftMs,omitempty"` // of a paused run: until then, from when it goes on
	// PausedSince is since when it is paused, PausedMs how long it was before: waits of nodes with a bound stand still meanwhile.
	PausedSince int64           `json:"pausedSince,omitempty"` // Unix ms
	PausedMs    int64           `json:"pausedMs,omitempty"`
	Fixtures    string          `json:"fixtures,omitempty"`
	Workspace   string          `json:"workspace,omitempty"`
	Folder      *FolderSnapshot `json:"folder,omitempty"` // the last snapshot of the workspace
	Imported    string          `json:"imported,omitempty"`
	ParentRun   string          `json:"parentRun,omitempty"`
	ParentNode  string          `json:"parentNode,omitempty"`
	ParentCall  string          `json:"parentCall,omitempty"` // see [FlowStart.ParentCall]
	Lineage     []Ancestor      `json:"lineage,omitempty"`    // nearest first
	Overrides   Raw             `json:"overrides,omitempty"`  // see [FlowResumed.Overrides]
	StartedAt   int64           `json:"startedAt,omitempty"`
	StartedBy   string          `json:"startedBy,omitempty"` // see [FlowStart.By]
	EndedAt     int64           `json:"endedAt,omitempty"`
	UpdatedAt   int64           `json:"updatedAt,omitempty"` // timestamp of the last event

	Outputs       map[string]Raw        `json:"outputs"` // node → its last output
	State         Raw                   `json:"state"`   // user-defined
	NodeStatus    map[string]NodeStatus `json:"nodeStatus"`
	EdgeStatus    map[string]EdgeStatus `json:"edgeStatus"`
	LoopCounters  map[string]int        `json:"loopCounters"`
	Inbox         []InboxEntry          `json:"inbox"`
	AgentSessions map[string]string     `json:"agentSessions"` // node → session
	ExecSessions  map[string]string     `json:"execSessions"`  // open execution → session

	Nodes       map[string]NodeState `json:"nodes"` // every node that has an event; [RunNode] included
	Tools       map[string]ToolCall  `json:"tools"` // open calls by "<execId>/<callId>": recorded agents repeat call ids
	Todos       []TodoItem           `json:"todos,omitempty"`
	Bookmarks   []Bookmark           `json:"bookmarks,omitempty"`
	Usage       UsageTotals          `json:"usage"`
	CommandPos  uint64               `json:"commandPos,omitempty"`  // last position read from WAKE_COMMANDS
	CommandIDs  []string             `json:"commandIds,omitempty"`  // the most recent ones, oldest first
	VoidEvents  uint64               `json:"voidEvents,omitempty"`  // events of fenced writers
	EventCount  uint64               `json:"eventCount"`            // events that were folded
	PromptCount int                  `json:"promptCount,omitempty"` // input:requested so far
	ForkPoints  int                  `json:"forkPoints,omitempty"`  // safe fork points so far: the n of the last sfp-<n>
	NoticesLost int                  `json:"noticesLost,omitempty"` // notices dropped from the inbox since one was last handed over
	PausedAt    uint64               `json:"pausedAt,omitempty"`    // position of the flow:paused; 0: not paused
	WaitedMs    int64                `json:"waitedMs,omitempty"`    // how long something of it has waited for a person, up to WaitsSince
	WaitsSince  int64                `json:"waitsSince,omitempty"`  // since when something does, Unix ms; 0: nothing does
	ResumedAt   uint64               `json:"resumedAt,omitempty"`   // position of the last flow:resumed
	Held        bool                 `json:"held,omitempty"`        // by strategy manual: the last answer to its open calls lets it go on
}

// MaxCostUsd is what costs add up to at most, in US dollars. Agents may tell any cost,
// and sums of sums have to stay numbers.
const MaxCostUsd = 1e12

// NodeState is what is known of a node beyond its status.
type NodeState struct {
	Epoch  uint64 `json:"epoch,omitempty"`  // of its last claim
	Seq    uint64 `json:"seq,omitempty"`    // last folded seq
	Runner string `json:"runner,omitempty"` // that has claimed it
	// Holder is the process of the last claim, as long as it may act for the node: it has neither told the end of the execution
	// nor given the node back.
	Holder string `json:"holder,omitempty"`
	// Process is that of the worker that has claimed the open execution last. Trials is how many such processes in a
	// row have claimed it since it last got on; see [PauseEndedItsRunner].
	Process string `json:"process,omitempty"`
	Trials  int    `json:"trials,omitempty"`
	// Unbegun says that the command of the open execution hasn't begun, though node:start may be on record: the run was paused, or the
	// runner ended, before that, and the worker has given the node back.
	Unbegun   bool   `json:"unbegun,omitempty"`
	Reason    string `json:"reason,omitempty"` // skipped (edge, when), waiting, stalled …
	Skipped   bool   `json:"skipped,omitempty"`
	Exec      string `json:"exec,omitempty"` // the latest execution
	Execs     int    `json:"execs,omitempty"`
	Type      string `json:"type,omitempty"`
	Attempt   int    `json:"attempt,omitempty"`
	Iteration int    `json:"iteration,omitempty"`
	Index     *int   `json:"index,omitempty"` // of a forEach item
	Count     int    `json:"count,omitempty"` // of a forEach item: the number of items
	Item      Raw    `json:"item,omitempty"`
	Input     Raw    `json:"input,omitempty"` // of the open execution
	Pool      string `json:"pool,omitempty"`
	// Scheduled, Started and Ended are stream sequences of the latest
	// execution's events; 0 if it hasn't come to that.
	Scheduled    uint64  `json:"scheduled,omitempty"`
	Started      uint64  `json:"started,omitempty"`
	Ended        uint64  `json:"ended,omitempty"`
	StartedAt    int64   `json:"startedAt,omitempty"`    // Unix ms
	PausedBefore int64   `json:"pausedBefore,omitempty"` // [State.PausedMs] at that time; in a fork, and what the execution had taken in the parent
	EndedAt      int64   `json:"endedAt,omitempty"`      // Unix ms
	Error        string  `json:"error,omitempty"`
	ErrorType    string  `json:"errorType,omitempty"`
	Session      string  `json:"session,omitempty"`
	Breakpoint   string  `json:"breakpoint,omitempty"`  // see [BreakpointChanged]
	CostUsd      float64 `json:"costUsd,omitempty"`     // of all its executions
	ExecCost     float64 `json:"execCost,omitempty"`    // of the latest one
	ComputedUsd  float64 `json:"computedUsd,omitempty"` // see [UsageTotals.ComputedUsd]; so is Unpriced
	Unpriced     int64   `json:"unpriced,omitempty"`
	PromptID     string  `json:"promptId,omitempty"` // question that waits for an answer
	Prompt       string  `json:"prompt,omitempty"`   // what it asks, its beginning: at most 2000 characters
	PromptAt     int64   `json:"promptAt,omitempty"` // since when it waits, Unix ms
	Answer       Raw     `json:"answer,omitempty"`   // to the latest question, until the execution ends
	Due          int64   `json:"due,omitempty"`      // until when it waits, Unix ms; see [NodeWaiting] and [NodeError.RetryAt]
	Waits        int     `json:"waits,omitempty"`    // for limits of its model, so often has it been tried again besides its attempts
	AgentStatus  string  `json:"agentStatus,omitempty"`

	// Of an agent's open execution.
	Turns  int         `json:"turns,omitempty"`  // that the agent has begun
	Ending bool        `json:"ending,omitempty"` // its model has said all of its turn, whose end is about to be told
	Point  string      `json:"point,omitempty"`  // the agent's id of its last message, see [UserMessage.Point]
	Resume *Resume     `json:"resume,omitempty"` // how it is to go on; nil: that wasn't said since it last began
	Fork   *AgentPoint `json:"fork,omitempty"`   // its session begins as a copy of this one
	Asked  []Question  `json:"asked,omitempty"`  // what it has asked its parent and wasn't answered, oldest first
	// Counted are the ids of the messages with the usage that was counted last, oldest
	// first: told again, it isn't counted again.
	Counted []string `json:"counted,omitempty"`
	// Unsettled is what model calls have used since a result has last told what all of them did, by
	// model. Settled says that a result has told it of this execution.
	Unsettled []Spending `json:"unsettled,omitempty"`
	Settled   bool       `json:"settled,omitempty"`
}

// Spending is what the calls of a model have used and cost.
type Spending struct {
	Model                    string  `json:"model,omitempty"`
	Calls                    int64   `json:"calls,omitempty"`
	InputTokens              int64   `json:"inputTokens,omitempty"`
	OutputTokens             int64   `json:"outputTokens,omitempty"`
	CacheCreationInputTokens int64   `json:"cacheCreationInputTokens,omitempty"`
	CacheReadInputTokens     int64   `json:"cacheReadInputTokens,omitempty"`
	CostUsd                  float64 `json:"costUsd,omitempty"`
	ComputedUsd              float64 `json:"computedUsd,omitempty"` // see [UsageTotals.ComputedUsd]; so is Unpriced
	Unpriced                 int64   `json:"unpriced,omitempty"`
}

// Spent is what a run has spent, as its budget counts it.
type Spent struct {
	Usd    float64 `json:"usd,omitempty"`
	Tokens int64   `json:"tokens,omitempty"`
}

// Question is a message of an agent to its parent that waits for an answer.
type Question struct {
	ID       string   `json:"id,omitempty"`   // of the message: that of its call
	Position uint64   `json:"position"`       // of the event
	Text     string   `json:"text,omitempty"` // its beginning, at most 2000 characters
	Priority Priority `json:"priority,omitempty"`
	Since    int64    `json:"since,omitempty"` // Unix ms
}

// Resume is how an interrupted execution goes on, or what the next one of a node is told that failed.
type Resume struct {
	Message  string `json:"message,omitempty"` // to the agent; default "continue"
	Strategy string `json:"strategy"`
	Hold     bool   `json:"hold,omitempty"` // only its open calls are dealt with
	// MessageAt is the position of the flow:resumed that has the message: one that a later one doesn't replace is still to be told.
	MessageAt uint64 `json:"messageAt,omitempty"`
}

// AgentPoint is a point in an agent's session.
type AgentPoint struct {
	Session string `json:"session"`
	Point   string `json:"point,omitempty"` // the agent's id of the last message to keep; empty: all
}

// Open reports whether the latest execution has been scheduled and not ended.
func (n NodeState) Open() bool { return n.Scheduled > 0 && n.Ended < n.Scheduled }

// FolderSnapshot is a snapshot of a workspace. See [WorkspaceSnapshot].
type FolderSnapshot struct {
	ID       string   `json:"id,omitempty"`
	Position uint64   `json:"position"` // of its event
	Node     string   `json:"node"`     // the one at work when it was taken
	Files    int      `json:"files,omitempty"`
	Bytes    int64    `json:"bytes,omitempty"`
	LeftOut  []string `json:"leftOut,omitempty"`
	Omitted  int      `json:"omitted,omitempty"`
	Unstable bool     `json:"unstable,omitempty"`
	Refused  string   `json:"refused,omitempty"`
	Pending  bool     `json:"pending,omitempty"` // a newer one is being taken; nothing has been changed since
	Process  string   `json:"process,omitempty"` // that took it, as its Order-th
	Order    int64    `json:"order,omitempty"`
}

// Ancestor is a run that this one was forked from.
type Ancestor struct {
	RunID    string `json:"runId"`
	Position uint64 `json:"position"`
	Label    string `json:"label,omitempty"`
}

// InboxEntry is a command that waits to be delivered.
type InboxEntry struct {
	ID      string `json:"id"`
	Node    string `json:"node,omitempty"`
	Exec    string `json:"exec,omitempty"`
	Command Raw    `json:"command"`
}

// ToolCall is an open tool call.
type ToolCall struct {
	Node       string        `json:"node"`
	Exec       string        `json:"exec,omitempty"`
	CallID     string        `json:"callId"`
	Tool       string        `json:"tool"`
	Input      Raw           `json:"input,omitempty"`
	State      ToolCallState `json:"state"`
	Idempotent bool          `json:"idempotent,omitempty"`
	Since      int64         `json:"since"`             // Unix ms
	AskedAt    int64         `json:"askedAt,omitempty"` // since when it waits for a decision, Unix ms
	Parent     string        `json:"parent,omitempty"`
}

// TodoItem is an entry of an agent's list.
type TodoItem struct {
	Node    string `json:"node"`
	ID      string `json:"id,omitempty"`
	Content string `json:"content"`
	Status  string `json:"status"`
}

// Bookmark is a point to fork from.
type Bookmark struct {
	Label    string         `json:"label"`
	Kind     CheckpointKind `json:"kind"`
	Node     string         `json:"node,omitempty"`
	Position uint64         `json:"position"`
	Run      string         `json:"run,omitempty"` // the ancestor that has it; empty: this run
}

// UsageTotals adds up what the run's agents used.
type UsageTotals struct {
	InputTokens              int64   `json:"inputTokens"`
	OutputTokens             int64   `json:"outputTokens"`
	CacheCreationInputTokens int64   `json:"cacheCreationInputTokens,omitempty"`
	CacheReadInputTokens     int64   `json:"cacheReadInputTokens,omitempty"`
	CostUsd                  float64 `json:"costUsd"`
	ComputedUsd              float64 `json:"computedUsd,omitempty"`  // of CostUsd, what wake has computed by prices; the rest was told by agents
	Unpriced                 int64   `json:"unpriced,omitempty"`     // model calls of unknown cost
	ChildCostUsd             float64 `json:"childCostUsd,omitempty"` // of the runs that calls of its agents have started; not part of CostUsd
	ChildTokens              int64   `json:"childTokens,omitempty"`  // what models were given and made in these runs; not part of the tokens above
	Turns                    int64   `json:"turns"`
	ToolCalls                int64   `json:"toolCalls"`
	ToolErrors               int64   `json:"toolErrors"`
}
