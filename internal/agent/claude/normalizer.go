package claude

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// Format is what the lines are.
type Format uint8

// The formats.
const (
	Stream     Format = iota // what `claude --output-format stream-json` prints
	Transcript               // a session file of the agent
)

// NormalizerOptions are the settings of a [Normalizer]. The zero value reads a
// stream before its agent:start is written.
type NormalizerOptions struct {
	Format    Format
	Source    string // of raw events; default claude or transcript
	Provider  string // of agent:start; default claude
	Blocks    agent.Blocks
	Prompt    wire.Raw // of agent:start, where it is known
	SessionID string   // the session that is bound already
	Started   bool     // agent:start has been written
	// PriceOf gives the price of a model, by which the cost of a call is computed until a result reports it. Nil: it isn't.
	PriceOf func(model string) (agent.Price, bool)
}

// Normalizer turns the lines of Claude Code into events. It is pure: the time
// is an argument, and nothing is read or written. It isn't safe for concurrent use.
//
// Every line becomes typed events or a raw event, as the table in the package
// comment says; nothing is lost.
type Normalizer struct {
	opt     NormalizerOptions
	line    int           // lines so far
	at      int64         // of the current line, Unix ms; 0: unknown
	held    []*wire.Event // of a transcript, before its first time
	first   int64         // at of the first line that had a time
	started bool
	out     []*wire.Event
	root    string // key of the main thread
	rooted  bool

	session  string
	sessions map[string]bool // all that were bound, for transcripts that mix them
	init     string          // hash of the last system/init, less its uuid
	model    string          // that it named
	inits    int
	window   map[string]int64 // context window by model, as results tell it

	turn    int // of the main thread, from 1
	blocks  int // blocks of text and thinking so far
	threads map[string]*thread
	agents  map[string]*thread // by the id of the sub-agent, where it is told
	calls   map[string]*toolCall
	open    []string        // ids of open calls, in order; some may be closed
	asked   map[string]bool // calls that asked for permission
	denied  map[string]bool // calls that were refused before their result
	todos   map[string]*todos
	seen    map[string]lineSighting      // by uuid
	written map[[sha256.Size]byte]string // uuids of the blocks of a transcript's main thread, by what they are
	sent    map[string]Sent
	prompt  string // of agent:start, until its echo has come
	hooked  bool   // hooks are asked before tools are used
	local   bool   // the user has had the program do something itself, such as /context; not in [state]: it tells how transcripts end
	limit   int64  // when the limit is over that the account has last been said to have reached, Unix ms; not in [state]: words tell it, too
	tokens  *thinkingTokens

	counted    map[string]int // messages with an emitted usage, and in which line
	tally      tally
	background map[string]bool // tasks that run on after the turn
	notified   int             // background tasks that ended and will cause a turn
}

// Sent is a message that was given to the agent; see [Normalizer.Sent].
type Sent struct {
	Source    string `json:"source"` // prompt or command
	CommandID string `json:"commandId"`
}

// thread is a conversation: the main one, or that of a sub-agent.
type thread struct {
	conversation

	main    bool
	blocks  []*block // of the current message that were streamed, in order
	givenUp map[string]*block
}

// conversation is what a thread knows besides its open blocks. It is part of [state].
type conversation struct {
	Key    string `json:"key"`    // in [Normalizer.threads]
	Parent string `json:"parent"` // the call that started it
	Agent  string `json:"agent"`  // id of the sub-agent, if the stream tells it
	Line   int    `json:"line"`   // that was its last

	Message  string `json:"message"` // id of the model's current message
	Model    string `json:"model"`
	Begun    bool   `json:"begun"`    // the message has had content: its turn has begun
	Produced bool   `json:"produced"` // the message has had a whole block
	Streamed bool   `json:"streamed"` // the message came with a message_start

	Usage  *callUsage `json:"usage"`  // of the current message, until it is final
	Answer string     `json:"answer"` // text of the last message with a whole block
	Owner  string     `json:"owner"`  // id of that message
	Stop   string     `json:"stop"`   // its stop reason, if the line told it
}

// block is a content block that is streamed.
type block struct {
	index   int
	kind    string // text, thinking, tool_use …
	number  int    // [wire.AgentText.Block]
	pieces  bool   // a delta was emitted
	content []byte // so far; a tool's input as JSON
	call    wire.Raw
	whole   bool // nothing of it is open any more
	matched bool // its assistant line was there
}

// callUsage is the usage of one model call until it is final. It is part of [state].
type callUsage struct {
	ID      string `json:"id"`
	Model   string `json:"model"`
	Stop    string `json:"stop"`
	Known   bool   `json:"known"` // numbers were read
	Input   int64  `json:"input"`
	Output  int64  `json:"output"`
	Hour    int64  `json:"hour"` // of Created, what is kept for an hour
	Created *int64 `json:"created"`
	Read    *int64 `json:"read"`
}

