package claude

import (
	"maps"
	"slices"

	"code.wake.dev/wake/pkg/wire"
)

// stateVersion is that of [captureState]. A change of its fields, or of what they mean, adds
// one: a runner of another version must not go on from it. Version, turn and blocks stay where they are.
const stateVersion = 3

// state is what a session has to know to go on behind a point of the program's journal at which
// nothing is open: no block, no call, no request, no line to the program. What only such things need
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
	Sent       []sentState     `json:"sent"`
	Waiting    []string        `json:"waiting"`
	Asked      []string        `json:"asked"`
	Normalizer normalizerState `json:"normalizer"`
}

type sentState struct {
	UUID      string `json:"uuid"`
	Source    string `json:"source"`
	CommandID string `json:"commandId"`
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
	Asked      []string               `json:"asked"`
	Denied     []string               `json:"denied"`
	Todos      map[string][]wire.Todo `json:"todos"`
	Seen       []sightingState        `json:"seen"`
	Sent       []sentState            `json:"sent"`
	Prompt     string                 `json:"prompt"`
	Counted    map[string]int         `json:"counted"`
	Tally      tallyState             `json:"tally"`
	Background []string               `json:"background"`
	Notified   int                    `json:"notified"`
}

type threadState struct {
	Key      string       `json:"key"`
	Parent   string       `json:"parent"`
	Agent    string       `json:"agent"`
	Line     int          `json:"line"`
	Message  string       `json:"message"`
	Model    string       `json:"model"`
	Begun    bool         `json:"begun"`
	Produced bool         `json:"produced"`
	Streamed bool         `json:"streamed"`
	Usage    *usageState  `json:"usage"`
	GivenUp  []blockState `json:"givenUp"`
	Answer   string       `json:"answer"`
	Owner    string       `json:"owner"`
	Stop     string       `json:"stop"`
}

type usageState struct {
	ID      string `json:"id"`
	Model   string `json:"model"`
	Stop    string `json:"stop"`
	Known   bool   `json:"known"`
	Input   int64  `json:"input"`
	Output  int64  `json:"output"`
	Hour    int64  `json:"hour"`
	Created *int64 `json:"created"`
	Read    *int64 `json:"read"`
}

type blockState struct {
	Kind    string `json:"kind"`
	Number  int    `json:"number"`
	Content string `json:"content"`
}

// callState is a call that has ended.
type callState struct {
	ID     string `json:"id"`
	Thread string `json:"thread"`
	Turn   int    `json:"turn"`
	Name   string `json:"name"`
	Line   int    `json:"line"`
}

type sightingState struct {
	UUID  string `json:"uuid"`
	Line  int    `json:"line"`
	Hash  string `json:"hash"`
	Known bool   `json:"known"`
}

type tallyState struct {
	Active     bool                       `json:"active"`
	Asked      bool                       `json:"asked"`
	Failed     string                     `json:"failed"`
	CutOff     bool                       `json:"cutOff"`
	Results    int                        `json:"results"`
	Result     string                     `json:"result"`
	Stop       string                     `json:"stop"`
	Outcome    uint8                      `json:"outcome"`
	Structured wire.Raw                   `json:"structured"`
	Denials    wire.Raw                   `json:"denials"`
	Turns      tokensState                `json:"turns"`
	Messages   tokensState                `json:"messages"`
	Models     map[string]wire.ModelUsage `json:"models"`
	Total      map[string]wire.ModelUsage `json:"total"`
	Cost       float64                    `json:"cost"`
	CostTotal  float64                    `json:"costTotal"`
	Priced     bool                       `json:"priced"`
	DurationMs int64                      `json:"durationMs"`
	NumTurns   int64                      `json:"numTurns"`
}

type tokensState struct {
	Input   int64  `json:"input"`
	Output  int64  `json:"output"`
	Created *int64 `json:"created"`
	Read    *int64 `json:"read"`
}

