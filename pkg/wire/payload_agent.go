package wire

// AgentStart begins the execution of an agent. The envelope's SessionID is
// required: it is stored before the agent gets its prompt, so that a crash
// never loses the conversation.
type AgentStart struct {
	Model    string `wire:"model"`
	Prompt   Raw    `wire:"prompt,required"` // a string, or an array of message inputs; in full
	Task     string `wire:"task"`            // one line, for people
	Provider string `wire:"provider"`        // claude, native, acp, codex, fixture, ingest …
	Cwd      string `wire:"cwd"`
	Resumed  bool   `wire:"resumed"` // the session existed before
}

// ProviderNative is wake's own agent. Its results go by the record: those behind a resumption tell of the calls before it, too.
const ProviderNative = "native"

// AgentInit is what the agent says of itself when it is ready.
type AgentInit struct {
	Model          string   `wire:"model"`
	Cwd            string   `wire:"cwd"`
	Version        string   `wire:"version"` // of the agent program
	PermissionMode string   `wire:"permissionMode"`
	Tools          []string `wire:"tools"`
	Details        Raw      `wire:"details"` // the rest, as the agent sent it
}

// AgentThinkingDelta is a streamed piece of thinking.
type AgentThinkingDelta struct {
	Content    string `wire:"content,required"`
	TokenCount *int64 `wire:"tokenCount"` // tokens of this piece
	Block      int    `wire:"block"`      // number of the block within the execution, from 1
}

// AgentThinking is a whole block of thinking, for a block that wasn't streamed.
type AgentThinking struct {
	Content    string `wire:"content,required"`
	TokenCount *int64 `wire:"tokenCount"`
	Block      int    `wire:"block"`
	Supersedes int    `wire:"supersedes"` // block that the agent streamed and then gave up
	Signature  string `wire:"signature"`  // proof of origin that the model's API wants back
}

// AgentTextDelta is a streamed piece of the answer.
type AgentTextDelta struct {
	Content string `wire:"content,required"`
	Block   int    `wire:"block"` // number of the block within the execution, from 1
}

// AgentText is a whole block of the answer, for a block that wasn't streamed.
type AgentText struct {
	Content    string `wire:"content,required"`
	Block      int    `wire:"block"`
	Supersedes int    `wire:"supersedes"` // see [AgentThinking.Supersedes]
}

// AgentMessage is a whole message of the model, as its next prompt repeats it. Agents
// with the log as their conversation write it; what the model was told is in agent:start,
// [UserMessage] and [AgentTool].
type AgentMessage struct {
	MessageID  string `wire:"messageId"`
	Model      string `wire:"model"`
	Content    Raw    `wire:"content,required"` // the blocks, as the Messages API has them: text, thinking, tool_use …
	StopReason string `wire:"stopReason"`       // end_turn, tool_use, max_tokens, refusal …
	Blocks     int    `wire:"blocks"`           // number of the last streamed block within the execution
}

// AgentTool is a finished tool call. The envelope's CallID ties it to its
// [ToolIntent].
type AgentTool struct {
	ToolName   string `wire:"toolName,nonempty"`
	ToolInput  Raw    `wire:"toolInput,required"`  // in full
	ToolOutput Raw    `wire:"toolOutput,required"` // in full, as the model saw it
	DurationMs *int64 `wire:"durationMs"`          // of the tool: from the call to its result, without the waits below
	Error      string `wire:"error"`               // set if the tool failed
	Structured Raw    `wire:"structured"`          // the agent's own structured form of the result, if it sends one
	Denied     bool   `wire:"denied"`              // not executed: refused by a rule or by a human
	Point      string `wire:"point"`               // the agent's own id of the result, where its session can be forked
	// ChildRun is the run that the call has started, ChildCostUsd what that has cost,
	// with its own children; nil if nothing is known of it.
	ChildRun     string   `wire:"childRun"`
	ChildCostUsd *float64 `wire:"childCostUsd"`
	Recovered    string   `wire:"recovered"` // where the result stood, if the call ended when no runner was there; see [RecoveredTranscript]
	// What the call has waited for before, if that was long: storage, and a decision.
	StorageWaitMs  int64 `wire:"storageWaitMs"`
	ApprovalWaitMs int64 `wire:"approvalWaitMs"`
	ChildTokens    int64 `wire:"childTokens"` // what models were given and made in the run that the call has started, with its own children
}

