package ingest

import (
	"cmp"
	"encoding/json"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// geminiSession reads a session file of Gemini's CLI: messages, of which the last line with an id counts, and changes of the session.
type geminiSession struct {
	*story

	heard map[string]bool        // messages of the user, by their ids
	said  map[string]*geminiSaid // those of the model
	open  bool                   // the last message has calls, or is the user's: the model is to go on
}

// geminiSaid is what of a message is told already.
type geminiSaid struct {
	text  bool
	calls map[string]bool
}

// geminiRecord is a line.
type geminiRecord struct {
	SessionID string `json:"sessionId"`

	ID        string          `json:"id"`
	Timestamp string          `json:"timestamp"`
	Type      string          `json:"type"`
	Content   json.RawMessage `json:"content"`
	Thoughts  []struct {
		Subject     string `json:"subject"`
		Description string `json:"description"`
	} `json:"thoughts"`
	Tokens *struct {
		Input    int64 `json:"input"`
		Output   int64 `json:"output"`
		Cached   int64 `json:"cached"`
		Thoughts int64 `json:"thoughts"`
	} `json:"tokens"`
	Model string       `json:"model"`
	Calls []geminiCall `json:"toolCalls"`

	Set *struct {
		Messages []json.RawMessage `json:"messages"`
	} `json:"$set"`
}

type geminiCall struct {
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Args      json.RawMessage `json:"args"`
	Status    string          `json:"status"`
	Timestamp string          `json:"timestamp"`
	Result    []geminiPart    `json:"result"`
}

type geminiPart struct {
	Text     string `json:"text"`
	Response *struct {
		Response struct {
			Output json.RawMessage `json:"output"`
			Error  json.RawMessage `json:"error"`
		} `json:"response"`
	} `json:"functionResponse"`
}

// Line takes a line.
func (g *geminiSession) Line(at int64, line []byte) []*wire.Event {
	g.beginLine(at)
	g.takeRecord(line, true)
	return g.takeEvents()
}

// takeRecord takes a line, or what a change of the session has. A change that stands in another one, as none of the program's does, isn't opened.
func (g *geminiSession) takeRecord(line json.RawMessage, outermost bool) {
	if strings.TrimSpace(string(line)) == "" {
		return
	}
	var r geminiRecord
	if err := json.Unmarshal(line, &r); err != nil {
		g.keep("malformed", line, err.Error())
		return
	}
	g.tellTime(parseMillis(r.Timestamp))
	switch {
	case r.Set != nil && outermost:
		for _, m := range r.Set.Messages {
			g.takeRecord(m, false)
		}
	case r.Set != nil:
		g.keep("$set", line, "")
	case r.SessionID != "" && r.Type == "":
		g.nameSession(r.SessionID)
	case r.Type == "user":
		g.takeUser(r, line)
	case r.Type == "gemini":
		g.takeAnswer(r)
	case r.Type == "error":
		g.warn(textOf(r.Content))
	default:
		g.keep(r.Type, line, "")
	}
}

// takeUser takes a message in the user's name. Those with results of calls tell what the calls do.
func (g *geminiSession) takeUser(r geminiRecord, line json.RawMessage) {
	if g.heard[r.ID] {
		return
	}
	if r.ID != "" {
		g.heard[r.ID] = true
	}
	var parts []geminiPart
	var texts []string
	if json.Unmarshal(r.Content, &parts) != nil {
		texts = append(texts, textOf(r.Content))
	}
	results := false
	for _, p := range parts {
		if results = results || p.Response != nil; p.Text != "" {
			texts = append(texts, p.Text)
		}
	}
	text := strings.Join(texts, "\n")
	switch {
	case text != "":
		synthetic := isContext(text)
		g.open = g.open || !synthetic
		g.hear(text, synthetic)
	case !results:
		g.keep("user", line, "")
	}
}

func (g *geminiSession) takeAnswer(r geminiRecord) {
	said := g.said[r.ID]
	if said == nil || r.ID == "" {
		said = &geminiSaid{calls: map[string]bool{}}
		g.said[r.ID] = said
	}
	g.model = cmp.Or(r.Model, g.model)
	if text := textOf(r.Content); !said.text && (text != "" || r.Tokens != nil) {
		said.text = true
		for _, t := range r.Thoughts {
			g.think(strings.TrimSpace(t.Subject + "\n" + t.Description))
		}
		g.say(text)
	}
	if u := r.Tokens; u != nil {
		g.count(r.ID, u.Input-u.Cached, u.Output+u.Thoughts, u.Cached, 0, nil)
	}
	g.open = len(r.Calls) > 0
	for _, c := range r.Calls {
		if said.calls[c.ID] {
			continue
		}
		g.call(c.ID, c.Name, rawOf(c.Args))
		if len(c.Result) == 0 && c.Status != "error" && c.Status != "cancelled" {
			continue
		}
		said.calls[c.ID] = true
		g.tellTime(parseMillis(c.Timestamp))
		output, failed := c.resultOf()
		g.result(c.ID, output, failed)
	}
}

// resultOf is what a call has come to.
func (c geminiCall) resultOf() (output wire.Raw, failed string) {
	for _, p := range c.Result {
		if p.Response == nil {
			continue
		}
		if output = rawOf(p.Response.Response.Output); len(output) == 0 {
			output = rawOf(p.Response.Response.Error)
			failed = textOf(p.Response.Response.Error)
		}
	}
	switch c.Status {
	case "error":
		failed = cmp.Or(failed, "the call failed")
	case "cancelled":
		failed = cmp.Or(failed, wire.CallInterrupted)
	default:
		failed = ""
	}
	return output, failed
}

// Finish ends the session: its turn is over when the model has answered without a call.
func (g *geminiSession) Finish(at int64) []*wire.Event {
	if !g.open {
		g.endTurn("")
	}
	return g.story.Finish(at)
}

// geminiStream reads what gemini --output-format stream-json prints.
type geminiStream struct {
	*story

	speaks bool // pieces of a message follow each other
}

// Line takes a line.
func (g *geminiStream) Line(at int64, line []byte) []*wire.Event {
	g.beginLine(at)
	if strings.TrimSpace(string(line)) == "" {
		return nil
	}
	var l struct {
		Type       string          `json:"type"`
		Timestamp  string          `json:"timestamp"`
		SessionID  string          `json:"session_id"`
		Model      string          `json:"model"`
		Role       string          `json:"role"`
		Content    string          `json:"content"`
		ToolName   string          `json:"tool_name"`
		ToolID     string          `json:"tool_id"`
		Parameters json.RawMessage `json:"parameters"`
		Status     string          `json:"status"`
		Output     json.RawMessage `json:"output"`
		Message    string          `json:"message"`
		Error      *struct {
			Message string `json:"message"`
		} `json:"error"`
		Stats *struct {
			Input  int64 `json:"input_tokens"`
			Output int64 `json:"output_tokens"`
			Cached int64 `json:"cached"`
		} `json:"stats"`
	}
	if err := json.Unmarshal(line, &l); err != nil {
		g.keep("malformed", line, err.Error())
		return g.takeEvents()
	}
	g.tellTime(parseMillis(l.Timestamp))
	follows := g.speaks
	g.speaks = false
	problem := ""
	if l.Error != nil {
		problem = l.Error.Message
	}
	switch l.Type {
	case "init":
		g.nameSession(l.SessionID)
		g.model = l.Model
		g.beginSession()
	case "message":
		if l.Role == "user" {
			g.hear(l.Content, false)
		} else {
			g.sayPiece(l.Content, follows)
			g.speaks = true
		}
	case "tool_use":
		g.call(l.ToolID, l.ToolName, rawOf(l.Parameters))
	case "tool_result":
		if l.Status == "success" {
			problem = ""
		} else {
			problem = cmp.Or(problem, "the call failed")
		}
		if !g.result(l.ToolID, rawOf(l.Output), problem) {
			g.keep(l.Type, line, "its call isn't there")
		}
	case "error":
		g.warn(cmp.Or(l.Message, problem))
	case "result":
		if s := l.Stats; s != nil && s.Input+s.Output > 0 {
			g.count(g.session, s.Input-s.Cached, s.Output, s.Cached, 0, nil)
		}
		if l.Status == "success" {
			g.endTurn("")
		} else {
			g.failTurn(wire.ErrorExecution, cmp.Or(problem, "gemini has ended with "+cmp.Or(l.Status, "an error")))
		}
	default:
		g.keep(l.Type, line, "")
	}
	return g.takeEvents()
}
