package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What wake.api.<verb> takes and answers. Both sides are JSON or msgpack: an
// answer comes in the form of its request.
//
// The names of log and status are those of the supervisor that seeds/004
// describes. Its own envelope, [CommandEnvelope], is accepted on every verb.

// The verbs of wake.api.
const (
	VerbLog       = "log"       // [LogRequest], [LogResponse]; answered by the recorder
	VerbStatus    = "status"    // [StatusRequest], [StatusResponse]; by the recorder
	VerbTop       = "top"       // [TopRequest], [TopResponse]; by the recorder
	VerbApprovals = "approvals" // [ApprovalsRequest], [ApprovalsResponse]; by the recorder
	VerbRuns      = "runs"      // [RunsRequest], [RunsResponse]; by the recorder
	VerbSearch    = "search"    // [SearchRequest], [SearchResponse]; by the recorder
	VerbStats     = "stats"     // [StatsRequest], [StatsResponse]; by the recorder
	VerbBudgets   = "budgets"   // [BudgetsRequest], [BudgetsResponse]; by the recorder
	VerbEvents    = "events"    // [EventsRequest], [EventsResponse]; by the recorder
	VerbState     = "state"     // [StateRequest], [StateResponse]; by the recorder
	VerbSnapshot  = "snapshot"  // [SnapshotRequest], [SnapshotResponse]; by the snapshotter
	VerbCommand   = "command"   // [CommandRequest], [CommandResponse]; by the recorder
	VerbStart     = "start"     // [RunRequest], [StartResponse]; by the recorder

	VerbIngest = "ingest" // [IngestRequest], [IngestResponse]; by the runners
	VerbPack   = "pack"   // [PackRequest], [PieceResponse]; by the runners

	// What is stored, for callers that may not read streams. By the recorder.
	VerbFeed    = "feed"    // [FeedRequest], [FeedResponse]
	VerbLast    = "last"    // [LastRequest], [LastResponse]
	VerbBounds  = "bounds"  // [BoundsRequest], [BoundsResponse]
	VerbValue   = "value"   // [ValueRequest], [ValueResponse]
	VerbBlob    = "blob"    // [BlobRequest], [PieceResponse]
	VerbSession = "session" // [SessionRequest], [PieceResponse]

	VerbSinks   = "sinks"   // [SinksRequest], [SinksResponse]; by the alerter
	VerbLetters = "letters" // [LettersRequest], [LettersResponse]; by the alerter
)

// ErrorCode says what went wrong, for programs. Codes are never renamed.
type ErrorCode string

// The codes.
const (
	CodeBadRequest   ErrorCode = "BAD_REQUEST"    // the request can't be understood or lacks something
	CodeBadRegex     ErrorCode = "BAD_REGEX"      // its pattern is no RE2 expression
	CodeRunNotFound  ErrorCode = "RUN_NOT_FOUND"  // no run has this id, prefix, label or session
	CodeNodeNotFound ErrorCode = "NODE_NOT_FOUND" // the run has no such node
	CodeAmbiguousID  ErrorCode = "AMBIGUOUS_ID"   // several runs are meant; Matches lists them
	CodeNotFound     ErrorCode = "NOT_FOUND"      // the run is known, what was asked for isn't there
	CodeTooLarge     ErrorCode = "TOO_LARGE"      // the request, or its shortest answer, exceeds the limit
	CodeTimeout      ErrorCode = "TIMEOUT"        // no answer in time
	CodeBusy         ErrorCode = "BUSY"           // the service has as many requests as it takes; ask again
	CodeUnreachable  ErrorCode = "UNREACHABLE"    // no service takes the verb, or the server is away
	CodeInternal     ErrorCode = "INTERNAL"       // the service failed; its log says why

	CodeDenied ErrorCode = "PERMISSION_DENIED" // the credentials don't cover this

	CodeFlowInvalid     ErrorCode = "FLOW_INVALID"              // the flow has an error
	CodeWorkspaceLost   ErrorCode = "WORKSPACE_LOST"            // the folder of the run is on a runner that is gone
	CodeSessionNotFound ErrorCode = "SESSION_NOT_FOUND"         // no agent has this session
	CodeAgentNotFound   ErrorCode = "AGENT_NOT_FOUND"           // no run has this id (pkg/client)
	CodeTemplateUnknown ErrorCode = "TEMPLATE_NOT_FOUND"        // the run is of another flow
	CodeTemplateVersion ErrorCode = "TEMPLATE_VERSION_MISMATCH" // the run is of another version of the flow
	CodeSandboxInit     ErrorCode = "SANDBOX_INIT_FAILED"       // the folder to work in can't be made or used
	CodeCorruptedData   ErrorCode = "CORRUPTED_DATA"            // what is stored can't be read
	CodeLeaseHeld       ErrorCode = "LEASE_HELD"                // the run is running; another process acts for it
	CodeNotResumable    ErrorCode = "NOT_RESUMABLE"             // the run has ended
	CodeCommandRejected ErrorCode = "COMMAND_REJECTED"          // the run is in no state for it; the message says why
)

