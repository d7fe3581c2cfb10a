// Package completeness compares the two feeds that tell of one session of an agent, what it printed and the
// session file that it kept, and says what only one of them has.
package completeness

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// The words of a verdict.
const (
	Complete        = "complete"
	StreamShort     = "stream short"
	TranscriptShort = "transcript short"
	BothShort       = "both short"
	Unknown         = "can't tell"
)

// Verdict says whether two feeds tell the same.
type Verdict struct {
	Verdict string `json:"verdict"`
	Reason  string `json:"reason,omitempty"` // why it can't be told, or of what
	Shared  int    `json:"shared"`           // messages, calls and results that both have
	// What only the other feed has, at most [MaxEvidence] each.
	StreamLacks     []Item `json:"streamLacks,omitempty"`
	TranscriptLacks []Item `json:"transcriptLacks,omitempty"`
	StreamShort     int    `json:"streamShort,omitempty"` // how many it lacks
	TranscriptShort int    `json:"transcriptShort,omitempty"`
}

// MaxEvidence bounds what is listed of either side.
const MaxEvidence = 50

// Item is what a feed tells of once.
type Item struct {
	Kind string `json:"kind"` // message, call or result
	ID   string `json:"id"`
	Tool string `json:"tool,omitempty"`
	Line int    `json:"line,omitempty"` // of the file that has it
	// Position is where the log has it, if that is the feed.
	Position uint64 `json:"position,omitempty"`
	// Agent is the sub-agent that it is of: in a stream the call that began it, in a session the name of its file.
	Agent string `json:"agent,omitempty"`

	words  bool   // a message that makes no call
	prompt int    // how many messages of the user came before it, in a file
	epoch  uint64 // of its writer
}

// String is the item in words.
func (i Item) String() string {
	text := i.Kind + " " + i.ID
	if i.Tool != "" {
		text += " (" + i.Tool + ")"
	}
	if i.Position != 0 {
		text += fmt.Sprintf(", position %d", i.Position)
	} else {
		text += fmt.Sprintf(", line %d", i.Line)
	}
	if i.Agent != "" {
		text += " of sub-agent " + i.Agent
	}
	return text
}

// String is the verdict in words.
func (v Verdict) String() string {
	switch v.Verdict {
	case StreamShort:
		return fmt.Sprintf("stream short by %d", v.StreamShort)
	case TranscriptShort:
		if v.Reason != "" {
			return fmt.Sprintf("transcript short by %d; %s", v.TranscriptShort, v.Reason)
		}
		return fmt.Sprintf("transcript short by %d", v.TranscriptShort)
	case BothShort:
		return fmt.Sprintf("stream short by %d, transcript short by %d", v.StreamShort, v.TranscriptShort)
	case Unknown:
		return Unknown + ": " + v.Reason
	}
	if v.Reason != "" {
		return v.Verdict + ", but " + v.Reason
	}
	return v.Verdict
}

// Feed is what one side tells, in order, each item once.
type Feed struct {
	session string
	items   []Item
	known   map[Item]int // by kind and id, the place in items
	ended   bool         // a result is the last word
	agents  []subAgent   // those that have files in a session
	partial bool         // files of sub-agents may be elsewhere
	prompts int          // messages of the user so far, in all files
	cut     bool         // there is more than maxItems
	printed map[uint64]bool
}

// The bounds of a feed, of which the agent writes the ids and names: longer ids are left out, and names are cut, in bytes.
const (
	maxItems = 100_000
	maxID    = 512
	maxName  = 128
)

// subAgent is a sub-agent that has a file of its own.
type subAgent struct{ file, call string }

// line is what both kinds of lines have in common.
type line struct {
	Type      string  `json:"type"`
	SessionID string  `json:"session_id"`
	Session   string  `json:"sessionId"`
	Parent    *string `json:"parent_tool_use_id"`
	Sidechain bool    `json:"isSidechain"`
	Message   struct {
		ID      string          `json:"id"`
		Model   string          `json:"model"`
		Content json.RawMessage `json:"content"`
	} `json:"message"`
}

// block is a part of a message.
type block struct {
	Type string `json:"type"`
	ID   string `json:"id"`
	Name string `json:"name"`
	For  string `json:"tool_use_id"`
}

// synthetic is the model of messages that no model has written; each feed has its own.
const synthetic = "<synthetic>"

