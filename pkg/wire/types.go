package wire

import "strings"

// Type names what an event says. Names are never reused.
type Type string

// The types of events. Each has a payload struct of the same name.
const (
	// The life of a run; written by its owner on [RunNode].
	TypeRunClaimed   Type = "run:claimed"
	TypeRunForked    Type = "run:forked"
	TypeFlowStart    Type = "flow:start"
	TypeFlowComplete Type = "flow:complete"
	TypeFlowPaused   Type = "flow:paused"
	TypeFlowResumed  Type = "flow:resumed"
	TypeFlowAborted  Type = "flow:aborted"

	// Decisions of the scheduler; written by the owner on [RunNode].
	TypeNodeScheduled   Type = "node:scheduled"
	TypeNodeSkipped     Type = "node:skipped"
	TypeNodeCancelled   Type = "node:cancelled"
	TypeNodeWaiting     Type = "node:waiting"
	TypeEdgeFire        Type = "edge:fire"
	TypeEdgeSkip        Type = "edge:skip"
	TypeLoopIterate     Type = "loop:iterate"
	TypeStatePatch      Type = "state:patch"
	TypeCommandReceived Type = "command:received"

	// The life of a node's execution; written by its worker on the node.
	TypeNodeClaimed    Type = "node:claimed"
	TypeNodeTried      Type = "node:tried"
	TypeNodeStart      Type = "node:start"
	TypeNodeComplete   Type = "node:complete"
	TypeNodeError      Type = "node:error"
	TypeInputRequested Type = "input:requested"
	TypeInputReceived  Type = "input:received"

	// What an agent does (seeds/000 §3).
	TypeAgentStart         Type = "agent:start"
	TypeAgentInit          Type = "agent:init"
	TypeAgentThinkingDelta Type = "agent:thinking:delta"
	TypeAgentThinking      Type = "agent:thinking"
	TypeAgentTextDelta     Type = "agent:text:delta"
	TypeAgentText          Type = "agent:text"
	TypeAgentMessage       Type = "agent:message"
	TypeAgentTool          Type = "agent:tool"
	TypeAgentError         Type = "agent:error"
	TypeAgentComplete      Type = "agent:complete"
	TypeAgentPaused        Type = "agent:paused"
	TypeAgentAborted       Type = "agent:aborted"
	TypeAgentResumed       Type = "agent_resumed"
	TypeSessionBound       Type = "session:bound"
	TypePromptSystem       Type = "prompt:system"
	TypeUserMessage        Type = "user:message"
	TypeTurnStart          Type = "turn:start"
	TypeTurnEnd            Type = "turn:end"
	TypeUsage              Type = "usage"
	TypeCCMessage          Type = "cc_message"
	TypeTodoChanged        Type = "todo:changed"
	TypeFileChanged        Type = "file_changed"
	TypeSessionCompared    Type = "session:compared"
	TypeBreakpointChanged  Type = "breakpoint_changed"
	TypeWorkspaceSnapshot  Type = "workspace:snapshot"
	TypeTranscriptRead     Type = "transcript:read"
	TypeCompaction         Type = "compaction"
	TypeHookFired          Type = "hook:fired"
	TypeRaw                Type = "raw"

	// Tool calls.
	TypeToolIntent         Type = "tool:intent"
	TypeToolState          Type = "tool:state"
	TypeToolSealed         Type = "tool:sealed"
	TypePermissionRequired Type = "permission:required"
	TypePermissionDecided  Type = "permission:decided"

	// A command of an exec node.
	TypeExecStart  Type = "exec:start"
	TypeExecOutput Type = "exec:output"
	TypeExecExit   Type = "exec:exit"

	// The log itself.
	TypeCheckpoint      Type = "checkpoint"
	TypeAuditCheckpoint Type = "audit:checkpoint"
	TypeLogTruncated    Type = "log:truncated"
	TypeStorageFailure  Type = "storage_failure"
)

// Kind is the last token of an event's subject: what a consumer filters by.
type Kind string

// The kinds. Few, since each distinct subject costs the server memory.
const (
	KindFlow  Kind = "flow"  // the run and its nodes
	KindAgent Kind = "agent" // what agents do, save what follows
	KindTool  Kind = "tool"  // tool calls and permissions
	KindText  Kind = "text"  // whole blocks of text and thinking
	KindDelta Kind = "delta" // streamed pieces; about nine of ten events
)

// Kinds lists all kinds.
var Kinds = []Kind{KindFlow, KindAgent, KindTool, KindText, KindDelta} //nolint:gochecknoglobals // constant

// Kind returns the kind under which events of type t are published.
func (t Type) Kind() Kind {
	switch t {
	case TypeAgentText, TypeAgentThinking:
		return KindText
	case TypeAgentTextDelta, TypeAgentThinkingDelta, TypeExecOutput:
		return KindDelta
	case TypeAgentTool:
		return KindTool
	default:
		prefix, _, _ := strings.Cut(string(t), ":")
		switch prefix {
		case "flow", "node", "edge", "loop", "state", "command", "run", "input":
			return KindFlow
		case "tool", "permission":
			return KindTool
		default:
			return KindAgent
		}
	}
}

