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
var Kinds = []Kind{KindFlow, KindAgent, KindTool, KindText, KindDelta}

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
