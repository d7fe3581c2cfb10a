package wire

// AgentStart begins the execution of an agent. The envelope's SessionID is
// required: it is stored before the agent gets its prompt, so that a crash
// never loses the conversation.
type AgentStart struct {
	Model    string
	Prompt   Raw    // a string, or an array of message inputs; in full
	Task     string // one line, for people
	Provider string // claude, native, acp, codex, fixture, ingest …
	Cwd      string
	Resumed  bool // the session existed before
}

// AgentInit is what the agent says of itself when it is ready.
type AgentInit struct {
	Model          string
	Cwd            string
	Version        string // of the agent program
	PermissionMode string
	Tools          []string
	Details        Raw // the rest, as the agent sent it
}

// AgentThinkingDelta is a streamed piece of thinking.
type AgentThinkingDelta struct {
	Content    string
	TokenCount *int64 // tokens of this piece
	Block      int    // number of the block within the execution, from 1
}

// AgentThinking is a whole block of thinking, for a block that wasn't streamed.
type AgentThinking struct {
	Content    string
	TokenCount *int64
	Block      int
	Supersedes int    // block that the agent streamed and then gave up
	Signature  string // proof of origin that the model's API wants back
}

// AgentTextDelta is a streamed piece of the answer.
type AgentTextDelta struct {
	Content string
	Block   int // number of the block within the execution, from 1
}

// AgentText is a whole block of the answer, for a block that wasn't streamed.
type AgentText struct {
	Content    string
	Block      int
	Supersedes int // see [AgentThinking.Supersedes]
}

// AgentMessage is a whole message of the model, as its next prompt repeats it. Agents
// with the log as their conversation write it; what the model was told is in agent:start,
// [UserMessage] and [AgentTool].
type AgentMessage struct {
	MessageID  string
	Model      string
	Content    Raw    // the blocks, as the Messages API has them: text, thinking, tool_use …
	StopReason string // end_turn, tool_use, max_tokens, refusal …
	Blocks     int    // number of the last streamed block within the execution
}

// AgentTool is a finished tool call. The envelope's CallID ties it to its
// [ToolIntent].
type AgentTool struct {
	ToolName   string
	ToolInput  Raw    // in full
	ToolOutput Raw    // in full, as the model saw it
	DurationMs *int64 // of the tool: from the call to its result, without the waits below
	Error      string // set if the tool failed
	Structured Raw    // the agent's own structured form of the result, if it sends one
	Denied     bool   // not executed: refused by a rule or by a human
	Point      string // the agent's own id of the result, where its session can be forked
	// ChildRun is the run that the call has started, ChildCostUsd what that has cost,
	// with its own children; nil if nothing is known of it.
	ChildRun     string
	ChildCostUsd *float64
	Recovered    string // where the result stood, if the call ended when no runner was there; see [RecoveredTranscript]
	// What the call has waited for before, if that was long: storage, and a decision.
	StorageWaitMs  int64
	ApprovalWaitMs int64
}

// RecoveredTranscript says that an event was made of the agent's own record of its session,
// when the session was gone on with.
const RecoveredTranscript = "transcript"

// CallInterrupted is the error of a call that was interrupted with its agent, by a
// pause for example: it may have been running, and its outcome is unknown.
const CallInterrupted = "interrupted"

// The error types that wake and the SDKs agree on. The set is open.
const (
	ErrorToolUse       = "error_tool_use"
	ErrorMaxTurns      = "error_max_turns"
	ErrorMaxBudget     = "error_max_budget_usd"
	ErrorUser          = "error_user"
	ErrorExecution     = "error_during_execution"
	ErrorNetwork       = "network_error"
	ErrorRateLimit     = "rate_limit"
	ErrorOverloaded    = "overloaded"
	ErrorTimeout       = "timeout"
	ErrorException     = "exception"
	ErrorProcessDied   = "process_died"
	ErrorStartFailed   = "start_failed"
	ErrorNoFixture     = "no_fixture"
	ErrorNoProvider    = "unknown_provider" // the runner has no such agent
	ErrorMissingResult = "missing_result"

	// A warning: what a former version of the runner has left of an agent that goes on can't be read.
	ErrorJournalUnreadable = "journal_unreadable"

	// What a crash interrupted and no worker may silently do again: the run pauses
	// until an operator decides (see [FlowResumed]).
	ErrorInterrupted     = "interrupted"
	ErrorSessionNotFound = "session_not_found" // the agent doesn't know the session it was to resume
)

// Severity grades an error or an alert.
type Severity string

