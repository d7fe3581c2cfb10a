package wire

// RunClaimed is the first event that an owner writes: from its position on, the
// former owner's appends are refused by the log. The epoch is the envelope's.
type RunClaimed struct {
	Runner string `wire:"runner,nonempty"` // id of the runner process
	Nonce  string `wire:"nonce,nonempty"`  // makes two claims of equal epoch distinguishable by their bytes
	AtSeq  uint64 `wire:"atSeq"`           // last seq of the node before the claim; set when older events have aged out
	// Process is that of the owner, whose session says for how long it may act; "": none acts under the claim.
	Process string `wire:"process"`
}

// RunForked is the first event of a forked run.
type RunForked struct {
	ParentRun string `wire:"parentRun,nonempty"` // run that was forked
	ParentPos uint64 `wire:"parentPos,required"` // stream position of the fork point
	Label     string `wire:"label"`              // bookmark, if the fork named one
	State     Raw    `wire:"state,document"`     // the folded state at ParentPos, which outlives the parent's events
	By        string `wire:"by"`                 // see [FlowStart.By]
}

// FlowStart begins a run. It carries all that a resume needs besides the log.
type FlowStart struct {
	FlowName       string            `wire:"flowName,required"`
	Definition     Raw               `wire:"definition,required"`     // the whole flow definition, as parsed
	DefinitionHash string            `wire:"definitionHash,nonempty"` // sha256 of Definition, lower-case hex
	Input          Raw               `wire:"input"`                   // the run's input
	Labels         map[string]string `wire:"labels"`
	ParentRun      string            `wire:"parentRun"`  // the run that started this one, if any
	ParentNode     string            `wire:"parentNode"` // its node, if any
	ParentCall     string            `wire:"parentCall"` // the call of that node's agent that waits for this run, "<execId>/<callId>", if one does
	Limits         Raw               `wire:"limits"`     // what the run may spend: maxCostUsd, maxTokens, and then: pause (default) or abort; maxDurationMs is how long it may take; 0 is no bound
	Overrides      Raw               `wire:"overrides"`  // those of the run that started this one; see [FlowResumed.Overrides]
	Fixtures       string            `wire:"fixtures"`   // folder of recorded calls that stand in for every agent
	Workspace      string            `wire:"workspace"`  // folder the run works in, if the submitter named one
	Imported       string            `wire:"imported"`   // "ingest" or "import" for a run that wake records but doesn't execute
	By             string            `wire:"by"`         // author of the request: the user, where there are accounts; else as the sender says
}

// The values of [FlowStart.Imported].
const (
	ImportedIngest = "ingest" // what an agent does or has done that wake doesn't drive
	ImportedCopy   = "import" // the events of a run that was exported, maybe elsewhere and long ago
)

// FlowStatus is the outcome of a flow.
type FlowStatus string

// The outcomes of a flow.
const (
	FlowStatusComplete FlowStatus = "complete"
	FlowStatusFailed   FlowStatus = "failed"
)

// FlowComplete ends a run.
type FlowComplete struct {
	FlowName   string     `wire:"flowName,required"`
	Status     FlowStatus `wire:"status,required"`
	Error      string     `wire:"error"`      // why it failed
	FailedNode string     `wire:"failedNode"` // the node that failed and so ended the run, if one did
	DurationMs int64      `wire:"durationMs"` // since flow:start
}

// The reasons of a pause. Agents at work are interrupted by an operator's pause,
// be it that of a parent run, if the run is set aside, and if its budget, or one that it shares, is spent; otherwise what has begun goes on, and nothing new
// begins.
const (
	PauseOperator       = "operator"
	PauseParent         = "parent"           // the parent run is paused; it goes on with that
	PauseRequiresAction = "requires_action"  // an operator has to decide about an interrupted node
	PauseWorkspaceLost  = "WORKSPACE_LOST"   // the folder of the run is on a runner that is gone
	PauseEndedItsRunner = "ENDED_ITS_RUNNER" // taking the run over, or executing a node of it, has ended the process several times
	PauseIdle           = "idle"             // nothing goes on in the session that is watched
	PauseBudget         = "BUDGET"           // what the run may spend is spent; resuming it grants as much again
	PauseSharedBudget   = "SHARED_BUDGET"    // what it may spend with others is spent; it goes on by itself once there is more
)

// NeedsPerson reports whether a run that is paused for a reason waits for a person who didn't ask for that: to decide, or to bring back
// what it lacks.
func NeedsPerson(reason string) bool {
	return reason == PauseRequiresAction || reason == PauseWorkspaceLost || reason == PauseEndedItsRunner || reason == PauseBudget
}

// What follows when the budget of a run is spent; see [FlowStart.Limits].
const (
	BudgetPause = "pause"
	BudgetAbort = "abort"
)

// FlowPaused stops the scheduling of a run until it is resumed.
type FlowPaused struct {
	Reason  string `wire:"reason"`  // operator, requires_action, WORKSPACE_LOST …
	Message string `wire:"message"` // for the operator that has to act
}

