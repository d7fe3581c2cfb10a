package client

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"code.wake.dev/wake/internal/conversation"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// Config says what a resumed run is expected to be, and what is to be different
// from now on. Zero values expect and change nothing.
type Config struct {
	// Template is the flow: "name", or "name@hash" with the hash of its definition
	// or the beginning of it.
	Template string
	Model    string // of all agents from here on
	Sandbox  Sandbox
}

// Sandbox is where agents work.
type Sandbox struct {
	Kind    string // local, or empty
	WorkDir string // instead of the run's folder, as the runners see it
	// EnforceBoundary has agents ask before they touch what lies outside of their
	// folder (permission mode default); see [Agent.Approve].
	EnforceBoundary bool
}

// ResumeOptions say how a run goes on.
type ResumeOptions struct {
	Strategy  string   // crash (default): open tool calls are sealed; manual: they stay as they are
	AutoRun   *bool    // go on; default true. False: open calls are dealt with, the run stays paused
	Overrides wire.Raw // see [wire.FlowResumed]
	// Message is told to the agents that were at work; default "continue". With AutoRun
	// false it is told when they go on, unless that resumption has another one.
	Message string
	// Rerun are nodes that failed or were interrupted and are executed again, "*" is all of them: a run that has
	// failed goes on with them. Fail are interrupted nodes that are given up.
	Rerun, Fail []string
}

// Agent is a run in the hands of a program. It has no listeners but those that
// the program has bound: after it resumes or forks a run, it binds anew.
type Agent struct {
	ID string // of the run

	client *Client
	from   uint64 // first position that listeners hear of

	mu          sync.Mutex
	listeners   map[string][]func(Event)
	toldWaiting bool // see [Agent.tellWaiting]
}

// Agent returns a run as it is, from now on.
func (c *Client) Agent(ctx context.Context, runID string) (*Agent, error) {
	if _, err := c.State(ctx, runID); err != nil {
		return nil, unknownAgent(runID, err)
	}
	_, last, err := c.reader.Bounds(ctx)
	if err != nil {
		return nil, err
	}
	return &Agent{ID: runID, client: c, from: last + 1, listeners: map[string][]func(Event){}}, nil
}

func unknownAgent(runID string, err error) error {
	if wire.HasCode(err, wire.CodeRunNotFound) {
		return &wire.APIError{
			Code: wire.CodeAgentNotFound, Message: fmt.Sprintf("no run %q is stored", runID),
			Hint: "check the server and the prefix, and see `wake runs`",
		}
	}
	return err
}

// Exists reports whether a resume would find a run with a flow that can be read.
func (c *Client) Exists(ctx context.Context, runID string) (bool, error) {
	s, err := c.State(ctx, runID)
	if wire.HasCode(err, wire.CodeRunNotFound, wire.CodeBadRequest) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return hasFlow(s), nil
}

func hasFlow(s *wire.State) bool {
	_, isObject := s.Definition.Any().(map[string]any)
	return isObject && s.DefinitionHash != ""
}

// Resume continues a run that is paused, if it is what config expects. It fails
// with AGENT_NOT_FOUND, TEMPLATE_NOT_FOUND, TEMPLATE_VERSION_MISMATCH,
// SANDBOX_INIT_FAILED, CORRUPTED_DATA, LEASE_HELD (it is running) or NOT_RESUMABLE
// (it has ended, and not by a failure that Rerun would mend).
func (c *Client) Resume(ctx context.Context, runID string, config Config, o ResumeOptions) (*Agent, error) {
	a, err := c.Agent(ctx, runID)
	if err != nil {
		return nil, err
	}
	s, err := c.State(ctx, runID)
	if err != nil {
		return nil, err
	}
	if err := config.checkStored(s, o); err != nil {
		return nil, err
	}
	overrides, err := config.mergeOverrides(o.Overrides)
	if err != nil {
		return nil, err
	}
	cmd := wire.Command{
		Type: "resume", RunID: runID, Message: o.Message, Strategy: o.Strategy, AutoRun: o.AutoRun, Overrides: overrides,
		Rerun: o.Rerun, Fail: o.Fail, By: "client",
	}
	if _, err := c.Do(ctx, cmd); err != nil {
		return nil, err
	}
	return a, nil
}