// The severities.
const (
	SeverityInfo     Severity = "info"
	SeverityWarning  Severity = "warning"
	SeverityError    Severity = "error"
	SeverityCritical Severity = "critical"
)

// AgentError is an error of the agent. Whether it is fatal is the node policy's
// decision, not the event's.
type AgentError struct {
	ErrorType    string // SDK subtype, such as error_max_turns; see the constants
	Message      string
	Details      Raw      // as the SDK sent it
	Severity     Severity // warning for what will be retried
	Phase        string   // model, tool, system or lifecycle
	Attempt      *int64   // number of the retry that follows, from 1; of the last failure, of the one that failed
	MaxAttempts  int      // retries that there are
	RetryDelayMs *float64 // until the next try
	Status       int      // HTTP status, if there was one
	ResetsAt     int64    // when the limit of the model or the account that was reached is over, Unix ms; 0: unknown
}

// TokenUsage counts tokens as seeds/000 does.
type TokenUsage struct {
	InputTokens              int64
	OutputTokens             int64
	CacheCreationInputTokens *int64
	CacheReadInputTokens     *int64
	Unknown
}

// ModelUsage is the share of one model.
type ModelUsage struct {
	InputTokens              int64
	OutputTokens             int64
	CacheCreationInputTokens *int64
	CacheReadInputTokens     *int64
	CostUsd                  *float64
	ContextWindow            int64
	Unknown
}

// AgentComplete ends an agent's execution well. There is one per execution.
type AgentComplete struct {
	Result           string
	StructuredOutput Raw
	Usage            TokenUsage
	ModelUsage       map[string]ModelUsage
	TotalCostUsd     *float64
	DurationMs       int64
	NumTurns         int64
	StopReason       string
	Denials          Raw    // tool calls that were refused
	CostSource       string // of the costs, see [Usage.CostSource]
	UsageUnknown     bool   // the agent doesn't tell what it used: Usage says nothing
}

// AgentPaused says that the agent was interrupted and can go on.
type AgentPaused struct {
	Reason   string
	NumTurns int64
}

// AgentAborted says that the agent was ended from outside.
type AgentAborted struct {
	Reason string
}

// AgentResumed says that an agent goes on after an interruption.
type AgentResumed struct {
	Strategy string   // crash or manual
	Sealed   []string // ids of the calls that were sealed
}

// SessionBound changes the session of an execution.
type SessionBound struct {
	OldSession string
	NewSession string
}

// PromptSystem identifies the system prompt without storing it.
type PromptSystem struct {
	SHA256  string
	Bytes   int64
	Content string // only where the flow asks for it
}

// UserMessage is a message that the agent got besides its prompt.
type UserMessage struct {
	Content   string
	Source    string // prompt, command, replay, synthetic or subagent
	CommandID string // the command that sent it
	Point     string // the agent's own id of the message, where its session can be forked
}

// TurnStart begins a model call and its tools.
type TurnStart struct {
	Model string
}

// TurnEnd is one result of the agent; an execution may have several. A native agent has one
// for each model call with its tools.
type TurnEnd struct {
	StopReason     string
	TerminalReason string
	Subtype        string // success, error_max_turns …
	IsError        bool
	Result         string
	Origin         string // what caused the turn, when it wasn't the prompt
	Usage          *TokenUsage
	TotalCostUsd   *float64 // as reported: cumulative in some agents
	TurnCostUsd    *float64 // what this result adds
	DurationMs     int64
	DurationAPIMs  int64
	NumTurns       int64
	ModelUsage     map[string]ModelUsage // what this result adds, sub-agents and compaction included
	Details        Raw                   // the rest, as the agent sent it
	CostSource     string                // of the costs, see [Usage.CostSource]
}

// Usage counts the tokens of one model call; once per MessageID.
type Usage struct {
	MessageID                string
	Model                    string
	InputTokens              int64
	OutputTokens             int64
	CacheCreationInputTokens *int64
	CacheReadInputTokens     *int64
	ContextTokens            int64 // what the call put into the context window
	ContextWindow            int64 // size of the window, if known
	CostUsd                  *float64
	StopReason               string
	// CostSource names the prices by which wake has computed CostUsd: its own table and the table's
	// date, such as "wake 2026-11", PricesOptions or PricesFile; "": the agent has told it.
	CostSource string
	Source     string // where the call was told: "" in what the agent printed, or one of the Source constants
}

// The prices that a user has given, see [Usage.CostSource].
const (
	PricesOptions = "options" // in the options of the agent
	PricesFile    = "file"    // in the runner's file of prices
)

