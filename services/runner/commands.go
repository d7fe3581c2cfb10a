package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/eventlog"
	"wake/internal/snapshot"
	"wake/internal/tracing"
	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// followEvents feeds the events of all runs from a position on, until ctx ends.
func (r *Runner) followEvents(ctx context.Context, from uint64) error {
	for e, err := range r.log.Follow(ctx, eventlog.Query{Kinds: folded, From: from}) {
		if err != nil {
			return err
		}
		r.events.deliver(e)
		r.dealt.note(r.names, e)
	}
	return nil
}

// followCommands feeds the commands to all runs from a position on, until ctx
// ends. (An ordered consumer of the client keeps whoever stops it waiting while the
// server is away.)
func (r *Runner) followCommands(ctx context.Context, from uint64) error {
	for ctx.Err() == nil {
		err := r.feedCommands(ctx, &from)
		if err != nil && ctx.Err() == nil {
			r.logger.Debug("commands are away", "error", err)
			sleep(ctx, time.Second)
		}
	}
	return nil
}

// feedCommands feeds the commands from a position on until anything is odd, and
// moves the position.
func (r *Runner) feedCommands(ctx context.Context, from *uint64) error {
	wait, cancel := context.WithTimeout(ctx, giveBack)
	defer cancel()
	c, err := r.log.JetStream().CreateConsumer(wait, r.names.CommandsStream(), jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: *from,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: 5 * time.Minute,
	})
	if err != nil {
		return fmt.Errorf("follow commands: %w", err)
	}
	for fed := uint64(0); ctx.Err() == nil; {
		msg, err := r.next(ctx, c)
		if err != nil {
			return fmt.Errorf("follow commands: %w", err)
		}
		if msg == nil {
			// What was delivered to a request that had been given up never comes.
			info, err := c.Info(ctx)
			if errors.Is(err, jetstream.ErrConsumerNotFound) || err == nil && info.Delivered.Consumer != fed {
				return nil
			}
			continue
		}
		meta, err := msg.Metadata()
		if err != nil {
			continue // not from the stream
		}
		if fed++; meta.Sequence.Consumer != fed {
			return nil
		}
		// The subject stands for the run: of a long id it has a hash only.
		r.commands.deliver(r.commandAt(meta.Sequence.Stream, msg.Subject(), msg.Subject(), msg.Data(), msg.Headers()))
		*from = meta.Sequence.Stream + 1
	}
	return nil
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
		entries = append(entries, r.commandAt(m.Sequence, run, m.Subject, m.Data, m.Header))
	}
}

// unobeyed returns the commands to the run that wait for its owner. From here on
// nobody rejects one of those that there are: whoever is about to, since there was
// no such run a moment ago, is fenced, and looks again; see [Runner.recordStrays].
func (o *owner) unobeyed(ctx context.Context) ([]eventlog.Entry, error) {
	entries, err := o.runner.readCommands(ctx, o.runID, o.view.state.CommandPos)
	if err != nil || len(entries) == 0 {
		return nil, err
	}
	if err := o.runner.fenceStrays(ctx); err != nil {
		return nil, err
	}
	if o.rejected, err = o.runner.recordsOfNone(ctx); err != nil {
		return nil, err
	}
	return entries, nil
}

