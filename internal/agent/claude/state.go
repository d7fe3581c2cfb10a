package claude

import (
	"maps"
	"slices"

	"code.wake.dev/wake/pkg/wire"
)

// stateVersion is that of [captureState]. A change of its fields, or of what they mean, adds
// one: a runner of another version must not go on from it. Version, turn and blocks stay where they are.
const stateVersion = 4

// state is what a session has to know to go on behind a point of the program's journal at which
// nothing is open but calls: no block, no request, no line to the program. What only such things need
// isn't in it.
type state struct {
	Version int `json:"version"`
	Turn    int `json:"turn"`
	Blocks  int `json:"blocks"`

	Lines      int             `json:"lines"` // of the program
	Index      int             `json:"index"` // events that were made of the last line
	InTurn     bool            `json:"inTurn"`
	Over       bool            `json:"over"`
	Stopped    bool            `json:"stopped"`
	Halting    bool            `json:"halting"`
	Begun      bool            `json:"begun"`   // the handshake was written
	Prompts    int             `json:"prompts"` // that were
	Answered   []string        `json:"answered"`
	Sent       []sentMessage   `json:"sent"`
	Waiting    []string        `json:"waiting"`
	Asked      []string        `json:"asked"`
	Normalizer normalizerState `json:"normalizer"`
}

type normalizerState struct {
	Line       int                    `json:"line"`
	Session    string                 `json:"session"`
	Sessions   []string               `json:"sessions"`
	Init       string                 `json:"init"`
	Model      string                 `json:"model"`
	Inits      int                    `json:"inits"`
	Window     map[string]int64       `json:"window"`
	Threads    []threadState          `json:"threads"`
	Agents     map[string]string      `json:"agents"` // keys of threads
	Calls      []callState            `json:"calls"`
	Open       []string               `json:"open"` // of Calls, in the order in which they began
	Asked      []string               `json:"asked"`
	Denied     []string               `json:"denied"`
	Todos      map[string][]wire.Todo `json:"todos"`
	Seen       []sightingState        `json:"seen"`
	Sent       []sentMessage          `json:"sent"`
	Prompt     string                 `json:"prompt"`
	Counted    map[string]int         `json:"counted"`
	Tally      tally                  `json:"tally"`
	Background []string               `json:"background"`
	Notified   int                    `json:"notified"`
}

type threadState struct {
	conversation

	GivenUp []blockState `json:"givenUp"`
}

type blockState struct {
	Kind    string `json:"kind"`
	Number  int    `json:"number"`
	Content string `json:"content"`
}

// callState is a call.
type callState struct {
	ID      string   `json:"id"`
	Thread  string   `json:"thread"`
	Message string   `json:"message"`
	Turn    int      `json:"turn"`
	Name    string   `json:"name"`
	Input   wire.Raw `json:"input"`
	At      int64    `json:"at"`
	Line    int      `json:"line"`

	Done      bool `json:"done"`
	Task      bool `json:"task"`
	Executing bool `json:"executing"`
	Adopted   bool `json:"adopted"`
}

type sightingState struct {
	UUID string `json:"uuid"`

	lineSighting
}

// isResting reports whether nothing is open but calls: no block, no question.
func (n *Normalizer) isResting() bool {
	if n.tokens != nil {
		return false
	}
	for _, t := range n.threads {
		for _, b := range t.blocks {
			if !b.whole || !b.matched && (b.kind == "text" || b.kind == "thinking") {
				return false
			}
		}
	}
	return true
}

