package table

// The rows of the tables: a field is a column, see [columnsOf] for its tags. What
// is derived is told apart from what is kept in [All].

// Stream is how far the stream of events is recorded: one row.
type Stream struct {
	ID          int64  `db:"id"`
	Incarnation string `db:"incarnation,unique"`
	Position    uint64 `db:"position" note:"up to here everything is recorded"`
	Bad         int64  `db:"bad" note:"messages that are no events"`
	Lost        int64  `db:"lost" note:"events that the stream dropped before they were recorded"`
	Derived     uint64 `db:"derived" note:"up to here what follows from the events is derived"`
}

// Run is a run: what its state says, what was derived from its events besides, and
// where they are.
type Run struct {
	ID           int64   `db:"id,number"`
	RunID        string  `db:"run,name,unique" note:"its id"`
	FlowName     string  `db:"flow"`
	Status       string  `db:"status"`
	Result       string  `db:"result"`
	Reason       string  `db:"reason"`
	Error        string  `db:"error"`
	ParentRun    string  `db:"parent"`
	Imported     string  `db:"imported"`
	StartedAt    int64   `db:"started_at"`
	EndedAt      int64   `db:"ended_at"`
	LastActiveAt int64   `db:"last_at" note:"of the last event"`
	LastActivity string  `db:"activity" note:"what an agent last did"`
	ActivityAt   int64   `db:"activity_at"`
	CostUsd      float64 `db:"cost_usd"`
	TokensIn     int64   `db:"tokens_in" note:"those of the cache included"`
	TokensOut    int64   `db:"tokens_out"`
	ToolsUsed    int64   `db:"tools"`
	ToolErrors   int64   `db:"tool_errors"`
	Events       int64   `db:"events" note:"all of them, void ones included; of run _ what is no event, too"`
	VoidEvents   int64   `db:"void"`
	Refused      int64   `db:"refused" note:"events that the run's history doesn't allow"`
	Gaps         int64   `db:"gaps" note:"events that are missing between others"`
	Lines        int64   `db:"lines" note:"of the log, without hidden ones"`
	FirstPos     uint64  `db:"first_pos"`
	LastPos      uint64  `db:"last_pos"`
	StatePos     uint64  `db:"state_pos" note:"of the last event that its state follows from: agents' words change none"`
	Head         []byte  `db:"head" note:"of the hash chain, after the last event"`
	Segments     int64   `db:"segments,place"`
	TailEvents   int64   `db:"tail_events,place"`
	TailBytes    int64   `db:"tail_bytes,place" note:"of their data"`

	ComputedUsd float64 `db:"computed_usd" note:"of cost_usd, by prices; the rest was told by agents"`
	Unpriced    int64   `db:"unpriced" note:"model calls whose cost isn't known"`

	Feeds string `db:"feeds" note:"whether what agents printed and their session files tell the same: the verdict on the session of which most is missing"`

	Derivation int64 `db:"derivation" note:"version of what has derived the first of its rows"`
}

// Node is a node of a run.
type Node struct {
	ID            int64  `db:"id,number"`
	Run           int64  `db:"run,runs"`
	Node          string `db:"node,name" note:"its id"`
	Epoch         uint64 `db:"epoch" note:"of its last claim"`
	Seq           uint64 `db:"seq" note:"of its last event that isn't void"`
	Model         string `db:"model"`
	Cwd           string `db:"cwd"`
	Activity      string `db:"activity"`
	ActivityAt    int64  `db:"activity_at"`
	TokensIn      int64  `db:"tokens_in"`
	TokensOut     int64  `db:"tokens_out"`
	Tools         int64  `db:"tools"`
	ToolErrors    int64  `db:"tool_errors"`
	ContextTokens int64  `db:"context_tokens"`
	ContextWindow int64  `db:"context_window"`
	Timeline      []byte `db:"timeline" note:"lines that may still grow"`
	Talk          []byte `db:"talk" note:"where its agent's conversation stands"`
}

// Label is a label of a run.
type Label struct {
	Run   int64  `db:"run,runs"`
	Key   string `db:"key,name"`
	Value string `db:"value,name"`
}

// Binding is a session that an execution has, or had.
type Binding struct {
	Session  string `db:"session,name"`
	Run      int64  `db:"run,runs"`
	Node     int64  `db:"node,nodes"`
	Exec     string `db:"exec"`
	Pos      uint64 `db:"pos" note:"where it was first heard of"`
	Agent    string `db:"agent"`
	Model    string `db:"model"`
	Provider string `db:"provider"`
	TS       int64  `db:"ts"`
}