// APIError is the error object of every answer and of the CLI's --json.
type APIError struct {
	Code    ErrorCode `json:"code"`
	Message string    `json:"message"`
	Hint    string    `json:"hint,omitempty"`    // what to do about it
	Matches []string  `json:"matches,omitempty"` // of an ambiguous id: the runs, newest first

	RemovedAt int64 `json:"removedAt,omitempty"` // of a run that was deleted: when its events were removed, Unix ms
}

// Error returns the message, followed by the matches.
func (e *APIError) Error() string {
	if len(e.Matches) == 0 {
		return e.Message
	}
	return e.Message + ": " + strings.Join(e.Matches, ", ")
}

// HasCode reports whether err is an [APIError] with one of codes.
func HasCode(err error, codes ...ErrorCode) bool {
	e, ok := errors.AsType[*APIError](err)
	return ok && slices.Contains(codes, e.Code)
}

// ErrorResponse is an answer that says why there is none.
type ErrorResponse struct {
	Error *APIError `json:"error"`
}

// CommandEnvelope is the request of seeds/004, such as
//
//	{"type":"command","requestId":"7","action":"get_log","params":{"agentId":"coder"}}
//
// Params is the request of the verb.
type CommandEnvelope struct {
	Type      string `json:"type"` // "command"
	RequestID string `json:"requestId,omitempty"`
	Action    string `json:"action"` // get_log, status, or the verb
	Params    Raw    `json:"params,omitempty"`
}

// ResponseEnvelope answers a [CommandEnvelope]: with Result or with Error.
type ResponseEnvelope struct {
	Type      string    `json:"type"` // "response"
	RequestID string    `json:"requestId,omitempty"`
	Result    Raw       `json:"result,omitempty"`
	Error     *APIError `json:"error,omitempty"`
}

// Ago is a span of time before now in milliseconds. A request may also give it
// as text: "90s", "5m", "1h30m", "2d".
type Ago int64

// ParseAgo reads a span such as "5m" or "2d". It must not be negative.
func ParseAgo(s string) (Ago, error) {
	d, err := parseSpan(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("wire: %q is no span of time, such as 30s, 5m, 1h30m or 2d", s)
	}
	return Ago(d.Milliseconds()), nil
}

func parseSpan(s string) (time.Duration, error) {
	number, ok := strings.CutSuffix(s, "d")
	if !ok {
		return time.ParseDuration(s)
	}
	days, err := strconv.ParseFloat(number, 64)
	if err != nil || !(days >= 0 && days <= 36500) {
		return 0, fmt.Errorf("wire: %q is not a number of days", s)
	}
	return time.Duration(days * 24 * float64(time.Hour)), nil
}

// UnmarshalJSON reads milliseconds or text.
func (a *Ago) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		span, err := ParseAgo(text)
		*a = span
		return err
	}
	var ms int64
	if err := json.Unmarshal(b, &ms); err != nil || ms < 0 {
		return errors.New("wire: a span of time is a number of milliseconds, not negative, or text such as 5m")
	}
	*a = Ago(ms)
	return nil
}

// LineType is the type of a line of a log.
type LineType string

// The line types (seeds/004 §2).
const (
	LineText     LineType = "text"     // what the agent says, whole
	LineThinking LineType = "thinking" // what it thinks, shortened
	LineTool     LineType = "tool"     // a finished tool call or command
	LineError    LineType = "error"
	LineSystem   LineType = "system" // starts, retries, decisions, compaction …
	LineUser     LineType = "user"   // what the agent was told, and its sender
)

// Valid reports whether t is one of the line types.
func (t LineType) Valid() bool {
	switch t {
	case LineText, LineThinking, LineTool, LineError, LineSystem, LineUser:
		return true
	default:
		return false
	}
}

// LogLine is one line of a log; its text may consist of several lines of text.
// The fields behind Text are filled only if the request asks for details.
type LogLine struct {
	TS   int64    `json:"ts"` // Unix ms
	Type LineType `json:"type"`
	Text string   `json:"text"` // safe for a terminal

	Node   string `json:"node,omitempty"`
	Exec   string `json:"exec,omitempty"`
	Parent string `json:"parent,omitempty"` // the tool call that started the line's sub-agent
	Pos    uint64 `json:"pos,omitempty"`    // stream position of the line's first event
	Found  string `json:"found,omitempty"`  // of what the line's call was given or answered, the part that grep has found; safe for a terminal
}