// Awaited reports whether an event of type t must be stored before its writer
// goes on: what is begun because of it can't be accounted for without it.
func (t Type) Awaited() bool {
	switch t {
	case TypeAgentStart, TypeSessionBound, TypeToolIntent, TypeToolSealed, TypePermissionDecided, TypeCommandReceived,
		TypeAgentComplete, TypeAgentPaused, TypeAgentAborted, TypeLogTruncated, TypeRunForked,
		TypeRunClaimed, TypeNodeClaimed, TypeNodeComplete, TypeNodeError,
		TypeFlowStart, TypeFlowComplete, TypeFlowPaused, TypeFlowResumed, TypeFlowAborted:
		return true
	default:
		return false
	}
}

// newPayload returns an empty payload of type t; an [Opaque] if t is unknown.
func newPayload[T Type | []byte](t T) Payload {
	if payload, ok := payloads[Type(t)]; ok {
		return payload()
	}
	return &Opaque{Name: Type(t)}
}

// payloads is the catalogue: every type and its payload.
var payloads = map[Type]func() Payload{ //nolint:gochecknoglobals // constant
	TypeRunClaimed:         func() Payload { return new(RunClaimed) },
	TypeRunForked:          func() Payload { return new(RunForked) },
	TypeFlowStart:          func() Payload { return new(FlowStart) },
	TypeFlowComplete:       func() Payload { return new(FlowComplete) },
	TypeFlowPaused:         func() Payload { return new(FlowPaused) },
	TypeFlowResumed:        func() Payload { return new(FlowResumed) },
	TypeFlowAborted:        func() Payload { return new(FlowAborted) },
	TypeNodeScheduled:      func() Payload { return new(NodeScheduled) },
	TypeNodeSkipped:        func() Payload { return new(NodeSkipped) },
	TypeNodeCancelled:      func() Payload { return new(NodeCancelled) },
	TypeNodeWaiting:        func() Payload { return new(NodeWaiting) },
	TypeEdgeFire:           func() Payload { return new(EdgeFire) },
	TypeEdgeSkip:           func() Payload { return new(EdgeSkip) },
	TypeLoopIterate:        func() Payload { return new(LoopIterate) },
	TypeStatePatch:         func() Payload { return new(StatePatch) },
	TypeCommandReceived:    func() Payload { return new(CommandReceived) },
	TypeNodeClaimed:        func() Payload { return new(NodeClaimed) },
	TypeNodeTried:          func() Payload { return new(NodeTried) },
	TypeNodeStart:          func() Payload { return new(NodeStart) },
	TypeNodeComplete:       func() Payload { return new(NodeComplete) },
	TypeNodeError:          func() Payload { return new(NodeError) },
	TypeInputRequested:     func() Payload { return new(InputRequested) },
	TypeInputReceived:      func() Payload { return new(InputReceived) },
	TypeAgentStart:         func() Payload { return new(AgentStart) },
	TypeAgentInit:          func() Payload { return new(AgentInit) },
	TypeAgentThinkingDelta: func() Payload { return new(AgentThinkingDelta) },
	TypeAgentThinking:      func() Payload { return new(AgentThinking) },
	TypeAgentTextDelta:     func() Payload { return new(AgentTextDelta) },
	TypeAgentText:          func() Payload { return new(AgentText) },
	TypeAgentMessage:       func() Payload { return new(AgentMessage) },
	TypeAgentTool:          func() Payload { return new(AgentTool) },
	TypeAgentError:         func() Payload { return new(AgentError) },
	TypeAgentComplete:      func() Payload { return new(AgentComplete) },
	TypeAgentPaused:        func() Payload { return new(AgentPaused) },
	TypeAgentAborted:       func() Payload { return new(AgentAborted) },
	TypeAgentResumed:       func() Payload { return new(AgentResumed) },
	TypeSessionBound:       func() Payload { return new(SessionBound) },
	TypePromptSystem:       func() Payload { return new(PromptSystem) },
	TypeUserMessage:        func() Payload { return new(UserMessage) },
	TypeTurnStart:          func() Payload { return new(TurnStart) },
	TypeTurnEnd:            func() Payload { return new(TurnEnd) },
	TypeUsage:              func() Payload { return new(Usage) },
	TypeCCMessage:          func() Payload { return new(CCMessage) },
	TypeTodoChanged:        func() Payload { return new(TodoChanged) },
	TypeFileChanged:        func() Payload { return new(FileChanged) },
	TypeWorkspaceSnapshot:  func() Payload { return new(WorkspaceSnapshot) },
	TypeTranscriptRead:     func() Payload { return new(TranscriptRead) },
	TypeSessionCompared:    func() Payload { return new(SessionCompared) },
	TypeBreakpointChanged:  func() Payload { return new(BreakpointChanged) },
	TypeCompaction:         func() Payload { return new(Compaction) },
	TypeHookFired:          func() Payload { return new(HookFired) },
	TypeRaw:                func() Payload { return new(RawMessage) },
	TypeToolIntent:         func() Payload { return new(ToolIntent) },
	TypeToolState:          func() Payload { return new(ToolState) },
	TypeToolSealed:         func() Payload { return new(ToolSealed) },
	TypePermissionRequired: func() Payload { return new(PermissionRequired) },
	TypePermissionDecided:  func() Payload { return new(PermissionDecided) },
	TypeExecStart:          func() Payload { return new(ExecStart) },
	TypeExecOutput:         func() Payload { return new(ExecOutput) },
	TypeExecExit:           func() Payload { return new(ExecExit) },
	TypeCheckpoint:         func() Payload { return new(Checkpoint) },
	TypeAuditCheckpoint:    func() Payload { return new(AuditCheckpoint) },
	TypeLogTruncated:       func() Payload { return new(LogTruncated) },
	TypeStorageFailure:     func() Payload { return new(StorageFailure) },
}