// Line is a line of the log.
type Line struct {
	Pos     uint64 `db:"pos" note:"of the line's first event"`
	Run     int64  `db:"run,runs"`
	Node    int64  `db:"node,nodes" note:"the node it is about"`
	Writer  int64  `db:"writer,nodes" note:"the node it was written on"`
	Seq     uint64 `db:"seq"`
	Exec    string `db:"exec"`
	Parent  string `db:"parent"`
	TS      int64  `db:"ts"`
	Type    string `db:"type,name"`
	Hidden  int64  `db:"hidden" note:"by log:truncated"`
	Text    string `db:"text,field"`
	Message uint64 `db:"message" note:"the row of chat_messages it is a part of"`
	Cut     int64  `db:"cut" note:"bytes of input and output that are left out"`
	Input   string `db:"input,field" note:"of a call: what it was given that the text doesn't say, 16 KiB of its beginning and 4 of its end"`
	Output  string `db:"output,field" note:"of a call: what it answered, within the same bounds"`
}

// ToolCall is a finished call.
type ToolCall struct {
	Pos        uint64 `db:"pos" note:"of the agent:tool"`
	Run        int64  `db:"run,runs"`
	Node       int64  `db:"node,nodes"`
	Exec       string `db:"exec"`
	Call       string `db:"call"`
	Tool       string `db:"tool"`
	TS         int64  `db:"ts"`
	DurationMs *int64 `db:"duration_ms" note:"null: unknown"`
	Outcome    string `db:"outcome" note:"ok, error or denied"`
	Error      string `db:"error"`
}

// Day is the length of a day in milliseconds.
const Day = 24 * 60 * 60 * 1000

// Spend is what model calls of a node used, by day and model.
type Spend struct {
	Run       int64   `db:"run,runs"`
	Node      int64   `db:"node,nodes"`
	Day       int64   `db:"day" note:"since 1970-01-01, UTC"`
	Model     string  `db:"model,name"`
	Calls     int64   `db:"calls"`
	TokensIn  int64   `db:"tokens_in" note:"those of the cache included"`
	TokensOut int64   `db:"tokens_out"`
	CostUsd   float64 `db:"cost_usd,sum"`

	ComputedUsd float64 `db:"computed_usd,sum" note:"of cost_usd, by prices; the rest was told by agents"`
	Unpriced    int64   `db:"unpriced" note:"calls whose cost isn't known"`
}

// Usage is a model call; the calls of one message count once. What a result tells beyond the calls
// before it is one by the name result/POSITION/NUMBER, which may be negative.
type Usage struct {
	Node      int64  `db:"node,nodes"`
	Message   string `db:"message,name"`
	Run       int64  `db:"run,runs"`
	Pos       uint64 `db:"pos"`
	Session   string `db:"session,name"`
	Agent     string `db:"agent"`
	Turn      int    `db:"turn"`
	Model     string `db:"model"`
	TokensIn  int64  `db:"tokens_in" note:"those of the cache included"`
	TokensOut int64  `db:"tokens_out"`
	TS        int64  `db:"ts"`
}

// ChatMessage is a message of a conversation.
type ChatMessage struct {
	Pos     uint64  `db:"pos" note:"of the event that begins it"`
	Run     int64   `db:"run,runs"`
	Node    int64   `db:"node,nodes"`
	Seq     uint64  `db:"seq"`
	Session string  `db:"session,name"`
	Agent   string  `db:"agent"`
	Turn    int     `db:"turn"`
	Role    string  `db:"role" note:"user, assistant or tool"`
	Content *string `db:"content,field" note:"null: what the lines say whose message it is"`
	Call    *string `db:"call"`
	Tool    *string `db:"tool"`
	Args    *string `db:"args,field" note:"JSON, the calls of an assistant's message"`
	TS      int64   `db:"ts"`
	Hidden  int64   `db:"hidden" note:"by log:truncated"`
}

// ChatError is an error of an agent.
type ChatError struct {
	Pos     uint64 `db:"pos"`
	Run     int64  `db:"run,runs"`
	Node    int64  `db:"node,nodes"`
	Session string `db:"session,name"`
	Agent   string `db:"agent"`
	Turn    int    `db:"turn"`
	Context string `db:"context" note:"llm_stream, max_turns, or the type"`
	Type    string `db:"type" note:"as the agent says"`
	Message string `db:"message"`
	Attempt int    `db:"attempt" note:"from 0"`
	TS      int64  `db:"ts"`
}

// ChatCheckpoint is a checkpoint of a conversation.
type ChatCheckpoint struct {
	Pos     uint64  `db:"pos"`
	Run     int64   `db:"run,runs"`
	Node    int64   `db:"node,nodes"`
	Seq     uint64  `db:"seq"`
	Session string  `db:"session,name"`
	Agent   string  `db:"agent"`
	Turn    int     `db:"turn"`
	Last    uint64  `db:"last" note:"message"`
	Kind    string  `db:"kind" note:"turn, subturn, sfp or labelled"`
	Label   string  `db:"label"`
	SubIdx  *int    `db:"sub_idx" note:"the last finished call of the turn, from 0; null: all are"`
	SubCall *string `db:"sub_call" note:"its id"`
	TS      int64   `db:"ts"`
	Hidden  int64   `db:"hidden" note:"by log:truncated"`
}