// FlowResumed continues a paused or interrupted run, or one that had failed.
type FlowResumed struct {
	Message  string   `wire:"message"`  // given to the agents that were running; default "continue"
	Strategy string   `wire:"strategy"` // crash (open tool calls are sealed) or manual (they stay as they are)
	Hold     bool     `wire:"hold"`     // only the agents' open calls are dealt with; the run stays paused
	Rerun    []string `wire:"rerun"`    // nodes that are executed again: interrupted ones, or of a run that had failed those that failed or were withdrawn
	Fail     []string `wire:"fail"`     // interrupted nodes that count as failed
	// Overrides are settings of agents from here on: option → value, or node →
	// options. Option workspace is the folder that the run works in instead.
	Overrides Raw `wire:"overrides"`
	// Limits take the place of those of the run, field by field, for all that it spends; see [FlowStart.Limits]. Without
	// any, the resumption of a run with a spent budget grants as much again.
	Limits Raw `wire:"limits"`
}

// FlowAborted ends a run from outside.
type FlowAborted struct {
	Reason string `wire:"reason"`
}

// NodeScheduled decides that a node is executed; the envelope's ExecID names
// the execution. Deciding is the owner's, executing a worker's.
type NodeScheduled struct {
	Target    string `wire:"target,nonempty"` // node to execute; "<node>/<index>" for an item of a forEach
	Attempt   int    `wire:"attempt"`         // 1 for the first try
	Iteration int    `wire:"iteration"`       // of the loop edge that leads here; 0 outside loops
	Index     *int   `wire:"index"`           // of the forEach item
	Count     int    `wire:"count"`           // number of items, for a forEach node and for its items
	Item      Raw    `wire:"item"`            // the forEach item
	Input     Raw    `wire:"input"`           // the node's input with its bindings resolved; of a forEach node the list of items
	Pool      string `wire:"pool"`            // which runners may take it
	Error     string `wire:"error"`           // why the input could not be resolved; the execution has then failed
}

// NodeSkipped decides that a node isn't executed.
type NodeSkipped struct {
	Target string `wire:"target,nonempty"`
	Reason string `wire:"reason,nonempty"` // edge: no edge into it fired; when: its condition is false
}

// NodeCancelled withdraws an execution; its worker stops the agent. The
// envelope's ExecID names the execution.
type NodeCancelled struct {
	Target string `wire:"target,nonempty"`
	Reason string `wire:"reason"`
}

// NodeWaiting decides that a node goes on at a time, and nothing happens to it before.
type NodeWaiting struct {
	Target string `wire:"target,nonempty"`
	Until  int64  `wire:"until,required"` // Unix ms
	Reason string `wire:"reason"`         // sleep, at
}

// EdgeFire decides that an edge fires.
type EdgeFire struct {
	EdgeID string `wire:"edgeId"` // the id given in the flow, or "from->to"
	From   string `wire:"from,nonempty"`
	To     string `wire:"to,nonempty"`
}

// EdgeSkip decides that an edge doesn't fire.
type EdgeSkip struct {
	EdgeID string `wire:"edgeId"`
	From   string `wire:"from,nonempty"`
	To     string `wire:"to,nonempty"`
	Reason string `wire:"reason"` // when: its condition is false; from: its source was skipped or failed
}

// LoopIterate counts a passage through a loop edge and lists what happens once
// more: these nodes (with the items of a forEach) and edges are pending again.
// An iteration of 0 starts the count afresh, because a loop around this one
// went round; it resets nothing.
type LoopIterate struct {
	EdgeID    string   `wire:"edgeId"`
	Iteration int      `wire:"iteration,required"` // from 1
	Nodes     []string `wire:"nodes"`
	Edges     []string `wire:"edges"` // ids, or "from->to"
}

// PatchOp is how a patch changes the user's state.
type PatchOp string

// The patch operations.
const (
	PatchSet   PatchOp = "set"   // replace the value at the path
	PatchMerge PatchOp = "merge" // merge an object into the object at the path
)

// Patch is one change of the user's state.
type Patch struct {
	Op    PatchOp `wire:"op,required"`
	Path  string  `wire:"path,required"` // dotted; "" is the whole state
	Value Raw     `wire:"value,required"`
	Unknown
}

// StatePatch changes the user-defined state of a run.
type StatePatch struct {
	Patch Patch `wire:"patch,required"`
}

// CommandReceived records a command, obeyed or not (seeds/000 §5.4).
type CommandReceived struct {
	Command   Raw    `wire:"command,required"` // the command as it came, but for its by, if By is known; a send that names no node gets its recipient
	CommandID string `wire:"commandId"`        // sent twice, it acts once
	By        string `wire:"by"`               // the user that gave it, in the word of the server; "" if the server doesn't say, or a service gave it
	AtPos     uint64 `wire:"atPos"`            // its position in WAKE_COMMANDS
	Accepted  bool   `wire:"accepted,required"`
	Reason    string `wire:"reason"` // why it was rejected
}

