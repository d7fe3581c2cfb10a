package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/eventlog"
	"wake/internal/lease"
	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// catchAllConsumer is the durable consumer of all commands, which runners share.
const catchAllConsumer = "catchall"

const (
	// unknownGrace is how long a run that nobody knows may take to begin after a
	// command to it: its request may be on its way.
	unknownGrace = 3 * time.Second
	// askAgain is how soon a command that is its owner's is looked at again; that
	// grows up to askLast.
	askAgain = 500 * time.Millisecond
	askLast  = 30 * time.Second
	// unknownLooks is how often a command to a run that nobody knows is looked at,
	// about once a second, while a request waits that might be for it.
	unknownLooks = 60
	// catchAllBatch is how many commands are dealt with at once.
	catchAllBatch = 100
)

// catchAll puts on record what no owner does, until ctx ends: commands to runs
// that nobody knows, that have ended, or to none. It leaves the others to their
// owners and looks whether they have dealt with them.
func (r *Runner) catchAll(ctx context.Context, keeper *lease.Keeper) error {
	consumer, err := r.log.JetStream().CreateOrUpdateConsumer(ctx, r.names.CommandsStream(), jetstream.ConsumerConfig{
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
	for ctx.Err() == nil {
		messages, err := r.nextCommands(ctx, consumer)
		if err != nil {
			return err
		}
		r.settle(ctx, keeper, messages)
	}
	return nil
}

// nextCommands waits for the next messages.
func (r *Runner) nextCommands(ctx context.Context, c jetstream.Consumer) ([]jetstream.Msg, error) {
	first, err := r.next(ctx, c)
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
}

// settle deals with commands: those that are nobody's are recorded together.
func (r *Runner) settle(ctx context.Context, keeper *lease.Keeper, messages []jetstream.Msg) {
	var strays []stray
	for _, m := range messages {
		meta, err := m.Metadata()
		if err != nil {
			r.ack(ctx, m) // not from the stream
			continue
		}
		record, wait, err := r.sort(ctx, m.Subject(), m.Data(), meta)
		switch {
		case err != nil:
			if ctx.Err() == nil {
				r.logger.Warn("command not looked at", "subject", m.Subject(), "error", err)
			}
			r.again(ctx, m, askLast)
		case record != nil:
			strays = append(strays, stray{m, record})
		case wait > 0:
			r.again(ctx, m, wait)
		default:
			r.ack(ctx, m)
		}
	}
	if len(strays) == 0 {
		return
	}
	err := r.recordStrays(ctx, keeper, strays)
	expected := errors.Is(err, lease.ErrHeld) || errors.Is(err, errBegun) || errors.Is(err, eventlog.ErrFenced)
	if err != nil && !expected && ctx.Err() == nil {
		r.logger.Warn("rejected commands not recorded yet", "count", len(strays), "error", err)
	}
	for _, s := range strays {
		if err != nil {
			r.again(ctx, s.message, askAgain)
		} else {
			r.ack(ctx, s.message)
		}
	}
}

// sort says what becomes of a command: it is recorded for nobody, looked at again
// after a while, or, if neither, it has been dealt with.
func (r *Runner) sort(ctx context.Context, subject string, data []byte, meta *jetstream.MsgMetadata) (*wire.CommandReceived, time.Duration, error) {
	pos := meta.Sequence.Stream
	if r.dealt.has(subject, pos) {
		return nil, 0, nil
	}
	raw, cmd, problem := parseCommand(r.commandAt(pos, "", subject, data, nil))
	record := &wire.CommandReceived{Command: raw, CommandID: cmd.ID, AtPos: pos}
	if record.CommandID == "" {
		record.CommandID = unnamed(pos)
	}
	run, named := r.commanded(subject, cmd)
	switch {
	case !named:
		problem = reject(wire.CodeBadRequest, "the subject names no run")
	case run == subjects.NoRun && problem == nil:
		problem = reject(wire.CodeBadRequest, "the command names no run")
	}
	if !named || run == subjects.NoRun {
		record.Reason = problem.Error()
		return record, 0, nil
	}
	wait := min(askAgain<<min(meta.NumDelivered-1, 10), askLast)
	if _, active := r.active.at(r.activeKey(subject)); active && meta.NumDelivered%5 != 0 {
		return nil, wait, nil
	}
	return r.sortByState(ctx, run, record, cmd, problem, meta, wait)
}

// commanded returns the run that a command is for, "" if it is that of a subject
// with a hash and the command doesn't say, and whether the subject is one of a run.
func (r *Runner) commanded(subject string, cmd wire.Command) (run string, named bool) {
	run, err := r.names.ParseCommand(subject)
	if !errors.Is(err, subjects.ErrHashed) {
		return run, err == nil
	}
	if r.names.Command(cmd.RunID) == subject {
		return cmd.RunID, true
	}
	return "", true
}

// activeKey returns the key under which the run of a subject of commands is
// registered: that of a long id has the same hash.
func (r *Runner) activeKey(subject string) string {
	token := subject[len(r.names.Command("x"))-1:]
	key := r.names.StateKey(registryService, "x")
	return key[:len(key)-1] + token
}

// sortByState sorts a command by what the log says about the run.
func (r *Runner) sortByState(
	ctx context.Context, run string, record *wire.CommandReceived, cmd wire.Command, problem error, meta *jetstream.MsgMetadata, wait time.Duration,
) (*wire.CommandReceived, time.Duration, error) {
	state, err := r.stateOf(ctx, run)
	if err != nil {
		return nil, 0, err
	}
	_, active := r.active.get(run)
	switch {
	case state.CommandPos >= record.AtPos:
		return nil, 0, nil
	case active:
		return nil, wait, nil
	case state.Status == wire.RunIdle:
		if unknown, err := r.unknown(ctx, run, meta); err != nil || !unknown {
			return nil, min(wait, time.Second), err
		}
		problem = orRejected(problem, wire.CodeRunNotFound, "no run has the id %q", run)
	case !over(state):
		// It has begun and isn't registered: it lost its owner before runs were.
		return nil, wait, r.handOver(ctx, run)
	case problem == nil && cmd.Type == "fork":
		problem = r.forkEnded(ctx, state, cmd, record)
		if problem != nil && !rejected(problem) {
			return nil, 0, problem
		}
	case problem == nil:
		problem = rejectEnded(state, cmd)
	}
	if record.Accepted = problem == nil; !record.Accepted {
		record.Reason = problem.Error()
	}
	return record, 0, nil
}

func orRejected(problem error, code wire.ErrorCode, format string, args ...any) error {
	if problem != nil {
		return problem
	}
	return reject(code, format, args...)
}

// stateOf folds a run. "" is a run whose id can't be known.
func (r *Runner) stateOf(ctx context.Context, run string) (*wire.State, error) {
	if run == "" {
		return &wire.State{Status: wire.RunIdle}, nil
	}
	v, err := r.open(ctx, run)
	if err != nil {
		return nil, err
	}
	v.close()
	return v.state, nil
}

// unknown reports whether a run that hasn't begun isn't about to either. A request
// that has left the queue since the run was looked at has begun it. One that is left
// there while others come and go is no reason to wait for ever, unless no run begins
// at the moment.
func (r *Runner) unknown(ctx context.Context, run string, command *jetstream.MsgMetadata) (bool, error) {
	queued, err := r.runsQueued(ctx, command.Timestamp.Add(unknownGrace))
	if err != nil || time.Since(command.Timestamp) < unknownGrace {
		return false, err
	}
	if queued && (command.NumDelivered < unknownLooks || r.refusing.Load() || r.behind.Load()) {
		return false, nil
	}
	state, err := r.stateOf(ctx, run)
	return err == nil && state.Status == wire.RunIdle, err
}

// runsQueued reports whether requests for runs wait for a runner that were there at
// a time.
func (r *Runner) runsQueued(ctx context.Context, at time.Time) (bool, error) {
	c, err := r.log.JetStream().Consumer(ctx, r.names.QueueStream(), subjects.RunsConsumer)
	if err != nil {
		return false, fmt.Errorf("queue of runs: %w", err)
	}
	info := c.CachedInfo()
	if info.NumPending == 0 && info.NumAckPending == 0 {
		return false, nil
	}
	stream, err := r.log.JetStream().Stream(ctx, r.names.QueueStream())
	if err != nil {
		return false, fmt.Errorf("queue of runs: %w", err)
	}
	oldest, err := stream.GetMsg(ctx, info.AckFloor.Stream+1, jetstream.WithGetMsgSubject(r.names.QueueRun()))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil // it has been taken meanwhile
	}
	if err != nil {
		return false, fmt.Errorf("queue of runs: %w", err)
	}
	return !oldest.Time.After(at), nil
}

// errBegun says that a command that was nobody's is its run's by now.
var errBegun = errors.New("a run has begun that a command is for")

// recordStrays puts commands on record that are no owner's.
//
// A run may begin meanwhile, however long this process stalls between any two
// lines. Its owner stores its start, then reads the commands to it, then claims the
// records of no run, then reads these. Here they are claimed, then the run is looked
// at, then they are written. So if the run has no start yet, its owner's claim is
// later than ours: it finds our record, or the log refuses that.
func (r *Runner) recordStrays(ctx context.Context, keeper *lease.Keeper, strays []stray) error {
	v, err := r.open(ctx, subjects.NoRun)
	if err != nil {
		return err
	}
	defer v.close()
	l, err := keeper.Acquire(ctx, r.names.LeaseKey(subjects.NoRun, wire.RunNode), "")
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
		defer cancel()
		_ = l.Release(ctx) // else it expires
	}()
	before := v.state.Nodes[wire.RunNode]
	w, err := r.log.Claim(ctx, subjects.NoRun, wire.RunNode, eventlog.Claim{Runner: r.cfg.ID, MinEpoch: l.Revision(), AtSeq: before.Seq})
	if err != nil {
		return err
	}
	_, pos := w.Last()
	if err := v.wait(ctx, pos); err != nil {
		return err
	}
	events, err := r.unrecorded(ctx, v.state, strays)
	if err != nil {
		return err
	}
	if _, err := w.Append(ctx, events...); err != nil {
		return err
	}
	return w.Close(ctx)
}