// LogRequest asks for lines of a run's log. Filters apply in the order node,
// type, since, grep; Offset and Limit count what is left. Grep looks at the text of
// lines and at what calls were given and answered: of more than 20 KiB at the first 16
// and the last 4, see [LogResponse.Cut].
type LogRequest struct {
	Run     string   `json:"run,omitempty"`     // id, unique prefix, label, session id or @last
	AgentID string   `json:"agentId,omitempty"` // instead of Run: a RUN, "RUN/NODE", or a node that one run has
	Node    string   `json:"node,omitempty"`    // lines of this node and of the items of its forEach only
	Offset  *int64   `json:"offset,omitempty"`  // first line, from 0; absent: the last Limit lines
	Limit   *int     `json:"limit,omitempty"`   // default [DefaultLogLimit], at most [MaxLogLimit]
	Grep    string   `json:"grep,omitempty"`    // RE2, ignoring case; "tool_use" finds tool lines
	Since   Ago      `json:"since,omitempty"`   // only lines of this last span of time
	Type    LineType `json:"type,omitempty"`
	Details bool     `json:"details,omitempty"` // fill the fields of a line beyond seeds/004, and the answer's position
	Summary bool     `json:"summary,omitempty"` // a summary instead of lines; of the filters only node and since apply
}

// Limits of a [LogRequest].
const (
	DefaultLogLimit = 50
	MaxLogLimit     = 10_000
)

// Lag says how much an answer of the recorder lacks of what was stored before the
// question. It waits a moment to have all of it.
type Lag struct {
	Behind uint64 `json:"behind,omitempty"` // events with which it has to catch up, and which the answer doesn't know; absent: none
}

// EventsBehind is [Lag.Behind], of any answer that has a lag.
func (l Lag) EventsBehind() uint64 { return l.Behind }

// SetLag sets the lag of an answer.
func (l *Lag) SetLag(of Lag) { *l = of }

// LogResponse is a page of a log. An answer that would be too large for one
// message has fewer lines than were asked for: of the tail the last ones, else
// the first ones.
type LogResponse struct {
	Lag

	TotalLines    int64     `json:"totalLines"`    // that pass the filters
	ReturnedLines int       `json:"returnedLines"` // here
	Offset        int64     `json:"offset"`        // of the first line here, among those that pass
	BufferLines   int64     `json:"bufferLines"`   // in the whole log of the run
	Cut           int64     `json:"cut,omitempty"` // with grep: calls that passed the other filters and weren't looked at whole
	Lines         []LogLine `json:"lines"`

	Position uint64      `json:"position,omitempty"` // up to here the log is in the answer; with details
	Summary  *LogSummary `json:"summary,omitempty"`  // if it was asked for; Lines is empty then
}

// LogSummary tells in short what happened in a run, or in a node of it. It is
// taken from the events as they are; only Text may be a model's, see Model.
type LogSummary struct {
	Text       string   `json:"text"`                 // all of it, for people; safe for a terminal
	Asked      []string `json:"asked,omitempty"`      // what the agents were told
	Milestones []string `json:"milestones,omitempty"` // finished items of their lists, and finished nodes
	Failures   []string `json:"failures,omitempty"`   // errors and failed calls
	Files      []string `json:"files,omitempty"`      // that were changed
	Builds     []string `json:"builds,omitempty"`     // builds and tests, with their outcome
	Commits    []string `json:"commits,omitempty"`    // messages of commits
	LastWords  string   `json:"lastWords,omitempty"`  // what an agent last said, or a command last wrote
	State      string   `json:"state"`                // see [AgentStatus.State]
	CostUsd    float64  `json:"costUsd"`
	CostBasis  string   `json:"costBasis,omitempty"` // see [AgentStatus.CostBasis]
	TokensIn   int64    `json:"tokensIn"`
	TokensOut  int64    `json:"tokensOut"`
	ToolsUsed  int64    `json:"toolsUsed"`
	ToolErrors int64    `json:"toolErrors,omitempty"`
	Omitted    int      `json:"omitted,omitempty"` // entries of the lists that were too many
	Model      string   `json:"model,omitempty"`   // that wrote Text; absent: none did, Text is the rest of this
	Problem    string   `json:"problem,omitempty"` // why a model that was to write it hasn't
}

// CommandRequest asks that a command is stored, which its run's owner obeys.
type CommandRequest struct {
	Command

	// Stored has the answer come when the command is stored; else it waits a few seconds
	// for what becomes of it.
	Stored bool `json:"stored,omitempty"`
}

