package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"wake/internal/agent"
	"wake/pkg/wire"
)

// agentInput is the input of an agent node.
type agentInput struct {
	Provider string   `json:"provider"`
	Prompt   wire.Raw `json:"prompt"`
	Messages wire.Raw `json:"messages"`
	agent.Options
}

// defaultProvider acts in nodes that name none.
const defaultProvider = "claude"

// agent drives the agent of the node and returns the events that end the
// execution.
func (w *worker) agent(ctx context.Context, n wire.NodeState, messages <-chan wire.InboxEntry) ([]*wire.Event, error) {
	var in agentInput
	if err := wire.Unmarshal(n.Input, &in); err != nil {
		return nil, &failure{message: fmt.Sprintf("input of the node: %v", err), kind: wire.ErrorStartFailed}
	}
	if in.Prompt == nil {
		in.Prompt = in.Messages
	}
	in.Cwd = w.dir(in.Cwd)
	provider, name, err := w.provider(in.Provider)
	if err != nil {
		return nil, &failure{message: err.Error(), kind: wire.ErrorStartFailed}
	}
	request := agent.Request{
		RunID: w.offer.RunID, NodeID: w.offer.NodeID, ExecID: w.offer.ExecID,
		SessionID: agent.NewSessionID(), Prompt: in.Prompt, Options: in.Options,
	}
	session, err := provider.Start(ctx, request)
	if err != nil {
		failed := &wire.Event{SessionID: request.SessionID, Payload: &wire.AgentError{
			ErrorType: wire.ErrorStartFailed, Message: err.Error(), Severity: wire.SeverityError, Phase: "lifecycle",
		}}
		return []*wire.Event{failed}, &failure{message: err.Error(), kind: wire.ErrorStartFailed}
	}
	w.provided = &wire.AgentStart{Model: in.Model, Prompt: in.Prompt, Task: task(in.Prompt), Provider: name, Cwd: in.Cwd}
	return w.drive(ctx, session, request.SessionID, messages)
}

// drive records what the agent does until it ends.
func (w *worker) drive(ctx context.Context, session agent.Session, id string, messages <-chan wire.InboxEntry) ([]*wire.Event, error) {
	stop := context.AfterFunc(ctx, func() { _ = session.Close() }) // Events ends, then Close below reports
	defer stop()
	passing, stopPassing := context.WithCancel(ctx)
	defer stopPassing()
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		w.pass(passing, session, messages)
	}()
	outcome := agent.Outcome{SessionID: id}
	last, err := w.consume(ctx, session, &outcome)
	if err := session.Close(); err != nil { // what it said counts all the same
		w.runner.logger.Warn("agent not ended properly", "run", w.offer.RunID, "node", w.offer.NodeID, "error", err)
	}
	stopPassing()
	<-passed
	if err != nil {
		return last, err
	}
	if outcome.Paused() != nil && ctx.Err() != nil {
		return last, nil // that was our own interruption
	}
	if failed := outcome.Error(); failed != nil {
		return last, &failure{message: failed.Message, kind: failed.ErrorType}
	}
	output, err := outcome.Output()
	if err != nil {
		return last, err
	}
	return append(last, w.completed(output)), nil
}

// consume records the events of a session. The first is agent:start: the session
// is stored before the agent gets its prompt, so that a crash from then on can go
// on with it. The terminal one is returned instead, to be stored in one commit
// with the end of the node.
func (w *worker) consume(ctx context.Context, session agent.Session, outcome *agent.Outcome) (last []*wire.Event, err error) {
	for e, err := range session.Events() {
		if err != nil {
			return last, &failure{message: err.Error(), kind: wire.ErrorException}
		}
		if e.SessionID == "" {
			e.SessionID = outcome.SessionID
		}
		if p, ok := e.Payload.(*wire.AgentStart); ok {
			w.complete(p)
		}
		outcome.Observe(e)
		if terminal(e) {
			last = append(last, e)
			continue
		}
		if err := w.recordAll(ctx, append(last, e)); err != nil {
			return nil, err
		}
		last = nil
	}
	return last, nil
}

// complete adds to an agent:start what only the worker knows.
func (w *worker) complete(p *wire.AgentStart) {
	p.Model = cmp.Or(p.Model, w.provided.Model)
	p.Task = cmp.Or(p.Task, w.provided.Task)
	p.Provider = cmp.Or(p.Provider, w.provided.Provider)
	p.Cwd = cmp.Or(p.Cwd, w.provided.Cwd)
	if p.Prompt == nil {
		p.Prompt = w.provided.Prompt
	}
}

func (w *worker) recordAll(ctx context.Context, events []*wire.Event) error {
	for _, e := range events {
		if err := w.record(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

func terminal(e *wire.Event) bool {
	switch e.Payload.(type) {
	case *wire.AgentComplete, *wire.AgentPaused, *wire.AgentAborted:
		return true
	}
	return false
}

// pass gives messages to the agent until ctx ends.
func (w *worker) pass(ctx context.Context, session agent.Session, messages <-chan wire.InboxEntry) {
	for {
		select {
		case m, ok := <-messages:
			if !ok {
				return
			}
			w.send(ctx, session, m)
		case <-ctx.Done():
			return
		}
	}
}

func (w *worker) send(ctx context.Context, session agent.Session, m wire.InboxEntry) {
	var cmd wire.Command
	err := wire.Unmarshal(m.Command, &cmd)
	if err == nil {
		err = session.Send(ctx, agent.Message{CommandID: m.ID, Content: cmd.Message})
	}
	if err != nil && ctx.Err() == nil {
		w.runner.logger.Warn("message not delivered", "run", w.offer.RunID, "node", w.offer.NodeID, "command", m.ID, "error", err)
	}
}

// provider returns the agent that acts in the node. In a run with fixtures no
// other agent can be reached.
func (w *worker) provider(name string) (agent.Provider, string, error) {
	if dir := w.fixtures; dir != "" {
		if w.runner.cfg.Fixtures == nil {
			return nil, "", errors.New("this runner has no fixtures")
		}
		p, err := w.runner.cfg.Fixtures(dir)
		return p, "fixture", err
	}
	if name == "" {
		name = defaultProvider
	}
	p, ok := w.runner.cfg.Providers[name]
	if !ok {
		return nil, "", fmt.Errorf("unknown provider %q", name)
	}
	return p, name, nil
}

// maxTask is the length of the one-line task of an agent in runes.
const maxTask = 120

// task returns the first line of a prompt.
func task(prompt wire.Raw) string {
	text, ok := prompt.Text()
	if !ok {
		return ""
	}
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if r := []rune(line); len(r) > maxTask {
		return string(r[:maxTask-1]) + "…"
	}
	return line
}
