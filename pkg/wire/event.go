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
	RunID     string // the workflow run; required
	NodeID    string // a vertex of the flow, or [RunNode]; required
	Seq       uint64 // from 1, gap-free per (RunID, NodeID), continues across epochs
	Epoch     uint64 // from 1, incarnation of the node's writer
	Timestamp int64  // Unix milliseconds, stamped by the writer; orders nothing

	ExecID     string // one execution of the node
	AgentID    string // the agent that acts in the node, if it isn't the node's own
	SessionID  string // the agent SDK's own id of the conversation
	Turn       int    // index of the model call, from 1; never restarts; 0: none
	Step       int    // KAHN step per (run, agent), from 0
	CallID     string // the tool call, as the SDK names it (tool_use_id)
	Cause      string // the event or command that caused this one
	Parent     string // the tool call that started the sub-agent that emitted this event
	Redactions int    // secrets that were removed before the event was written

	// Of an event that was made of a program's journalled output: where in the journal what
	// it was made of ends, and its number among the events that were made of the same line, from 0.
	// Fed again, the journal yields the same events in the same places.
	JournalOffset uint64
	JournalIndex  int

	Payload Payload // required

	// Blobs are payload fields that were too large for the log. Such a field is
	// absent from the payload; its canonical encoding is in the object store.
	Blobs []Blob

	// Unknown holds fields that this version doesn't know, sorted by name.
	Unknown []Field
}

// Payload is the type-specific part of an event. Its implementations are the
// types of this package: pointers to one struct per [Type], and [*Opaque].
type Payload interface {
	Type() Type
	record
}

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

func (*Opaque) visitFields(*fields) {}

// Field is a named value.
type Field struct {
	Name  string
	Value Raw
}

// Blob refers to a payload field that is kept in the object store WAKE_BLOBS
// under its SHA256.
type Blob struct {
	Field  string // name of the payload field
	SHA256 string // of the field's canonical encoding, lower-case hex; the object's name
	Size   int64  // bytes of that encoding
	Unknown
}

func (b *Blob) visitFields(f *fields) {
	f.str("field", &b.Field, nonEmpty)
	f.str("sha256", &b.SHA256, nonEmpty)
	f.int64("size", &b.Size, required)
	switch f.mode {
	case encoding, checking:
		if !isHash(b.SHA256) {
			f.failField("sha256", "must be 64 hexadecimal digits, lower-case")
		}
		if b.Size < 0 {
			f.failField("size", "must not be negative")
		}
	case decoding:
		f.rules = true
	case describing:
	}
}

// Unknown is embedded by the structs inside payloads to keep fields that this
// version doesn't know.
type Unknown struct{ Rest []Field }

func (u *Unknown) unknownFields() *[]Field { return &u.Rest }

// visitEnvelope is the part of an event that all types share, in wire order.
func (e *Event) visitEnvelope(f *fields) {
	f.id("runId", &e.RunID, nonEmpty)
	f.id("nodeId", &e.NodeID, nonEmpty)
	f.uint64("seq", &e.Seq, nonEmpty)
	f.uint64("epoch", &e.Epoch, nonEmpty)
	f.int64("timestamp", &e.Timestamp, required)
	f.id("execId", &e.ExecID, optional)
	f.id("agentId", &e.AgentID, optional)
	f.id("sessionId", &e.SessionID, optional)
	f.int("turn", &e.Turn, optional)
	f.int("step", &e.Step, optional)
	f.id("callId", &e.CallID, optional)
	f.id("cause", &e.Cause, optional)
	f.id("parent", &e.Parent, optional)
	f.int("redactions", &e.Redactions, optional)
	f.uint64("journalOffset", &e.JournalOffset, optional)
	f.int("journalIndex", &e.JournalIndex, optional)
}
