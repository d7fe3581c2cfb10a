package intake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/command"
	"code.wake.dev/wake/services/runner/internal/queue"
	"code.wake.dev/wake/services/runner/internal/registry"
	"code.wake.dev/wake/services/runner/owner"
)

// catchAllConsumer is the durable consumer of all commands, which runners share.
const catchAllConsumer = "catchall"

const (
	// unknownGrace is how long an unknown run may take to begin after a
	// command to it: its request may be on its way.
	unknownGrace = 3 * time.Second
	// askAgain is how soon a command that is its owner's is looked at again; that
	// grows up to askLast.
	askAgain = 500 * time.Millisecond
	askLast  = 30 * time.Second
	// unknownLooks is how often a command to an unknown run is looked at,
	// about once a second, while a request waits that might be for it.
	unknownLooks = 60
	// catchAllBatch is how many commands are dealt with at once.
	catchAllBatch = 100
)

// catchAll puts on record what no owner does, until ctx ends: commands to runs
// that are unknown or imported, or to none. It leaves the others to their
// owners, for which it asks if there are none, and looks whether they have dealt with them.
func (in *Intake) catchAll(ctx context.Context) error {
	consumer, err := in.cfg.Log.JetStream().CreateOrUpdateConsumer(ctx, in.subjectNames().CommandsStream(), jetstream.ConsumerConfig{
		Durable:       catchAllConsumer,
		Description:   "wake: commands that no owner takes",
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       30 * time.Second,
		MaxDeliver:    -1,
		MaxAckPending: 10_000,
	})
	if err != nil {
		return fmt.Errorf("consumer %s: %w", catchAllConsumer, err)
	}
	source := in.cfg.Queue.Source(consumer, 1)
	defer source.Close(ctx)
	for ctx.Err() == nil {
		messages, err := in.nextCommands(ctx, source, consumer)
		if err != nil {
			return err
		}
		in.settleCommands(ctx, messages)
	}
	return nil
}

// nextCommands waits for the next messages.
func (in *Intake) nextCommands(ctx context.Context, source *queue.Source, c jetstream.Consumer) ([]jetstream.Msg, error) {
	first, err := source.Next(ctx)
	if err != nil || first == nil {
		return nil, err
	}
	messages := []jetstream.Msg{first}
	more, err := c.FetchNoWait(catchAllBatch - 1)
	if err != nil {
		return messages, nil //nolint:nilerr // the others come at the next fetch
	}
	for m := range more.Messages() {
		messages = append(messages, m)
	}
	return messages, nil
}

// stray is a command that no owner deals with.
type stray struct {
	message jetstream.Msg
	record  *wire.CommandReceived
	// judged is a command that may be obeyed: one that forks a run that has ended, or decides about a call of an imported
	// one; nil: the record says what becomes of it.
	judged *wire.Command
	err    error // why it can't be judged now
}

// settleCommands deals with commands: those of no owner are recorded together.
func (in *Intake) settleCommands(ctx context.Context, messages []jetstream.Msg) {
	var strays []*stray
	for _, m := range messages {
		meta, err := m.Metadata()
		if err != nil {
			in.cfg.Queue.Ack(ctx, m) // not from the stream
			continue
		}
		x, wait, err := in.sortCommand(ctx, m, meta)
		switch {
		case err != nil:
			if ctx.Err() == nil {
				in.cfg.Logger.Warn("command not looked at", "subject", m.Subject(), "error", err)
			}
			in.cfg.Queue.Again(ctx, m, askLast)
		case x != nil:
			strays = append(strays, x)
		case wait > 0:
			in.cfg.Queue.Again(ctx, m, wait)
		default:
			in.cfg.Queue.Ack(ctx, m)
		}
	}
	if len(strays) == 0 {
		return
	}
	err := in.recordStrays(ctx, strays)
	expected := errors.Is(err, lease.ErrHeld) || errors.Is(err, errBegun) || errors.Is(err, eventlog.ErrFenced)
	if err != nil && !expected && ctx.Err() == nil {
		in.cfg.Logger.Warn("rejected commands not recorded yet", "count", len(strays), "error", err)
	}
	for _, x := range strays {
		switch {
		case err != nil:
			in.cfg.Queue.Again(ctx, x.message, askAgain)
		case x.err != nil:
			in.cfg.Logger.Warn("command not looked at", "subject", x.message.Subject(), "error", x.err)
			in.cfg.Queue.Again(ctx, x.message, askLast)
		default:
			in.cfg.Queue.Ack(ctx, x.message)
		}
	}
}