// IngestRequest asks that an input becomes a run, or several. The input follows in pieces.
type IngestRequest struct {
	Format string            `json:"format"`           // stream-json, transcript, codex, codex-session, gemini, gemini-session, opencode, opencode-session, kahn, or jsonl: a run as wake export writes it
	Run    string            `json:"run,omitempty"`    // id; required but of kahn and jsonl
	Node   string            `json:"node,omitempty"`   // what the agent is; not of kahn and jsonl
	Labels map[string]string `json:"labels,omitempty"` // of the run
	Strict bool              `json:"strict,omitempty"` // of kahn: the first line that isn't in order ends it
	More   bool              `json:"more,omitempty"`   // of kahn: more lines will come another time
	// Join has a stream of Claude Code's join the run of its session, if that is watched; then it isn't run that it becomes. Of
	// a stream with labels, and of users of a server that knows its users, it has no effect: ingesters may only add runs.
	Join bool `json:"join,omitempty"`
	// Compared is what the comparison of a stream with its session file has shown: a verdict as `wake ingest --transcript --json`
	// prints it. It becomes the run's session:compared.
	Compared Raw `json:"compared,omitempty"`
}

// IngestResponse says where the pieces of the input go.
type IngestResponse struct {
	Subject string `json:"subject"` // of requests with an [IngestPiece]
	Session string `json:"session"`
}

// IngestPiece is a piece of an input, which may be empty: a sender is gone if it sends none
// for a minute. It is answered with [IngestProgress]. Sent twice, it counts once.
type IngestPiece struct {
	Session string `json:"session"`
	Offset  int64  `json:"offset"` // of Data in the input
	Data    []byte `json:"data,omitempty"`
	End     bool   `json:"end,omitempty"`   // the input ends behind it
	Abort   bool   `json:"abort,omitempty"` // it ends here, and isn't whole
}

// IngestProgress is what has become of an input so far.
type IngestProgress struct {
	Received int64     `json:"received"` // bytes that have been taken; the next piece begins there
	Done     bool      `json:"done,omitempty"`
	Result   Raw       `json:"result,omitempty"`  // of one that is done
	Problem  *APIError `json:"problem,omitempty"` // why one that is done isn't whole
}

// StartResponse says that a request for a run is stored. The run has begun when its flow:start is
// in the log.
type StartResponse struct {
	RunID string `json:"runId"`
}

// CommandResponse is what has become of a [Command].
type CommandResponse struct {
	CommandID string `json:"commandId"`
	RunID     string `json:"runId"`
	Recorded  bool   `json:"recorded"`           // an owner has judged it; false: it waits for a runner
	Accepted  bool   `json:"accepted"`           // and will be obeyed
	Reason    string `json:"reason,omitempty"`   // why not: "CODE: text"
	Position  uint64 `json:"position,omitempty"` // of the command:received
}

// StatusRequest asks how a run is doing.
type StatusRequest struct {
	Run     string `json:"run,omitempty"`     // see [LogRequest.Run]
	AgentID string `json:"agentId,omitempty"` // see [LogRequest.AgentID]
	Node    string `json:"node,omitempty"`    // only this agent
}

// What is known of a cost.
const (
	CostReported = "reported"       // agents have told all of it
	CostComputed = "computed"       // wake has computed some of it, by prices
	CostPartly   = "partly unknown" // the cost of some model calls is unknown
)

// AgentStatus is how an agent, or a whole run, is doing. The first ten fields
// are those of seeds/004 §3; the others say the same for programs.
type AgentStatus struct {
	AgentID         string  `json:"agentId"` // the node; of a run its label "name", else its id
	State           string  `json:"state"`   // active, waiting, idle, paused, aborted, complete, failed or skipped
	Runtime         string  `json:"runtime"` // such as "12m"
	SessionID       string  `json:"sessionId"`
	CostUsd         float64 `json:"costUsd"`
	TokensIn        int64   `json:"tokensIn"` // tokens read from and written to the cache included
	TokensOut       int64   `json:"tokensOut"`
	ToolsUsed       int64   `json:"toolsUsed"`
	LastActivity    string  `json:"lastActivity"`    // such as "editing src/bridge.ts"; "was editing …" of one that is paused or aborted
	LastActivityAge string  `json:"lastActivityAge"` // such as "30s ago"

	CostBasis         string `json:"costBasis,omitempty"` // see [CostReported]; absent: no cost
	RuntimeMs         int64  `json:"runtimeMs"`
	LastActivityAt    int64  `json:"lastActivityAt,omitempty"` // Unix ms
	LastActivityAgeMs int64  `json:"lastActivityAgeMs,omitempty"`
	StartedAt         int64  `json:"startedAt,omitempty"` // Unix ms
	EndedAt           int64  `json:"endedAt,omitempty"`   // Unix ms

	NodeType   string `json:"nodeType,omitempty"` // agent, exec, set, ask or flow
	Reason     string `json:"reason,omitempty"`   // what it waits for, why it was skipped or paused
	Error      string `json:"error,omitempty"`
	OpenTool   string `json:"openTool,omitempty"` // the call that has begun and not ended
	Attempt    int    `json:"attempt,omitempty"`
	Iteration  int    `json:"iteration,omitempty"`
	Model      string `json:"model,omitempty"`
	ToolErrors int64  `json:"toolErrors,omitempty"`
	ContextPct int    `json:"contextPct,omitempty"` // how full the context window is; until the agent has told its size, 200 000 tokens are assumed
	WaitingFor string `json:"waitingFor,omitempty"` // while it, or a run that it has begun, waits or is paused: what has to be done or said
	WaitsSince int64  `json:"waitsSince,omitempty"` // Unix ms; what it says or does meanwhile doesn't end it
	WaitedMs   int64  `json:"waitedMs,omitempty"`   // of a run: how long something of it has waited for a person
	Alerts     int    `json:"alerts,omitempty"`     // raised so far
	LastAlert  string `json:"lastAlert,omitempty"`  // of a run; safe for a terminal
}

