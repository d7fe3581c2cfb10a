package console

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"net/http"
	"path"
	"strings"
	"time"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/pkg/wire"
)

// answerTime is how long a link that answers a question is good for, from the alert that tells it.
const answerTime = 24 * time.Hour

// AnswerLink is a link whose holder answers the question of an alert, once; "" if the alert asks none, or only this machine reaches
// the console. It names the event that asks: where the agent asks again, also for the same call, that is another question.
func (s *Console) AnswerLink(a *wire.Alert) string {
	_, ofCall := a.Data.Get("callId").Text()
	_, ofPrompt := a.Data.Get("promptId").Text()
	if s.c.Public == "" || !ofCall && !ofPrompt || a.Kind != "waiting" {
		return ""
	}
	return s.linkBase("") + "answer/" + s.signAnswer(a.RunID, a.Position, time.UnixMilli(a.Timestamp).Add(answerTime))
}

// signAnswer is what a link to a question has: a signature of the rest and the log's incarnation; until when it is good, the position of the
// event that asks, and its run.
func (s *Console) signAnswer(run string, at wire.Position, until time.Time) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(until.Unix())) // after 1970
	b = append(binary.BigEndian.AppendUint64(b, at.Seq), run...)
	return base64.RawURLEncoding.EncodeToString(append(s.answerSum(b, at.Incarnation), b...))
}

func (s *Console) answerSum(b []byte, incarnation string) []byte {
	m := hmac.New(sha256.New, s.secret)
	m.Write([]byte("answer\x00" + incarnation + "\x00"))
	m.Write(b)
	return m.Sum(nil)
}

// The errors of links to questions.
var (
	errNoLink   = &wire.APIError{Code: wire.CodeNotFound, Message: "there is no such link"}
	errExpired  = &wire.APIError{Code: wire.CodeDenied, Message: "this link isn't good any more", Hint: "answer in the console, or with `wake approvals`"}
	errAnswered = &wire.APIError{Code: wire.CodeDenied, Message: "this was answered, or isn't asked any more", Hint: "the first answer counts"}
)

// readAnswer returns the question of a link that this console has signed, as long as it is open.
func (s *Console) readAnswer(r *http.Request) (l *link, asked wire.Approval, err error) {
	if l, err = s.openLink(r.Context()); err != nil {
		return nil, asked, err
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(r.PathValue("link"))
	if err != nil || len(b) <= sha256.Size+16 || !hmac.Equal(b[:sha256.Size], s.answerSum(b[sha256.Size:], l.reader.Incarnation())) {
		return nil, asked, errNoLink
	}
	b = b[sha256.Size:]
	until, pos, run := time.Unix(int64(binary.BigEndian.Uint64(b)), 0), binary.BigEndian.Uint64(b[8:]), string(b[16:]) // ours
	if time.Now().After(until) {
		return nil, asked, errExpired
	}
	state, err := l.client.State(r.Context(), run) // which has all that waits, also what no list has room for
	if err != nil {
		return nil, asked, err
	}
	for e, err := range history.Read(r.Context(), l.reader, eventlog.Query{Run: run, From: pos, To: pos}) {
		if err != nil {
			return nil, asked, err
		}
		if e.Event == nil {
			break
		}
		var id string
		switch p := e.Event.Payload.(type) {
		case *wire.PermissionRequired:
			id = e.Event.CallID
		case *wire.InputRequested:
			id = p.PromptID
		}
		for _, a := range ask.Pending(state) { // another node may ask by the same id
			if id != "" && a.CallID == id && a.NodeID == e.NodeID && a.Since == e.Event.Timestamp && isAsked(state, a) {
				return l, a, nil
			}
		}
	}
	return nil, asked, errAnswered
}

// isAsked reports whether an answer is asked for: what waits in a run that is held are all open calls, also those that were approved.
func isAsked(s *wire.State, a wire.Approval) bool {
	if a.Kind != wire.ApprovalCall && a.Kind != wire.ApprovalQuestion {
		return true
	}
	for _, c := range s.Tools {
		if c.CallID == a.CallID && c.Node == a.NodeID && c.State == wire.ToolApprovalRequired {
			return true
		}
	}
	return false
}

// showAnswer shows the question of a link. It answers nothing: programs follow links, too.
func (s *Console) showAnswer(w http.ResponseWriter, r *http.Request) {
	_, asked, err := s.readAnswer(r)
	if err != nil {
		s.showNoAnswer(w, r, err)
		return
	}
	s.showPage(w, r, http.StatusOK, "answer", page{Title: "Answer", Data: map[string]any{"Asked": asked, "Action": "answer/" + path.Base(r.URL.Path)}})
}

// giveAnswer gives the answer of a link. The log takes the first one, from wherever it comes.
func (s *Console) giveAnswer(w http.ResponseWriter, r *http.Request) {
	l, asked, err := s.readAnswer(r)
	if err != nil {
		s.showNoAnswer(w, r, err)
		return
	}
	c, err := s.answerOf(r, asked)
	var answer wire.CommandResponse
	if err == nil {
		c.RunID, c.By = asked.RunID, "link"
		answer, err = l.client.Do(r.Context(), c)
	}
	v := verdictOf(c.Type, answer, err)
	switch {
	case !strings.Contains(r.Header.Get("Accept"), "text/html"):
		s.tellVerdict(w, v)
	case v.OK:
		s.showPage(w, r, http.StatusOK, "answered", page{Title: "Answered", Data: v})
	default:
		s.showNoAnswer(w, r, &wire.APIError{Code: wire.CodeDenied, Message: v.Text, Hint: v.Hint})
	}
}

// answerOf reads the command that answers a question off a form; what it is about is not the form's to say.
func (s *Console) answerOf(r *http.Request, asked wire.Approval) (c wire.Command, err error) {
	if err = r.ParseForm(); err != nil {
		return c, err
	}
	if c, err = commandOf(r.PostForm); err != nil {
		return c, err
	}
	right := c.Type == "reply"
	if asked.Kind == wire.ApprovalCall {
		right = c.Type == "approve" || c.Type == "deny"
	}
	if !right {
		return c, &wire.APIError{Code: wire.CodeBadRequest, Message: "that answers something else"}
	}
	if c.Type == "reply" {
		return wire.Command{Type: c.Type, NodeID: asked.NodeID, Note: c.Note, Content: c.Content, PromptID: asked.CallID}, nil
	}
	return wire.Command{Type: c.Type, NodeID: asked.NodeID, Note: c.Note, Content: c.Content, CallID: asked.CallID}, nil
}

// showNoAnswer says why a link answers nothing: to people as a page, to programs as JSON.
func (s *Console) showNoAnswer(w http.ResponseWriter, r *http.Request, err error) {
	e, ok := errors.AsType[*wire.APIError](err)
	if !ok || e != errExpired && e != errAnswered {
		s.showError(w, r, err)
		return
	}
	if strings.Contains(r.Header.Get("Accept"), "text/html") {
		s.showPage(w, r, http.StatusGone, "problem", page{Title: "Gone", Data: e})
		return
	}
	s.writeJSON(w, http.StatusGone, wire.ErrorResponse{Error: e})
}
