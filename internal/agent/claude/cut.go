package claude

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// prefix is what the log tells of a conversation up to the point at which its run was forked. The program can cut a
// session only behind a message that has an id there: neither behind a prompt nor at a call that was sealed.
type prefix struct {
	said    map[string]bool // what the agent was told, or the id of it
	points  map[string]bool // ids of what it was told, and of results
	calls   map[string]bool // that it has made
	results []*wire.Event   // of these, in order
	ended   map[string]bool // those that had their result before the fork
	whole   bool            // the agent had said its last word
	session string          // of the copy
}

// forkPrefix reads the prefix of a fork that hasn't worked yet. It is nil if the request is for no such fork.
func forkPrefix(r agent.Request) (*prefix, error) {
	if r.ForkOf == "" || r.ForkOf == r.SessionID || r.History == nil {
		return nil, nil
	}
	p := &prefix{said: map[string]bool{}, points: map[string]bool{}, calls: map[string]bool{}, ended: map[string]bool{}, session: r.SessionID}
	inherited := false
	for e, err := range r.History {
		switch {
		case err != nil:
			return nil, err
		case e.RunID != r.RunID:
			inherited = true
			p.observe(e)
		case e.Type() == wire.TypeTurnStart: // then it is the fork's own session that is taken back
			return nil, nil
		case e.Type() == wire.TypeAgentTool:
			p.addResult(e) // of a call that was sealed here: what its parent came to know of it isn't the fork's
		}
	}
	if !inherited {
		return nil, nil
	}
	delete(p.said, "")
	delete(p.points, "")
	return p, nil
}

func (p *prefix) observe(e *wire.Event) {
	if e.Parent != "" {
		return
	}
	switch payload := e.Payload.(type) {
	case *wire.AgentStart:
		text, _ := payload.Prompt.Text()
		p.said[text], p.whole = true, false
	case *wire.UserMessage:
		p.said[payload.Content], p.said[payload.Point], p.points[payload.Point], p.whole = true, true, true, false
	case *wire.ToolIntent:
		p.calls[e.CallID], p.whole = true, false
	case *wire.AgentTool:
		p.addResult(e)
		p.ended[e.CallID], p.points[payload.Point] = true, true
	case *wire.AgentComplete:
		p.whole = true
	}
}

func (p *prefix) addResult(e *wire.Event) {
	if e.Parent == "" && p.calls[e.CallID] && !p.ended[e.CallID] {
		p.results = append(p.results, e)
	}
}

// sessionLine is what is needed of a line of a session file to tell whether a prefix has it.
type sessionLine struct {
	fileEntry

	Type    string `json:"type"`
	Meta    bool   `json:"isMeta"`
	Summary bool   `json:"isCompactSummary"`
}

// text returns what a line of the user says.
func (l sessionLine) text() string {
	var text string
	if json.Unmarshal(l.Message.Content, &text) == nil {
		return text
	}
	var blocks []struct{ Text string }
	_ = json.Unmarshal(l.Message.Content, &blocks) // else it says nothing
	parts := make([]string, len(blocks))
	for i, b := range blocks {
		parts[i] = b.Text
	}
	return strings.Join(parts, "\n")
}

// standing is whether a prefix has a line.
type standing int

const (
	either standing = iota // if it has one that follows
	within
	beyond
)

// judge says whether the prefix has a line; first: it has no line before this one.
func (p *prefix) judge(l sessionLine, first bool) standing {
	blocks := l.contentBlocks()
	decided := either
	for _, b := range blocks {
		var known bool
		switch b.Type {
		case "tool_use":
			known = p.calls[b.ID]
		case "tool_result":
			known = p.ended[b.ToolUseID]
		default:
			continue
		}
		if !known {
			return beyond
		}
		decided = within
	}
	switch {
	case p.said[l.Attachment.SourceUUID]: // a message that was sent while the agent worked
		return within
	case decided == within, l.Type != "user" || l.Meta || l.Summary:
		return decided
	case first, p.said[l.UUID], p.said[l.text()]:
		return within
	}
	return beyond
}