// StatusResponse is the status of a run and of its nodes, in the order in which
// they were first seen.
type StatusResponse struct {
	Lag
	AgentStatus // of the whole run

	RunID    string            `json:"runId"`
	FlowName string            `json:"flowName,omitempty"`
	Status   RunStatus         `json:"status"`
	Result   FlowStatus        `json:"result,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	By       string            `json:"startedBy,omitempty"` // see [FlowStart.By]
	Imported string            `json:"imported,omitempty"`  // see [FlowStart.Imported]
	Feeds    string            `json:"feeds,omitempty"`     // see [RunInfo.Feeds]
	Position Position          `json:"position"`            // of the run's last recorded event
	Agents   []AgentStatus     `json:"agents"`
	Omitted  int               `json:"omitted,omitempty"` // agents that didn't fit into the answer; ask for them by node
	Unread   []string          `json:"unread,omitempty"`  // messages that no agent had read when the run ended, the first ten
}

// ApprovalsRequest asks what waits for a person.
type ApprovalsRequest struct {
	Run   string `json:"run,omitempty"`   // see [LogRequest.Run]; empty: in all runs that go on
	Limit int    `json:"limit,omitempty"` // at most 1000; default: as many as fit into the answer
}

// ApprovalsResponse is what waits, the longest waiting first.
type ApprovalsResponse struct {
	Lag

	Approvals []Approval  `json:"approvals"`
	Paused    []PausedRun `json:"paused,omitempty"`
	Omitted   int         `json:"omitted,omitempty"` // approvals beyond the limit, and what of both didn't fit into the answer; ask for them by run
}

// PausedRun is a run that waits for a person who didn't pause it, see [NeedsPerson]. Its status says how it goes on.
type PausedRun struct {
	RunID      string `json:"runId"`
	Reason     string `json:"reason"`     // see [PauseRequiresAction]
	WaitingFor string `json:"waitingFor"` // the same in words
}

// Approval is something of a run that waits for a person.
type Approval struct {
	Kind      ApprovalKind  `json:"kind"`
	RunID     string        `json:"runId"`
	NodeID    string        `json:"nodeId"`
	CallID    string        `json:"callId"`              // what an answer names: the call, the message, or the question of the ask node
	ToolName  string        `json:"toolName,omitempty"`  // of a call
	ToolInput Raw           `json:"toolInput,omitempty"` // of a call
	Text      string        `json:"text,omitempty"`      // what is asked
	Questions []AskQuestion `json:"questions,omitempty"` // what can be chosen
	Priority  Priority      `json:"priority,omitempty"`  // of a message
	Since     int64         `json:"since"`               // Unix ms
	Answer    string        `json:"answer"`              // the command that answers it
}

// ApprovalKind says what waits for a person.
type ApprovalKind string

// What waits for a person.
const (
	ApprovalCall     ApprovalKind = "approval" // a tool call that may be made or not: approve, deny
	ApprovalQuestion ApprovalKind = "question" // a call of AskUserQuestion: reply, or approve with the answer as its note
	ApprovalMessage  ApprovalKind = "message"  // what an agent has asked its parent (notify_parent): reply, or steer
	ApprovalAsk      ApprovalKind = "ask"      // the question of an ask node: reply
)

// AskQuestion is a question with answers to choose from.
type AskQuestion struct {
	Question    string      `json:"question"`
	Header      string      `json:"header,omitempty"`      // in a word
	Options     []AskOption `json:"options,omitempty"`     // empty: any answer
	MultiSelect bool        `json:"multiSelect,omitempty"` // several can be chosen
}

// AskOption is an answer to choose.
type AskOption struct {
	Label       string `json:"label"`
	Description string `json:"description,omitempty"`
}

// TopRequest asks for the fleet at a glance: the runs that go on.
type TopRequest struct {
	Label string `json:"label,omitempty"` // see [RunsRequest.Label]
	Flow  string `json:"flow,omitempty"`  // name of the flow
	Since Ago    `json:"since,omitempty"` // also runs that ended within this span
	Limit int    `json:"limit,omitempty"` // default 50, at most 200
}

// TopResponse is the fleet: waiting runs first, the longest waiting one before others,
// then what failed, is paused, is at work, is idle.
type TopResponse struct {
	Lag

	At      int64          `json:"at"`     // Unix ms
	States  map[string]int `json:"states"` // number of runs by [AgentStatus.State], those that are omitted included
	Runs    []TopRun       `json:"runs"`
	Omitted int            `json:"omitted,omitempty"` // runs beyond the limit
}

// TopRun is a run and those of its agents that are at work or wait.
type TopRun struct {
	AgentStatus // of the run

	RunID    string        `json:"runId"`
	FlowName string        `json:"flowName,omitempty"`
	Status   RunStatus     `json:"status"`
	Result   FlowStatus    `json:"result,omitempty"`
	Imported string        `json:"imported,omitempty"` // see [FlowStart.Imported]
	Live     []AgentStatus `json:"live"`
}

// RunsRequest lists runs, newest first. Filters are combined.
type RunsRequest struct {
	Status []string `json:"status,omitempty"` // statuses or outcomes; "active" is idle, running or paused
	Label  string   `json:"label,omitempty"`  // "key=value", or the value of any label
	Flow   string   `json:"flow,omitempty"`   // name of the flow
	Since  Ago      `json:"since,omitempty"`  // last activity within this span
	Until  Ago      `json:"until,omitempty"`  // started at least this long ago
	Tool   string   `json:"tool,omitempty"`   // that used this tool
	Error  string   `json:"error,omitempty"`  // that had an error with this text, ignoring case

	Ancestor string `json:"ancestor,omitempty"` // id of a run: its child runs, and what was forked from it, at any distance

	MinCostUsd float64 `json:"minCostUsd,omitempty"` // that cost at least this
	Deleted    bool    `json:"deleted,omitempty"`    // those that were deleted, instead of those that weren't
	Incomplete bool    `json:"incomplete,omitempty"` // with sessions of which a feed lacks something, see [RunInfo.Feeds]

	Limit  int    `json:"limit,omitempty"`  // default 50, at most 1000
	Cursor string `json:"cursor,omitempty"` // of the page before
}

// RunInfo is one run of a list.
type RunInfo struct {
	RunID        string            `json:"runId"`
	FlowName     string            `json:"flowName,omitempty"`
	Status       RunStatus         `json:"status"`
	Result       FlowStatus        `json:"result,omitempty"`
	Reason       string            `json:"reason,omitempty"`
	Error        string            `json:"error,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	ParentRun    string            `json:"parentRun,omitempty"`
	Imported     string            `json:"imported,omitempty"`  // see [FlowStart.Imported]
	Feeds        string            `json:"feeds,omitempty"`     // the worst verdict on its sessions, see [SessionCompared.Verdict]; "": none was compared
	StartedAt    int64             `json:"startedAt,omitempty"` // Unix ms
	EndedAt      int64             `json:"endedAt,omitempty"`   // Unix ms
	LastActivity string            `json:"lastActivity,omitempty"`
	LastActiveAt int64             `json:"lastActivityAt,omitempty"` // Unix ms
	CostUsd      float64           `json:"costUsd"`
	CostBasis    string            `json:"costBasis,omitempty"` // see [AgentStatus.CostBasis]
	TokensIn     int64             `json:"tokensIn"`
	TokensOut    int64             `json:"tokensOut"`
	ToolsUsed    int64             `json:"toolsUsed"`
	ToolErrors   int64             `json:"toolErrors,omitempty"`
	Events       int64             `json:"events"`
	VoidEvents   int64             `json:"voidEvents,omitempty"` // of fenced writers
	Gaps         int64             `json:"gaps,omitempty"`       // events that are missing in the log
	DeletedAt    int64             `json:"deletedAt,omitempty"`  // Unix ms; see [DeleteRequest]
	GoneAt       int64             `json:"goneAt,omitempty"`     // Unix ms, when its events are removed
}