// SourceRecovered is where the usage of a model call was told: in the session's file, since the process that made
// the call was gone.
const SourceRecovered = "recovered"

// Priority is how urgent a worker's message is.
type Priority string

// The priorities.
const (
	PriorityInfo     Priority = "info"
	PriorityQuestion Priority = "question"
	PriorityBlocker  Priority = "blocker"
)

// CCMessage is a message of the agent to its parent (notify_parent).
type CCMessage struct {
	Text     string
	Priority Priority
}

// Todo is an item of an agent's list.
type Todo struct {
	ID         string
	Content    string
	Status     string // pending, in_progress or completed
	ActiveForm string
	Unknown
}

// TodoChanged is the whole list after a change.
type TodoChanged struct {
	Items []Todo
	Done  int
	Total int
}

// FileChanged says that a file changed: by the agent, or, if the agent has read or
// written it before, by others.
type FileChanged struct {
	Path     string
	Change   string // created, modified or deleted
	External bool   // not by the agent
}

// WorkspaceSnapshot says that the folder of the run is kept as it is here, or why it isn't: a fork behind it and a runner that
// takes over begin with it.
type WorkspaceSnapshot struct {
	ID       string   // names it in the object store WAKE_WORKSPACES; empty: there is nothing in the folder, or it can't be kept
	Files    int      // files, folders and links
	Bytes    int64    // of the files
	LeftOut  []string // the first of what isn't kept: path, and why
	Omitted  int      // how much more isn't
	Unstable bool     // files changed whenever they were read
	Refused  string   // why the folder can't be kept
	// Process is the one that took it, by a name that no other process has. Order is its place among all that this process has
	// taken: nodes that work in one folder have theirs recorded in another order, and what was taken last holds.
	Process string
	Order   int64
}

// TranscriptRead says how far a session file was read, and what of it was told before this event: the next reader
// begins there. Events of the lines stand before it in the same commit.
type TranscriptRead struct {
	File     string   // path of the file in its folder of sessions
	Identity string   // which file it is, in the words of its system; empty: that tells none
	Offset   int64    // bytes that were read
	Digest   string   // sha256 of them, lower-case hex
	Lines    []string // keys of the lines that are new: the uuid, or a hash of the line and of how many like it come before
	Removed  []string // keys of lines that were told and aren't in the file any more
	Omitted  int      // lines that aren't told, since they repeat requests to the model's API
}

// SessionCompared says whether the two feeds of an agent's session tell the same: what the agent printed, of which the log is made, and the
// session file that it keeps itself. Of what only one of them has (messages, calls, results) the first are listed.
type SessionCompared struct {
	Verdict         string   // complete, stream short, transcript short, both short or can't tell
	Reason          string   // why it can't be told, or of what it isn't
	Shared          int      // messages, calls and results that both have
	StreamShort     int      // how many the stream lacks
	TranscriptShort int      // how many the session file lacks
	StreamLacks     []string // the first of them: kind, id, and where the other feed has it
	TranscriptLacks []string // likewise
}

// BreakpointChanged is a step of the agent's execution state machine.
type BreakpointChanged struct {
	Previous string
	Current  string // READY, PRE_MODEL, STREAMING_MODEL, TOOL_PENDING, AWAITING_APPROVAL, PRE_TOOL, TOOL_EXECUTING or POST_TOOL
}

// Compaction says that the agent shortened its context.
type Compaction struct {
	Trigger    string // auto or manual
	PreTokens  int64
	PostTokens int64
	DurationMs int64
	Summary    string
	Error      string // why it failed
	Details    Raw
}

// HookFired records a hook.
type HookFired struct {
	HookEvent  string // PreToolUse …
	HookName   string
	Decision   string // continue, allow, deny, modify, stop, system or context; of Claude Code's own: its words
	DurationMs *int64
	ExitCode   *int64
	Output     string
	Error      string
}

// RawMessage passes on what has no type of its own, so that nothing is lost.
type RawMessage struct {
	Source string // its sender: claude, transcript, fixture …
	Name   string // what the source calls it, such as system/status
	Data   Raw    // the message; a string if it could not be parsed
	Reason string // why it could not be parsed
	Line   int    // line of the input, if it came from a file
}

// MirrorError is the name of a [RawMessage] by which a program says that it has lost a part of its session's transcript
// on the way to its store.
const MirrorError = "system/mirror_error"