// NodeClaimed is the first event that a worker writes on a node.
type NodeClaimed struct {
	Runner string `wire:"runner,nonempty"`
	Nonce  string `wire:"nonce,nonempty"`
	AtSeq  uint64 `wire:"atSeq"` // see [RunClaimed]
	Fence  string `wire:"fence"` // how the node's processes end with their keeper: namespace, user-namespace or watchdogs; +cgroup if they are frozen and ended by one, +memory if it can be bounded; "": they needn't
	// Process is that of the worker, whose session says for how long it may act; "": the claim begins no work, or gives the
	// node back.
	Process string `wire:"process"`
	Unbegun bool   `wire:"unbegun"` // see [NodeState.Unbegun]
}

// NodeTried says that the process that has claimed a node lives with it, or leaves it in order. Workers say so of a
// node if its next process that ends without a word is the last one: see [PauseEndedItsRunner].
type NodeTried struct {
	Trials int `wire:"trials"` // processes in a row, this one among them, that have claimed the execution since it last got on
}

// NodeStart begins an execution. Set, ask, sleep, at and flow nodes and the joins of
// forEach items are executed by the owner, which writes on [RunNode] and names
// the node as the target.
type NodeStart struct {
	Target    string `wire:"target"`   // the node, where the owner writes for it on [RunNode]
	NodeType  string `wire:"nodeType"` // agent, exec, set, ask, sleep, at or flow
	Attempt   int    `wire:"attempt"`
	Iteration int    `wire:"iteration"`
	Input     Raw    `wire:"input"`
	// EmptyFolder says that there is nothing in the folder of the run, and that no snapshot has said so before.
	EmptyFolder bool `wire:"emptyFolder"`
	// FolderFollows says that the agent begins while a snapshot of the folder is taken, which comes before anything that changes it.
	FolderFollows bool `wire:"folderFollows"`
}

// NodeComplete ends an execution well.
type NodeComplete struct {
	Target     string `wire:"target"` // the node, where the owner writes for it on [RunNode]
	Output     Raw    `wire:"output,required"`
	DurationMs int64  `wire:"durationMs"`
}

// NodeError ends an execution badly. The node's policy decides what follows.
type NodeError struct {
	Target     string `wire:"target"` // the node, where the owner writes for it on [RunNode]
	Error      string `wire:"error,required"`
	ErrorType  string `wire:"errorType"` // see [AgentError.ErrorType]; also timeout, exit, cancelled
	Output     Raw    `wire:"output"`    // what there was
	DurationMs int64  `wire:"durationMs"`
	// RetryAt is when the node is tried again, Unix ms: a limit of its model is over then. Such tries aren't those of the
	// node's policy. 0: the policy decides.
	RetryAt int64 `wire:"retryAt"`
}

// InputRequested asks a human for an answer.
type InputRequested struct {
	Target   string   `wire:"target"` // the node, where the owner writes for it on [RunNode]
	PromptID string   `wire:"promptId,nonempty"`
	Prompt   string   `wire:"prompt,required"`
	Choices  []string `wire:"choices"`
	Schema   Raw      `wire:"schema"` // JSON Schema of the answer
}

// InputReceived is the answer.
type InputReceived struct {
	Target   string `wire:"target"` // the node, where the owner writes for it on [RunNode]
	PromptID string `wire:"promptId,nonempty"`
	Content  Raw    `wire:"content,required"`
	By       string `wire:"by"`
}

func (*RunClaimed) Type() Type      { return TypeRunClaimed }
func (*RunForked) Type() Type       { return TypeRunForked }
func (*FlowStart) Type() Type       { return TypeFlowStart }
func (*FlowComplete) Type() Type    { return TypeFlowComplete }
func (*FlowPaused) Type() Type      { return TypeFlowPaused }
func (*FlowResumed) Type() Type     { return TypeFlowResumed }
func (*FlowAborted) Type() Type     { return TypeFlowAborted }
func (*NodeScheduled) Type() Type   { return TypeNodeScheduled }
func (*NodeSkipped) Type() Type     { return TypeNodeSkipped }
func (*NodeCancelled) Type() Type   { return TypeNodeCancelled }
func (*NodeWaiting) Type() Type     { return TypeNodeWaiting }
func (*EdgeFire) Type() Type        { return TypeEdgeFire }
func (*EdgeSkip) Type() Type        { return TypeEdgeSkip }
func (*LoopIterate) Type() Type     { return TypeLoopIterate }
func (*StatePatch) Type() Type      { return TypeStatePatch }
func (*CommandReceived) Type() Type { return TypeCommandReceived }
func (*NodeClaimed) Type() Type     { return TypeNodeClaimed }
func (*NodeTried) Type() Type       { return TypeNodeTried }
func (*NodeStart) Type() Type       { return TypeNodeStart }
func (*NodeComplete) Type() Type    { return TypeNodeComplete }
func (*NodeError) Type() Type       { return TypeNodeError }
func (*InputRequested) Type() Type  { return TypeInputRequested }
func (*InputReceived) Type() Type   { return TypeInputReceived }