// RunsResponse is a page of runs. Cursor asks for the next one; it is empty on
// the last page.
type RunsResponse struct {
	Lag

	Runs   []RunInfo `json:"runs"`
	Cursor string    `json:"cursor,omitempty"`
}

// SearchRequest looks for words in the lines of all runs, and in what calls were
// given and answered: of more than 20 KiB in the first 16 and the last 4, see
// [SearchResponse.Cut]. A line that is still being written is found when it is
// finished.
type SearchRequest struct {
	Text   string   `json:"text"`             // words, "phrases", begin* and -without: lines that have all of them
	Run    string   `json:"run,omitempty"`    // only of this run, see [LogRequest.Run]
	Node   string   `json:"node,omitempty"`   // only of this node and its items
	Type   LineType `json:"type,omitempty"`   // only of this type
	Since  Ago      `json:"since,omitempty"`  // only of this last span
	Status []string `json:"status,omitempty"` // see [RunsRequest.Status]
	Label  string   `json:"label,omitempty"`  // see [RunsRequest.Label]
	Flow   string   `json:"flow,omitempty"`   // name of the flow
	Limit  int      `json:"limit,omitempty"`  // default 20, at most 500
	Cursor string   `json:"cursor,omitempty"` // of the page before
}

// SearchHit is a line that was found.
type SearchHit struct {
	RunID    string   `json:"runId"`
	FlowName string   `json:"flowName,omitempty"`
	Node     string   `json:"node"`
	TS       int64    `json:"ts"` // Unix ms
	Type     LineType `json:"type"`
	Pos      uint64   `json:"pos"`               // stream position of the line's first event
	Snippet  string   `json:"snippet"`           // the part of the line, or of its call, that matches; safe for a terminal
	Matches  []Span   `json:"matches,omitempty"` // in the snippet
}