// isResting reports whether nothing is open: no block, no call, no question.
func (n *Normalizer) isResting() bool {
	for _, id := range n.open {
		if !n.calls[id].done {
			return false
		}
	}
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
		Tally: n.tally.captureState(), Background: slices.Sorted(maps.Keys(n.background)), Notified: n.notified,
	}
	for _, key := range slices.Sorted(maps.Keys(n.threads)) {
		s.Threads = append(s.Threads, n.threads[key].captureState())
	}
	for id, t := range n.agents {
		s.Agents[id] = t.key
	}
	for _, id := range slices.Sorted(maps.Keys(n.calls)) {
		c := n.calls[id]
		s.Calls = append(s.Calls, callState{ID: id, Thread: c.thread.key, Turn: c.turn, Name: c.name, Line: c.line})
	}
	for parent, l := range n.todos {
		s.Todos[parent] = l.items
	}
	for _, uuid := range slices.Sorted(maps.Keys(n.seen)) {
		x := n.seen[uuid]
		s.Seen = append(s.Seen, sightingState{UUID: uuid, Line: x.line, Hash: x.hash, Known: x.known})
	}
	for _, uuid := range slices.Sorted(maps.Keys(n.sent)) {
		s.Sent = append(s.Sent, sentState{UUID: uuid, Source: n.sent[uuid].Source, CommandID: n.sent[uuid].CommandID})
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
		n.calls[c.ID] = &toolCall{thread: n.formerThread(c.Thread), turn: c.Turn, name: c.Name, line: c.Line, done: true}
	}
	n.asked, n.denied, n.background = keySet(x.Asked), keySet(x.Denied), keySet(x.Background)
	for parent, items := range x.Todos {
		n.todos[parent] = &todos{items: items}
	}
	for _, l := range x.Seen {
		n.seen[l.UUID] = lineSighting{line: l.Line, hash: l.Hash, known: l.Known}
	}
	for _, m := range x.Sent {
		n.sent[m.UUID] = Sent{Source: m.Source, CommandID: m.CommandID}
	}
	maps.Copy(n.counted, x.Counted)
	n.notified = x.Notified
	n.tally.restoreState(x.Tally)
}

// formerThread returns a thread of the state, or one that was forgotten.
func (n *Normalizer) formerThread(key string) *thread {
	if t := n.threads[key]; t != nil {
		return t
	}
	return &thread{key: key, givenUp: make(map[string]*block)}
}

func keySet(keys []string) map[string]bool {
	m := make(map[string]bool, len(keys))
	for _, key := range keys {
		m[key] = true
	}
	return m
}

func (t *thread) captureState() threadState {
	s := threadState{
		Key: t.key, Parent: t.parent, Agent: t.agent, Line: t.line, Message: t.message, Model: t.model,
		Begun: t.begun, Produced: t.produced, Streamed: t.streamed, Owner: t.owner, Stop: t.stop,
	}
	if t.main { // the answer of a sub-agent is the result of its call
		s.Answer = t.answer
	}
	if u := t.usage; u != nil {
		s.Usage = &usageState{
			ID: u.id, Model: u.model, Stop: u.stop, Known: u.known, Input: u.input, Output: u.output, Hour: u.hour, Created: u.created, Read: u.read_,
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(t.givenUp)) {
		b := t.givenUp[kind]
		s.GivenUp = append(s.GivenUp, blockState{Kind: kind, Number: b.number, Content: string(b.content)})
	}
	return s
}

func (s threadState) restoreState(t *thread) {
	t.parent, t.agent, t.line, t.message, t.model = s.Parent, s.Agent, s.Line, s.Message, s.Model
	t.begun, t.produced, t.streamed, t.answer, t.owner, t.stop = s.Begun, s.Produced, s.Streamed, s.Answer, s.Owner, s.Stop
	if u := s.Usage; u != nil {
		t.usage = &callUsage{
			id: u.ID, model: u.Model, stop: u.Stop, known: u.Known, input: u.Input, output: u.Output, hour: u.Hour, created: u.Created, read_: u.Read,
		}
	}
	for _, b := range s.GivenUp {
		t.givenUp[b.Kind] = &block{kind: b.Kind, number: b.Number, content: []byte(b.Content), pieces: true}
	}
}

func (y *tally) captureState() tallyState {
	return tallyState{
		Active: y.active, Asked: y.asked, Failed: y.failed, CutOff: y.cutOff, Results: y.results, Result: y.result, Stop: y.stop,
		Outcome: uint8(y.outcome), Structured: y.structured, Denials: y.denials, Turns: y.turns.captureState(), Messages: y.messages.captureState(),
		Models: y.models, Total: y.total, Cost: y.cost, CostTotal: y.costTotal, Priced: y.priced, DurationMs: y.durationMs, NumTurns: y.numTurns,
	}
}

func (y *tally) restoreState(s tallyState) {
	*y = tally{
		active: s.Active, asked: s.Asked, failed: s.Failed, cutOff: s.CutOff, results: s.Results, result: s.Result, stop: s.Stop,
		outcome: outcome(s.Outcome), structured: nilIfNull(s.Structured), denials: nilIfNull(s.Denials), turns: s.Turns.toTokens(), messages: s.Messages.toTokens(),
		models: s.Models, total: s.Total, cost: s.Cost, costTotal: s.CostTotal, priced: s.Priced, durationMs: s.DurationMs, numTurns: s.NumTurns,
	}
}

// nilIfNull returns nil for the null that stands for it in a state.
func nilIfNull(r wire.Raw) wire.Raw {
	if r.Any() == nil {
		return nil
	}
	return r
}

func (t tokens) captureState() tokensState { return tokensState{t.input, t.output, t.created, t.read} }

func (s tokensState) toTokens() tokens {
	return tokens{input: s.Input, output: s.Output, created: s.Created, read: s.Read}
}
