package native

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"wake/internal/agent"
	"wake/internal/process"
	"wake/pkg/wire"
)

// The events of hooks.
const (
	hookAgentStart = "AgentStart"
	hookTurnStart  = "TurnStart"
	hookTurnEnd    = "TurnEnd"
	hookPreTool    = "PreToolUse"
	hookPostTool   = "PostToolUse"
	hookToolFailed = "PostToolUseFailure"
	hookAgentStop  = "AgentStop"
)

// The decisions of hooks. Before a tool is used: deny, modify, allow. Elsewhere: stop ends
// the agent; system and context tell the model something.
const (
	hookDeny    = "deny"
	hookModify  = "modify"
	hookAllow   = "allow"
	hookStop    = "stop"
	hookSystem  = "system"
	hookContext = "context"
)

// stopHook is the stop reason of an agent that a hook has ended.
const stopHook = "hook"

// hookQuestion is what a hook is asked.
type hookQuestion struct {
	Event     string   `json:"event"`
	RunID     string   `json:"runId"`
	NodeID    string   `json:"nodeId"`
	ExecID    string   `json:"execId"`
	Cwd       string   `json:"cwd"`
	Turn      int      `json:"turn,omitempty"`
	Task      string   `json:"task,omitempty"`
	ToolName  string   `json:"toolName,omitempty"`
	ToolUseID string   `json:"toolUseId,omitempty"`
	ToolInput wire.Raw `json:"toolInput,omitempty"`
	Result    wire.Raw `json:"result,omitempty"`
	Error     string   `json:"error,omitempty"`
}

// hookAnswer is what it answers; the zero value goes on.
type hookAnswer struct {
	Decision string          `json:"decision"`
	Reason   string          `json:"reason"`
	Message  string          `json:"message"` // of system and context
	Input    json.RawMessage `json:"input"`   // of modify
	input    wire.Raw
}

// hooks are the hooks of an execution.
type hooks struct {
	provider Provider
	request  agent.Request
	env      []string
	list     []hook
}

// hook is a hook that can be matched.
type hook struct {
	agent.Hook

	match *regexp.Regexp // nil: every tool
	wrong error          // why it can't be used
}

func newHooks(p Provider, r agent.Request, env []string) *hooks {
	h := &hooks{provider: p, request: r, env: env}
	for _, c := range r.Options.Hooks {
		one := hook{Hook: c}
		if c.Matcher != "" {
			one.match, one.wrong = regexp.Compile("^(?:" + c.Matcher + ")$")
		}
		if events := []string{hookAgentStart, hookTurnStart, hookTurnEnd, hookPreTool, hookPostTool, hookToolFailed, hookAgentStop}; !slices.Contains(events, c.Event) {
			one.wrong = fmt.Errorf("event %q is unknown; it is one of %s", c.Event, strings.Join(events, ", "))
		}
		if one.wrong != nil {
			p.Logger.Warn("hook is never asked", "run_id", r.RunID, "node_id", r.NodeID, "hook", one.name(), "error", one.wrong)
		}
		h.list = append(h.list, one)
	}
	return h
}

func (h hook) name() string {
	return valid(cmp.Or(h.Name, strings.Join(h.Command, " "), h.URL, h.Subject, "unnamed"))
}

// matches reports whether the hook is asked a question. Where there is no tool, the
// matcher counts for nothing.
func (h hook) matches(q hookQuestion) bool {
	return h.wrong == nil && h.Event == q.Event && (h.match == nil || q.ToolName == "" || h.match.MatchString(q.ToolName))
}

// fire asks the hooks, one after the other, and returns the answer that counts. Each
// firing is on record. One that fails counts for nothing.
func (h *hooks) fire(ctx context.Context, q hookQuestion, say func(wire.Payload) error) (hookAnswer, error) {
	var answers []hookAnswer
	q.RunID, q.NodeID, q.ExecID, q.Cwd = h.request.RunID, h.request.NodeID, h.request.ExecID, h.request.Options.Cwd
	for _, one := range h.list {
		if !one.matches(q) {
			continue
		}
		start := time.Now()
		a, exit, err := h.ask(ctx, one, q)
		fired := &wire.HookFired{
			HookEvent: q.Event, HookName: one.name(), Decision: cmp.Or(a.Decision, "continue"), Output: valid(cmp.Or(a.Reason, a.Message)),
			DurationMs: new(time.Since(start).Milliseconds()), ExitCode: exit,
		}
		if err != nil {
			h.provider.Logger.Warn("hook failed", "run_id", q.RunID, "node_id", q.NodeID, "hook", one.name(), "error", err)
			fired.Decision, fired.Error = "", valid(err.Error())
		} else {
			answers = append(answers, a)
		}
		if err := say(fired); err != nil {
			return hookAnswer{}, err
		}
	}
	return resolve(answers), nil
}