// sortCommand says what becomes of a command: it is recorded here, looked at again
// after a while, or, if neither, it has been dealt with.
func (in *Intake) sortCommand(ctx context.Context, m jetstream.Msg, meta *jetstream.MsgMetadata) (*stray, time.Duration, error) {
	subject, pos := m.Subject(), meta.Sequence.Stream
	if in.dealt.hasRecord(subject, pos) {
		return nil, 0, nil
	}
	record, cmd, problem := command.Record(in.cfg.Commands.Entry(pos, "", subject, m.Data(), m.Headers()))
	run, named := in.runOfCommand(subject, cmd)
	switch {
	case !named:
		problem = command.Reject(wire.CodeBadRequest, "the subject names no run")
	case run == subjects.NoRun && problem == nil:
		problem = command.Reject(wire.CodeBadRequest, "the command names no run")
	}
	if !named || run == subjects.NoRun {
		record.Reason = problem.Error()
		return &stray{message: m, record: record}, 0, nil
	}
	wait := min(askAgain<<min(meta.NumDelivered-1, 10), askLast)
	reg, active := in.cfg.Registry.At(in.activeKey(subject))
	if active && reg.Parked > 0 {
		in.cfg.Registry.Wake(reg.Run, time.Now().UnixMilli())
	}
	if active && meta.NumDelivered%5 != 0 {
		return nil, wait, nil
	}
	x, wait, err := in.sortByState(ctx, run, record, cmd, problem, meta, wait)
	if x != nil {
		x.message = m
	}
	return x, wait, err
}

// runOfCommand returns the run that a command is for, "" if it is that of a subject
// with a hash and the command doesn't say, and whether the subject is one of a run.
func (in *Intake) runOfCommand(subject string, cmd wire.Command) (run string, named bool) {
	run, err := in.subjectNames().ParseCommand(subject)
	if !errors.Is(err, subjects.ErrHashed) {
		return run, err == nil
	}
	if in.subjectNames().Command(cmd.RunID) == subject {
		return cmd.RunID, true
	}
	return "", true
}

// activeKey returns the key under which the run of a subject of commands is
// registered: that of a long id has the same hash.
func (in *Intake) activeKey(subject string) string {
	token := subject[len(in.subjectNames().Command("x"))-1:]
	key := in.subjectNames().StateKey(registry.Service, "x")
	return key[:len(key)-1] + token
}

// sortByState sorts a command by what the log says about the run.
func (in *Intake) sortByState(
	ctx context.Context, run string, record *wire.CommandReceived, cmd wire.Command, problem error, meta *jetstream.MsgMetadata, wait time.Duration,
) (*stray, time.Duration, error) {
	state, err := in.cfg.Runs.State(ctx, run)
	if err != nil {
		return nil, 0, err
	}
	_, active := in.cfg.Registry.Get(run)
	switch {
	case hasRecorded(state, record):
		return nil, 0, nil
	case active:
		return nil, wait, nil
	case state.Status == wire.RunIdle:
		if unknown, err := in.isUnknown(ctx, run, meta); err != nil || !unknown {
			return nil, min(wait, time.Second), err
		}
		problem = orRejected(problem, wire.CodeRunNotFound, "no run has the id %q", run)
	case state.Imported == "":
		// It has begun and isn't registered: nearly always it has ended. What is said to it belongs into its log,
		// and it may go on by it.
		in.cfg.Queue.HandOver(ctx, run)
		return nil, wait, nil
	case problem == nil && (cmd.Type == "fork" || owner.IsDecision(cmd)):
		return &stray{record: record, judged: &cmd}, 0, nil
	case problem == nil:
		problem = owner.RejectEnded(state, cmd)
	}
	record.Reason = problem.Error()
	return &stray{record: record}, 0, nil
}

// hasRecorded reports whether a run has what became of a command in its log. The commands in the log of a copy have positions
// of another stream.
func hasRecorded(s *wire.State, record *wire.CommandReceived) bool {
	return s.Imported != wire.ImportedCopy && s.CommandPos >= record.AtPos
}

func orRejected(problem error, code wire.ErrorCode, format string, args ...any) error {
	if problem != nil {
		return problem
	}
	return command.Reject(code, format, args...)
}

// isUnknown reports whether a run that hasn't begun isn't about to either. A request
// that has left the queue since the run was looked at has begun it. One that is left
// there while others come and go is no reason to wait for ever, unless no run begins
// at the moment.
func (in *Intake) isUnknown(ctx context.Context, run string, command *jetstream.MsgMetadata) (bool, error) {
	queued, err := in.runsQueued(ctx, command.Timestamp.Add(unknownGrace))
	if err != nil || time.Since(command.Timestamp) < unknownGrace {
		return false, err
	}
	if queued && (command.NumDelivered < unknownLooks || in.cfg.Capacity.RefusesRuns()) {
		return false, nil
	}
	state, err := in.cfg.Runs.State(ctx, run)
	return err == nil && state.Status == wire.RunIdle, err
}

// runsQueued reports whether requests for runs wait for a runner that were there at
// a time.
func (in *Intake) runsQueued(ctx context.Context, at time.Time) (bool, error) {
	c, err := in.cfg.Log.JetStream().Consumer(ctx, in.subjectNames().QueueStream(), subjects.RunsConsumer)
	if err != nil {
		return false, fmt.Errorf("queue of runs: %w", err)
	}
	info := c.CachedInfo()
	if info.NumPending == 0 && info.NumAckPending == 0 {
		return false, nil
	}
	stream, err := in.cfg.Log.JetStream().Stream(ctx, in.subjectNames().QueueStream())
	if err != nil {
		return false, fmt.Errorf("queue of runs: %w", err)
	}
	oldest, err := stream.GetMsg(ctx, info.AckFloor.Stream+1, jetstream.WithGetMsgSubject(in.subjectNames().QueueRun()))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil // it has been taken meanwhile
	}
	if err != nil {
		return false, fmt.Errorf("queue of runs: %w", err)
	}
	return !oldest.Time.After(at), nil
}

