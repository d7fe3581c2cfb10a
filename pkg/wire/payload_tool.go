package wire

// ToolIntent is stored before the tool runs: after a crash it tells that the
// outcome is unknown. The envelope's CallID is required.
type ToolIntent struct {
	ToolName   string
	ToolInput  Raw
	InputHash  string // sha256 of ToolInput, lower-case hex
	Idempotent bool   // may be run again
	Batch      string // calls of one model message share it
	Recovered  string // where the call stood, if it was made when no runner was there; see [RecoveredTranscript]
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

var toolCallStates = []ToolCallState{ //nolint:gochecknoglobals // constant
	ToolPending, ToolApprovalRequired, ToolApproved, ToolExecuting,
	ToolCompleted, ToolFailed, ToolDenied, ToolSealedState,
}

// ToolState is a transition of a tool call, which the envelope's CallID names.
type ToolState struct {
	From ToolCallState
	To   ToolCallState
	Note string
	By   string
}

// ToolSealed closes a call that a crash left open.
type ToolSealed struct {
	ToolName        string
	From            ToolCallState // the state in which the crash found it
	Message         string
	Recommendations []string
}

// PermissionRequired asks for a decision on the call that the envelope names.
type PermissionRequired struct {
	ToolName    string
	ToolInput   Raw
	Description string
	Suggestions Raw
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
	Decision     Decision
	By           string // operator, policy, rule …
	Note         string
	UpdatedInput Raw // the input to use instead
}

// ExecStart begins the command of an exec node.
type ExecStart struct {
	Command string
	Cwd     string
	Pid     int
}

// ExecOutput is a piece of a command's output.
type ExecOutput struct {
	Stream  string // stdout or stderr
	Content string // invalid UTF-8 replaced by U+FFFD
	Omitted int64  // bytes of the stream before this that are left out
}

// ExecExit ends the command.
type ExecExit struct {
	ExitCode   int64 // -1 if a signal ended it
	Signal     string
	TimedOut   bool
	DurationMs int64
	// MemoryBytes is the bound for which the kernel has killed the command, or something of it; 0 if it hasn't.
	MemoryBytes int64
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
	Kind       CheckpointKind
	Label      string // sfp-<n>, or the user's
	SubIdx     *int   // index of the last finished call of the turn, for a subturn
	PrefixHash string // of the log up to here
	AtPos      uint64 // position of the run's log that it marks, for one that is labelled later; 0: its own
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
	CheckpointID string
	Result       AuditResult
	DurationMs   int64
	Evidence     Raw
	Command      string
}

// LogTruncated hides the node's events after AtSeq from readers; they stay in
// the log. As an event of the recorder it tells that the stream lost events.
type LogTruncated struct {
	AtSeq  uint64 // last seq that stays visible
	Reason string
	Lost   uint64 // number of events that are gone, if any are
}

// StorageFailure tells, once storage is back, what it could not take.
type StorageFailure struct {
	Message string
	Dropped int64 // events
	SinceMs int64 // Unix milliseconds
	UntilMs int64 // 0: storage was still away when this was written
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

func (p *ToolIntent) visitFields(f *fields) {
	f.envelopeRequires("callId")
	f.str("toolName", &p.ToolName, nonEmpty)
	f.raw("toolInput", &p.ToolInput, required)
	f.str("inputHash", &p.InputHash, optional)
	f.bool("idempotent", &p.Idempotent, optional)
	f.str("batch", &p.Batch, optional)
	f.str("recovered", &p.Recovered, optional)
}

func (p *ToolState) visitFields(f *fields) {
	f.envelopeRequires("callId")
	enum(f, "from", &p.From, required, toolCallStates...)
	enum(f, "to", &p.To, required, toolCallStates...)
	f.str("note", &p.Note, optional)
	f.str("by", &p.By, optional)
}

func (p *ToolSealed) visitFields(f *fields) {
	f.envelopeRequires("callId")
	f.str("toolName", &p.ToolName, optional)
	enum(f, "from", &p.From, required, toolCallStates...)
	f.str("message", &p.Message, required)
	f.strs("recommendations", &p.Recommendations, required)
}

func (p *PermissionRequired) visitFields(f *fields) {
	f.envelopeRequires("callId")
	f.str("toolName", &p.ToolName, nonEmpty)
	f.raw("toolInput", &p.ToolInput, optional)
	f.str("description", &p.Description, optional)
	f.raw("suggestions", &p.Suggestions, optional)
}

func (p *PermissionDecided) visitFields(f *fields) {
	f.envelopeRequires("callId")
	enum(f, "decision", &p.Decision, required, DecisionAllow, DecisionDeny)
	f.str("by", &p.By, optional)
	f.str("note", &p.Note, optional)
	f.raw("updatedInput", &p.UpdatedInput, optional)
}

func (p *ExecStart) visitFields(f *fields) {
	f.str("command", &p.Command, required)
	f.str("cwd", &p.Cwd, optional)
	f.int("pid", &p.Pid, optional)
}

func (p *ExecOutput) visitFields(f *fields) {
	f.str("stream", &p.Stream, nonEmpty)
	f.str("content", &p.Content, required)
	f.int64("omitted", &p.Omitted, optional)
}

func (p *ExecExit) visitFields(f *fields) {
	f.int64("exitCode", &p.ExitCode, required)
	f.str("signal", &p.Signal, optional)
	f.bool("timedOut", &p.TimedOut, optional)
	f.int64("durationMs", &p.DurationMs, required)
	f.int64("memoryBytes", &p.MemoryBytes, optional)
}

func (p *Checkpoint) visitFields(f *fields) {
	enum(f, "kind", &p.Kind, required, CheckpointTurn, CheckpointSubturn, CheckpointSFP, CheckpointLabelled)
	f.str("label", &p.Label, optional)
	f.optInt("subIdx", &p.SubIdx)
	f.str("prefixHash", &p.PrefixHash, optional)
	f.uint64("atPos", &p.AtPos, optional)
}

func (p *AuditCheckpoint) visitFields(f *fields) {
	f.str("checkpointId", &p.CheckpointID, nonEmpty)
	enum(f, "result", &p.Result, required, AuditPass, AuditFail, AuditWarn)
	f.int64("durationMs", &p.DurationMs, required)
	f.raw("evidence", &p.Evidence, optional)
	f.str("command", &p.Command, optional)
}

func (p *LogTruncated) visitFields(f *fields) {
	f.uint64("atSeq", &p.AtSeq, required)
	f.str("reason", &p.Reason, optional)
	f.uint64("lost", &p.Lost, optional)
}

func (p *StorageFailure) visitFields(f *fields) {
	f.str("message", &p.Message, required)
	f.int64("dropped", &p.Dropped, optional)
	f.int64("sinceMs", &p.SinceMs, optional)
	f.int64("untilMs", &p.UntilMs, optional)
}
