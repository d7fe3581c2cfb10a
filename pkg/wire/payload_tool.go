package wire

// ToolIntent is stored before the tool runs: after a crash it tells that the
// outcome is unknown. The envelope's CallID is required.
type ToolIntent struct {
	ToolName   string `wire:"toolName,nonempty"`
	ToolInput  Raw    `wire:"toolInput,required"`
	InputHash  string `wire:"inputHash"`  // sha256 of ToolInput, lower-case hex
	Idempotent bool   `wire:"idempotent"` // may be run again
	Batch      string `wire:"batch"`      // calls of one model message share it
	Recovered  string `wire:"recovered"`  // where the call stood, if it was made when no runner was there; see [RecoveredTranscript]
}

// ToolCallState is the state of a tool call.
type ToolCallState string

// The states of a tool call. The last four are terminal.
const (
	ToolPending          ToolCallState = "PENDING"
	ToolApprovalRequired ToolCallState = "APPROVAL_REQUIRED"
	ToolApproved         ToolCallState = "APPROVED"
	ToolExecuting        ToolCallState = "EXECUTING"
	ToolCompleted        ToolCallState = "COMPLETED"
	ToolFailed           ToolCallState = "FAILED"
	ToolDenied           ToolCallState = "DENIED"
	ToolSealedState      ToolCallState = "SEALED"
)

// ToolState is a transition of a tool call, which the envelope's CallID names.
type ToolState struct {
	From ToolCallState `wire:"from,required"`
	To   ToolCallState `wire:"to,required"`
	Note string        `wire:"note"`
	By   string        `wire:"by"`
}

// ToolSealed closes a call that a crash left open.
type ToolSealed struct {
	ToolName        string        `wire:"toolName"`
	From            ToolCallState `wire:"from,required"` // the state in which the crash found it
	Message         string        `wire:"message,required"`
	Recommendations []string      `wire:"recommendations,required"`
}

// PermissionRequired asks for a decision on the call that the envelope names.
type PermissionRequired struct {
	ToolName    string `wire:"toolName,nonempty"`
	ToolInput   Raw    `wire:"toolInput"`
	Description string `wire:"description"`
	Suggestions Raw    `wire:"suggestions"`
}

// Decision is the answer to a [PermissionRequired].
type Decision string

// The decisions.
const (
	DecisionAllow Decision = "allow"
	DecisionDeny  Decision = "deny"
)

// PermissionDecided is the decision.
type PermissionDecided struct {
	Decision     Decision `wire:"decision,required"`
	By           string   `wire:"by"` // operator, policy, rule …
	Note         string   `wire:"note"`
	UpdatedInput Raw      `wire:"updatedInput"` // the input to use instead
}

// ExecStart begins the command of an exec node.
type ExecStart struct {
	Command string `wire:"command,required"`
	Cwd     string `wire:"cwd"`
	Pid     int    `wire:"pid"`
}

// ExecOutput is a piece of a command's output.
type ExecOutput struct {
	Stream  string `wire:"stream,nonempty"`  // stdout or stderr
	Content string `wire:"content,required"` // invalid UTF-8 replaced by U+FFFD
	Omitted int64  `wire:"omitted"`          // bytes of the stream before this that are left out
}

// ExecExit ends the command.
type ExecExit struct {
	ExitCode   int64  `wire:"exitCode,required"` // -1 if a signal ended it
	Signal     string `wire:"signal"`
	TimedOut   bool   `wire:"timedOut"`
	DurationMs int64  `wire:"durationMs,required"`
	// MemoryBytes is the bound for which the kernel has killed the command, or something of it; 0 if it hasn't.
	MemoryBytes int64 `wire:"memoryBytes"`
}

// CheckpointKind is what a checkpoint marks.
type CheckpointKind string

// The kinds of checkpoints.
const (
	CheckpointTurn     CheckpointKind = "turn"
	CheckpointSubturn  CheckpointKind = "subturn"
	CheckpointSFP      CheckpointKind = "sfp"
	CheckpointLabelled CheckpointKind = "labelled"
	CheckpointNode     CheckpointKind = "node" // of a [ForkPoint] alone: an execution begins or ends; no checkpoint is of it
)

// Checkpoint marks a point to resume or fork from.
type Checkpoint struct {
	Kind       CheckpointKind `wire:"kind,required"`
	Label      string         `wire:"label"`      // sfp-<n>, or the user's
	SubIdx     *int           `wire:"subIdx"`     // index of the last finished call of the turn, for a subturn
	PrefixHash string         `wire:"prefixHash"` // of the log up to here
	AtPos      uint64         `wire:"atPos"`      // position of the run's log that it marks, for one that is labelled later; 0: its own
}

// AuditResult is the outcome of an audit.
type AuditResult string

// The outcomes of an audit.
const (
	AuditPass AuditResult = "pass"
	AuditFail AuditResult = "fail"
	AuditWarn AuditResult = "warn"
)

// AuditCheckpoint records an audit. The envelope's AgentID is empty for an
// audit of the whole run.
type AuditCheckpoint struct {
	CheckpointID string      `wire:"checkpointId,nonempty"`
	Result       AuditResult `wire:"result,required"`
	DurationMs   int64       `wire:"durationMs,required"`
	Evidence     Raw         `wire:"evidence"`
	Command      string      `wire:"command"`
}

// LogTruncated hides the node's events after AtSeq from readers; they stay in
// the log. As an event of the recorder it tells that the stream lost events.
type LogTruncated struct {
	AtSeq  uint64 `wire:"atSeq,required"` // last seq that stays visible
	Reason string `wire:"reason"`
	Lost   uint64 `wire:"lost"` // number of events that are gone, if any are
}

// StorageFailure tells, once storage is back, what it could not take.
type StorageFailure struct {
	Message string `wire:"message,required"`
	Dropped int64  `wire:"dropped"` // events
	SinceMs int64  `wire:"sinceMs"` // Unix milliseconds
	UntilMs int64  `wire:"untilMs"` // 0: storage was still away when this was written
}

func (*ToolIntent) Type() Type         { return TypeToolIntent }
func (*ToolState) Type() Type          { return TypeToolState }
func (*ToolSealed) Type() Type         { return TypeToolSealed }
func (*PermissionRequired) Type() Type { return TypePermissionRequired }
func (*PermissionDecided) Type() Type  { return TypePermissionDecided }
func (*ExecStart) Type() Type          { return TypeExecStart }
func (*ExecOutput) Type() Type         { return TypeExecOutput }
func (*ExecExit) Type() Type           { return TypeExecExit }
func (*Checkpoint) Type() Type         { return TypeCheckpoint }
func (*AuditCheckpoint) Type() Type    { return TypeAuditCheckpoint }
func (*LogTruncated) Type() Type       { return TypeLogTruncated }
func (*StorageFailure) Type() Type     { return TypeStorageFailure }