// thinkingTokens is an estimate that precedes a piece of thinking.
type thinkingTokens struct {
	message wire.Raw
	delta   int64
}

type toolCall struct {
	thread  *thread
	message string // that made it
	turn    int
	name    string
	input   wire.Raw // nil once it is done
	at      int64
	done    bool
	task    bool // what it has begun goes on, maybe behind its result
	line    int  // in which it began or ended

	executing bool // as far as was told
	adopted   bool // a sub-agent's file is that of its own
}

// todos is the list of one agent.
type todos struct{ items []wire.Todo }

// outcome is how a result says the turn ended.
type outcome uint8

const (
	succeeded outcome = iota
	failed
	interrupted
)

// tokens adds up token counts. It is part of [state].
type tokens struct {
	Input   int64  `json:"input"`
	Output  int64  `json:"output"`
	Created *int64 `json:"created"`
	Read    *int64 `json:"read"`
}

// NewNormalizer returns a normalizer for one execution.
func NewNormalizer(o NormalizerOptions) *Normalizer {
	if o.Source == "" {
		o.Source = "claude"
		if o.Format == Transcript {
			o.Source = "transcript"
		}
	}
	o.Provider = cmp.Or(o.Provider, "claude")
	o.Blocks = cmp.Or(o.Blocks, agent.BlocksFallback)
	return &Normalizer{
		opt:        o,
		started:    o.Started,
		init:       digestOf(nil),
		session:    o.SessionID,
		prompt:     contentText(o.Prompt),
		sessions:   map[string]bool{o.SessionID: true},
		window:     make(map[string]int64),
		threads:    make(map[string]*thread),
		agents:     make(map[string]*thread),
		calls:      make(map[string]*toolCall),
		asked:      make(map[string]bool),
		denied:     make(map[string]bool),
		todos:      make(map[string]*todos),
		seen:       make(map[string]lineSighting),
		written:    make(map[[sha256.Size]byte]string),
		sent:       make(map[string]Sent),
		counted:    make(map[string]int),
		background: make(map[string]bool),
	}
}

// Sent tells that a message with a uuid was given to the agent, so that its echo is
// recognised: a user:message with that source and command.
func (n *Normalizer) Sent(uuid string, s Sent) { n.sent[uuid] = s }

// Busy reports whether the agent has work left after a result: sub-agents in
// the background, or their reports that it has not answered yet.
func (n *Normalizer) Busy() (running, reports int) { return len(n.background), n.notified }

// releaseEvents returns the events of the line. Those of a transcript wait for its
// first time.
func (n *Normalizer) releaseEvents() []*wire.Event {
	if n.opt.Format == Stream {
		return n.out
	}
	n.held = append(n.held, n.out...)
	if n.at == 0 {
		return nil
	}
	out := n.held
	n.held = nil
	for _, e := range out {
		e.Timestamp = cmp.Or(e.Timestamp, n.at)
	}
	return out
}

func (n *Normalizer) setTime(at int64) {
	n.at = at
	n.first = cmp.Or(n.first, at)
}

// emitMalformed passes on a line that is no JSON: as a string if it is text, else
// as bytes.
func (n *Normalizer) emitMalformed(line []byte, reason string) {
	n.emit(&wire.Event{Payload: &wire.RawMessage{
		Source: n.opt.Source, Name: "malformed", Data: lineValue(line), Reason: reason, Line: n.line,
	}})
}

// lineSighting is a line that was there before. Transcripts repeat lines: the same
// line counts once, another one under the uuid of a line that was understood is passed on. It is part of [state].
type lineSighting struct {
	Line  int    `json:"line"`
	Hash  string `json:"hash"`
	Known bool   `json:"known"`
}

func digestOf(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:16])
}

// emitRaw passes a message on.
func (n *Normalizer) emitRaw(m wire.Raw, reason string) {
	n.emitNamedRaw(messageName(m), m, reason)
}

func (n *Normalizer) emitNamedRaw(name string, data wire.Raw, reason string) {
	n.emit(&wire.Event{Payload: &wire.RawMessage{Source: n.opt.Source, Name: name, Data: data, Reason: reason}})
}

// messageName returns what a message calls itself, such as system/status.
func messageName(m wire.Raw) string {
	typ, sub := m.TextAt("type"), m.TextAt("subtype")
	switch typ {
	case "control_request":
		sub = m.TextAt("request", "subtype")
	case "control_response":
		sub = m.TextAt("response", "subtype")
	case "stream_event":
		if sub = m.TextAt("event", "delta", "type"); sub == "" {
			sub = m.TextAt("event", "type")
		}
	case "attachment":
		sub = m.TextAt("attachment", "type")
	case "progress":
		sub = m.TextAt("data", "type")
	}
	if sub == "" {
		return typ
	}
	return typ + "/" + sub
}

