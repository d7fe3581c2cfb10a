package report

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"code.wake.dev/wake/internal/session"
)

// The times of a hook.
const (
	awayTime = 200 * time.Millisecond // in which a listener takes a report, or hooks don't ask it again until it is back
	findTime = 700 * time.Millisecond // in which the session's file has the call that its dialog is about
	tellTime = 2 * time.Second        // in which it has stored what needs no answer
	lookTime = 200 * time.Millisecond // between two looks at the dialog
	backTime = time.Second            // between two looks whether the listener is back
)

// maxInput bounds what a hook is told, such as what a call has given.
const maxInput = 16 << 20

// Hook is one firing of a hook of Claude Code, in a process of its own.
type Hook struct {
	File   string // of the listener's address
	In     io.Reader
	Out    io.Writer
	Parent func() int // id of the parent process; a hook doesn't outlive its session
	// Program says that a program has the session: it answers for itself what people are asked.
	Program bool
}

// hookInput is what Claude Code tells a hook.
type hookInput struct {
	Session string          `json:"session_id"`
	File    string          `json:"transcript_path"`
	Cwd     string          `json:"cwd"`
	Event   string          `json:"hook_event_name"`
	Source  string          `json:"source"`
	Reason  string          `json:"reason"`
	Message string          `json:"message"`
	Type    string          `json:"notification_type"`
	Agent   string          `json:"agent_id"`
	Trigger string          `json:"trigger"`
	Error   string          `json:"error"`
	Tool    string          `json:"tool_name"`
	Call    string          `json:"tool_use_id"`
	Input   json.RawMessage `json:"tool_input"`
}

// Run reports the firing. Of a permission that is asked for it waits until the user has decided, here or in the terminal,
// and tells Claude Code what was decided here. Where no listener is, it does nothing: the session goes on as without it.
func (h Hook) Run(ctx context.Context) error {
	var in hookInput
	content, err := io.ReadAll(io.LimitReader(h.In, maxInput))
	if err != nil || json.Unmarshal(content, &in) != nil || in.Session == "" || len(in.Input) > MaxBytes/2 {
		return nil //nolint:nilerr // it isn't one of ours, or too long to be shown
	}
	address, err := ReadAddress(h.File)
	if err != nil {
		return nil //nolint:nilerr // there is no listener
	}
	r := Report{Session: in.Session, Event: in.Event, At: time.Now().UnixMilli(), About: session.About{Session: in.Session, Cwd: in.Cwd}}
	switch in.Event {
	case PermissionRequest, Notification, Elicitation:
		if h.Program {
			return nil
		}
	}
	switch in.Event {
	case SessionStart:
		r.Text = in.Source
	case SessionEnd:
		r.Text = in.Reason
	case Notification:
		if r.Text = in.Message; in.Type == "permission_prompt" {
			return nil // which the request has told
		}
	case Elicitation:
		r.Text = in.Message
	case Stop:
	case StopFailure:
		r.Text = in.Error
	case SubagentStart, SubagentStop:
		r.Text = in.Agent
	case PreCompact, PostCompact:
		r.Text = in.Trigger
	case PostToolUse, PostToolUseFailure:
		r.Call, r.Tool = in.Call, in.Tool
	case PermissionRequest:
		return h.waitForVerdict(ctx, address, r, in)
	default:
		return nil
	}
	return h.tell(ctx, address, r)
}

// tell reports what needs no answer.
func (h Hook) tell(ctx context.Context, address Address, r Report) error {
	limited, stop := context.WithTimeout(ctx, tellTime)
	defer stop()
	answer, err := h.send(limited, address, r)
	if err != nil || answer == nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer) // until it is stored
	return errors.Join(err, answer.Close())
}

// waitForVerdict reports a request, also to a listener that comes back, until it is decided.
func (h Hook) waitForVerdict(ctx context.Context, address Address, r Report, in hookInput) error {
	if about, err := session.Read(in.File); err == nil {
		about.Session, r.About = in.Session, about
	}
	d := &session.Dialog{Session: in.Session, File: in.File, Tool: in.Tool, Input: in.Input}
	awaitFile(d.FindCall)
	if r.Call, r.Tool, r.Input = d.Call, in.Tool, in.Input; r.Call == "" {
		r.Call = newAsk()
	}
	wait, stop := context.WithCancel(ctx)
	defer stop()
	answer, err := h.sendRequest(wait, address, &r, d)
	if wait.Err() == nil && (err != nil || answer == nil) {
		return err // the dialog is all there is
	}
	ended := make(chan session.Outcome, 1)
	go func() { // it ends with this process
		ended <- h.watchDialog(wait, d)
		stop()
	}()
	verdict, err := h.fetchVerdict(wait, r, answer)
	r.Event = Decided
	switch {
	case wait.Err() != nil: // the terminal was first
		if r.Decision = string(<-ended); ctx.Err() != nil { // Claude Code ends hooks when their dialog is refused
			r.Decision = string(awaitResult(d))
		}
	case err != nil || verdict == nil || verdict.Decision == "":
		return err
	default:
		if err := h.answer(*verdict); err != nil {
			return err
		}
		r.Decision, r.ByWake = verdict.Decision, true
	}
	if address, err = ReadAddress(h.File); err != nil {
		return nil // the listener finds out when it is back
	}
	r.At = time.Now().UnixMilli()
	return h.tell(context.WithoutCancel(ctx), address, r)
}

