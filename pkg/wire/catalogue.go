package wire

import (
	"maps"
	"reflect"
	"slices"
	"sync"
)

// knownType is what the catalogue has of a type of events.
type knownType struct {
	pointer  reflect.Type // *AgentStart …
	shape    *shape
	requires string // the optional field of the envelope that such an event must have
}

// catalogue has every type and its payload.
var catalogue = sync.OnceValue(func() map[Type]*knownType {
	known := map[Type]*knownType{}
	for _, p := range []Payload{
		new(RunClaimed), new(RunForked), new(FlowStart), new(FlowComplete), new(FlowPaused), new(FlowResumed), new(FlowAborted),
		new(NodeScheduled), new(NodeSkipped), new(NodeCancelled), new(NodeWaiting), new(EdgeFire), new(EdgeSkip), new(LoopIterate),
		new(StatePatch), new(CommandReceived),
		new(NodeClaimed), new(NodeTried), new(NodeStart), new(NodeComplete), new(NodeError), new(InputRequested), new(InputReceived),
		new(AgentStart), new(AgentInit), new(AgentThinkingDelta), new(AgentThinking), new(AgentTextDelta), new(AgentText),
		new(AgentMessage), new(AgentTool), new(AgentError), new(AgentComplete), new(AgentPaused), new(AgentAborted), new(AgentResumed),
		new(SessionBound), new(PromptSystem), new(UserMessage), new(TurnStart), new(TurnEnd), new(Usage), new(CCMessage),
		new(TodoChanged), new(FileChanged), new(SessionCompared), new(BreakpointChanged), new(WorkspaceSnapshot),
		new(TranscriptRead), new(Compaction), new(HookFired), new(RawMessage),
		new(ToolIntent), new(ToolState), new(ToolSealed), new(PermissionRequired), new(PermissionDecided),
		new(ExecStart), new(ExecOutput), new(ExecExit),
		new(Checkpoint), new(AuditCheckpoint), new(LogTruncated), new(StorageFailure),
	} {
		t := reflect.TypeOf(p)
		known[p.Type()] = &knownType{pointer: t, shape: readShape(t.Elem()), requires: p.Type().requiredID()}
	}
	return known
})

// requiredID names the optional field of the envelope that events of type t must have.
func (t Type) requiredID() string {
	switch t {
	case TypeAgentStart:
		return "sessionId"
	case TypeToolIntent, TypeToolState, TypeToolSealed, TypePermissionRequired, TypePermissionDecided:
		return "callId"
	default:
		return ""
	}
}

// opaqueType stands for types that this version doesn't know.
var opaqueType = &knownType{pointer: reflect.TypeFor[*Opaque](), shape: new(shape)}

func lookUpType[T Type | []byte](t T) *knownType {
	if known, ok := catalogue()[Type(t)]; ok {
		return known
	}
	return opaqueType
}

// newPayload returns an empty payload; t is the type of the event.
func (k *knownType) newPayload(t []byte) Payload {
	if k == opaqueType {
		return &Opaque{Name: Type(t)}
	}
	return reflect.New(k.pointer.Elem()).Interface().(Payload)
}

// FieldInfo describes a field of an event.
type FieldInfo struct {
	Name     string
	Kind     FieldKind
	Required bool        // always present
	NonEmpty bool        // neither "" nor 0; implies Required
	Enum     []string    // the values that a string may have, if they are limited
	Fields   []FieldInfo // of the objects
}

// TypeInfo describes a type of event.
type TypeInfo struct {
	Type     Type
	Requires []string    // optional fields of the envelope that this type requires
	Fields   []FieldInfo // of the payload, in wire order
}

// Types returns all types that this version knows, in alphabetical order.
func Types() []Type { return slices.Sorted(maps.Keys(catalogue())) }

// Describe returns the description of a type; without fields if it is unknown.
func Describe(t Type) TypeInfo {
	known := lookUpType(t)
	info := TypeInfo{Type: t, Fields: known.shape.describeFields()}
	if known.requires != "" {
		info.Requires = []string{known.requires}
	}
	return info
}

// DescribeEnvelope returns the fields that all types share, in wire order. The
// payload's fields stand before the last one, blobs.
func DescribeEnvelope() []FieldInfo { return envelope().describeFields() }

func (s *shape) describeFields() (list []FieldInfo) {
	for _, f := range s.fields {
		info := FieldInfo{Name: f.name(), Kind: f.kind, Required: f.presence != optional, Enum: slices.Clone(f.words)}
		info.NonEmpty = f.presence == nonEmpty && f.kind != FieldAny // null is not empty, and "" neither
		if f.nested != nil {
			info.Fields = f.nested.describeFields()
		}
		list = append(list, info)
	}
	return list
}
