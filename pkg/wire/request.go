package wire

// RunRequest asks for a new run. It waits in WAKE_QUEUE until a runner has
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
	Limits     Raw               `json:"limits,omitempty"`
	Fixtures   string            `json:"fixtures,omitempty"` // absolute path, as the runner sees it
	Workspace  string            `json:"workspace,omitempty"`
}

// NodeOffer tells runners that an execution waits for a worker. It is a hint:
// the log decides whether it is still wanted.
type NodeOffer struct {
	V      int    `json:"v"`
	RunID  string `json:"runId"`
	NodeID string `json:"nodeId"`
	ExecID string `json:"execId"`
}

// Command is what wake.cmd.<run> takes, as JSON or msgpack. Which fields are
// used depends on Type: send, reply, resume, pause, abort, approve, deny,
// bookmark or fork.
type Command struct {
	Type      string `json:"type"`
	ID        string `json:"id,omitempty"` // the same command sent twice acts once
	RunID     string `json:"runId,omitempty"`
	NodeID    string `json:"nodeId,omitempty"`
	ExecID    string `json:"execId,omitempty"`
	Message   string `json:"message,omitempty"`
	PromptID  string `json:"promptId,omitempty"`
	Content   Raw    `json:"content,omitempty"`
	CallID    string `json:"callId,omitempty"`
	Note      string `json:"note,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Resumable bool   `json:"resumable,omitempty"`
	Label     string `json:"label,omitempty"`
	By        string `json:"by,omitempty"`
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