// ResumeFromStore continues a run as it is stored.
func (c *Client) ResumeFromStore(ctx context.Context, runID string, o ResumeOptions) (*Agent, error) {
	return c.Resume(ctx, runID, Config{}, o)
}

// checkStored compares a stored run.
func (c Config) checkStored(s *wire.State, o ResumeOptions) error {
	if !hasFlow(s) {
		return &wire.APIError{Code: wire.CodeCorruptedData, Message: fmt.Sprintf("run %s is stored without a flow that can be read", s.RunID)}
	}
	if s.Status.Ended() && (len(o.Rerun) == 0 || !run.Failed(s)) {
		return &wire.APIError{
			Code: wire.CodeNotResumable, Message: fmt.Sprintf("run %s is %s", s.RunID, s.Status), Hint: "fork it at an earlier point",
		}
	}
	name, hash, versioned := strings.Cut(c.Template, "@")
	switch {
	case name != "" && name != s.FlowName:
		return &wire.APIError{Code: wire.CodeTemplateUnknown, Message: fmt.Sprintf("run %s is of flow %q, not %q", s.RunID, s.FlowName, name)}
	case versioned && (hash == "" || !strings.HasPrefix(s.DefinitionHash, hash)):
		return &wire.APIError{
			Code:    wire.CodeTemplateVersion,
			Message: fmt.Sprintf("run %s is of version %s of flow %q, not %q", s.RunID, s.DefinitionHash, s.FlowName, hash),
		}
	}
	return nil
}

// mergeOverrides adds what the config changes to what is to be changed anyway.
func (c Config) mergeOverrides(given wire.Raw) (wire.Raw, error) {
	fields := map[string]any{}
	if given != nil {
		m, ok := given.Any().(map[string]any)
		if !ok {
			return nil, &wire.APIError{Code: wire.CodeBadRequest, Message: "overrides must be an object"}
		}
		fields = m
	}
	if c.Model != "" {
		fields["model"] = c.Model
	}
	if k := c.Sandbox.Kind; k != "" && k != "local" {
		return nil, &wire.APIError{Code: wire.CodeSandboxInit, Message: fmt.Sprintf("there is no sandbox of kind %q", k), Hint: "local is there"}
	}
	if dir := c.Sandbox.WorkDir; dir != "" {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return nil, &wire.APIError{Code: wire.CodeSandboxInit, Message: fmt.Sprintf("%s is no folder", dir)}
		}
		fields["workspace"] = dir
	}
	if _, set := fields["permissionMode"]; c.Sandbox.EnforceBoundary && !set {
		fields["permissionMode"] = "default"
	}
	if len(fields) == 0 {
		return nil, nil
	}
	return wire.Marshal(fields)
}

func (a *Agent) sendCommand(ctx context.Context, cmd wire.Command) error {
	cmd.RunID, cmd.By = a.ID, "client"
	_, err := a.client.Do(ctx, cmd)
	return err
}

// Send gives a message to the one agent that is at work; AMBIGUOUS_ID if there is
// none or more. See [Client.Do] for naming one.
func (a *Agent) Send(ctx context.Context, message string) error {
	return a.sendCommand(ctx, wire.Command{Type: "send", Message: message})
}

// Approve allows a tool call that waits for permission.
func (a *Agent) Approve(ctx context.Context, callID, note string) error {
	return a.sendCommand(ctx, wire.Command{Type: "approve", CallID: callID, Note: note})
}

// Deny refuses a tool call that waits for permission; the agent is told the note.
func (a *Agent) Deny(ctx context.Context, callID, note string) error {
	return a.sendCommand(ctx, wire.Command{Type: "deny", CallID: callID, Note: note})
}

