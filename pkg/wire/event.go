package wire

// Version is the wire version that this package writes. A reader refuses a
// higher one with [ErrVersion].
const Version = 1

// RunNode is the node id of run-scoped events. They are written by the owner of
// the run.
const RunNode = "_run"

// HooksNode is the node of an imported run on which stands what the hooks of its agent report: what a person is asked,
// the answer and its author, that the session has ended.
const HooksNode = "hooks"

// NoRun is the run that records what belongs to no run, such as a command that
// names none.
const NoRun = "_"

// Event is one entry of the log: an envelope and the payload of its type.
//
// Which optional fields of the envelope are present depends on the type;
// agent:start, for one, requires SessionID.
type Event struct {
	RunID     string `wire:"runId,nonempty,shared"`  // the workflow run; required
	NodeID    string `wire:"nodeId,nonempty,shared"` // a vertex of the flow, or [RunNode]; required
	Seq       uint64 `wire:"seq,nonempty"`           // from 1, gap-free per (RunID, NodeID), continues across epochs
	Epoch     uint64 `wire:"epoch,nonempty"`         // from 1, incarnation of the node's writer
	Timestamp int64  `wire:"timestamp,required"`     // Unix milliseconds, stamped by the writer; orders nothing

	ExecID     string `wire:"execId,shared"`    // one execution of the node
	AgentID    string `wire:"agentId,shared"`   // the agent that acts in the node, if it isn't the node's own
	SessionID  string `wire:"sessionId,shared"` // the agent SDK's own id of the conversation
	Turn       int    `wire:"turn"`             // index of the model call, from 1; never restarts; 0: none
	Step       int    `wire:"step"`             // KAHN step per (run, agent), from 0
	CallID     string `wire:"callId,shared"`    // the tool call, as the SDK names it (tool_use_id)
	Cause      string `wire:"cause,shared"`     // the event or command that caused this one
	Parent     string `wire:"parent,shared"`    // the tool call that started the sub-agent that emitted this event
	Redactions int    `wire:"redactions"`       // secrets that were removed before the event was written

	// Of an event that was made of a program's journalled output: where in the journal what
	// it was made of ends, and its number among the events that were made of the same line, from 0.
	// Fed again, the journal yields the same events in the same places.
	JournalOffset uint64 `wire:"journalOffset"`
	JournalIndex  int    `wire:"journalIndex"`

	Payload Payload // required

	// Blobs are payload fields that were too large for the log. Such a field is
	// absent from the payload; its canonical encoding is in the object store.
	Blobs []Blob `wire:"blobs"`

	// Unknown holds fields that this version doesn't know, sorted by name.
	Unknown []Field
}

// Payload is the type-specific part of an event. Its implementations are the
// types of this package: pointers to one struct per [Type], and [*Opaque].
type Payload interface{ Type() Type }

// Type returns the type of the event, or "" if it has no payload.
func (e *Event) Type() Type {
	if e.Payload == nil {
		return ""
	}
	return e.Payload.Type()
}

// Claims reports whether the event makes its author the writer of the node.
func (e *Event) Claims() bool {
	switch e.Payload.(type) {
	case *RunClaimed:
		return e.NodeID == RunNode
	case *NodeClaimed:
		return e.NodeID != RunNode
	}
	return false
}

// Node returns the node that the event is about: its target if the owner of the
// run writes about another node, else the one it is written on.
func (e *Event) Node() string {
	var target string
	switch p := e.Payload.(type) {
	case *NodeScheduled:
		target = p.Target
	case *NodeSkipped:
		target = p.Target
	case *NodeCancelled:
		target = p.Target
	case *NodeWaiting:
		target = p.Target
	case *NodeStart:
		target = p.Target
	case *NodeComplete:
		target = p.Target
	case *NodeError:
		target = p.Target
	case *InputRequested:
		target = p.Target
	case *InputReceived:
		target = p.Target
	}
	if target == "" {
		return e.NodeID
	}
	return target
}

// Opaque is the payload of a type that this version doesn't know. Its fields
// are in [Event.Unknown].
type Opaque struct{ Name Type }

// Type returns the name that the event came with.
func (o *Opaque) Type() Type { return o.Name }

// Blob refers to a payload field that is kept in the object store WAKE_BLOBS
// under its SHA256.
type Blob struct {
	Field  string `wire:"field,nonempty"`  // name of the payload field
	SHA256 string `wire:"sha256,nonempty"` // of the field's canonical encoding, lower-case hex; the object's name
	Size   int64  `wire:"size,required"`   // bytes of that encoding
	Unknown
}