// unrecorded returns the records of the strays that aren't in the log: whoever was
// slow finds there what others have done meanwhile. Another of the same id may be
// there: ids are unique per run, and these are of many.
func (r *Runner) unrecorded(ctx context.Context, s *wire.State, strays []stray) ([]*wire.Event, error) {
	var events []*wire.Event
	var there map[uint64]bool // by position
	for _, x := range strays {
		if dealt, err := r.obeyed(ctx, x); err != nil {
			return nil, err
		} else if dealt {
			continue
		}
		if slices.Contains(s.CommandIDs, x.record.CommandID) {
			if there == nil {
				var err error
				if there, err = r.recordsOfNone(ctx); err != nil {
					return nil, err
				}
			}
			if there[x.record.AtPos] {
				continue
			}
		}
		events = append(events, &wire.Event{Payload: x.record})
	}
	return events, nil
}

// fenceStrays makes sure that nobody who looked before this moment puts a command on
// record for no run.
func (r *Runner) fenceStrays(ctx context.Context) error {
	for {
		s, err := r.stateOf(ctx, subjects.NoRun)
		if err != nil {
			return err
		}
		w, err := r.log.Claim(ctx, subjects.NoRun, wire.RunNode, eventlog.Claim{Runner: r.cfg.ID, AtSeq: s.Nodes[wire.RunNode].Seq})
		if err == nil {
			return w.Close(ctx)
		}
		if !errors.Is(err, eventlog.ErrFenced) { // else somebody else was faster, perhaps with a look of before
			return err
		}
	}
}

