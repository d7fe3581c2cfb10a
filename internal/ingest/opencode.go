package ingest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/pkg/wire"
)

// openCode reads what opencode run --format json prints, and what opencode export writes of a session: one document.
type openCode struct {
	*story

	document bool
	text     bytes.Buffer // of the document
	tooLong  bool
}

// maxDocument bounds an exported session, in bytes.
const maxDocument = claude.MaxLine

// openCodePart is a part of a message.
type openCodePart struct {
	ID        string `json:"id"`
	Type      string `json:"type"`
	Text      string `json:"text"`
	Synthetic bool   `json:"synthetic"`
	Tool      string `json:"tool"`
	CallID    string `json:"callID"`
	Reason    string `json:"reason"`
	State     struct {
		Status string          `json:"status"`
		Input  json.RawMessage `json:"input"`
		Output json.RawMessage `json:"output"`
		Error  string          `json:"error"`
		Time   openCodeTime    `json:"time"`
	} `json:"state"`
	Time   openCodeTime `json:"time"`
	Cost   float64      `json:"cost"`
	Tokens *struct {
		Input     int64 `json:"input"`
		Output    int64 `json:"output"`
		Reasoning int64 `json:"reasoning"`
		Cache     struct {
			Read  int64 `json:"read"`
			Write int64 `json:"write"`
		} `json:"cache"`
	} `json:"tokens"`
}

type openCodeTime struct {
	Created   int64 `json:"created"`
	Completed int64 `json:"completed"`
	Start     int64 `json:"start"`
	End       int64 `json:"end"`
}

type openCodeError struct {
	Name string `json:"name"`
	Data struct {
		Message string `json:"message"`
	} `json:"data"`
}

func (e openCodeError) Error() string {
	return cmp.Or(e.Data.Message, e.Name, "an error without a word")
}

// Line takes a line.
func (o *openCode) Line(at int64, line []byte) []*wire.Event {
	o.beginLine(at)
	if o.document {
		if o.tooLong = o.tooLong || o.text.Len()+len(line) > maxDocument; o.tooLong {
			o.text = bytes.Buffer{}
			return nil
		}
		o.text.Write(line)
		o.text.WriteByte('\n')
		return nil
	}
	if strings.TrimSpace(string(line)) == "" {
		return nil
	}
	var l struct {
		Type      string          `json:"type"`
		Timestamp int64           `json:"timestamp"`
		SessionID string          `json:"sessionID"`
		Part      json.RawMessage `json:"part"`
		Error     *openCodeError  `json:"error"`
	}
	if err := json.Unmarshal(line, &l); err != nil {
		o.keep("malformed", line, err.Error())
		return o.takeEvents()
	}
	o.tellTime(max(0, l.Timestamp))
	o.nameSession(l.SessionID)
	switch {
	case l.Error != nil:
		o.failTurn(wire.ErrorExecution, l.Error.Error())
	case len(l.Part) > 0:
		o.takePart(l.Part)
	default:
		o.keep(l.Type, line, "")
	}
	return o.takeEvents()
}

// TooLong takes a line that is too long.
func (o *openCode) TooLong(at int64, line *claude.LineTooLongError) []*wire.Event {
	o.tooLong = o.document
	return o.story.TooLong(at, line)
}

// takePart takes a part of what the agent did.
func (o *openCode) takePart(data json.RawMessage) {
	var p openCodePart
	if err := json.Unmarshal(data, &p); err != nil {
		o.keep("part", data, err.Error())
		return
	}
	switch p.Type {
	case "text":
		o.say(p.Text)
	case "reasoning":
		o.think(p.Text)
	case "tool":
		o.takeCall(p)
	case "step-start":
		o.beginTurn()
	case "step-finish":
		if u := p.Tokens; u != nil {
			var cost *float64
			if p.Cost > 0 { // 0 is also what it says of models whose prices it doesn't know
				cost = &p.Cost
			}
			o.count(cmp.Or(p.ID, fmt.Sprintf("%s/%d", o.session, o.line)), u.Input, u.Output+u.Reasoning, u.Cache.Read, u.Cache.Write, cost)
		}
		if p.Reason != "tool-calls" && p.Reason != "unknown" {
			o.endTurn(map[string]string{"stop": "end_turn"}[p.Reason])
		}
	default:
		o.keep("part/"+p.Type, data, "")
	}
}

func (o *openCode) takeCall(p openCodePart) {
	seen := o.at
	o.tellTime(p.State.Time.Start)
	o.call(p.CallID, p.Tool, rawOf(p.State.Input))
	o.at = seen
	o.tellTime(p.State.Time.End)
	switch p.State.Status {
	case "completed":
		o.result(p.CallID, rawOf(p.State.Output), "")
	case "error":
		o.result(p.CallID, rawOf(p.State.Output), cmp.Or(p.State.Error, "the call failed"))
	}
}