// emit appends an event, with what all events share.
func (n *Normalizer) emit(e *wire.Event) {
	e.Timestamp = n.at
	e.SessionID = cmp.Or(e.SessionID, n.session)
	n.out = append(n.out, e)
}

// emitForMain appends an event of the main thread.
func (n *Normalizer) emitForMain(p wire.Payload) {
	n.emit(&wire.Event{Turn: n.turn, Payload: p})
}

func (n *Normalizer) emitForThread(t *thread, p wire.Payload) *wire.Event {
	e := &wire.Event{AgentID: t.Agent, Parent: t.Parent, Payload: p}
	if t.main {
		e.Turn = n.turn
	}
	n.emit(e)
	return e
}

// bindSession makes id the session; the first one begins the execution.
func (n *Normalizer) bindSession(m wire.Raw) {
	id := sessionOf(m)
	switch {
	case id == "" || n.started && id == n.session:
		return
	case !n.started:
		n.session, n.sessions[id] = id, true
		n.emitStart(m)
	case !n.sessions[id]:
		old := n.session
		n.session, n.sessions[id] = id, true
		n.emitForMain(&wire.SessionBound{OldSession: old, NewSession: id})
	}
}

// emitStart writes agent:start for input that wake didn't start.
func (n *Normalizer) emitStart(m wire.Raw) {
	n.started = true
	prompt := n.opt.Prompt
	if prompt == nil && n.opt.Format == Transcript && m.TextAt("type") == "user" {
		prompt = m.Get("message", "content")
	}
	if prompt == nil {
		prompt = wire.Null
	}
	n.prompt = contentText(prompt)
	n.emit(&wire.Event{Payload: &wire.AgentStart{
		Model: m.TextAt("model"), Prompt: prompt, Provider: n.opt.Provider, Cwd: m.TextAt("cwd"),
	}})
}

// sessionOf returns the session id of a line, whichever way it is spelled.
func sessionOf(m wire.Raw) string {
	if id := m.TextAt("session_id"); id != "" {
		return id
	}
	return m.TextAt("sessionId")
}

// firstValue returns the value under the first key that is there: streams and
// transcripts spell some fields differently.
func firstValue(m wire.Raw, keys ...string) wire.Raw {
	for _, key := range keys {
		if v := m.Get(key); len(v) > 0 {
			return v
		}
	}
	return nil
}

// tally is what the results of an execution add up to. There may be none, one
// or several. It is part of [state].
type tally struct {
	Active bool   `json:"active"` // the main thread did something since the last result
	Asked  bool   `json:"asked"`  // the last of it was a message of the user
	Failed string `json:"failed"` // error type that was already emitted since then
	CutOff bool   `json:"cutOff"` // calls of the last message have no result

	Results    int      `json:"results"`
	Result     string   `json:"result"` // of the last one
	Stop       string   `json:"stop"`
	Outcome    outcome  `json:"outcome"`
	Structured wire.Raw `json:"structured"`
	Denials    wire.Raw `json:"denials"`

	Turns      tokens                     `json:"turns"`    // as the results count the main thread
	Messages   tokens                     `json:"messages"` // as its messages do
	Models     map[string]wire.ModelUsage `json:"models"`
	Total      map[string]wire.ModelUsage `json:"total"`     // cumulative, as the last result told
	Cost       float64                    `json:"cost"`      // of this execution
	CostTotal  float64                    `json:"costTotal"` // cumulative, as the last result told
	Priced     bool                       `json:"priced"`
	DurationMs int64                      `json:"durationMs"`
	NumTurns   int64                      `json:"numTurns"`
}

// orderedThreads returns the threads, the main one first.
func (n *Normalizer) orderedThreads() []*thread {
	return slices.SortedFunc(maps.Values(n.threads), func(a, b *thread) int {
		if a.main != b.main {
			if a.main {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.Parent, b.Parent), cmp.Compare(a.Agent, b.Agent))
	})
}

func (n *Normalizer) threadOf(key string) *thread {
	t := n.threads[key]
	if t == nil {
		t = &thread{conversation: conversation{Key: key}, main: key == n.root, givenUp: make(map[string]*block)}
		n.threads[key] = t
	}
	t.Line = n.line
	return t
}

// pointOf returns the id under which a line of the main thread stands in the
// agent's session, and can be forked at. Sub-agents have conversations of their own.
func pointOf(t *thread, m wire.Raw) string {
	if !t.main {
		return ""
	}
	return m.TextAt("uuid")
}