// resolve returns the answer that counts: the first one of the strongest.
func resolve(answers []hookAnswer) hookAnswer {
	rank := func(a hookAnswer) int {
		return slices.Index([]string{"", hookAllow, hookContext, hookModify, hookSystem, hookDeny, hookStop}, a.Decision)
	}
	var counts hookAnswer
	for _, a := range answers {
		if rank(a) > rank(counts) {
			counts = a
		}
	}
	return counts
}

// hookTimeout bounds a hook that names no limit.
const hookTimeout = 10 * time.Second

// ask asks one hook.
func (h *hooks) ask(ctx context.Context, one hook, q hookQuestion) (a hookAnswer, exit *int64, err error) {
	limit := hookTimeout
	if one.TimeoutMs > 0 {
		limit = time.Duration(one.TimeoutMs) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	raw, err := wire.Marshal(q)
	if err != nil {
		return a, nil, err
	}
	question := jsonOf(raw)
	var answer []byte
	switch {
	case len(one.Command) > 0:
		answer, exit, err = h.command(ctx, one.Command, question)
	case one.URL != "":
		answer, err = h.post(ctx, one.URL, question)
	case one.Subject != "" && h.provider.Ask != nil:
		answer, err = h.provider.Ask(ctx, one.Subject, question)
	default:
		err = errors.New("it has no command, no url and no subject that could be asked")
	}
	if err != nil {
		return a, exit, err
	}
	a, err = read(answer, q.Event)
	return a, exit, err
}

// read reads an answer. An empty one goes on.
func read(answer []byte, event string) (a hookAnswer, err error) {
	if len(bytes.TrimSpace(answer)) == 0 {
		return a, nil
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return a, fmt.Errorf("its answer: %w", err)
	}
	allowed := []string{hookStop, hookSystem, hookContext}
	if event == hookPreTool {
		allowed = []string{hookDeny, hookModify, hookAllow}
	}
	if a.Decision == "continue" {
		a.Decision = ""
	}
	if a.Decision != "" && !slices.Contains(allowed, a.Decision) {
		return hookAnswer{}, fmt.Errorf("its decision is %q, which is none for %s: it is one of %s, continue", a.Decision, event, strings.Join(allowed, ", "))
	}
	if a.Decision == hookModify {
		if a.input, err = wire.RawFromJSON(a.Input); err != nil {
			return hookAnswer{}, fmt.Errorf("the input it wants: %w", err)
		}
		if _, ok := a.input.Any().(map[string]any); !ok {
			return hookAnswer{}, errors.New("the input it wants is no object")
		}
	}
	return a, nil
}

// maxAnswer bounds what is read of an answer.
const maxAnswer = 1 << 20

func (h *hooks) post(ctx context.Context, url string, question []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(question))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := h.provider.Client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode/100 != 2 {
		return nil, fmt.Errorf("it answers %s", response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, maxAnswer))
}

// command asks a command of the workspace.
func (h *hooks) command(ctx context.Context, argv []string, question []byte) ([]byte, *int64, error) {
	p, err := process.Start(process.Config{Argv: argv, Dir: h.request.Options.Cwd, Env: h.env, KeepStderr: true})
	if err != nil {
		return nil, nil, err
	}
	end := context.AfterFunc(ctx, func() { _ = p.End(time.Second) }) // Close reports what stays
	defer end()
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_, _ = p.Stdin.Write(question) // it needn't read it
		_ = p.Stdin.Close()
	}()
	answer, err := io.ReadAll(io.LimitReader(p.Stdout, maxAnswer))
	exit, waitErr := p.Wait(ctx)
	endErr := p.End(time.Second)
	<-asked
	code := int64(exit.Code)
	switch err := errors.Join(err, waitErr, endErr, p.Close()); {
	case ctx.Err() != nil:
		return nil, nil, fmt.Errorf("it did not answer in time: %w", ctx.Err())
	case err != nil:
		return nil, nil, err
	case exit.Code != 0:
		return nil, &code, fmt.Errorf("exit code %d: %s", exit.Code, strings.TrimSpace(p.Words()))
	}
	return answer, &code, nil
}

// fire asks the hooks about the agent itself, and does what they say.
func (s *session) fire(ctx context.Context, q hookQuestion) error {
	q.Turn = s.turn
	say := func(p wire.Payload) error { return s.emit(&wire.Event{Payload: p}) }
	a, err := s.hooks.fire(ctx, q, say)
	if err != nil || q.Event == hookAgentStop {
		return err
	}
	return s.heed(a, say)
}

// heed does what a hook says.
func (s *session) heed(a hookAnswer, say func(wire.Payload) error) error {
	switch a.Decision {
	case hookStop:
		s.stopped.Store(true)
	case hookSystem:
		return say(&wire.UserMessage{Content: "<system>" + valid(a.Message) + "</system>", Source: "synthetic"})
	case hookContext:
		return say(&wire.UserMessage{Content: valid(a.Message), Source: "synthetic"})
	}
	return nil
}