func (*AgentStart) Type() Type         { return TypeAgentStart }
func (*AgentInit) Type() Type          { return TypeAgentInit }
func (*AgentThinkingDelta) Type() Type { return TypeAgentThinkingDelta }
func (*AgentThinking) Type() Type      { return TypeAgentThinking }
func (*AgentTextDelta) Type() Type     { return TypeAgentTextDelta }
func (*AgentText) Type() Type          { return TypeAgentText }
func (*AgentMessage) Type() Type       { return TypeAgentMessage }
func (*AgentTool) Type() Type          { return TypeAgentTool }
func (*AgentError) Type() Type         { return TypeAgentError }
func (*AgentComplete) Type() Type      { return TypeAgentComplete }
func (*AgentPaused) Type() Type        { return TypeAgentPaused }
func (*AgentAborted) Type() Type       { return TypeAgentAborted }
func (*AgentResumed) Type() Type       { return TypeAgentResumed }
func (*SessionBound) Type() Type       { return TypeSessionBound }
func (*PromptSystem) Type() Type       { return TypePromptSystem }
func (*UserMessage) Type() Type        { return TypeUserMessage }
func (*TurnStart) Type() Type          { return TypeTurnStart }
func (*TurnEnd) Type() Type            { return TypeTurnEnd }
func (*Usage) Type() Type              { return TypeUsage }
func (*CCMessage) Type() Type          { return TypeCCMessage }
func (*TodoChanged) Type() Type        { return TypeTodoChanged }
func (*FileChanged) Type() Type        { return TypeFileChanged }
func (*WorkspaceSnapshot) Type() Type  { return TypeWorkspaceSnapshot }
func (*TranscriptRead) Type() Type     { return TypeTranscriptRead }
func (*SessionCompared) Type() Type    { return TypeSessionCompared }
func (*BreakpointChanged) Type() Type  { return TypeBreakpointChanged }
func (*Compaction) Type() Type         { return TypeCompaction }
func (*HookFired) Type() Type          { return TypeHookFired }
func (*RawMessage) Type() Type         { return TypeRaw }

func (p *AgentStart) visitFields(f *fields) {
	f.envelopeRequires("sessionId")
	f.str("model", &p.Model, optional)
	f.raw("prompt", &p.Prompt, required)
	f.str("task", &p.Task, optional)
	f.str("provider", &p.Provider, optional)
	f.str("cwd", &p.Cwd, optional)
	f.bool("resumed", &p.Resumed, optional)
}

func (p *AgentInit) visitFields(f *fields) {
	f.str("model", &p.Model, optional)
	f.str("cwd", &p.Cwd, optional)
	f.str("version", &p.Version, optional)
	f.str("permissionMode", &p.PermissionMode, optional)
	f.strs("tools", &p.Tools, optional)
	f.raw("details", &p.Details, optional)
}

func (p *AgentThinkingDelta) visitFields(f *fields) {
	f.str("content", &p.Content, required)
	f.optInt64("tokenCount", &p.TokenCount)
	f.int("block", &p.Block, optional)
}

func (p *AgentThinking) visitFields(f *fields) {
	f.str("content", &p.Content, required)
	f.optInt64("tokenCount", &p.TokenCount)
	f.int("block", &p.Block, optional)
	f.int("supersedes", &p.Supersedes, optional)
	f.str("signature", &p.Signature, optional)
}

func (p *AgentTextDelta) visitFields(f *fields) {
	f.str("content", &p.Content, required)
	f.int("block", &p.Block, optional)
}

func (p *AgentText) visitFields(f *fields) {
	f.str("content", &p.Content, required)
	f.int("block", &p.Block, optional)
	f.int("supersedes", &p.Supersedes, optional)
}

func (p *AgentMessage) visitFields(f *fields) {
	f.str("messageId", &p.MessageID, optional)
	f.str("model", &p.Model, optional)
	f.raw("content", &p.Content, required)
	f.str("stopReason", &p.StopReason, optional)
	f.int("blocks", &p.Blocks, optional)
}

func (p *AgentTool) visitFields(f *fields) {
	f.str("toolName", &p.ToolName, nonEmpty)
	f.raw("toolInput", &p.ToolInput, required)
	f.raw("toolOutput", &p.ToolOutput, required)
	f.optInt64("durationMs", &p.DurationMs)
	f.str("error", &p.Error, optional)
	f.raw("structured", &p.Structured, optional)
	f.bool("denied", &p.Denied, optional)
	f.str("point", &p.Point, optional)
	f.str("childRun", &p.ChildRun, optional)
	f.optFloat("childCostUsd", &p.ChildCostUsd)
	f.str("recovered", &p.Recovered, optional)
	f.int64("storageWaitMs", &p.StorageWaitMs, optional)
	f.int64("approvalWaitMs", &p.ApprovalWaitMs, optional)
}