// RecoveredTranscript says that an event was made of the agent's own record of its session,
// when the session was gone on with.
const RecoveredTranscript = "transcript"

// CallInterrupted is the error of a call that was interrupted with its agent, by a
// pause for example: it may have been running, and its outcome is unknown.
const CallInterrupted = "interrupted"

// CallNotExecuted is the error of a call that wasn't made, since a message has interrupted the agent before. Nobody has denied it.
const CallNotExecuted = "not executed"

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
	ErrorInput         = "input"     // of an execution whose input could not be resolved
	ErrorCancelled     = "cancelled" // of one that was withdrawn

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
	ErrorType    string   `wire:"errorType,nonempty"` // SDK subtype, such as error_max_turns; see the constants
	Message      string   `wire:"message,required"`
	Details      Raw      `wire:"details"`      // as the SDK sent it
	Severity     Severity `wire:"severity"`     // warning for what will be retried
	Phase        string   `wire:"phase"`        // model, tool, system or lifecycle
	Attempt      *int64   `wire:"attempt"`      // number of the retry that follows, from 1; of the last failure, of the one that failed
	MaxAttempts  int      `wire:"maxAttempts"`  // retries that there are
	RetryDelayMs *float64 `wire:"retryDelayMs"` // until the next try
	Status       int      `wire:"status"`       // HTTP status, if there was one
	ResetsAt     int64    `wire:"resetsAt"`     // when the limit of the model or the account that was reached is over, Unix ms; 0: unknown
}

// TokenUsage counts tokens as seeds/000 does.
type TokenUsage struct {
	InputTokens              int64  `wire:"inputTokens,required"`
	OutputTokens             int64  `wire:"outputTokens,required"`
	CacheCreationInputTokens *int64 `wire:"cacheCreationInputTokens"`
	CacheReadInputTokens     *int64 `wire:"cacheReadInputTokens"`
	Unknown
}

// ModelUsage is the share of one model.
type ModelUsage struct {
	InputTokens              int64    `wire:"inputTokens,required"`
	OutputTokens             int64    `wire:"outputTokens,required"`
	CacheCreationInputTokens *int64   `wire:"cacheCreationInputTokens"`
	CacheReadInputTokens     *int64   `wire:"cacheReadInputTokens"`
	CostUsd                  *float64 `wire:"costUsd"`
	ContextWindow            int64    `wire:"contextWindow"`
	Unknown
}

// AgentComplete ends an agent's execution well. There is one per execution.
type AgentComplete struct {
	Result           string                `wire:"result,required"`
	StructuredOutput Raw                   `wire:"structuredOutput"`
	Usage            TokenUsage            `wire:"usage,required"`
	ModelUsage       map[string]ModelUsage `wire:"modelUsage"`
	TotalCostUsd     *float64              `wire:"totalCostUsd"`
	DurationMs       int64                 `wire:"durationMs,required"`
	NumTurns         int64                 `wire:"numTurns,required"`
	StopReason       string                `wire:"stopReason"`
	Denials          Raw                   `wire:"denials"`      // tool calls that were refused
	CostSource       string                `wire:"costSource"`   // of the costs, see [Usage.CostSource]
	UsageUnknown     bool                  `wire:"usageUnknown"` // the agent doesn't tell what it used: Usage says nothing
}

// AgentPaused says that the agent was interrupted and can go on.
type AgentPaused struct {
	Reason   string `wire:"reason"`
	NumTurns int64  `wire:"numTurns"`
}

// AgentAborted says that the agent was ended from outside.
type AgentAborted struct {
	Reason string `wire:"reason"`
}

// AgentResumed says that an agent goes on after an interruption.
type AgentResumed struct {
	Strategy string   `wire:"strategy,required"` // crash or manual
	Sealed   []string `wire:"sealed,required"`   // ids of the calls that were sealed
}

// SessionBound changes the session of an execution.
type SessionBound struct {
	OldSession string `wire:"oldSession"`
	NewSession string `wire:"newSession,nonempty"`
}