// Span is a part of a text, in characters.
type Span struct {
	From int `json:"from"`
	To   int `json:"to"` // behind the last one
}

// SearchResponse is a page of hits, the newest first. Cursor asks for the next
// one; it is empty on the last page.
type SearchResponse struct {
	Lag

	Hits   []SearchHit `json:"hits"`
	Cursor string      `json:"cursor,omitempty"`
	// Through is the position up to which lines were looked at, if the index of words
	// is behind what is recorded; absent: all of them were.
	Through uint64 `json:"through,omitempty"`
	Cut     int64  `json:"cut,omitempty"` // calls that passed the other filters and weren't looked at whole
}

// StatsRequest asks for numbers about runs.
type StatsRequest struct {
	Run    string   `json:"run,omitempty"`    // see [LogRequest.Run]; absent: all
	Status []string `json:"status,omitempty"` // see [RunsRequest.Status]
	Label  string   `json:"label,omitempty"`  // see [RunsRequest.Label]
	Flow   string   `json:"flow,omitempty"`   // name of the flow
	Since  Ago      `json:"since,omitempty"`  // only of this last span; cost and tokens from the beginning of its first day on
}

// StatsResponse is what was used, and how runs and calls of tools went. The
// usage of a message of a model counts once, and of cumulative costs what each
// adds.
type StatsResponse struct {
	Lag

	Runs   RunStats     `json:"runs"`
	Total  SpendStats   `json:"total"`
	Days   []SpendStats `json:"days"` // UTC, the newest first
	Models []SpendStats `json:"models"`
	Flows  []SpendStats `json:"flows"`
	Nodes  []SpendStats `json:"nodes"`
	Tools  []ToolStats  `json:"tools"`
}

// RunStats say how runs went.
type RunStats struct {
	Runs     int64            `json:"runs"`
	ByStatus map[string]int64 `json:"byStatus"` // failed ones apart from complete ones
	P50Ms    int64            `json:"p50Ms"`    // of those that have ended
	P95Ms    int64            `json:"p95Ms"`
}

// SpendStats are what was used by a day, a model, a flow or a node.
type SpendStats struct {
	Name      string  `json:"name"`
	Runs      int64   `json:"runs"`
	Calls     int64   `json:"calls"` // of models
	TokensIn  int64   `json:"tokensIn"`
	TokensOut int64   `json:"tokensOut"`
	CostUsd   float64 `json:"costUsd"`
	CostBasis string  `json:"costBasis,omitempty"` // see [AgentStatus.CostBasis]
}

// ToolStats say how the calls of a tool went.
type ToolStats struct {
	Tool        string  `json:"tool"`
	Calls       int64   `json:"calls"`
	Failed      int64   `json:"failed"`
	Denied      int64   `json:"denied"`
	FailureRate float64 `json:"failureRate"` // of those that weren't denied
	P50Ms       int64   `json:"p50Ms"`
	P95Ms       int64   `json:"p95Ms"`
}