// sidechain is the sub-agent of lines that stand among those of the session: older versions don't name the sub-agent of such a line.
const sidechain = "sidechain"

// Read reads the lines of either feed. A line that is none, or too long, is left out.
func Read(lines iter.Seq2[[]byte, error]) Feed {
	f := Feed{known: map[Item]int{}}
	f.readLines(lines, "")
	return f
}

// ReadAgent reads the file that a session has of a sub-agent, and of the call that began it, if that is known.
func (f *Feed) ReadAgent(file, call string, lines iter.Seq2[[]byte, error]) {
	f.agents = append(f.agents, subAgent{file, call})
	f.readLines(lines, file)
}

// Session is the session that the feed is of, "" if it doesn't say.
func (f *Feed) Session() string { return f.session }

// MarkPartial says that files of sub-agents may be where no reader looks, such as on another machine.
func (f *Feed) MarkPartial() { f.partial = true }

func (f *Feed) readLines(lines iter.Seq2[[]byte, error], agent string) {
	number := 0
	for text, err := range lines {
		number++
		var l line
		if err != nil || json.Unmarshal(text, &l) != nil {
			continue
		}
		of := agent
		switch {
		case of != "":
		case l.Parent != nil && *l.Parent != "":
			of = *l.Parent
		case l.Sidechain:
			of = sidechain
		}
		if agent == "" {
			if f.session == "" {
				f.session = l.SessionID + l.Session
			}
			f.ended = l.Type == "result" || f.ended && l.Type == "system"
		}
		if l.Message.Model != synthetic {
			f.addLine(l, number, of)
		}
	}
}

func (f *Feed) addLine(l line, number int, agent string) {
	var blocks []block
	_ = json.Unmarshal(l.Message.Content, &blocks) // a text alone has none
	if l.Type == "user" && !slices.ContainsFunc(blocks, func(b block) bool { return b.Type == "tool_result" }) {
		f.prompts++
	}
	message := Item{Kind: "message", ID: l.Message.ID, Line: number, Agent: agent, words: true}
	if l.Type == "assistant" {
		f.add(message)
	}
	for _, b := range blocks {
		switch {
		case l.Type == "assistant" && b.Type == "tool_use":
			if at, ok := f.known[message.key()]; ok {
				f.items[at].words = false
			}
			f.add(Item{Kind: "call", ID: b.ID, Tool: b.Name, Line: number, Agent: agent})
		case l.Type == "user" && b.Type == "tool_result":
			f.add(Item{Kind: "result", ID: b.For, Line: number, Agent: agent})
		}
	}
}

// NewFeed returns the feed of a session that the log is to tell of, see [Feed.AddEvent].
func NewFeed(session string) *Feed { return &Feed{session: session, known: map[Item]int{}} }

// AddEvent adds what the log tells at a position, if it is of the feed's session.
func (f *Feed) AddEvent(e *wire.Event, pos uint64) {
	if e.SessionID != f.session {
		return
	}
	add := func(kind, id, tool string) {
		f.add(Item{Kind: kind, ID: id, Tool: tool, Position: pos, Agent: e.Parent, epoch: e.Epoch})
	}
	switch p := e.Payload.(type) {
	case *wire.Usage:
		if p.Model != synthetic {
			add("message", p.MessageID, "")
		}
	case *wire.ToolIntent:
		add("call", e.CallID, p.ToolName)
	case *wire.AgentTool:
		add("call", e.CallID, p.ToolName)
		add("result", e.CallID, "")
	case *wire.AgentComplete:
		f.ended = true
	}
}

// AddMessage adds a message that the log is known to have at a position: the usage by which [Feed.AddEvent] knows it may come later.
func (f *Feed) AddMessage(id string, epoch, pos uint64) {
	f.add(Item{Kind: "message", ID: id, Position: pos, epoch: epoch})
}

// MarkPrinted leaves out what the log has from a stream: what [Feed.AddEvent] has added in that epoch of the session's node.
func (f *Feed) MarkPrinted(epoch uint64) {
	if f.printed == nil {
		f.printed = map[uint64]bool{}
	}
	f.printed[epoch] = true
}

// AddHook adds what a hook tells at a position: that a call has its result.
func (f *Feed) AddHook(e *wire.Event, pos uint64) {
	if p, is := e.Payload.(*wire.HookFired); is && e.CallID != "" {
		f.add(Item{Kind: "result", ID: e.CallID, Tool: p.HookName, Position: pos})
	}
}