// obeyed reports whether the run of a stray has begun by now, and dealt with it. It
// fails with [errBegun] if the run has begun and not dealt with it yet.
func (r *Runner) obeyed(ctx context.Context, x stray) (bool, error) {
	run, err := r.names.ParseCommand(x.message.Subject())
	if err != nil || run == subjects.NoRun {
		return false, nil //nolint:nilerr // it is no run's
	}
	s, err := r.stateOf(ctx, run)
	switch {
	case err != nil:
		return false, err
	case s.CommandPos >= x.record.AtPos:
		return true, nil
	case s.Status != wire.RunIdle && !over(s):
		return false, errBegun
	}
	return false, nil
}

// recordsOfNone returns the positions of the commands that are on record for no run.
func (r *Runner) recordsOfNone(ctx context.Context) (map[uint64]bool, error) {
	there := map[uint64]bool{}
	query := eventlog.Query{Run: subjects.NoRun, Node: wire.RunNode, Kinds: []wire.Kind{wire.KindFlow}}
	for e, err := range r.log.Read(ctx, query) {
		if err != nil {
			return nil, err
		}
		if p, ok := recordOf(e); ok {
			there[p.AtPos] = true
		}
	}
	return there, nil
}

// dealt remembers which commands are on record, as far as this process has seen
// it: by the subject of the run whose log says so.
type dealt struct {
	mu      sync.Mutex
	runs    map[string]uint64 // the last one; owners record them in order
	nobodys map[uint64]bool   // those of no owner, in any order
}

func newDealt() *dealt { return &dealt{runs: map[string]uint64{}, nobodys: map[uint64]bool{}} }

// maxDealt bounds the memory. What is forgotten is looked up in the log.
const maxDealt = 10_000

// note takes a record from the log.
func (d *dealt) note(names subjects.Names, e eventlog.Entry) {
	p, ok := recordOf(e)
	if !ok {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.RunID == subjects.NoRun {
		if len(d.nobodys) >= maxDealt {
			clear(d.nobodys)
		}
		d.nobodys[p.AtPos] = true
		return
	}
	if len(d.runs) >= maxDealt {
		clear(d.runs)
	}
	subject := names.Command(e.RunID)
	d.runs[subject] = max(d.runs[subject], p.AtPos)
}

func recordOf(e eventlog.Entry) (*wire.CommandReceived, bool) {
	if e.Event == nil || e.NodeID != wire.RunNode {
		return nil, false
	}
	p, ok := e.Event.Payload.(*wire.CommandReceived)
	return p, ok
}

func (d *dealt) has(subject string, pos uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nobodys[pos] || d.runs[subject] >= pos
}
