package claude

import (
	"hash/maphash"

	"wake/internal/agent"
	"wake/pkg/wire"
)

// Format is what the lines are.
type Format uint8

// The formats.
const (
	Stream     Format = iota // what `claude --output-format stream-json` prints
	Transcript               // a session file of the agent
)

// NormalizerOptions are the settings of a [Normalizer]. The zero value reads a
// stream whose agent:start is still to be written.
type NormalizerOptions struct {
	Format    Format
	Source    string // of raw events; default claude or transcript
	Provider  string // of agent:start; default claude
	Blocks    agent.Blocks
	Prompt    wire.Raw // of agent:start, where it is known
	SessionID string   // the session that is bound already
	Started   bool     // agent:start has been written
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
	init     wire.Raw        // the last system/init, less its uuid
	inits    int
	window   map[string]int64 // context window by model, as results tell it

	turn    int // of the main thread, from 1
	blocks  int // blocks of text and thinking so far
	threads map[string]*thread
	agents  map[string]*thread // by the id of the sub-agent, where it is told
	calls   map[string]*call
	open    []string        // ids of open calls, in order; some may be closed
	asked   map[string]bool // calls that asked for permission
	denied  map[string]bool // calls that were refused before their result
	todos   map[string]*todos
	seen    map[string]sighting // by uuid
	seed    maphash.Seed
	sent    map[string]Sent
	prompt  string // of agent:start, until its echo has come
	hooked  bool   // hooks are asked before tools are used
	tokens  *thinkingTokens

	counted    map[string]bool // messages whose usage was emitted
	tally      tally
	background map[string]bool // tasks that run on after the turn
	notified   int             // background tasks that ended and will cause a turn
}

// Sent is a message that was given to the agent; see [Normalizer.Sent].
type Sent struct {
	Source    string // prompt or command
	CommandID string
}

// NewNormalizer returns a normalizer for one execution.
func NewNormalizer(o NormalizerOptions) *Normalizer {
	if o.Source == "" {
		o.Source = "claude"
		if o.Format == Transcript {
			o.Source = "transcript"
		}
	}
	if o.Provider == "" {
		o.Provider = "claude"
	}
	if o.Blocks == "" {
		o.Blocks = agent.BlocksFallback
	}
	return &Normalizer{
		opt:        o,
		started:    o.Started,
		session:    o.SessionID,
		prompt:     contentText(o.Prompt),
		sessions:   map[string]bool{o.SessionID: true},
		window:     make(map[string]int64),
		threads:    make(map[string]*thread),
		agents:     make(map[string]*thread),
		calls:      make(map[string]*call),
		asked:      make(map[string]bool),
		denied:     make(map[string]bool),
		todos:      make(map[string]*todos),
		seen:       make(map[string]sighting),
		seed:       maphash.MakeSeed(),
		sent:       make(map[string]Sent),
		counted:    make(map[string]bool),
		background: make(map[string]bool),
	}
}

// Sent tells that a message with a uuid was given to the agent, so that its echo is
// recognised: a user:message with that source and command.
func (n *Normalizer) Sent(uuid string, s Sent) { n.sent[uuid] = s }

// Busy reports whether the agent has work left after a result: sub-agents in
// the background, or their reports that it has not answered yet.
func (n *Normalizer) Busy() (running, reports int) { return len(n.background), n.notified }

// Line returns the events of one line, which arrived at the given time (Unix ms). The events don't
// share memory with line. Lines of a transcript have their own time.
func (n *Normalizer) Line(at int64, line []byte) []*wire.Event {
	n.begin(at)
	if len(trim(line)) == 0 {
		return nil
	}
	m, err := wire.RawFromJSON(line)
	if err != nil {
		n.malformed(line, err.Error())
		return n.release()
	}
	n.message(m, line)
	return n.release()
}

// release returns the events of the line. Those of a transcript wait for its
// first time.
func (n *Normalizer) release() []*wire.Event {
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
		if e.Timestamp == 0 {
			e.Timestamp = n.at
		}
	}
	return out
}

// TooLong returns the event of a line that was too long to be read.
func (n *Normalizer) TooLong(at int64, e *LineTooLongError) []*wire.Event {
	n.begin(at)
	n.malformed(e.Head, e.Error())
	return n.release()
}

func (n *Normalizer) begin(at int64) {
	n.line++
	n.out = nil
	if n.opt.Format == Stream {
		n.setTime(at)
	}
}

func (n *Normalizer) setTime(at int64) {
	n.at = at
	if n.first == 0 {
		n.first = at
	}
}

// malformed passes on a line that is no JSON: as a string if it is text, else
// as bytes.
func (n *Normalizer) malformed(line []byte, reason string) {
	n.emit(&wire.Event{Payload: &wire.RawMessage{
		Source: n.opt.Source, Name: "malformed", Data: text(line), Reason: reason, Line: n.line,
	}})
}