// CompareHooks says whether the session file has what hooks have told; not if they have told nothing. Hooks that nothing heard prove nothing.
func CompareHooks(hooks, transcript Feed) (v Verdict, ok bool) {
	if hooks.cut || transcript.cut {
		return endlessVerdict(), true
	}
	v.Verdict = Complete
	v.addLacking(hooks, transcript)
	v.Shared = len(hooks.items) - v.TranscriptShort
	if v.TranscriptShort > 0 {
		v.Verdict = TranscriptShort
	}
	return v, len(hooks.items) > 0
}

func (f *Feed) add(i Item) {
	if i.ID == "" || len(i.ID) > maxID || len(i.Agent) > maxID {
		return
	}
	switch at, known := f.known[i.key()]; {
	case known && f.printed[f.items[at].epoch]:
		f.items[at].epoch = i.epoch // the file has it, too
	case known:
	case len(f.items) == maxItems:
		f.cut = true
	default:
		i.prompt, i.Tool = f.prompts, strings.ToValidUTF8(i.Tool[:min(len(i.Tool), maxName)], "")
		f.known[i.key()] = len(f.items)
		f.items = append(f.items, i)
	}
}

func endlessVerdict() Verdict {
	return Verdict{Verdict: Unknown, Reason: fmt.Sprintf("one of them has more than %d messages, calls and results", maxItems)}
}

func (i Item) key() Item { return Item{Kind: i.Kind, ID: i.ID} }

func (f *Feed) has(i Item) bool {
	at, ok := f.known[i.key()]
	return ok && !f.printed[f.items[at].epoch]
}

// itemsOf returns the items of a sub-agent, "" of the session's own agent.
func (f *Feed) itemsOf(agent string) (items []Item) {
	for _, i := range f.items {
		if i.Agent == agent && !f.printed[i.epoch] {
			items = append(items, i)
		}
	}
	return items
}

// Check fails for a verdict that [Compare] can't have given.
func (v Verdict) Check() error {
	switch v.Verdict {
	case Complete, StreamShort, TranscriptShort, BothShort, Unknown:
	default:
		return fmt.Errorf("%q is no verdict", v.Verdict)
	}
	if v.Shared < 0 || v.StreamShort < 0 || v.TranscriptShort < 0 || len(v.StreamLacks) > MaxEvidence || len(v.TranscriptLacks) > MaxEvidence {
		return errors.New("its counts are none")
	}
	return nil
}

// ranks are the verdicts, the better ones first.
var ranks = []string{"", Complete, Unknown, TranscriptShort, StreamShort, BothShort}

// Worse returns the worse one of two verdicts, of which "" is none yet.
func Worse(a, b string) string {
	if slices.Index(ranks, b) > slices.Index(ranks, a) {
		return b
	}
	return a
}

// Short are the verdicts that say that one of the feeds lacks something.
var Short = []string{TranscriptShort, StreamShort, BothShort}

// Event is the verdict as the log has it.
func (v Verdict) Event() *wire.SessionCompared {
	return &wire.SessionCompared{
		Verdict: v.Verdict, Reason: v.Reason, Shared: v.Shared, StreamShort: v.StreamShort, TranscriptShort: v.TranscriptShort,
		StreamLacks: itemTexts(v.StreamLacks), TranscriptLacks: itemTexts(v.TranscriptLacks),
	}
}

func itemTexts(items []Item) (texts []string) {
	for _, i := range items {
		texts = append(texts, strings.ToValidUTF8(i.String(), "?"))
	}
	return texts
}

// Compare says whether a stream and the session file of the same session tell the same. A session goes on over
// several processes, so what the file has before the prompt of the stream is no loss; nor is what it has behind a stream
// that came to its result, from the next prompt on. So it is with files of sub-agents, of which the stream has the call that began them, or
// something they did.
func Compare(stream, transcript Feed) Verdict {
	switch {
	case stream.cut || transcript.cut:
		return endlessVerdict()
	case len(stream.items) == 0 || len(transcript.items) == 0:
		return Verdict{Verdict: Unknown, Reason: "one of them has no message"}
	case stream.session != "" && transcript.session != "" && stream.session != transcript.session:
		return Verdict{Verdict: Unknown, Reason: "they are of different sessions"}
	}
	part, earlier, later := overlappingItems(transcript.itemsOf(""), stream, true, stream.ended)
	if len(part) == 0 {
		return Verdict{Verdict: Unknown, Reason: "they have nothing in common"}
	}
	v := Verdict{Verdict: Complete}
	v.addParts(stream, transcript, part, earlier, later)
	v.addLacking(stream, transcript)
	switch {
	case v.StreamShort > 0 && v.TranscriptShort > 0:
		v.Verdict = BothShort
	case v.StreamShort > 0:
		v.Verdict = StreamShort
	case v.TranscriptShort > 0:
		v.Verdict = TranscriptShort
	}
	return v
}

