// Package command reads what is sent to runs, and says what becomes of it: each command is
// on record once, accepted or rejected.
package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/queue"
	"code.wake.dev/wake/services/runner/internal/tenure"
	"code.wake.dev/wake/services/runner/internal/view"
)

// Stream is the stream of commands to all runs.
type Stream struct {
	log      *eventlog.Log
	logger   *slog.Logger
	runs     *view.Runs
	queue    *queue.Queue
	commands *view.Feed
	users    bool // the server has users, and only services store commands
	opened   atomic.Pointer[jetstream.Stream]
	none     *noneRecords
}

// NewStream returns the commands of a log.
func NewStream(log *eventlog.Log, logger *slog.Logger, runs *view.Runs, q *queue.Queue) (*Stream, error) {
	users, err := access.KnowsUsers(log.Conn())
	return &Stream{log: log, logger: logger, runs: runs, queue: q, commands: view.NewFeed(), users: users, none: newNoneRecords()}, err
}

// Subscribe begins to collect the commands to a run that [Stream.Follow] feeds.
func (s *Stream) Subscribe(run string) *view.Subscription {
	return s.commands.Subscribe(s.log.Names().Command(run))
}

// Follow feeds the commands to all runs from a position on, until ctx
// ends. (An ordered consumer of the client keeps the one that stops it waiting while the
// server is away.)
func (s *Stream) Follow(ctx context.Context, from uint64) error {
	for ctx.Err() == nil {
		err := s.feedCommands(ctx, &from)
		if err != nil && ctx.Err() == nil {
			s.logger.Debug("commands are away", "error", err)
			pull.Sleep(ctx, time.Second)
		}
	}
	return nil
}

// feedCommands feeds the commands from a position on until anything is odd, and
// moves the position.
func (s *Stream) feedCommands(ctx context.Context, from *uint64) error {
	wait, cancel := context.WithTimeout(ctx, tenure.GiveBack)
	defer cancel()
	c, err := s.log.JetStream().CreateConsumer(wait, s.log.Names().CommandsStream(), jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: *from,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: 5 * time.Minute,
	})
	if err != nil {
		return fmt.Errorf("follow commands: %w", err)
	}
	source := s.queue.Source(c, 1)
	defer source.Close(ctx)
	for fed := uint64(0); ctx.Err() == nil; {
		msg, err := source.Next(ctx)
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
		s.commands.Deliver(s.Entry(meta.Sequence.Stream, msg.Subject(), msg.Subject(), msg.Data(), msg.Headers()))
		*from = meta.Sequence.Stream + 1
	}
	return nil
}

// Begin returns the position of the newest command. The log has had an event for longer.
func (s *Stream) Begin(ctx context.Context, event uint64) (uint64, error) {
	stream, err := s.log.JetStream().Stream(ctx, s.log.Names().CommandsStream())
	if err != nil {
		return 0, fmt.Errorf("runner: open the stream of commands: %w", err)
	}
	last := stream.CachedInfo().State.LastSeq
	s.none.skipOlder(event, last)
	return last, nil
}

// openStream returns the stream, as it was when it was opened first.
func (s *Stream) openStream(ctx context.Context) (jetstream.Stream, error) {
	if opened := s.opened.Load(); opened != nil {
		return *opened, nil
	}
	stream, err := s.log.JetStream().Stream(ctx, s.log.Names().CommandsStream())
	if err == nil {
		s.opened.Store(&stream)
	}
	return stream, err
}

// Read returns the commands to a run behind a position.
func (s *Stream) Read(ctx context.Context, run string, after uint64) ([]eventlog.Entry, error) {
	stream, err := s.openStream(ctx)
	if err != nil {
		return nil, fmt.Errorf("read commands: %w", err)
	}
	var entries []eventlog.Entry
	for {
		m, err := stream.GetMsg(ctx, after+1, jetstream.WithGetMsgSubject(s.log.Names().Command(run)))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return entries, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read commands: %w", err)
		}
		after = m.Sequence
		entries = append(entries, s.Entry(m.Sequence, run, m.Subject, m.Data, m.Header))
	}
}

// Entry returns a command as it is stored. If its key is missing it has an error,
// for which it is refused like any other that can't be read: its sender learns why.
func (s *Stream) Entry(pos uint64, run, subject string, stored []byte, header nats.Header) eventlog.Entry {
	data, err := s.log.Unseal(subject, stored)
	e := eventlog.Entry{Pos: pos, RunID: run, Subject: subject, Data: data, Trace: tracing.Parent(header), Err: err}
	if s.users {
		e.User = eventlog.UserOf(header)
	}
	return e
}

// FenceNone keeps runners that looked before this moment from putting a command on
// record for no run.
func (s *Stream) FenceNone(ctx context.Context, runner string) error {
	for {
		w, err := s.log.Claim(ctx, subjects.NoRun, wire.RunNode, eventlog.Claim{Runner: runner})
		if err == nil {
			return w.Close(ctx)
		}
		if !errors.Is(err, eventlog.ErrFenced) { // else another claim was faster, perhaps with a look of before
			return err
		}
	}
}