// captureState returns what a normalizer that goes on from here has to know. The normalizer must be
// resting.
func (n *Normalizer) captureState() normalizerState {
	s := normalizerState{
		Line: n.line, Session: n.session, Sessions: slices.Sorted(maps.Keys(n.sessions)),
		Init: n.init, Model: n.model, Inits: n.inits, Window: n.window,
		Agents: make(map[string]string), Asked: slices.Sorted(maps.Keys(n.asked)), Denied: slices.Sorted(maps.Keys(n.denied)),
		Todos: make(map[string][]wire.Todo), Prompt: n.prompt, Counted: maps.Clone(n.counted),
		Tally: n.tally, Open: slices.Clone(n.open), Background: slices.Sorted(maps.Keys(n.background)), Notified: n.notified,
	}
	for _, key := range slices.Sorted(maps.Keys(n.threads)) {
		s.Threads = append(s.Threads, n.threads[key].captureState())
	}
	for id, t := range n.agents {
		s.Agents[id] = t.Key
	}
	for _, id := range slices.Sorted(maps.Keys(n.calls)) {
		c := n.calls[id]
		s.Calls = append(s.Calls, callState{
			ID: id, Thread: c.thread.Key, Message: c.message, Turn: c.turn, Name: c.name, Input: c.input, At: c.at, Line: c.line,
			Done: c.done, Task: c.task, Executing: c.executing, Adopted: c.adopted,
		})
	}
	for parent, l := range n.todos {
		s.Todos[parent] = l.items
	}
	for _, uuid := range slices.Sorted(maps.Keys(n.seen)) {
		s.Seen = append(s.Seen, sightingState{uuid, n.seen[uuid]})
	}
	for _, uuid := range slices.Sorted(maps.Keys(n.sent)) {
		s.Sent = append(s.Sent, sentMessage{uuid, n.sent[uuid]})
	}
	return s
}

// restoreState puts a new normalizer where the one of the state was.
func (n *Normalizer) restoreState(s state) {
	n.turn, n.blocks = s.Turn, s.Blocks
	x := s.Normalizer
	n.line, n.session, n.sessions = x.Line, x.Session, keySet(x.Sessions)
	n.init, n.model, n.inits, n.prompt = x.Init, x.Model, x.Inits, x.Prompt
	maps.Copy(n.window, x.Window)
	for _, t := range x.Threads {
		t.restoreState(n.threadOf(t.Key))
	}
	for id, key := range x.Agents {
		n.agents[id] = n.formerThread(key)
	}
	for _, c := range x.Calls {
		n.calls[c.ID] = &toolCall{
			thread: n.formerThread(c.Thread), message: c.Message, turn: c.Turn, name: c.Name, input: c.Input, at: c.At, line: c.Line,
			done: c.Done, task: c.Task, executing: c.Executing, adopted: c.Adopted,
		}
	}
	n.open = x.Open
	n.asked, n.denied, n.background = keySet(x.Asked), keySet(x.Denied), keySet(x.Background)
	for parent, items := range x.Todos {
		n.todos[parent] = &todos{items: items}
	}
	for _, l := range x.Seen {
		n.seen[l.UUID] = l.lineSighting
	}
	for _, m := range x.Sent {
		n.sent[m.UUID] = m.Sent
	}
	maps.Copy(n.counted, x.Counted)
	n.notified = x.Notified
	n.tally = x.Tally
	n.tally.Structured, n.tally.Denials = nilIfNull(n.tally.Structured), nilIfNull(n.tally.Denials)
}

// formerThread returns a thread of the state, or one that was forgotten.
func (n *Normalizer) formerThread(key string) *thread {
	if t := n.threads[key]; t != nil {
		return t
	}
	return &thread{conversation: conversation{Key: key}, givenUp: make(map[string]*block)}
}

func keySet(keys []string) map[string]bool {
	m := make(map[string]bool, len(keys))
	for _, key := range keys {
		m[key] = true
	}
	return m
}

func (t *thread) captureState() threadState {
	s := threadState{conversation: t.conversation}
	if !t.main { // the answer of a sub-agent is the result of its call
		s.Answer = ""
	}
	if t.Usage != nil {
		s.Usage = new(*t.Usage)
	}
	for _, kind := range slices.Sorted(maps.Keys(t.givenUp)) {
		b := t.givenUp[kind]
		s.GivenUp = append(s.GivenUp, blockState{Kind: kind, Number: b.number, Content: string(b.content)})
	}
	return s
}

func (s threadState) restoreState(t *thread) {
	t.conversation = s.conversation
	for _, b := range s.GivenUp {
		t.givenUp[b.Kind] = &block{kind: b.Kind, number: b.Number, content: []byte(b.Content), pieces: true}
	}
}

// nilIfNull returns nil for the null that stands for it in a state.
func nilIfNull(r wire.Raw) wire.Raw {
	if r.Any() == nil {
		return nil
	}
	return r
}