// Pause interrupts the agents; [Client.Resume] lets them go on.
func (a *Agent) Pause(ctx context.Context, reason string) error {
	return a.sendCommand(ctx, wire.Command{Type: "pause", Reason: reason})
}

// Abort ends the run for good.
func (a *Agent) Abort(ctx context.Context, reason string) error {
	return a.sendCommand(ctx, wire.Command{Type: "abort", Reason: reason})
}

// Snapshot labels the present, so that it can be forked later even if the log has
// forgotten it, and returns the label: an empty one is sfp-<n>, the last fork
// point.
func (a *Agent) Snapshot(ctx context.Context, label string) (string, error) {
	if label == "" {
		s, err := a.client.State(ctx, a.ID)
		if err != nil {
			return "", err
		}
		label = fmt.Sprintf("sfp-%d", s.ForkPoints)
	}
	return label, a.sendCommand(ctx, wire.Command{Type: "bookmark", Label: label, Force: strings.HasPrefix(label, "sfp-")})
}

// Fork begins a new run at a label, sfp-<n> or position of this one; empty: the
// present.
func (a *Agent) Fork(ctx context.Context, at string) (*Agent, error) {
	_, last, err := a.client.reader.Bounds(ctx)
	if err != nil {
		return nil, err
	}
	f, err := a.client.Fork(ctx, ForkRequest{RunID: a.ID, At: at})
	if err != nil {
		return nil, err
	}
	return &Agent{ID: f.RunID, client: a.client, from: last + 1, listeners: map[string][]func(Event){}}, nil
}

// Bookmark is a place in what a run tells.
type Bookmark struct {
	Seq       uint64 // position in the log
	Timestamp int64  // Unix ms
}

// Envelope is an event and where it stands.
type Envelope struct {
	Cursor   uint64 // rises by one with every event of the subscription, from 1
	Bookmark Bookmark
	Event    Event
}

// SubscribeOptions narrow a subscription. Zero values are everything.
type SubscribeOptions struct {
	Since Bookmark // only what comes after it
	Kinds []string // of these types only
	Node  string
}

// Subscribe yields what the run tells on some channels, nil for all, from its
// beginning or after a bookmark, until ctx ends or the run does. The types are
//
//	progress  think_chunk_start, think_chunk, think_chunk_end,
//	          text_chunk_start, text_chunk, text_chunk_end,
//	          tool:start, tool:error, tool:end, done
//	control   permission_required, permission_decided, cc_message
//	monitor   state_changed, step_complete, error, token_usage, tool_executed,
//	          agent_resumed, breakpoint_changed, todo_changed, file_changed,
//	          context_compression, storage_failure
func (a *Agent) Subscribe(ctx context.Context, channels []Channel, o SubscribeOptions) iter.Seq2[Envelope, error] {
	return func(yield func(Envelope, error) bool) {
		p, cursor := &projection{talks: map[string]*conversation.Conversation{}, agents: map[speaker]*agentView{}}, uint64(0)
		q := eventlog.Query{Run: a.ID, From: o.Since.Seq + 1}
		for e, err := range a.client.reader.Follow(ctx, q) {
			if err != nil {
				yield(Envelope{}, err)
				return
			}
			if e.Event == nil {
				continue
			}
			for _, told := range p.projectEvent(e.Pos, e.Event) {
				if !isSelected(channels, o, told) {
					continue
				}
				cursor++
				told.respond = a.responderFor(ctx, told)
				at := Bookmark{Seq: e.Pos, Timestamp: e.Event.Timestamp}
				if !yield(Envelope{Cursor: cursor, Bookmark: at, Event: told}, nil) {
					return
				}
			}
			if t := e.Event.Type(); t != wire.TypeFlowComplete && t != wire.TypeFlowAborted {
				continue
			}
			on, err := eventlog.GoesOn(ctx, a.client.reader, a.ID, e.Pos, e.Event.Epoch)
			if err != nil {
				yield(Envelope{}, err)
			}
			if err != nil || !on {
				return
			}
		}
	}
}

