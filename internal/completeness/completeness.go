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
	Reason  string `json:"reason,omitempty"` // why it can't be told
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
}

// String is the item in words.
func (i Item) String() string {
	text := i.Kind + " " + i.ID
	if i.Tool != "" {
		text += " (" + i.Tool + ")"
	}
	if i.Position != 0 {
		return fmt.Sprintf("%s, position %d", text, i.Position)
	}
	return fmt.Sprintf("%s, line %d", text, i.Line)
}

// String is the verdict in words.
func (v Verdict) String() string {
	switch v.Verdict {
	case StreamShort:
		return fmt.Sprintf("stream short by %d", v.StreamShort)
	case TranscriptShort:
		return fmt.Sprintf("transcript short by %d", v.TranscriptShort)
	case BothShort:
		return fmt.Sprintf("stream short by %d, transcript short by %d", v.StreamShort, v.TranscriptShort)
	case Unknown:
		return Unknown + ": " + v.Reason
	}
	return v.Verdict
}

// Feed is what one side tells, in order, each item once.
type Feed struct {
	session string
	items   []Item
	known   map[Item]bool // by kind and id
	ended   bool          // a result is the last word
}

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

// synthetic is the model of messages that no model has written, of which each feed has its own.
const synthetic = "<synthetic>"

// Read reads the lines of either feed. What sub-agents do is left out: a stream has it or not, and a
// session has files of its own for it. A line that is none, or too long, is left out too.
func Read(lines iter.Seq2[[]byte, error]) Feed {
	f := Feed{known: map[Item]bool{}}
	number := 0
	for text, err := range lines {
		number++
		var l line
		if err != nil || json.Unmarshal(text, &l) != nil {
			continue
		}
		if f.session == "" {
			f.session = l.SessionID + l.Session
		}
		f.ended = l.Type == "result" || f.ended && l.Type == "system"
		if l.Parent != nil && *l.Parent != "" || l.Sidechain || l.Message.Model == synthetic {
			continue
		}
		var blocks []struct {
			Type string `json:"type"`
			ID   string `json:"id"`
			Name string `json:"name"`
			For  string `json:"tool_use_id"`
		}
		_ = json.Unmarshal(l.Message.Content, &blocks) // a text alone has none
		if l.Type == "assistant" {
			f.add(Item{Kind: "message", ID: l.Message.ID, Line: number})
		}
		for _, b := range blocks {
			switch {
			case l.Type == "assistant" && b.Type == "tool_use":
				f.add(Item{Kind: "call", ID: b.ID, Tool: b.Name, Line: number})
			case l.Type == "user" && b.Type == "tool_result":
				f.add(Item{Kind: "result", ID: b.For, Line: number})
			}
		}
	}
	return f
}

// NewFeed returns the feed of a session of which the log is to tell, see [Feed.AddEvent].
func NewFeed(session string) *Feed { return &Feed{session: session, known: map[Item]bool{}} }

// AddEvent adds what the log tells at a position, if it is of the feed's session and not of a sub-agent.
func (f *Feed) AddEvent(e *wire.Event, pos uint64) {
	if e.SessionID != f.session || e.Parent != "" {
		return
	}
	call := func(tool string) { f.add(Item{Kind: "call", ID: e.CallID, Tool: tool, Position: pos}) }
	switch p := e.Payload.(type) {
	case *wire.Usage:
		if p.Model != synthetic {
			f.add(Item{Kind: "message", ID: p.MessageID, Position: pos})
		}
	case *wire.ToolIntent:
		call(p.ToolName)
	case *wire.AgentTool:
		call(p.ToolName)
		f.add(Item{Kind: "result", ID: e.CallID, Position: pos})
	case *wire.AgentComplete:
		f.ended = true
	}
}

func (f *Feed) add(i Item) {
	key := Item{Kind: i.Kind, ID: i.ID}
	if i.ID != "" && !f.known[key] {
		f.known[key] = true
		f.items = append(f.items, i)
	}
}

func (f *Feed) has(i Item) bool { return f.known[Item{Kind: i.Kind, ID: i.ID}] }

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
var ranks = []string{"", Complete, Unknown, TranscriptShort, StreamShort, BothShort} //nolint:gochecknoglobals // a table

// Worse returns the worse one of two verdicts, of which "" is none yet.
func Worse(a, b string) string {
	if slices.Index(ranks, b) > slices.Index(ranks, a) {
		return b
	}
	return a
}

// Short are the verdicts that say that one of the feeds lacks something.
var Short = []string{TranscriptShort, StreamShort, BothShort} //nolint:gochecknoglobals // a table

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
// several processes, so what the file has before the stream begins is no loss; nor is what it has behind a stream
// that came to its result.
func Compare(stream, transcript Feed) Verdict {
	switch {
	case len(stream.items) == 0 || len(transcript.items) == 0:
		return Verdict{Verdict: Unknown, Reason: "one of them has no message"}
	case stream.session != "" && transcript.session != "" && stream.session != transcript.session:
		return Verdict{Verdict: Unknown, Reason: "they are of different sessions"}
	}
	shared := func(i Item) bool { return stream.has(i) }
	first := slices.IndexFunc(transcript.items, shared)
	if first < 0 {
		return Verdict{Verdict: Unknown, Reason: "they have nothing in common"}
	}
	part := transcript.items[first:]
	if stream.ended {
		for len(part) > 0 && !shared(part[len(part)-1]) {
			part = part[:len(part)-1]
		}
	}
	v := Verdict{Verdict: Complete}
	for _, i := range part {
		if shared(i) {
			v.Shared++
			continue
		}
		if v.StreamShort++; len(v.StreamLacks) < MaxEvidence {
			v.StreamLacks = append(v.StreamLacks, i)
		}
	}
	for _, i := range stream.items {
		if transcript.has(i) {
			continue
		}
		if v.TranscriptShort++; len(v.TranscriptLacks) < MaxEvidence {
			v.TranscriptLacks = append(v.TranscriptLacks, i)
		}
	}
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