func (p *AgentError) visitFields(f *fields) {
	f.str("errorType", &p.ErrorType, nonEmpty)
	f.str("message", &p.Message, required)
	f.raw("details", &p.Details, optional)
	enum(f, "severity", &p.Severity, optional, SeverityInfo, SeverityWarning, SeverityError, SeverityCritical)
	f.str("phase", &p.Phase, optional)
	f.optInt64("attempt", &p.Attempt)
	f.int("maxAttempts", &p.MaxAttempts, optional)
	f.optFloat("retryDelayMs", &p.RetryDelayMs)
	f.int("status", &p.Status, optional)
	f.int64("resetsAt", &p.ResetsAt, optional)
}

func (p *TokenUsage) visitFields(f *fields) {
	f.int64("inputTokens", &p.InputTokens, required)
	f.int64("outputTokens", &p.OutputTokens, required)
	f.optInt64("cacheCreationInputTokens", &p.CacheCreationInputTokens)
	f.optInt64("cacheReadInputTokens", &p.CacheReadInputTokens)
}

func (p *ModelUsage) visitFields(f *fields) {
	f.int64("inputTokens", &p.InputTokens, required)
	f.int64("outputTokens", &p.OutputTokens, required)
	f.optInt64("cacheCreationInputTokens", &p.CacheCreationInputTokens)
	f.optInt64("cacheReadInputTokens", &p.CacheReadInputTokens)
	f.optFloat("costUsd", &p.CostUsd)
	f.int64("contextWindow", &p.ContextWindow, optional)
}

func (p *AgentComplete) visitFields(f *fields) {
	f.str("result", &p.Result, required)
	f.raw("structuredOutput", &p.StructuredOutput, optional)
	object(f, "usage", &p.Usage, required)
	objectMap(f, "modelUsage", &p.ModelUsage)
	f.optFloat("totalCostUsd", &p.TotalCostUsd)
	f.int64("durationMs", &p.DurationMs, required)
	f.int64("numTurns", &p.NumTurns, required)
	f.str("stopReason", &p.StopReason, optional)
	f.raw("denials", &p.Denials, optional)
	f.str("costSource", &p.CostSource, optional)
	f.bool("usageUnknown", &p.UsageUnknown, optional)
}

func (p *AgentPaused) visitFields(f *fields) {
	f.str("reason", &p.Reason, optional)
	f.int64("numTurns", &p.NumTurns, optional)
}

func (p *AgentAborted) visitFields(f *fields) {
	f.str("reason", &p.Reason, optional)
}

func (p *AgentResumed) visitFields(f *fields) {
	f.str("strategy", &p.Strategy, required)
	f.strs("sealed", &p.Sealed, required)
}

func (p *SessionBound) visitFields(f *fields) {
	f.str("oldSession", &p.OldSession, optional)
	f.str("newSession", &p.NewSession, nonEmpty)
}

func (p *PromptSystem) visitFields(f *fields) {
	f.str("sha256", &p.SHA256, nonEmpty)
	f.int64("bytes", &p.Bytes, required)
	f.str("content", &p.Content, optional)
}

func (p *UserMessage) visitFields(f *fields) {
	f.str("content", &p.Content, required)
	f.str("source", &p.Source, nonEmpty)
	f.str("commandId", &p.CommandID, optional)
	f.str("point", &p.Point, optional)
}

func (p *TurnStart) visitFields(f *fields) {
	f.str("model", &p.Model, optional)
}

func (p *TurnEnd) visitFields(f *fields) {
	f.str("stopReason", &p.StopReason, optional)
	f.str("terminalReason", &p.TerminalReason, optional)
	f.str("subtype", &p.Subtype, optional)
	f.bool("isError", &p.IsError, optional)
	f.str("result", &p.Result, optional)
	f.str("origin", &p.Origin, optional)
	optObject(f, "usage", &p.Usage)
	f.optFloat("totalCostUsd", &p.TotalCostUsd)
	f.optFloat("turnCostUsd", &p.TurnCostUsd)
	f.int64("durationMs", &p.DurationMs, optional)
	f.int64("durationApiMs", &p.DurationAPIMs, optional)
	f.int64("numTurns", &p.NumTurns, optional)
	objectMap(f, "modelUsage", &p.ModelUsage)
	f.raw("details", &p.Details, optional)
	f.str("costSource", &p.CostSource, optional)
}