func isSelected(channels []Channel, o SubscribeOptions, e Event) bool {
	return (len(channels) == 0 || slices.Contains(channels, e.Channel)) &&
		(len(o.Kinds) == 0 || slices.Contains(o.Kinds, e.Type)) &&
		(o.Node == "" || o.Node == e.Node)
}

func (a *Agent) responderFor(ctx context.Context, e Event) func(bool, string) error {
	if e.Type != "permission_required" {
		return nil
	}
	return func(allow bool, note string) error {
		if allow {
			return a.Approve(ctx, e.Call.ID, note)
		}
		return a.Deny(ctx, e.Call.ID, note)
	}
}

// Respond answers a permission_required.
func (e Event) Respond(allow bool, note string) error {
	if e.respond == nil {
		return fmt.Errorf("client: %s asks for no answer", e.Type)
	}
	return e.respond(allow, note)
}

// On has f called for the events of a type, from when the Agent was made, by the
// goroutine in [Agent.Wait]; permission_required also for calls that wait since before.
// Events of channel progress have no listeners: use Subscribe. It fails for these, and for a type that isn't known.
func (a *Agent) On(kind string, f func(Event)) error {
	switch {
	case progressTypes[kind]:
		return fmt.Errorf("client: %s is an event of channel progress: subscribe to it", kind)
	case !slices.Contains(heardTypes, kind):
		return fmt.Errorf("client: there is no event %q: it is one of %s", kind, strings.Join(heardTypes, ", "))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listeners[kind] = append(a.listeners[kind], f)
	return nil
}

// Wait calls the listeners until the run has ended, and returns its last state.
// It may be called again after ctx has ended, and then goes on where it was.
func (a *Agent) Wait(ctx context.Context) (*wire.State, error) {
	s, err := a.client.StateAt(ctx, a.ID, a.from-1)
	if wire.HasCode(err, wire.CodeRunNotFound) {
		s, err = run.New(a.ID), nil // a fork that is about to begin
	}
	if err != nil {
		return nil, err
	}
	if s.Status.Ended() {
		on, err := eventlog.GoesOn(ctx, a.client.reader, a.ID, a.from-1, s.Nodes[wire.RunNode].Epoch)
		if err != nil || !on {
			return s, err
		}
	}
	if err := a.tellWaiting(ctx, s); err != nil {
		return nil, err
	}
	for e, err := range a.Subscribe(ctx, []Channel{Control, Monitor}, SubscribeOptions{Since: Bookmark{Seq: a.from - 1}}) {
		if err != nil {
			return nil, err
		}
		a.from = e.Bookmark.Seq + 1
		a.tellListeners(e.Event)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return a.client.State(ctx, a.ID)
}

// tellWaiting tells once of the calls that waited for a decision when the Agent was made and do so still: nothing
// that comes says so again.
func (a *Agent) tellWaiting(ctx context.Context, before *wire.State) error {
	a.mu.Lock()
	told := a.toldWaiting
	a.toldWaiting = true
	a.mu.Unlock()
	waits := func(c wire.ToolCall) bool { return c.State == wire.ToolApprovalRequired }
	if told || !slices.ContainsFunc(slices.Collect(maps.Values(before.Tools)), waits) {
		return nil
	}
	now, err := a.client.State(ctx, a.ID)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(before.Tools)) {
		c := before.Tools[key]
		if !waits(c) || !waits(now.Tools[key]) {
			continue
		}
		e := Event{
			Channel: Control, Type: "permission_required", Node: c.Node, Exec: c.Exec,
			Call: &Call{ID: c.CallID, Name: c.Tool, Input: c.Input, State: c.State},
		}
		e.respond = a.responderFor(ctx, e)
		a.tellListeners(e)
	}
	return nil
}

func (a *Agent) tellListeners(e Event) {
	a.mu.Lock()
	listeners := slices.Clone(a.listeners[e.Type])
	a.mu.Unlock()
	for _, f := range listeners {
		f(e)
	}
}