// message dispatches one line. line is its text.
func (n *Normalizer) message(m wire.Raw, line []byte) {
	typ := str(m, "type")
	if n.opt.Format == Transcript {
		if t := millis(str(m, "timestamp")); t != 0 {
			n.setTime(t)
		}
	}
	n.flushTokens(typ, m)
	uuid := str(m, "uuid")
	if uuid == "" || typ == "stream_event" {
		if !n.known(typ, m) {
			n.raw(m, "")
		}
		return
	}
	hash := maphash.Bytes(n.seed, line)
	switch before, again := n.seen[uuid]; {
	case again && before.hash == hash:
	case again && before.known:
		n.raw(m, "the uuid occurs twice")
	case n.known(typ, m):
		n.seen[uuid] = sighting{hash: hash, known: true}
	default:
		n.seen[uuid] = sighting{hash: hash}
		n.raw(m, "")
	}
}

// sighting is a line that was there before. Transcripts repeat lines: the same
// line counts once, another one under the uuid of a line that was understood is passed on.
type sighting struct {
	hash  uint64
	known bool
}

// known handles the lines that have events of their own. It reports false for
// a line that is to be passed on.
func (n *Normalizer) known(typ string, m wire.Raw) bool {
	switch typ {
	case "stream_event":
		return n.streamEvent(m)
	case "assistant":
		return n.assistant(m)
	case "user":
		return n.user(m)
	case "system":
		return n.system(m)
	case "result":
		return n.result(m)
	case "control_request":
		return n.controlRequest(m)
	case "attachment":
		return n.attachment(m)
	case "cost-state":
		n.costState(m)
	}
	return false
}

// raw passes a message on.
func (n *Normalizer) raw(m wire.Raw, reason string) {
	n.rawNamed(name(m), m, reason)
}

func (n *Normalizer) rawNamed(name string, data wire.Raw, reason string) {
	n.emit(&wire.Event{Payload: &wire.RawMessage{Source: n.opt.Source, Name: name, Data: data, Reason: reason}})
}

// name returns what a message calls itself, such as system/status.
func name(m wire.Raw) string {
	typ, sub := str(m, "type"), str(m, "subtype")
	switch typ {
	case "control_request":
		sub = str(m, "request", "subtype")
	case "control_response":
		sub = str(m, "response", "subtype")
	case "stream_event":
		if sub = str(m, "event", "delta", "type"); sub == "" {
			sub = str(m, "event", "type")
		}
	case "attachment":
		sub = str(m, "attachment", "type")
	case "progress":
		sub = str(m, "data", "type")
	}
	if sub == "" {
		return typ
	}
	return typ + "/" + sub
}

// emit appends an event, with what all events share.
func (n *Normalizer) emit(e *wire.Event) {
	e.Timestamp = n.at
	if e.SessionID == "" {
		e.SessionID = n.session
	}
	n.out = append(n.out, e)
}

// main appends an event of the main thread.
func (n *Normalizer) main(p wire.Payload) {
	n.emit(&wire.Event{Turn: n.turn, Payload: p})
}

// of appends an event of a thread.
func (n *Normalizer) of(t *thread, p wire.Payload) *wire.Event {
	e := &wire.Event{AgentID: t.agent, Parent: t.parent, Payload: p}
	if t.main {
		e.Turn = n.turn
	}
	n.emit(e)
	return e
}

// bind makes id the session; the first one begins the execution.
func (n *Normalizer) bind(m wire.Raw) {
	id := sessionOf(m)
	switch {
	case id == "" || n.started && id == n.session:
		return
	case !n.started:
		n.session, n.sessions[id] = id, true
		n.start(m)
	case !n.sessions[id]:
		old := n.session
		n.session, n.sessions[id] = id, true
		n.main(&wire.SessionBound{OldSession: old, NewSession: id})
	}
}

// start writes agent:start for input whose start wasn't ours.
func (n *Normalizer) start(m wire.Raw) {
	n.started = true
	prompt := n.opt.Prompt
	if prompt == nil && n.opt.Format == Transcript && str(m, "type") == "user" {
		prompt = get(m, "message", "content")
	}
	if prompt == nil {
		prompt = wire.Null
	}
	n.prompt = contentText(prompt)
	n.emit(&wire.Event{Payload: &wire.AgentStart{
		Model: str(m, "model"), Prompt: prompt, Provider: n.opt.Provider, Cwd: str(m, "cwd"),
	}})
}

// sessionOf returns the session id of a line, whichever way it is spelled.
func sessionOf(m wire.Raw) string {
	if id := str(m, "session_id"); id != "" {
		return id
	}
	return str(m, "sessionId")
}

// either returns the value under the first key that is there: streams and
// transcripts spell some fields differently.
func either(m wire.Raw, keys ...string) wire.Raw {
	for _, key := range keys {
		if v := m.Get(key); len(v) > 0 {
			return v
		}
	}
	return nil
}