func (p *Usage) visitFields(f *fields) {
	f.str("messageId", &p.MessageID, nonEmpty)
	f.str("model", &p.Model, optional)
	f.int64("inputTokens", &p.InputTokens, required)
	f.int64("outputTokens", &p.OutputTokens, required)
	f.optInt64("cacheCreationInputTokens", &p.CacheCreationInputTokens)
	f.optInt64("cacheReadInputTokens", &p.CacheReadInputTokens)
	f.int64("contextTokens", &p.ContextTokens, optional)
	f.int64("contextWindow", &p.ContextWindow, optional)
	f.optFloat("costUsd", &p.CostUsd)
	f.str("stopReason", &p.StopReason, optional)
	f.str("costSource", &p.CostSource, optional)
	f.str("source", &p.Source, optional)
}

func (p *CCMessage) visitFields(f *fields) {
	f.str("text", &p.Text, required)
	enum(f, "priority", &p.Priority, required, PriorityInfo, PriorityQuestion, PriorityBlocker)
}

func (p *Todo) visitFields(f *fields) {
	f.str("id", &p.ID, optional)
	f.str("content", &p.Content, required)
	f.str("status", &p.Status, nonEmpty)
	f.str("activeForm", &p.ActiveForm, optional)
}

func (p *TodoChanged) visitFields(f *fields) {
	objects(f, "items", &p.Items, required)
	f.int("done", &p.Done, required)
	f.int("total", &p.Total, required)
}

func (p *FileChanged) visitFields(f *fields) {
	f.str("path", &p.Path, required)
	f.str("change", &p.Change, optional)
	f.bool("external", &p.External, optional)
}

func (p *WorkspaceSnapshot) visitFields(f *fields) {
	f.str("id", &p.ID, optional)
	f.int("files", &p.Files, optional)
	f.int64("bytes", &p.Bytes, optional)
	f.strs("leftOut", &p.LeftOut, optional)
	f.int("omitted", &p.Omitted, optional)
	f.bool("unstable", &p.Unstable, optional)
	f.str("refused", &p.Refused, optional)
	f.str("process", &p.Process, optional)
	f.int64("order", &p.Order, optional)
}

func (p *TranscriptRead) visitFields(f *fields) {
	f.str("file", &p.File, nonEmpty)
	f.str("identity", &p.Identity, optional)
	f.int64("offset", &p.Offset, required)
	f.str("digest", &p.Digest, nonEmpty)
	f.strs("lines", &p.Lines, optional)
	f.strs("removed", &p.Removed, optional)
	f.int("omitted", &p.Omitted, optional)
}

func (p *SessionCompared) visitFields(f *fields) {
	f.str("verdict", &p.Verdict, nonEmpty)
	f.str("reason", &p.Reason, optional)
	f.int("shared", &p.Shared, optional)
	f.int("streamShort", &p.StreamShort, optional)
	f.int("transcriptShort", &p.TranscriptShort, optional)
	f.strs("streamLacks", &p.StreamLacks, optional)
	f.strs("transcriptLacks", &p.TranscriptLacks, optional)
}

func (p *BreakpointChanged) visitFields(f *fields) {
	f.str("previous", &p.Previous, required)
	f.str("current", &p.Current, nonEmpty)
}

func (p *Compaction) visitFields(f *fields) {
	f.str("trigger", &p.Trigger, optional)
	f.int64("preTokens", &p.PreTokens, optional)
	f.int64("postTokens", &p.PostTokens, optional)
	f.int64("durationMs", &p.DurationMs, optional)
	f.str("summary", &p.Summary, optional)
	f.str("error", &p.Error, optional)
	f.raw("details", &p.Details, optional)
}

func (p *HookFired) visitFields(f *fields) {
	f.str("hookEvent", &p.HookEvent, nonEmpty)
	f.str("hookName", &p.HookName, optional)
	f.str("decision", &p.Decision, optional)
	f.optInt64("durationMs", &p.DurationMs)
	f.optInt64("exitCode", &p.ExitCode)
	f.str("output", &p.Output, optional)
	f.str("error", &p.Error, optional)
}

func (p *RawMessage) visitFields(f *fields) {
	f.str("source", &p.Source, nonEmpty)
	f.str("name", &p.Name, optional)
	f.raw("data", &p.Data, required)
	f.str("reason", &p.Reason, optional)
	f.int("line", &p.Line, optional)
}