// watchDialog returns what has become of a dialog once it is closed.
func (h Hook) watchDialog(ctx context.Context, d *session.Dialog) session.Outcome {
	tick := time.NewTicker(lookTime)
	defer tick.Stop()
	for parent := h.Parent(); ; {
		select {
		case <-ctx.Done():
			return session.Gone
		case now := <-tick.C:
			if outcome := d.Look(now); outcome != session.Open {
				return outcome
			}
			if h.Parent() != parent {
				return session.Gone
			}
		}
	}
}

// awaitResult returns what the session's file says of a dialog.
func awaitResult(d *session.Dialog) (outcome session.Outcome) {
	awaitFile(func() bool {
		outcome = d.Look(time.Now())
		return outcome == session.Allowed || outcome == session.Denied
	})
	if outcome == session.Open {
		return session.Gone
	}
	return outcome
}

// awaitFile waits until a session's file, to which Claude Code writes at any moment, has something; not for long.
func awaitFile(has func() bool) {
	end, tick := time.After(findTime), time.NewTicker(findTime/10)
	defer tick.Stop()
	for !has() {
		select {
		case <-end:
			return
		case <-tick.C:
		}
	}
}

// sendRequest reports a request, and returns what follows; nil if there is no listener. Of calls that are equal another hook may ask about the first.
func (h Hook) sendRequest(ctx context.Context, address Address, r *Report, d *session.Dialog) (io.ReadCloser, error) {
	for {
		answer, err := h.send(ctx, address, *r)
		if !errors.Is(err, errTaken) {
			return answer, err
		}
		if r.Call = newAsk(); d.NextCall() {
			r.Call = d.Call
		}
	}
}

// newAsk makes an id for a request of which the session's file has no call.
func newAsk() string { return "ask-" + rand.Text()[:12] }

// fetchVerdict waits for the decision behind a report. A listener that goes while it is waited for is expected back.
func (h Hook) fetchVerdict(ctx context.Context, r Report, answer io.ReadCloser) (*Verdict, error) {
	if answer == nil {
		return nil, ctx.Err()
	}
	for {
		if verdict, err := readVerdict(answer); err == nil || ctx.Err() != nil {
			return verdict, ctx.Err()
		}
		for answer = nil; answer == nil; {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(backTime):
			}
			address, err := ReadAddress(h.File)
			if err != nil {
				continue
			}
			if answer, err = h.send(ctx, address, r); err != nil && !errors.Is(err, errTaken) { // by itself, a moment ago
				return nil, err
			}
		}
	}
}

func readVerdict(body io.ReadCloser) (*Verdict, error) {
	defer func() { _ = body.Close() }() // it was only read
	var v Verdict
	if err := json.NewDecoder(io.LimitReader(body, MaxBytes)).Decode(&v); err != nil {
		return nil, err
	}
	return &v, nil
}

// answer tells Claude Code what was decided.
func (h Hook) answer(v Verdict) error {
	decision := map[string]any{"behavior": v.Decision}
	if v.Decision == "deny" {
		decision["message"] = v.Note
	} else if len(v.Input) > 0 {
		decision["updatedInput"] = v.Input
	}
	return json.NewEncoder(h.Out).Encode(map[string]any{
		"hookSpecificOutput": map[string]any{"hookEventName": PermissionRequest, "decision": decision},
	})
}

// errRefused is returned for a report that the listener doesn't want.
var errRefused = errors.New("report: refused")

// errTaken is returned for a request about a call that another hook waits for.
var errTaken = errors.New("report: another hook waits for the call")

// send sends a report, and returns what follows; nil if no listener is there: hooks don't try again until one is back.
func (h Hook) send(ctx context.Context, address Address, r Report) (io.ReadCloser, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address.URL+Path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+address.Token(r.Session))
	transport := &http.Transport{
		DialContext: (&net.Dialer{Timeout: awayTime}).DialContext, ResponseHeaderTimeout: awayTime, DisableKeepAlives: true,
	}
	answer, err := transport.RoundTrip(request)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		address.Remove(h.File)
		return nil, nil //nolint:nilerr // it is away
	case answer.StatusCode == http.StatusConflict:
		_ = answer.Body.Close()
		return nil, errTaken
	case answer.StatusCode/100 != 2:
		_ = answer.Body.Close()
		return nil, fmt.Errorf("%w: %s", errRefused, answer.Status)
	}
	return answer.Body, nil
}