// Alert is an alert as its stream has it.
type Alert struct {
	Key      string `db:"key,name" note:"the same for the same occurrence"`
	Pos      uint64 `db:"pos" note:"in the stream of alerts"`
	Kind     string `db:"kind"`
	Severity string `db:"severity"`
	Run      string `db:"run,name" note:"names, since its events may not be here"`
	Node     string `db:"node,name"`
	Exec     string `db:"exec"`
	Label    string `db:"label"`
	Parent   string `db:"parent" note:"run that started this one"`
	Event    uint64 `db:"event" note:"position of the event that raised it"`
	TS       int64  `db:"ts"`
	Text     string `db:"text"`
	Data     string `db:"data" note:"JSON"`
	Raw      []byte `db:"raw" note:"as stored"`
	Hash     []byte `db:"hash" note:"SHA-256 of raw"`
}

// AlertsRead is up to where the stream of alerts is recorded: one row.
type AlertsRead struct {
	ID       int64  `db:"id"`
	Created  string `db:"created" note:"when the stream was"`
	Position uint64 `db:"position"`
	Stored   int64  `db:"stored" note:"how many alerts are here"`
}

// AlertCount is a run and its alerts.
type AlertCount struct {
	Run    string `db:"run,name"`
	Stored int64  `db:"stored" note:"how many alerts are here"`
}

// Lineage is a run and one that it is a fork of, at any distance, or a child of.
type Lineage struct {
	Run      int64  `db:"run,runs"`
	Ancestor string `db:"ancestor,name" note:"its id"`
}

// BlobUse is a run and a large field that it refers to.
type BlobUse struct {
	SHA256 string `db:"sha256,name"`
	Run    int64  `db:"run,runs"`
}

// Fold is the state of a run, a little behind.
type Fold struct {
	Run  int64  `db:"run,runs"`
	Pos  uint64 `db:"pos"`
	Data []byte `db:"data"`
}

// Keyframe is the state of a run at an earlier position.
type Keyframe struct {
	Run  int64  `db:"run,runs"`
	Pos  uint64 `db:"pos"`
	Data []byte `db:"data" note:"packed with zstd"`
}

// Segment are sealed events of a run.
type Segment struct {
	Run       int64  `db:"run,runs"`
	N         int64  `db:"n" note:"1, 2, …"`
	FirstPos  uint64 `db:"first_pos"`
	LastPos   uint64 `db:"last_pos"`
	FirstTime int64  `db:"first_time"`
	LastTime  int64  `db:"last_time"`
	Events    int64  `db:"events"`
	Prev      []byte `db:"prev" note:"of the hash chain, before the first event"`
	Hash      []byte `db:"hash" note:"after the last one"`
	Codec     int    `db:"codec"`
	Data      []byte `db:"data"`
}

// Tail is what a batch has brought of a run, and what isn't sealed yet.
type Tail struct {
	Run      int64  `db:"run,runs"`
	FirstPos uint64 `db:"first_pos"`
	LastPos  uint64 `db:"last_pos"`
	LastTime int64  `db:"last_time"`
	Events   int64  `db:"events"`
	Hash     []byte `db:"hash" note:"of the hash chain, after the last event"`
	Data     []byte `db:"data" note:"as in a segment, but not packed"`
}

// Blob is a large field.
type Blob struct {
	SHA256 string  `db:"sha256,name"`
	Size   int64   `db:"size"`
	Data   *[]byte `db:"data" note:"null: it was missing when it was needed"`
}

// Retired is a run without its events: they were removed, or are being removed.
type Retired struct {
	Run    string `db:"run,name"`
	At     int64  `db:"at"`
	Events int64  `db:"events" note:"how many they were"`
	Head   []byte `db:"head" note:"the last link of their chain"`
}

// Deleted is a run that was deleted, until its events are removed.
type Deleted struct {
	Run    string `db:"run,name"`
	At     int64  `db:"at"`
	GoneAt int64  `db:"gone_at" note:"from then on the events are removed"`
	Reason string `db:"reason" note:"user, age or size"`
	Forced int64  `db:"forced" note:"1: also if something needs it"`
}

// Remains is something that a removed run may have left on the server.
type Remains struct {
	Kind    string `db:"kind" note:"run: its state, points, alerts and folder; session: a kept session file; field: a large field"`
	Name    string `db:"name,name" note:"id of the run, id of the session, SHA-256 of the field"`
	Run     string `db:"run"`
	At      int64  `db:"at" note:"when the run was removed"`
	Dropped int64  `db:"dropped" note:"1: what had been there was removed; it is looked for once more when the stream has nothing of the run any more"`
}

// Rebuild is an order to derive everything again that was obeyed.
type Rebuild struct {
	ID string `db:"id,name"`
	At int64  `db:"at"`
}

// LineOpen is a line that grows, which isn't in the full text yet.
type LineOpen struct {
	Pos    uint64 `db:"pos"`
	Writer int64  `db:"writer,nodes"`
}

// LinesIndexed is how far the full text is: one row.
type LinesIndexed struct {
	Pos uint64 `db:"pos"`
}