// PromptSystem identifies the system prompt without storing it.
type PromptSystem struct {
	SHA256  string `wire:"sha256,nonempty"`
	Bytes   int64  `wire:"bytes,required"`
	Content string `wire:"content"` // only where the flow asks for it
}

// UserMessage is a message that the agent got besides its prompt.
type UserMessage struct {
	Content   string `wire:"content,required"`
	Source    string `wire:"source,nonempty"` // prompt, command, replay, synthetic or subagent
	CommandID string `wire:"commandId"`       // the command that sent it
	Point     string `wire:"point"`           // the agent's own id of the message, where its session can be forked
}

// TurnStart begins a model call and its tools.
type TurnStart struct {
	Model string `wire:"model"`
}

// TurnEnd is one result of the agent; an execution may have several. A native agent has one
// for each model call with its tools.
type TurnEnd struct {
	StopReason     string                `wire:"stopReason"`
	TerminalReason string                `wire:"terminalReason"`
	Subtype        string                `wire:"subtype"` // success, error_max_turns …
	IsError        bool                  `wire:"isError"`
	Result         string                `wire:"result"`
	Origin         string                `wire:"origin"` // what caused the turn, when it wasn't the prompt
	Usage          *TokenUsage           `wire:"usage"`
	TotalCostUsd   *float64              `wire:"totalCostUsd"` // as reported: cumulative in some agents
	TurnCostUsd    *float64              `wire:"turnCostUsd"`  // what this result adds
	DurationMs     int64                 `wire:"durationMs"`
	DurationAPIMs  int64                 `wire:"durationApiMs"`
	NumTurns       int64                 `wire:"numTurns"`
	ModelUsage     map[string]ModelUsage `wire:"modelUsage"` // what this result adds, sub-agents and compaction included
	Details        Raw                   `wire:"details"`    // the rest, as the agent sent it
	CostSource     string                `wire:"costSource"` // of the costs, see [Usage.CostSource]
}

// Usage counts the tokens of one model call; once per MessageID.
type Usage struct {
	MessageID                string   `wire:"messageId,nonempty"`
	Model                    string   `wire:"model"`
	InputTokens              int64    `wire:"inputTokens,required"`
	OutputTokens             int64    `wire:"outputTokens,required"`
	CacheCreationInputTokens *int64   `wire:"cacheCreationInputTokens"`
	CacheReadInputTokens     *int64   `wire:"cacheReadInputTokens"`
	ContextTokens            int64    `wire:"contextTokens"` // what the call put into the context window
	ContextWindow            int64    `wire:"contextWindow"` // size of the window, if known
	CostUsd                  *float64 `wire:"costUsd"`
	StopReason               string   `wire:"stopReason"`
	// CostSource names the prices by which wake has computed CostUsd: its own table and the table's
	// date, such as "wake 2026-11", PricesOptions or PricesFile; "": the agent has told it.
	CostSource string `wire:"costSource"`
	Source     string `wire:"source"` // where the call was told: "" in what the agent printed, or one of the Source constants
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
	Text     string   `wire:"text,required"`
	Priority Priority `wire:"priority,required"`
}

// Todo is an item of an agent's list.
type Todo struct {
	ID         string `wire:"id"`
	Content    string `wire:"content,required"`
	Status     string `wire:"status,nonempty"` // pending, in_progress or completed
	ActiveForm string `wire:"activeForm"`
	Unknown
}

// TodoChanged is the whole list after a change.
type TodoChanged struct {
	Items []Todo `wire:"items,required"`
	Done  int    `wire:"done,required"`
	Total int    `wire:"total,required"`
}

// FileChanged says that a file changed: by the agent, or, if the agent has read or
// written it before, by others.
type FileChanged struct {
	Path     string `wire:"path,required"`
	Change   string `wire:"change"`   // created, modified or deleted
	External bool   `wire:"external"` // not by the agent
}