// BudgetsRequest asks for all budgets that runs share.
type BudgetsRequest struct{}

// BudgetsResponse is what there is, by name.
type BudgetsResponse struct {
	Lag

	Budgets []SharedBudget `json:"budgets"`
}

// SharedBudget bounds what runs spend together, and says what they have spent. Both bounds
// count, the one that is reached first.
type SharedBudget struct {
	Name   string  `json:"name"`
	Label  string  `json:"label,omitempty"`  // key=value: of the runs with this label; absent: of all
	Per    string  `json:"per,omitempty"`    // day (UTC); absent: ever
	Usd    float64 `json:"usd,omitempty"`    // 0: no bound
	Tokens int64   `json:"tokens,omitempty"` // those of the cache included; 0: no bound
	Then   string  `json:"then"`             // pause or abort: what becomes of the runs when it is spent
	Day    string  `json:"day,omitempty"`    // of which Spent is, such as 2026-03-01
	Spent  Spent   `json:"spent"`
}

// BudgetPerDay is the span of a budget that is anew each day.
const BudgetPerDay = "day"

// EventsRequest asks for the recorded events themselves, in log order.
type EventsRequest struct {
	Run    string `json:"run,omitempty"` // absent: of all runs
	Node   string `json:"node,omitempty"`
	From   uint64 `json:"from,omitempty"`   // first position
	To     uint64 `json:"to,omitempty"`     // last position; 0: the last recorded one
	Kinds  []Kind `json:"kinds,omitempty"`  // absent: all
	Limit  int    `json:"limit,omitempty"`  // default and at most 1000
	Cursor string `json:"cursor,omitempty"` // of the page before
	Void   bool   `json:"void,omitempty"`   // also what readers hide: events of fenced writers, poison, gaps
}

// StoredEvent is an event as it was recorded.
type StoredEvent struct {
	Pos   uint64 `json:"pos"`
	Time  int64  `json:"time"`            // Unix ms, when the stream stored it
	Mark  string `json:"mark,omitempty"`  // void, bad (can't be decoded) or recorder (written by it)
	Event Raw    `json:"event,omitempty"` // in JSON answers; absent if it can't be decoded
	Data  []byte `json:"data,omitempty"`  // its bytes; in msgpack answers, and where Event is absent
}

// When returns the time at which the stream stored the event.
func (e StoredEvent) When() time.Time { return time.UnixMilli(e.Time) }

// EventsResponse is a page of events. Cursor asks for the next one; it is empty
// when everything recorded so far has been returned.
type EventsResponse struct {
	Events []StoredEvent `json:"events"`
	Cursor string        `json:"cursor,omitempty"`
	Total  int64         `json:"total,omitempty"` // events on all pages; on the first one of a whole run
}

// StateRequest asks for the state of a run behind a position.
type StateRequest struct {
	Run string `json:"run"`          // see [LogRequest.Run]
	At  uint64 `json:"at,omitempty"` // position; 0: the last recorded one
}

// StateResponse is a state: the fold of the run's recorded events.
type StateResponse struct {
	RunID    string   `json:"runId"`
	Position Position `json:"position"` // of the last event in it
	State    Raw      `json:"state"`    // a [State]
}

// SnapshotRequest asks for the snapshot of a run.
type SnapshotRequest struct {
	Run string `json:"run"` // the run's id
}

// SnapshotResponse is the stored snapshot.
type SnapshotResponse struct {
	RunID    string `json:"runId"`
	Revision uint64 `json:"revision"` // of its key in WAKE_SNAPSHOTS
	Bytes    int    `json:"bytes"`    // its size
	State    Raw    `json:"state"`    // a [State]
}

// VerbDelete deletes a run from the recorder's store, or restores it:
// [DeleteRequest], [DeleteResponse]; answered by the recorder.
const VerbDelete = "delete"

// DeleteRequest deletes a run that has ended: no list has it any more, and after
// a while its events are removed. Until then it can be read, exported and
// restored.
type DeleteRequest struct {
	Run   string `json:"run"`             // see [LogRequest.Run]
	Undo  bool   `json:"undo,omitempty"`  // restore it
	Now   bool   `json:"now,omitempty"`   // its events are removed at once
	Force bool   `json:"force,omitempty"` // also if a run that goes on descends from it, or it has a labelled bookmark
}

// DeleteResponse says what was deleted or restored.
type DeleteResponse struct {
	RunID     string `json:"runId"`
	DeletedAt int64  `json:"deletedAt,omitempty"` // Unix ms; 0: it was restored
	GoneAt    int64  `json:"goneAt,omitempty"`    // Unix ms, when its events are removed
}