// errBegun says that a command that had no owner has one by now.
var errBegun = errors.New("a run has begun that a command is for")

// recordStrays puts commands on record that are no owner's.
//
// A run may begin meanwhile, however long this process stalls between any two
// lines. Its owner stores its start, then gets the commands to it, then claims the
// records of no run, then reads these. Here they are claimed, then the run is looked
// at, then they are written. So if the run has no start yet, its owner's claim is
// later than ours: it finds our record, or the log refuses that.
func (in *Intake) recordStrays(ctx context.Context, strays []*stray) error {
	w, err := in.cfg.Log.Claim(ctx, subjects.NoRun, wire.RunNode, eventlog.Claim{Runner: in.cfg.ID})
	if err != nil {
		return err
	}
	oldest := slices.MinFunc(strays, func(a, b *stray) int { return cmp.Compare(a.record.AtPos, b.record.AtPos) })
	recorded, err := in.cfg.Commands.Unobeyed(ctx, oldest.record.AtPos)
	if err != nil {
		return err
	}
	events, err := in.unrecordedEvents(ctx, recorded, strays)
	if err != nil {
		return err
	}
	if _, err := w.Append(ctx, events...); err != nil {
		return err
	}
	return w.Close(ctx)
}

// unrecordedEvents returns the records of the strays that aren't in the log: a runner that
// was slow finds there what others have done meanwhile. Another of the same id may be
// there: ids are unique per run, and these are of many.
func (in *Intake) unrecordedEvents(ctx context.Context, recorded command.Unobeyed, strays []*stray) ([]*wire.Event, error) {
	var events []*wire.Event
	obeyed := map[commandKey]bool{}
	for _, x := range strays {
		if dealt, err := in.isObeyed(ctx, x); err != nil {
			return nil, err
		} else if dealt {
			continue
		}
		if recorded.Has(x.record.AtPos) {
			continue
		}
		if x.err = in.judgeStray(ctx, x, obeyed); x.err == nil {
			events = append(events, &wire.Event{Payload: x.record})
		}
	}
	return events, nil
}

// commandKey is what tells a command from others.
type commandKey struct{ subject, id string }

// judgeStray obeys a command, unless one of the same id was obeyed before it: here, or on record. No other process
// writes records of no run meanwhile.
func (in *Intake) judgeStray(ctx context.Context, x *stray, obeyed map[commandKey]bool) error {
	if x.judged == nil {
		return nil
	}
	this := commandKey{x.message.Subject(), x.record.CommandID}
	run, _ := in.runOfCommand(this.subject, *x.judged)
	state, err := in.cfg.Runs.State(ctx, run)
	switch {
	case err != nil:
		return err
	case obeyed[this]:
		err = command.Reject(command.CodeDuplicate, "command %s is on record already", this.id)
	case x.judged.Type == "fork":
		err = in.cfg.Owners.ForkEnded(ctx, state, *x.judged, x.record)
	default:
		err = in.decideCall(ctx, state, *x.judged, x.record)
	}
	if err != nil && !command.Rejected(err) {
		return err
	}
	if x.record.Accepted = err == nil; x.record.Accepted {
		obeyed[this] = true
	} else {
		x.record.Reason = err.Error()
	}
	return nil
}

// decideCall judges a decision about a call of an imported run. The first one is on its way to the hook that asked.
func (in *Intake) decideCall(ctx context.Context, state *wire.State, cmd wire.Command, record *wire.CommandReceived) error {
	call, err := in.cfg.Owners.DecideImported(ctx, state, cmd, record)
	if err != nil {
		return err
	}
	key := state.RunID + "/" + call
	if first, ok := in.decided[key]; ok && first.pos != record.AtPos {
		return command.RejectAnswered(call, first.by, first.at)
	}
	if len(in.decided) >= maxDealt {
		clear(in.decided)
	}
	in.decided[key] = callDecision{record.AtPos, cmp.Or(cmd.By, "operator"), time.Now()}
	return nil
}

// isObeyed reports whether the run of a stray has begun by now, and dealt with it. It
// fails with [errBegun] if the run has begun and not dealt with it yet.
func (in *Intake) isObeyed(ctx context.Context, x *stray) (bool, error) {
	run, err := in.subjectNames().ParseCommand(x.message.Subject())
	if err != nil || run == subjects.NoRun {
		return false, nil //nolint:nilerr // it is no run's
	}
	s, err := in.cfg.Runs.State(ctx, run)
	switch {
	case err != nil:
		return false, err
	case hasRecorded(s, x.record):
		return true, nil
	case s.Status != wire.RunIdle && s.Imported == "":
		return false, errBegun
	}
	return false, nil
}
