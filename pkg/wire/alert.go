package wire

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
