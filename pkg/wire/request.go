package wire

// RunRequest asks for a new run: wake.api.start takes it. It waits in WAKE_QUEUE until a runner has
// stored its flow:start.
type RunRequest struct {
	V          int               `json:"v"`
	RunID      string            `json:"runId"`
	Definition Raw               `json:"definition"`
	Input      Raw               `json:"input,omitempty"`
	State      Raw               `json:"state,omitempty"` // merged into the flow's own initial state
	Labels     map[string]string `json:"labels,omitempty"`
	ParentRun  string            `json:"parentRun,omitempty"`
	ParentNode string            `json:"parentNode,omitempty"`
	ParentCall string            `json:"parentCall,omitempty"` // see [FlowStart.ParentCall]
	Limits     Raw               `json:"limits,omitempty"`     // see [FlowStart.Limits]; its fields take the place of those of the flow's budget
	Overrides  Raw               `json:"overrides,omitempty"`  // see [FlowResumed.Overrides]
	Fixtures   string            `json:"fixtures,omitempty"`   // absolute path, as the runner sees it
	Workspace  string            `json:"workspace,omitempty"`
	By         string            `json:"by,omitempty"` // author of the request, as the sender says; where there are accounts the user's name takes its place

	// WorkspaceAt is the runner that has Workspace already; "": the runner that begins the run makes it.
	WorkspaceAt string `json:"workspaceAt,omitempty"`

	// Fork begins the run as a copy of another one; Definition, Input and State
	// are those of the other run. A request with neither Definition nor Fork asks for an owner of
	// a run that has begun and has none.
	Fork *ForkRequest `json:"fork,omitempty"`
}

// ForkRequest says where a run begins.
type ForkRequest struct {
	ParentRun string `json:"parentRun"`
	ParentPos uint64 `json:"parentPos"`           // the state after this position
	Label     string `json:"label,omitempty"`     // the bookmark that named it
	Message   string `json:"message,omitempty"`   // to the agents that were running there; default "continue"
	Overrides Raw    `json:"overrides,omitempty"` // see [FlowResumed.Overrides]
	// WithoutWorkspace has it begin with an empty folder.
	WithoutWorkspace bool `json:"withoutWorkspace,omitempty"`
}

// NodeOffer tells runners that an execution waits for a worker. It is a hint:
// the log decides whether it is still wanted.
type NodeOffer struct {
	V      int    `json:"v"`
	RunID  string `json:"runId"`
	NodeID string `json:"nodeId"`
	ExecID string `json:"execId"`
}

// Command is what wake.cmd.<run> takes, as JSON or msgpack.
type Command struct {
	Type  string `json:"type"`            // send, reply, steer, notice, resume, pause, abort, approve, deny, bookmark or fork
	ID    string `json:"id,omitempty"`    // the same command sent twice acts once
	RunID string `json:"runId,omitempty"` // if given, the one of the subject
	By    string `json:"by,omitempty"`    // author of the command, as the sender says; where there are accounts the user's name takes its place

	NodeID    string `json:"nodeId,omitempty"`    // send, steer: to this node's agent
	ExecID    string `json:"execId,omitempty"`    // send, steer: to this execution only
	Message   string `json:"message,omitempty"`   // send, steer, notice, resume, fork
	Interrupt bool   `json:"interrupt,omitempty"` // send, steer: the agent stops what it is doing first

	PromptID string `json:"promptId,omitempty"` // reply: the question of an ask node, the call of AskUserQuestion, or the message of notify_parent
	Content  Raw    `json:"content,omitempty"`  // reply; approve, of AskUserQuestion: the answer, or an object of them by question, header or number

	CallID       string `json:"callId,omitempty"`       // approve, deny
	Note         string `json:"note,omitempty"`         // approve, deny; of AskUserQuestion: the answer, if there is no content
	UpdatedInput Raw    `json:"updatedInput,omitempty"` // approve: the input to use instead

	Reason    string `json:"reason,omitempty"`    // pause, abort
	Resumable bool   `json:"resumable,omitempty"` // abort: it is a pause

	Strategy  string   `json:"strategy,omitempty"`  // resume: crash (default) or manual
	AutoRun   *bool    `json:"autoRun,omitempty"`   // resume: go on; default true. See [FlowResumed.Hold]
	Rerun     []string `json:"rerun,omitempty"`     // resume; see [FlowResumed]; "*" is all that failed or were interrupted
	Fail      []string `json:"fail,omitempty"`      // resume; see [FlowResumed]
	Overrides Raw      `json:"overrides,omitempty"` // resume, fork; see [FlowResumed]
	Limits    Raw      `json:"limits,omitempty"`    // resume; see [FlowResumed]

	Label string `json:"label,omitempty"` // bookmark
	Force bool   `json:"force,omitempty"` // bookmark: move the label if it is there
	At    string `json:"at,omitempty"`    // fork, bookmark: a label, sfp-<n> or a position; default: the present, of a run that has ended its last sfp-<n>
	NewID string `json:"newId,omitempty"` // fork: the id of the new run
}

// Poison is a message that a service could not use, with all that is needed to
// find out why and to try again.
type Poison struct {
	V         int    `json:"v"`
	Service   string `json:"service"`
	Reason    string `json:"reason"`
	Subject   string `json:"subject"` // where it was found
	Stream    string `json:"stream,omitempty"`
	Position  uint64 `json:"position,omitempty"`
	Data      []byte `json:"data"` // the original
	Timestamp int64  `json:"timestamp"`
}

// Alert is one signal worth the attention of a human or a parent agent. Its
// msgpack form, by [Marshal], is a message of WAKE_ALERTS.
type Alert struct {
	V         int      `json:"v"`   // [Version]
	Key       string   `json:"key"` // the same for the same occurrence, from each process that computes it
	Kind      string   `json:"kind"`
	Severity  Severity `json:"severity"`
	RunID     string   `json:"runId"`
	NodeID    string   `json:"nodeId"`
	ExecID    string   `json:"execId,omitempty"`
	Label     string   `json:"label"`     // the run's label "name", else the node id
	Position  Position `json:"position"`  // of the event that raised it
	Timestamp int64    `json:"timestamp"` // Unix ms
	Flow      string   `json:"flow,omitempty"`
	ParentRun string   `json:"parentRun,omitempty"`
	// ParentCall is the call of that run's agent that waits for this one; see [FlowStart.ParentCall].
	ParentCall string `json:"parentCall,omitempty"`
	Text       string `json:"text"` // one line, with its "[subagent:<label>] " prefix
	Data       Raw    `json:"data"` // the supervisor event of seeds/004

	// Labels are those of the run, as far as they are at most 4 KiB together.
	Labels map[string]string `json:"labels,omitempty"`
}

// VerbSink is the verb of what a sink of alerts is asked for: [SinkRequest],
// [SinkResponse]; answered by the alerter that sends to it.
func VerbSink(sink string) string { return "sink-" + sink }

// SinkRequest asks a sink for something.
type SinkRequest struct {
	Do      string   `json:"do"`                // test: send a test; retry: send dead letters again
	Letters []uint64 `json:"letters,omitempty"` // retry: which, by their positions in WAKE_DEADLETTER; default all
}

// SinkResponse says what has become of it.
type SinkResponse struct {
	Sent    int    `json:"sent"`              // what the sink took
	Problem string `json:"problem,omitempty"` // why it didn't take the next
	More    bool   `json:"more,omitempty"`    // something is left to be sent
}
