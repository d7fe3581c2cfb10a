package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/eventlog"
	"wake/internal/flow"
	"wake/pkg/wire"
)

// followEvents feeds the events of all runs from a position on, until ctx ends.
func (r *Runner) followEvents(ctx context.Context, from uint64) error {
	for e, err := range r.log.Follow(ctx, eventlog.Query{Kinds: folded, From: from}) {
		if err != nil {
			return err
		}
		r.events.deliver(e)
	}
	return nil
}

// followCommands feeds the commands to all runs from a position on, until ctx
// ends.
func (r *Runner) followCommands(ctx context.Context, from uint64) error {
	c, err := r.log.JetStream().OrderedConsumer(ctx, r.names.CommandsStream(), jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:   from,
	})
	if err != nil {
		return fmt.Errorf("follow commands: %w", err)
	}
	m, err := c.Messages()
	if err != nil {
		return fmt.Errorf("follow commands: %w", err)
	}
	defer context.AfterFunc(ctx, m.Stop)()
	for {
		msg, err := m.Next()
		if errors.Is(err, jetstream.ErrMsgIteratorClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("follow commands: %w", err)
		}
		meta, err := msg.Metadata()
		if err != nil {
			continue // not from the stream
		}
		// The subject stands for the run: of a long id it has a hash only.
		r.commands.deliver(eventlog.Entry{Pos: meta.Sequence.Stream, RunID: msg.Subject(), Subject: msg.Subject(), Data: msg.Data()})
	}
}

// lastCommand returns the position of the newest command.
func (r *Runner) lastCommand(ctx context.Context) (uint64, error) {
	stream, err := r.log.JetStream().Stream(ctx, r.names.CommandsStream())
	if err != nil {
		return 0, fmt.Errorf("runner: open the stream of commands: %w", err)
	}
	return stream.CachedInfo().State.LastSeq, nil
}

// readCommands returns the commands to a run behind a position.
func (r *Runner) readCommands(ctx context.Context, run string, after uint64) ([]eventlog.Entry, error) {
	stream, err := r.log.JetStream().Stream(ctx, r.names.CommandsStream())
	if err != nil {
		return nil, fmt.Errorf("read commands: %w", err)
	}
	var entries []eventlog.Entry
	for {
		m, err := stream.GetMsg(ctx, after+1, jetstream.WithGetMsgSubject(r.names.Command(run)))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return entries, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read commands: %w", err)
		}
		after = m.Sequence
		entries = append(entries, eventlog.Entry{Pos: m.Sequence, RunID: run, Subject: m.Subject, Data: m.Data})
	}
}

// obeyAll obeys the commands that it hasn't obeyed before.
func (o *owner) obeyAll(ctx context.Context, entries []eventlog.Entry) error {
	for _, e := range entries {
		if err := o.view.wait(ctx, o.written); err != nil {
			return err
		}
		if e.Pos <= o.view.state.CommandPos {
			continue
		}
		if err := o.obey(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// obey records a command and, if it is accepted, what follows from it at once.
// The rest follows from the state.
func (o *owner) obey(ctx context.Context, e eventlog.Entry) error {
	raw, cmd, err := parseCommand(e.Data)
	record := &wire.CommandReceived{Command: raw, CommandID: cmd.ID, AtPos: e.Pos}
	if record.CommandID == "" {
		record.CommandID = fmt.Sprintf("cmd-%d", e.Pos)
	}
	if err == nil {
		err = o.judge(cmd, record.CommandID)
	}
	if err == nil && cmd.Type == "send" {
		record.Command, err = o.address(raw, cmd)
	}
	record.Accepted = err == nil
	if err != nil {
		record.Reason = err.Error()
	}
	events := []*wire.Event{{Payload: record, ExecID: cmd.ExecID}}
	if record.Accepted {
		events = append(events, o.effects(cmd)...)
	}
	return o.append(ctx, events)
}

func parseCommand(data []byte) (wire.Raw, wire.Command, error) {
	var cmd wire.Command
	raw, _, err := wire.ParseAny(data)
	if err != nil {
		return wire.RawString(string(data)), cmd, fmt.Errorf("not a command: %w", err)
	}
	if err := wire.Unmarshal(raw, &cmd); err != nil {
		return raw, cmd, fmt.Errorf("not a command: %w", err)
	}
	return raw, cmd, nil
}

// judge says whether a command can be obeyed now.
func (o *owner) judge(cmd wire.Command, id string) error {
	s := o.view.state
	switch {
	case slices.Contains(s.CommandIDs, id):
		return errors.New("DUPLICATE: the command has been obeyed before")
	case cmd.RunID != "" && cmd.RunID != o.runID:
		return fmt.Errorf("WRONG_RUN: the command names run %s", cmd.RunID)
	case ended(s.Status):
		return fmt.Errorf("NOT_RUNNING: the run is %s", s.Status)
	}
	switch cmd.Type {
	case "send":
	case "reply":
		return o.judgeReply(cmd)
	case "pause":
		if s.Status != wire.RunRunning {
			return fmt.Errorf("NOT_RUNNING: the run is %s", s.Status)
		}
	case "resume":
		if s.Status != wire.RunPaused {
			return fmt.Errorf("NOT_PAUSED: the run is %s", s.Status)
		}
	case "abort":
	default:
		return fmt.Errorf("UNKNOWN_COMMAND: %q", cmd.Type)
	}
	return nil
}

// address says in a message who its recipient is, which must be one: whoever
// else begins before it is delivered is none.
func (o *owner) address(raw wire.Raw, cmd wire.Command) (wire.Raw, error) {
	if cmd.Message == "" {
		return raw, errors.New("BAD_REQUEST: message is required")
	}
	var live []string
	for node, n := range o.view.state.Nodes {
		if n.Open() && n.Type == string(flow.TypeAgent) && (cmd.NodeID == "" || cmd.NodeID == node) && (cmd.ExecID == "" || cmd.ExecID == n.Exec) {
			live = append(live, node)
		}
	}
	if len(live) != 1 {
		return raw, fmt.Errorf("AMBIGUOUS_ID: %d agents are live; name one by nodeId or execId", len(live))
	}
	var fields map[string]wire.Raw
	if err := wire.Unmarshal(raw, &fields); err != nil {
		return raw, fmt.Errorf("not a command: %w", err)
	}
	fields["nodeId"] = wire.RawString(live[0])
	return wire.Marshal(fields)
}

func (o *owner) judgeReply(cmd wire.Command) error {
	if cmd.PromptID == "" {
		return errors.New("BAD_REQUEST: promptId is required")
	}
	if cmd.Content == nil {
		return errors.New("BAD_REQUEST: content is required")
	}
	for _, n := range o.view.state.Nodes {
		if n.PromptID == cmd.PromptID {
			return nil
		}
	}
	return fmt.Errorf("UNKNOWN_PROMPT: nobody waits for an answer to %q", cmd.PromptID)
}

// effects are the decisions that a command is in itself.
func (o *owner) effects(cmd wire.Command) []*wire.Event {
	switch {
	case cmd.Type == "pause", cmd.Type == "abort" && cmd.Resumable:
		return []*wire.Event{{Payload: &wire.FlowPaused{Reason: "operator", Message: cmd.Reason}}}
	case cmd.Type == "abort":
		return []*wire.Event{{Payload: &wire.FlowAborted{Reason: cmd.Reason}}}
	case cmd.Type == "resume":
		return []*wire.Event{{Payload: &wire.FlowResumed{Message: cmd.Message}}}
	}
	return nil
}