// cut returns the lines of a session file that the prefix has, and the last one's id. It is empty if the file isn't
// of this conversation.
func (p *prefix) cut(content []byte) (kept []byte, last string, err error) {
	end, size, surely := 0, 0, p.lastPoint(content)
	shown := map[string]bool{} // calls with a result
	made := map[string]string{}
	var ids []string
	for line := range bytes.Lines(content) {
		size += len(line)
		var l sessionLine
		if json.Unmarshal(line, &l) != nil || l.Sidechain {
			continue
		}
		at := p.judge(l, end == 0)
		if at == beyond && size > surely {
			break
		}
		ids = append(ids, l.UUID)
		for _, b := range l.contentBlocks() {
			shown[b.ToolUseID] = true
			made[b.ID] = l.UUID
		}
		if at == within || p.whole && l.UUID != "" {
			end = size
			for _, id := range ids {
				if id != "" {
					last = id
				}
			}
			ids = nil
		}
	}
	kept = bytes.Clone(content[:end])
	for _, e := range p.results {
		source, has := made[e.CallID]
		if end == 0 || shown[e.CallID] || !has {
			continue
		}
		shown[e.CallID] = true
		line, id, err := p.resultLine(e, last, source)
		if err != nil {
			return nil, "", err
		}
		kept, last = append(kept, line...), id
	}
	return kept, last, nil
}

// lastPoint returns where the last line ends that the prefix has by its id. Whatever stands before it is the prefix's, too: also what the
// log doesn't tell by itself, such as a message that the program had read as it was interrupted, and was told again with the next one.
func (p *prefix) lastPoint(content []byte) (end int) {
	size := 0
	for line := range bytes.Lines(content) {
		size += len(line)
		var l fileEntry
		if json.Unmarshal(line, &l) == nil && !l.Sidechain && p.points[l.UUID] {
			end = size
		}
	}
	return end
}

// resultLine is the line of a result that the session file lacks: of a call that was sealed.
func (p *prefix) resultLine(e *wire.Event, parent, source string) (line []byte, id string, err error) {
	payload, _ := e.Payload.(*wire.AgentTool)
	output, err := wire.AppendJSON(nil, payload.ToolOutput)
	if err != nil {
		return nil, "", err
	}
	result := map[string]any{"type": "tool_result", "tool_use_id": e.CallID, "content": string(output)}
	if payload.Error != "" {
		result["is_error"] = true
	}
	id = agent.NewSessionID()
	line, err = json.Marshal(map[string]any{
		"type": "user", "uuid": id, "parentUuid": parent, "sessionId": p.session, "isSidechain": false, "userType": "external",
		"timestamp": time.UnixMilli(e.Timestamp).UTC().Format("2006-01-02T15:04:05.000Z"), "sourceToolAssistantUUID": source,
		"message": map[string]any{"role": "user", "content": []any{result}},
	})
	return append(line, '\n'), id, err
}

// cutSession writes the session of a fork that the program can't cut where it was asked for, and has the request go
// on with that. Otherwise it leaves the request as it is, and reports false.
func (s *session) cutSession(before sessionRecord) (cut bool, err error) {
	r := &s.request
	p, err := forkPrefix(*r)
	if p == nil || err != nil {
		return false, err
	}
	kept, last, err := p.cut(before.content)
	id, late := pointIn(before.content, r.ForkAt)
	switch exact := r.ForkAt != "" && id == last && late == 0; {
	case err != nil:
		return false, err
	case len(kept) == 0, exact, r.ForkAt == "" && bytes.Equal(kept, before.content):
		return false, nil
	}
	old, err := json.Marshal(r.ForkOf)
	if err != nil {
		return false, err
	}
	own, err := json.Marshal(r.SessionID)
	if err != nil {
		return false, err
	}
	name := []byte(`"sessionId":`)
	kept = bytes.ReplaceAll(kept, append(bytes.Clone(name), old...), append(name, own...))
	if err := before.files.putSession(r.SessionID, kept); err != nil {
		return false, err
	}
	r.Resume, r.ForkOf = true, ""
	r.ForkAt = last // all of it; without, the program adds an answer to what has none
	return true, nil
}