// overlappingItems returns the part of the items in which the stream can have told something, and whether there are some
// before and behind it: with begin it begins with the prompt of what the stream has first, with end it ends before the prompt
// that follows what it has last.
func overlappingItems(items []Item, stream Feed, begin, end bool) (part []Item, earlier, later bool) {
	first := slices.IndexFunc(items, stream.has)
	if first < 0 {
		return nil, len(items) > 0, false
	}
	for first > 0 && (!begin || items[first-1].isWith(items[first])) {
		first--
	}
	last := len(items)
	for final := lastShared(items, stream); end && last-1 > final && !items[last-1].isWith(items[final]); {
		last--
	}
	return items[first:last], first > 0, last < len(items)
}

// isWith reports whether two items of a session's own agent are of the answer to the same prompt, if a prompt is known. A
// sub-agent has one for all processes.
func (i Item) isWith(o Item) bool { return i.Agent == "" && i.prompt > 0 && i.prompt == o.prompt }

// lastShared returns the place of the last item that the stream has, too.
func lastShared(items []Item, stream Feed) int {
	last := len(items) - 1
	for last > 0 && !stream.has(items[last]) {
		last--
	}
	return last
}

// addParts counts what of the session, and of the sub-agents that it has begun there, the stream has.
func (v *Verdict) addParts(stream, transcript Feed, part []Item, earlier, later bool) {
	begun := map[string]bool{} // calls that are in the part, or in the stream
	agents := transcript.agents
	if len(transcript.itemsOf(sidechain)) > 0 {
		agents = append(slices.Clone(agents), subAgent{file: sidechain})
	}
	var parts [][]Item
	for len(part) > 0 {
		parts = append(parts, part)
		for _, i := range part {
			begun[i.ID] = begun[i.ID] || i.Kind == "call"
		}
		part = nil
		for n, a := range agents {
			items := transcript.itemsOf(a.file)
			told := slices.ContainsFunc(items, stream.has)
			if told {
				items, _, _ = overlappingItems(items, stream, earlier, later)
			} else if len(items) == 0 || !begun[a.call] && !stream.has(Item{Kind: "call", ID: a.call}) {
				continue
			}
			part, agents = items, slices.Delete(slices.Clone(agents), n, n+1)
			break
		}
	}
	// Older versions print the calls of sub-agents only, and what they say at last as the result of their call.
	spoken := slices.ContainsFunc(transcript.items, func(i Item) bool { return i.Agent != "" && i.words && stream.has(i) })
	for _, i := range slices.Concat(parts...) {
		switch {
		case stream.has(i):
			v.Shared++
		case i.Agent != "" && i.words && !spoken:
		default:
			if v.StreamShort++; len(v.StreamLacks) < MaxEvidence {
				v.StreamLacks = append(v.StreamLacks, i)
			}
		}
	}
}

// addLacking counts what only the stream has. Of sub-agents without a file that can't be told if such files
// are elsewhere.
func (v *Verdict) addLacking(stream, transcript Feed) {
	kept := map[string]bool{} // sub-agents of which the session has something
	for _, i := range stream.items {
		kept[i.Agent] = kept[i.Agent] || transcript.has(i)
	}
	elsewhere := transcript.partial || len(transcript.agents) == 0
	unseen := map[string]bool{}
	for _, i := range stream.items {
		switch {
		case transcript.has(i):
		case i.Agent != "" && !kept[i.Agent] && elsewhere:
			unseen[i.Agent] = true
		default:
			if v.TranscriptShort++; len(v.TranscriptLacks) < MaxEvidence {
				v.TranscriptLacks = append(v.TranscriptLacks, i)
			}
		}
	}
	switch len(unseen) {
	case 0:
	case 1:
		v.Reason = "of a sub-agent there is no session file"
	default:
		v.Reason = fmt.Sprintf("of %d sub-agents there is no session file", len(unseen))
	}
}