// openCodeInfo is what a session is.
type openCodeInfo struct {
	ID        string `json:"id"`
	Directory string `json:"directory"`
	Version   string `json:"version"`
	Model     struct {
		ID string `json:"id"`
	} `json:"model"`
	Time openCodeTime `json:"time"`
}

// openCodeMessage is a message of a session as opencode export writes it.
type openCodeMessage struct {
	Info struct {
		Role    string         `json:"role"`
		ModelID string         `json:"modelID"`
		Time    openCodeTime   `json:"time"`
		Error   *openCodeError `json:"error"`
	} `json:"info"`
	Parts json.RawMessage `json:"parts"`
}

// documentEvents yields the events of the document, if it is one, part by part: no more of them are held. What was cut off is told as far as it goes.
func (o *openCode) documentEvents() iter.Seq[[]*wire.Event] {
	return func(yield func([]*wire.Event) bool) {
		if !o.document {
			return
		}
		err := errTooLong
		if !o.tooLong {
			err = o.readDocument(func() error {
				if !yield(o.takeEvents()) {
					return errStopped
				}
				return nil
			})
		}
		switch {
		case errors.Is(err, errStopped):
			return
		case errors.Is(err, io.EOF):
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			o.failTurn(wire.ErrorExecution, "the session that opencode has exported can't be read: "+strings.ToValidUTF8(err.Error(), "�"))
		}
		yield(o.takeEvents())
	}
}

var (
	errTooLong = fmt.Errorf("it has more than %d bytes, or a line that is too long", maxDocument)
	errStopped = errors.New("no more is wanted")
)

// readDocument calls told after each part.
func (o *openCode) readDocument(told func() error) error {
	d := json.NewDecoder(&o.text)
	err := eachValue(d, '{', func() error {
		switch name, err := d.Token(); {
		case err != nil:
			return err
		case name == "info":
			return o.takeInfo(d)
		case name == "messages":
			return eachValue(d, '[', func() error { return o.takeMessage(d, told) })
		}
		return d.Decode(new(json.RawMessage))
	})
	if err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return cmp.Or(err, errors.New("there is more behind it"))
	}
	return nil
}

// eachValue calls take for each field or element of what begins with open, which is to take it.
func eachValue(d *json.Decoder, open json.Delim, take func() error) error {
	switch first, err := d.Token(); {
	case err != nil:
		return err
	case first == nil: // null
		return nil
	case first != open:
		return fmt.Errorf("it has %.40q where it should have %q", fmt.Sprint(first), open.String())
	}
	for d.More() {
		if err := take(); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

func (o *openCode) takeInfo(d *json.Decoder) error {
	var info openCodeInfo
	if err := d.Decode(&info); err != nil {
		return err
	}
	o.nameSession(info.ID)
	o.cwd, o.version, o.model = info.Directory, info.Version, info.Model.ID
	o.tellTime(info.Time.Created)
	return nil
}

func (o *openCode) takeMessage(d *json.Decoder, told func() error) error {
	m := openCodeMessage{Parts: json.RawMessage("null")}
	if err := d.Decode(&m); err != nil {
		return err
	}
	o.tellTime(m.Info.Time.Created)
	take := o.takeUser
	if m.Info.Role != "user" {
		o.model = cmp.Or(m.Info.ModelID, o.model)
		take = o.takeAnswer
	}
	parts := json.NewDecoder(bytes.NewReader(m.Parts))
	err := eachValue(parts, '[', func() error {
		var data json.RawMessage
		if err := parts.Decode(&data); err != nil {
			return err
		}
		take(data)
		return told()
	})
	if err != nil || m.Info.Role == "user" {
		return err
	}
	o.tellTime(m.Info.Time.Completed)
	if m.Info.Error != nil {
		o.failTurn(wire.ErrorExecution, m.Info.Error.Error())
	}
	return told()
}

// takeUser takes a part of what the agent was told.
func (o *openCode) takeUser(data json.RawMessage) {
	var p openCodePart
	switch err := json.Unmarshal(data, &p); {
	case err != nil || p.Type != "text":
		o.keep("part/"+p.Type, data, "")
	default:
		o.hear(p.Text, p.Synthetic)
	}
}

// takeAnswer takes a part of what the agent did when it says.
func (o *openCode) takeAnswer(data json.RawMessage) {
	var about openCodePart
	if json.Unmarshal(data, &about) == nil {
		o.tellTime(about.Time.End)
	}
	o.takePart(data)
}