// obeyAll obeys the commands that it hasn't obeyed before. It folds first what the
// log has: who sends a command may have seen all of that, such as the question that
// it answers, and events come to this view a little later.
func (o *owner) obeyAll(ctx context.Context, entries []eventlog.Entry) error {
	if len(entries) > 0 {
		if err := snapshot.Fold(ctx, o.runner.log, o.view.state, 0); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if err := o.view.wait(ctx, o.written); err != nil {
			return err
		}
		if e.Pos <= o.view.state.CommandPos || o.rejected[e.Pos] {
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
	names := o.runner.names
	ctx, span := tracing.Obey(ctx, o.runner.log.Tracer(), e.Trace,
		tracing.Destination(names.Prefix(), names.Command(o.runID)), tracing.Run(o.runID), tracing.Position(e.Pos))
	defer span.End()
	events, err := o.answer(ctx, e)
	if err == nil {
		err = o.append(ctx, events)
	}
	if err != nil {
		tracing.Fail(span, err)
		return err
	}
	if p, ok := events[0].Payload.(*wire.CommandReceived); ok {
		span.SetAttributes(tracing.Accepted(p.Accepted))
		if kind, _ := p.Command.Get("type").Text(); p.Accepted {
			span.SetAttributes(tracing.Command(kind)) // it is a known one
		}
	}
	return nil
}

// answer returns the record of a command, and behind it what follows from it at
// once.
func (o *owner) answer(ctx context.Context, e eventlog.Entry) ([]*wire.Event, error) {
	raw, cmd, err := parseCommand(e)
	record := &wire.CommandReceived{Command: raw, CommandID: cmd.ID, AtPos: e.Pos}
	if record.CommandID == "" {
		record.CommandID = unnamed(e.Pos)
	}
	var effects []*wire.Event
	if err == nil {
		j := judge{owner: o, state: o.view.state, cmd: cmd, id: record.CommandID, fields: map[string]any{}}
		if effects, err = j.verdict(ctx); err != nil && !rejected(err) {
			return nil, err
		}
		if err == nil {
			record.Command, err = j.record(raw)
		}
	}
	record.Accepted = err == nil
	if err != nil {
		record.Reason, effects = err.Error(), nil
	}
	return append([]*wire.Event{{Payload: record, ExecID: cmd.ExecID}}, effects...), nil
}

// unnamed is the id of a command that came without.
func unnamed(pos uint64) string { return fmt.Sprintf("cmd-%d", pos) }

// commandAt returns a command as it is stored. One whose key is missing has an error,
// for which it is refused like any other that can't be read: whoever sent it learns why.
func (r *Runner) commandAt(pos uint64, run, subject string, stored []byte, header nats.Header) eventlog.Entry {
	data, err := r.log.Unseal(subject, stored)
	return eventlog.Entry{Pos: pos, RunID: run, Subject: subject, Data: data, Trace: tracing.Parent(header), Err: err}
}

func parseCommand(e eventlog.Entry) (wire.Raw, wire.Command, error) {
	var cmd wire.Command
	if e.Err != nil {
		return wire.RawString(""), cmd, reject(wire.CodeBadRequest, "not a command: %v", e.Err)
	}
	raw, _, err := wire.ParseAny(e.Data)
	if err != nil {
		return wire.RawString(string(e.Data)), cmd, reject(wire.CodeBadRequest, "not a command: %v", err)
	}
	if err := wire.Unmarshal(raw, &cmd); err != nil {
		return raw, cmd, reject(wire.CodeBadRequest, "not a command: %v", err)
	}
	for _, id := range []*string{&cmd.ID, &cmd.ExecID} { // they stand in the record, and in the state
		if n := len(*id); n > maxCommandID {
			*id = ""
			return raw, cmd, reject(wire.CodeBadRequest, "an id has %d bytes, at most %d are allowed", n, maxCommandID)
		}
	}
	return raw, cmd, nil
}

// maxCommandID is the length in bytes that ids may have in a command: no execution
// has a longer one.
const maxCommandID = 2 * subjects.MaxID

// rejection is the reason why a command isn't obeyed: "CODE: text".
type rejection struct {
	code wire.ErrorCode
	text string
}

func (r *rejection) Error() string { return string(r.code) + ": " + r.text }

func reject(code wire.ErrorCode, format string, args ...any) error {
	return &rejection{code, fmt.Sprintf(format, args...)}
}

// rejected reports whether err is the fault of a command, not of the runner.
func rejected(err error) bool {
	_, ok := errors.AsType[*rejection](err)
	return ok
}
