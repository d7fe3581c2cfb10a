package wire

// RunClaimed is the first event that an owner writes: from its position on, the
// former owner's appends are refused by the log. The epoch is the envelope's.
type RunClaimed struct {
	Runner string // id of the runner process
	Nonce  string // makes two claims of equal epoch distinguishable by their bytes
	AtSeq  uint64 // last seq of the node before the claim; set when older events have aged out
}

// RunForked is the first event of a forked run.
type RunForked struct {
	ParentRun string // run that was forked
	ParentPos uint64 // stream position of the fork point
	Label     string // bookmark, if the fork named one
	State     Raw    // the folded state at ParentPos, which outlives the parent's events
	By        string // see [FlowStart.By]
}

// FlowStart begins a run. It carries all that a resume needs besides the log.
type FlowStart struct {
	FlowName       string
	Definition     Raw    // the whole flow definition, as parsed
	DefinitionHash string // sha256 of Definition, lower-case hex
	Input          Raw    // the run's input
	Labels         map[string]string
	ParentRun      string // the run that started this one, if any
	ParentNode     string // its node, if any
	ParentCall     string // the call of that node's agent that waits for this run, "<execId>/<callId>", if one does
	Limits         Raw    // what the run may spend: maxCostUsd, maxTokens, and then: pause (default) or abort; maxDurationMs is how long it may take; 0 is no bound
	Overrides      Raw    // those of the run that started this one; see [FlowResumed.Overrides]
	Fixtures       string // folder of recorded calls that stand in for every agent
	Workspace      string // folder the run works in, if the submitter named one
	Imported       string // "ingest" or "import" for a run that wake records but doesn't execute
	By             string // author of the request: the user, where there are accounts; else as the sender says
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
	FlowName   string
	Status     FlowStatus
	Error      string // why it failed
	FailedNode string // the node that failed and so ended the run, if one did
	DurationMs int64  // since flow:start
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

// What follows when the budget of a run is spent; see [FlowStart.Limits].
const (
	BudgetPause = "pause"
	BudgetAbort = "abort"
)

// FlowPaused stops the scheduling of a run until it is resumed.
type FlowPaused struct {
	Reason  string // operator, requires_action, WORKSPACE_LOST …
	Message string // for the operator that has to act
}

// FlowResumed continues a paused or interrupted run, or one that had failed.
type FlowResumed struct {
	Message  string   // given to the agents that were running; default "continue"
	Strategy string   // crash (open tool calls are sealed) or manual (they stay as they are)
	Hold     bool     // only the agents' open calls are dealt with; the run stays paused
	Rerun    []string // nodes that are executed again: interrupted ones, or of a run that had failed those that failed or were withdrawn
	Fail     []string // interrupted nodes that count as failed
	// Overrides are settings of agents from here on: option → value, or node →
	// options. Option workspace is the folder that the run works in instead.
	Overrides Raw
	// Limits take the place of those of the run, field by field, for all that it spends; see [FlowStart.Limits]. Without
	// any, the resumption of a run with a spent budget grants as much again.
	Limits Raw
}

// FlowAborted ends a run from outside.
type FlowAborted struct {
	Reason string
}

// NodeScheduled decides that a node is executed; the envelope's ExecID names
// the execution. Deciding is the owner's, executing a worker's.
type NodeScheduled struct {
	Target    string // node to execute; "<node>/<index>" for an item of a forEach
	Attempt   int    // 1 for the first try
	Iteration int    // of the loop edge that leads here; 0 outside loops
	Index     *int   // of the forEach item
	Count     int    // number of items, for a forEach node and for its items
	Item      Raw    // the forEach item
	Input     Raw    // the node's input with its bindings resolved; of a forEach node the list of items
	Pool      string // which runners may take it
	Error     string // why the input could not be resolved; the execution has then failed
}

// NodeSkipped decides that a node isn't executed.
type NodeSkipped struct {
	Target string
	Reason string // edge: no edge into it fired; when: its condition is false
}

// NodeCancelled withdraws an execution; its worker stops the agent. The
// envelope's ExecID names the execution.
type NodeCancelled struct {
	Target string
	Reason string
}

// NodeWaiting decides that a node goes on at a time, and nothing happens to it before.
type NodeWaiting struct {
	Target string
	Until  int64  // Unix ms
	Reason string // sleep, at
}

// EdgeFire decides that an edge fires.
type EdgeFire struct {
	EdgeID string // the id given in the flow, or "from->to"
	From   string
	To     string
}

// EdgeSkip decides that an edge doesn't fire.
type EdgeSkip struct {
	EdgeID string
	From   string
	To     string
	Reason string // when: its condition is false; from: its source was skipped or failed
}

// LoopIterate counts a passage through a loop edge and lists what happens once
// more: these nodes (with the items of a forEach) and edges are pending again.
// An iteration of 0 starts the count afresh, because a loop around this one
// went round; it resets nothing.
type LoopIterate struct {
	EdgeID    string
	Iteration int // from 1
	Nodes     []string
	Edges     []string // ids, or "from->to"
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
	Op    PatchOp
	Path  string // dotted; "" is the whole state
	Value Raw
	Unknown
}

// StatePatch changes the user-defined state of a run.
type StatePatch struct {
	Patch Patch
}

// CommandReceived records a command, obeyed or not (seeds/000 §5.4).
type CommandReceived struct {
	Command   Raw    // the command as it came, but for its by, if By is known; a send that names no node gets its recipient
	CommandID string // sent twice, it acts once
	By        string // the user that gave it, in the word of the server; "" if the server doesn't say, or a service gave it
	AtPos     uint64 // its position in WAKE_COMMANDS
	Accepted  bool
	Reason    string // why it was rejected
}

// NodeClaimed is the first event that a worker writes on a node.
type NodeClaimed struct {
	Runner string
	Nonce  string
	AtSeq  uint64 // see [RunClaimed]
	Fence  string // how the node's processes end with their keeper: namespace, user-namespace or watchdogs; +cgroup if they are frozen and ended by one, +memory if it can be bounded; "": they needn't
	// Process is that of the worker, by a name that no other process has; "": the claim begins no work.
	Process string
}

// NodeTried says that the process that has claimed a node lives with it, or leaves it in order. Workers say so of a
// node if its next process that ends without a word is the last one: see [PauseEndedItsRunner].
type NodeTried struct {
	Trials int // processes in a row, this one among them, that have claimed the execution since it last got on
}

// NodeStart begins an execution. Set, ask, sleep, at and flow nodes and the joins of
// forEach items are executed by the owner, which writes on [RunNode] and names
// the node as the target.
type NodeStart struct {
	Target    string // the node, where the owner writes for it on [RunNode]
	NodeType  string // agent, exec, set, ask, sleep, at or flow
	Attempt   int
	Iteration int
	Input     Raw
	// EmptyFolder says that there is nothing in the folder of the run, and that no snapshot has said so before.
	EmptyFolder bool
	// FolderFollows says that the agent begins while a snapshot of the folder is taken, which comes before anything that changes it.
	FolderFollows bool
}

// NodeComplete ends an execution well.
type NodeComplete struct {
	Target     string // the node, where the owner writes for it on [RunNode]
	Output     Raw
	DurationMs int64
}

// NodeError ends an execution badly. The node's policy decides what follows.
type NodeError struct {
	Target     string // the node, where the owner writes for it on [RunNode]
	Error      string
	ErrorType  string // see [AgentError.ErrorType]; also timeout, exit, cancelled
	Output     Raw    // what there was
	DurationMs int64
	// RetryAt is when the node is tried again, Unix ms: a limit of its model is over then. Such tries aren't those of the
	// node's policy. 0: the policy decides.
	RetryAt int64
}

// InputRequested asks a human for an answer.
type InputRequested struct {
	Target   string // the node, where the owner writes for it on [RunNode]
	PromptID string
	Prompt   string
	Choices  []string
	Schema   Raw // JSON Schema of the answer
}

// InputReceived is the answer.
type InputReceived struct {
	Target   string // the node, where the owner writes for it on [RunNode]
	PromptID string
	Content  Raw
	By       string
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

func (p *RunClaimed) visitFields(f *fields) {
	f.str("runner", &p.Runner, nonEmpty)
	f.str("nonce", &p.Nonce, nonEmpty)
	f.uint64("atSeq", &p.AtSeq, optional)
}

func (p *RunForked) visitFields(f *fields) {
	f.str("parentRun", &p.ParentRun, nonEmpty)
	f.uint64("parentPos", &p.ParentPos, required)
	f.str("label", &p.Label, optional)
	f.document("state", &p.State, optional)
	f.str("by", &p.By, optional)
}

func (p *FlowStart) visitFields(f *fields) {
	f.str("flowName", &p.FlowName, required)
	f.raw("definition", &p.Definition, required)
	f.str("definitionHash", &p.DefinitionHash, nonEmpty)
	f.raw("input", &p.Input, optional)
	f.strMap("labels", &p.Labels, optional)
	f.str("parentRun", &p.ParentRun, optional)
	f.str("parentNode", &p.ParentNode, optional)
	f.str("parentCall", &p.ParentCall, optional)
	f.raw("limits", &p.Limits, optional)
	f.raw("overrides", &p.Overrides, optional)
	f.str("fixtures", &p.Fixtures, optional)
	f.str("workspace", &p.Workspace, optional)
	f.str("imported", &p.Imported, optional)
	f.str("by", &p.By, optional)
}

func (p *FlowComplete) visitFields(f *fields) {
	f.str("flowName", &p.FlowName, required)
	enum(f, "status", &p.Status, required, FlowStatusComplete, FlowStatusFailed)
	f.str("error", &p.Error, optional)
	f.str("failedNode", &p.FailedNode, optional)
	f.int64("durationMs", &p.DurationMs, optional)
}

func (p *FlowPaused) visitFields(f *fields) {
	f.str("reason", &p.Reason, optional)
	f.str("message", &p.Message, optional)
}

func (p *FlowResumed) visitFields(f *fields) {
	f.str("message", &p.Message, optional)
	f.str("strategy", &p.Strategy, optional)
	f.bool("hold", &p.Hold, optional)
	f.strs("rerun", &p.Rerun, optional)
	f.strs("fail", &p.Fail, optional)
	f.raw("overrides", &p.Overrides, optional)
	f.raw("limits", &p.Limits, optional)
}

func (p *FlowAborted) visitFields(f *fields) {
	f.str("reason", &p.Reason, optional)
}

func (p *NodeScheduled) visitFields(f *fields) {
	f.str("target", &p.Target, nonEmpty)
	f.int("attempt", &p.Attempt, optional)
	f.int("iteration", &p.Iteration, optional)
	f.optInt("index", &p.Index)
	f.int("count", &p.Count, optional)
	f.raw("item", &p.Item, optional)
	f.raw("input", &p.Input, optional)
	f.str("pool", &p.Pool, optional)
	f.str("error", &p.Error, optional)
}

func (p *NodeSkipped) visitFields(f *fields) {
	f.str("target", &p.Target, nonEmpty)
	f.str("reason", &p.Reason, nonEmpty)
}

func (p *NodeCancelled) visitFields(f *fields) {
	f.str("target", &p.Target, nonEmpty)
	f.str("reason", &p.Reason, optional)
}

func (p *NodeWaiting) visitFields(f *fields) {
	f.str("target", &p.Target, nonEmpty)
	f.int64("until", &p.Until, required)
	f.str("reason", &p.Reason, optional)
}

func (p *EdgeFire) visitFields(f *fields) {
	f.str("edgeId", &p.EdgeID, optional)
	f.str("from", &p.From, nonEmpty)
	f.str("to", &p.To, nonEmpty)
}

func (p *EdgeSkip) visitFields(f *fields) {
	f.str("edgeId", &p.EdgeID, optional)
	f.str("from", &p.From, nonEmpty)
	f.str("to", &p.To, nonEmpty)
	f.str("reason", &p.Reason, optional)
}

func (p *LoopIterate) visitFields(f *fields) {
	f.str("edgeId", &p.EdgeID, optional)
	f.int("iteration", &p.Iteration, required)
	f.strs("nodes", &p.Nodes, optional)
	f.strs("edges", &p.Edges, optional)
}

func (p *Patch) visitFields(f *fields) {
	enum(f, "op", &p.Op, required, PatchSet, PatchMerge)
	f.str("path", &p.Path, required)
	f.raw("value", &p.Value, required)
}

func (p *StatePatch) visitFields(f *fields) {
	object(f, "patch", &p.Patch, required)
}

func (p *CommandReceived) visitFields(f *fields) {
	f.raw("command", &p.Command, required)
	f.str("commandId", &p.CommandID, optional)
	f.str("by", &p.By, optional)
	f.uint64("atPos", &p.AtPos, optional)
	f.bool("accepted", &p.Accepted, required)
	f.str("reason", &p.Reason, optional)
}

func (p *NodeClaimed) visitFields(f *fields) {
	f.str("runner", &p.Runner, nonEmpty)
	f.str("nonce", &p.Nonce, nonEmpty)
	f.uint64("atSeq", &p.AtSeq, optional)
	f.str("fence", &p.Fence, optional)
	f.str("process", &p.Process, optional)
}

func (p *NodeTried) visitFields(f *fields) {
	f.int("trials", &p.Trials, optional)
}

func (p *NodeStart) visitFields(f *fields) {
	f.str("target", &p.Target, optional)
	f.str("nodeType", &p.NodeType, optional)
	f.int("attempt", &p.Attempt, optional)
	f.int("iteration", &p.Iteration, optional)
	f.raw("input", &p.Input, optional)
	f.bool("emptyFolder", &p.EmptyFolder, optional)
	f.bool("folderFollows", &p.FolderFollows, optional)
}

func (p *NodeComplete) visitFields(f *fields) {
	f.str("target", &p.Target, optional)
	f.raw("output", &p.Output, required)
	f.int64("durationMs", &p.DurationMs, optional)
}

func (p *NodeError) visitFields(f *fields) {
	f.str("target", &p.Target, optional)
	f.str("error", &p.Error, required)
	f.str("errorType", &p.ErrorType, optional)
	f.raw("output", &p.Output, optional)
	f.int64("durationMs", &p.DurationMs, optional)
	f.int64("retryAt", &p.RetryAt, optional)
}

func (p *InputRequested) visitFields(f *fields) {
	f.str("target", &p.Target, optional)
	f.str("promptId", &p.PromptID, nonEmpty)
	f.str("prompt", &p.Prompt, required)
	f.strs("choices", &p.Choices, optional)
	f.raw("schema", &p.Schema, optional)
}

func (p *InputReceived) visitFields(f *fields) {
	f.str("target", &p.Target, optional)
	f.str("promptId", &p.PromptID, nonEmpty)
	f.raw("content", &p.Content, required)
	f.str("by", &p.By, optional)
}