// WorkspaceSnapshot says that the folder of the run is kept as it is here, or why it isn't: a fork behind it and a runner that
// takes over begin with it.
type WorkspaceSnapshot struct {
	ID       string   `wire:"id"`       // names it in the object store WAKE_WORKSPACES; empty: there is nothing in the folder, or it can't be kept
	Files    int      `wire:"files"`    // files, folders and links
	Bytes    int64    `wire:"bytes"`    // of the files
	LeftOut  []string `wire:"leftOut"`  // the first of what isn't kept: path, and why
	Omitted  int      `wire:"omitted"`  // how much more isn't
	Unstable bool     `wire:"unstable"` // files changed whenever they were read
	Refused  string   `wire:"refused"`  // why the folder can't be kept
	// Process is the one that took it, by a name that no other process has. Order is its place among all that this process has
	// taken: nodes that work in one folder have theirs recorded in another order, and what was taken last holds.
	Process string `wire:"process"`
	Order   int64  `wire:"order"`
}

// TranscriptRead says how far a session file was read, and what of it was told before this event: the next reader
// begins there. Events of the lines stand before it in the same commit.
type TranscriptRead struct {
	File     string   `wire:"file,nonempty"`   // path of the file in its folder of sessions
	Identity string   `wire:"identity"`        // which file it is, in the words of its system; empty: that tells none
	Offset   int64    `wire:"offset,required"` // bytes that were read
	Digest   string   `wire:"digest,nonempty"` // sha256 of them, lower-case hex
	Lines    []string `wire:"lines"`           // keys of the lines that are new, or back behind their removal, whose events were told before: the uuid, or a hash of the line and of how many like it come before
	Removed  []string `wire:"removed"`         // keys of lines that were told and aren't in the file any more
	Omitted  int      `wire:"omitted"`         // lines that aren't told, since they repeat requests to the model's API
}

// SessionCompared says whether the two feeds of an agent's session tell the same: what the agent printed, of which the log is made, and the
// session file that it keeps itself. Of what only one of them has (messages, calls, results) the first are listed.
type SessionCompared struct {
	Verdict         string   `wire:"verdict,nonempty"` // complete, stream short, transcript short, both short or can't tell
	Reason          string   `wire:"reason"`           // why it can't be told, or of what it isn't
	Shared          int      `wire:"shared"`           // messages, calls and results that both have
	StreamShort     int      `wire:"streamShort"`      // how many the stream lacks
	TranscriptShort int      `wire:"transcriptShort"`  // how many the session file lacks
	StreamLacks     []string `wire:"streamLacks"`      // the first of them: kind, id, and where the other feed has it
	TranscriptLacks []string `wire:"transcriptLacks"`  // likewise
}

// BreakpointChanged is a step of the agent's execution state machine.
type BreakpointChanged struct {
	Previous string `wire:"previous,required"`
	Current  string `wire:"current,nonempty"` // READY, PRE_MODEL, STREAMING_MODEL, TOOL_PENDING, AWAITING_APPROVAL, PRE_TOOL, TOOL_EXECUTING or POST_TOOL
}

// Compaction says that the agent shortened its context.
type Compaction struct {
	Trigger    string `wire:"trigger"` // auto or manual
	PreTokens  int64  `wire:"preTokens"`
	PostTokens int64  `wire:"postTokens"`
	DurationMs int64  `wire:"durationMs"`
	Summary    string `wire:"summary"`
	Error      string `wire:"error"` // why it failed
	Details    Raw    `wire:"details"`
}

// HookFired records a hook.
type HookFired struct {
	HookEvent  string `wire:"hookEvent,nonempty"` // PreToolUse …
	HookName   string `wire:"hookName"`
	Decision   string `wire:"decision"` // continue, allow, deny, modify, stop, system or context; of Claude Code's own: its words
	DurationMs *int64 `wire:"durationMs"`
	ExitCode   *int64 `wire:"exitCode"`
	Output     string `wire:"output"`
	Error      string `wire:"error"`
}

// RawMessage passes on what has no type of its own, so that nothing is lost.
type RawMessage struct {
	Source string `wire:"source,nonempty"` // its sender: claude, transcript, fixture …
	Name   string `wire:"name"`            // what the source calls it, such as system/status
	Data   Raw    `wire:"data,required"`   // the message; a string if it could not be parsed
	Reason string `wire:"reason"`          // why it could not be parsed
	Line   int    `wire:"line"`            // line of the input, if it came from a file
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
