package deliver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/trace"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/wire"
)

// How owners show that they are there. An attempt takes at most [maxTimeout], so a
// record that no process has replaced for ownerless is of one that is gone.
const (
	beat      = 5 * time.Second
	ownerless = 30 * time.Second
	opWait    = 5 * time.Second // for one answer of the server
	retryWait = time.Second     // after a failure of the server
)

// soon is when to look again after a hint: it may be faster than what it hints at.
const soon = 10 * time.Millisecond

// Between attempts.
const (
	minBackoff = time.Second
	maxBackoff = time.Minute
	maxAsked   = time.Hour // that Retry-After is heeded
)

// errTaken says that another process has replaced the record.
var errTaken = errors.New("another process delivers")

// target brings notifications to one sink. It is owned by its run.
type target struct {
	d      *Deliverer
	name   string
	cfg    *Sink
	plan   plan
	sender sender
	logger *slog.Logger
	hint   chan struct{}  // something may be in WAKE_ALERTS
	orders chan sinkOrder // what is asked for by the API

	kv       *eventlog.Bucket
	stream   jetstream.Stream
	rec      targetRecord
	revision uint64
	saved    time.Time
	dirty    bool          // rec has a position that isn't stored
	taken    string        // id of what the sink has taken last
	patience time.Duration // until the next look, if no hint comes
	tried    attemptCount
}

// runTarget delivers until ctx ends.
func (t *target) runTarget(ctx context.Context) {
	t.patience = soon
	defer t.sender.closeSender()
	sub, err := t.d.log.Conn().Subscribe(t.d.log.Names().AllAlerts(), func(*nats.Msg) { t.signalHint() })
	if err == nil {
		defer func() { _ = sub.Unsubscribe() }() // fails if the connection is gone
	}
	quiet := false
	for ctx.Err() == nil {
		err := t.runSession(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !quiet {
			t.logger.WarnContext(ctx, "delivery waits", "error", err)
		}
		quiet = err != nil
		pull.Sleep(ctx, retryWait)
	}
}

func (t *target) signalHint() {
	select {
	case t.hint <- struct{}{}:
	default:
	}
}

// runSession delivers as long as this process owns the target and the server answers.
func (t *target) runSession(ctx context.Context) error {
	if err := t.openStreams(ctx); err != nil {
		return err
	}
	if err := t.awaitOwnership(ctx); err != nil {
		return err
	}
	stop := t.serveOrders(ctx)
	defer stop()
	defer t.releaseSink(ctx)
	for ctx.Err() == nil {
		t.obeyWaitingOrder()
		idle, err := t.runStep(ctx)
		if err == nil && idle {
			err = t.waitIdle(ctx)
		}
		if errors.Is(err, errTaken) {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func (t *target) openStreams(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, opWait)
	defer cancel()
	log := t.d.log
	kv, err := log.Bucket(ctx, log.Names().StateBucket())
	if err != nil {
		return err
	}
	stream, err := log.JetStream().Stream(ctx, log.Names().AlertsStream())
	if err != nil {
		return fmt.Errorf("open %s: %w", log.Names().AlertsStream(), err)
	}
	t.kv, t.stream = kv, stream
	return nil
}

// runStep does the next thing that there is to do. It returns idle if there is none.
func (t *target) runStep(ctx context.Context) (idle bool, err error) {
	if t.rec.Sealed != nil {
		if err := t.deliverNotification(ctx, *t.rec.Sealed, 0); err != nil {
			return false, err
		}
		t.rec.Sealed = nil
		return false, t.saveRecord(ctx)
	}
	if next, ok := t.plan.sealDigest(t.rec, time.Now()); ok {
		t.rec = next
		return false, t.saveRecord(ctx)
	}
	m, err := t.nextAlert(ctx)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read alerts: %w", err)
	}
	return false, t.handleAlert(ctx, m)
}

// nextAlert returns the alert behind the position.
func (t *target) nextAlert(ctx context.Context) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, opWait)
	defer cancel()
	return t.stream.GetMsg(ctx, t.rec.Position+1, jetstream.WithGetMsgSubject(t.d.log.Names().AllAlerts()))
}

func (t *target) handleAlert(ctx context.Context, m *jetstream.RawStreamMsg) error {
	var a wire.Alert
	data, err := t.d.log.Unseal(m.Subject, m.Data)
	if errors.Is(err, seal.ErrNoKey) {
		return fmt.Errorf("alert %d: %w", m.Sequence, err)
	}
	if err == nil {
		err = wire.Unmarshal(data, &a)
	}
	if err != nil {
		t.logger.WarnContext(ctx, "alert can't be read", "subject", m.Subject, "error", err)
		t.rec.Position, t.dirty = m.Sequence, true
		return nil
	}
	next, send := t.plan.decideAlert(t.rec, m.Sequence, &a, m.Time, time.Now())
	if send {
		ctx := tracing.With(ctx, tracing.Parent(m.Header))
		if err := t.deliverNotification(ctx, alertNotification(&a), m.Sequence); err != nil {
			return err
		}
		next = t.plan.countSent(t.rec, time.Now())
	}
	held := len(next.Held) > 0
	t.rec = next
	t.rec.Position, t.dirty = m.Sequence, true
	if send || held {
		return t.saveRecord(ctx)
	}
	return nil
}

// waitIdle waits until something may be there, or due.
func (t *target) waitIdle(ctx context.Context) error {
	if t.dirty {
		if err := t.saveRecord(ctx); err != nil {
			return err
		}
	}
	t.patience = min(2*t.patience, beat)
	d := t.patience
	if at, ok := t.rec.firstDue(); ok {
		d = min(d, max(time.Until(at), 0))
	}
	return t.waitFor(ctx, d, t.hint)
}

// waitFor waits for d, or a hint, or the end of ctx. Meanwhile it shows that the owner
// is there, and obeys orders.
func (t *target) waitFor(ctx context.Context, d time.Duration, hint <-chan struct{}) error {
	over := time.NewTimer(d)
	defer over.Stop()
	for {
		if err := t.showOwner(ctx); err != nil {
			return err
		}
		select {
		case <-over.C:
			return nil
		case <-hint:
			t.patience = soon
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case o := <-t.orders:
			o.done <- t.obeyOrder(o)
		case <-time.After(time.Until(t.saved.Add(beat))):
		}
	}
}

// showOwner saves the record if that was a while ago.
func (t *target) showOwner(ctx context.Context) error {
	if time.Since(t.saved) < beat {
		return nil
	}
	return t.saveRecord(ctx)
}

// deliverNotification sends a notification until the sink has taken it or it is given up. It
// fails if ctx ends or the record can't be saved.
func (t *target) deliverNotification(ctx context.Context, n Notification, pos uint64) (err error) {
	ctx, span := tracing.Deliver(ctx, t.d.log.Tracer(), t.traceDestination(), tracing.Sink.String(t.name), tracing.SinkType.String(t.cfg.Type))
	defer func() {
		tracing.Fail(span, err)
		span.End()
	}()
	if t.tried.ID != n.ID {
		t.tried = attemptCount{ID: n.ID}
		if t.rec.Tried.ID == n.ID {
			t.tried = t.rec.Tried
		}
	}
	for n.ID != t.taken {
		if err := t.showOwner(ctx); err != nil {
			return err
		}
		err := t.attemptDelivery(ctx, n)
		span.SetAttributes(tracing.Attempts.Int(t.tried.Count + 1))
		if err == nil {
			t.taken = n.ID
			break
		}
		t.tried.Count++
		t.rec.Tried = t.tried
		span.AddEvent(tracing.AttemptFailed, trace.WithAttributes(tracing.Kind(err)))
		if failure, ok := errors.AsType[*sendError](err); ok && failure.final || t.tried.Count >= cmp.Or(t.cfg.Attempts, 30) {
			tracing.Fail(span, err)
			return t.storeLetter(ctx, n, pos, err)
		}
		wait := t.retryDelay(err)
		t.logger.WarnContext(ctx, "sink doesn't take it", "attempt", t.tried.Count, "again_in", wait.Round(time.Millisecond), "error", err)
		if err := t.waitFor(ctx, wait, nil); err != nil {
			return err
		}
	}
	t.rec.Tried = attemptCount{}
	return nil
}

func (t *target) traceDestination() string {
	names := t.d.log.Names()
	return tracing.Destination(names.Prefix(), names.AllAlerts())
}

// retryDelay is how long to wait after the last attempt.
func (t *target) retryDelay(err error) time.Duration {
	d := min(minBackoff<<min(t.tried.Count-1, 10), maxBackoff)
	d += rand.N(d/5 + 1)
	if failure, ok := errors.AsType[*sendError](err); ok {
		d = max(d, min(failure.after, maxAsked))
	}
	return d
}

// attemptDelivery sends a notification once, and counts it.
func (t *target) attemptDelivery(ctx context.Context, n Notification) error {
	err := trySend(ctx, t.sender, t.cfg, n)
	if err == nil {
		t.d.sent.WithLabelValues(t.name, t.cfg.Type).Inc()
	} else {
		t.d.failed.WithLabelValues(t.name, t.cfg.Type).Inc()
	}
	return err
}

// trySend sends a notification once. An attempt that has begun is finished even if ctx
// ends. Its error is a [*sendError] without secrets.
func trySend(ctx context.Context, s sender, cfg *Sink, n Notification) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(cfg.Timeout, 10*time.Second))
	defer cancel()
	err := s.sendNotification(ctx, n)
	if err == nil {
		return nil
	}
	shown := &sendError{err: errors.New(timeline.Line(cfg.scrubText(err.Error()), maxLine))}
	if failure, ok := errors.AsType[*sendError](err); ok {
		shown.after, shown.final = failure.after, failure.final
	}
	return shown
}

// service is the name under which records are kept.
const service = "sink"

func (t *target) stateKey() string { return t.d.log.Names().StateKey(service, t.name) }

// awaitOwnership waits until the target is this process's: it has no owner, or one that is
// gone, or this process had it before.
func (t *target) awaitOwnership(ctx context.Context) error {
	var seen uint64
	var since time.Time
	for {
		r, revision, err := t.loadRecord(ctx)
		if err != nil {
			return err
		}
		if revision != seen {
			seen, since = revision, time.Now()
		}
		if revision == 0 || r.Owner == "" || r.Owner == t.d.id || time.Since(since) >= ownerless {
			err := t.claimSink(ctx, r, revision)
			if !errors.Is(err, errTaken) {
				return err
			}
			continue
		}
		if pull.Sleep(ctx, beat); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// loadRecord reads the record. A sink that is new has revision 0.
func (t *target) loadRecord(ctx context.Context) (r targetRecord, revision uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, opWait)
	defer cancel()
	stored, revision, err := t.kv.Get(ctx, t.stateKey())
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return targetRecord{}, 0, nil
	case err != nil && !errors.Is(err, seal.ErrForged):
		return targetRecord{}, 0, fmt.Errorf("read %s: %w", t.stateKey(), err)
	}
	if err == nil {
		err = wire.Unmarshal(stored, &r)
	}
	if err != nil || r.V != wire.Version {
		t.logger.WarnContext(ctx, "what the sink was given can't be read: it begins with the next alert", "version", r.V, "error", err)
		return targetRecord{}, revision, nil
	}
	return r, revision, nil
}

// claimSink makes this process the owner. A new sink begins with the next alert, and
// with the first one after WAKE_ALERTS was made anew.
func (t *target) claimSink(ctx context.Context, r targetRecord, revision uint64) error {
	wait, cancel := context.WithTimeout(ctx, opWait)
	defer cancel()
	info, err := t.stream.Info(wait)
	if err != nil {
		return fmt.Errorf("read %s: %w", t.d.log.Names().AlertsStream(), err)
	}
	created := info.Created.UnixNano()
	switch {
	case r.V == 0, r.Stream == created && r.Position > info.State.LastSeq:
		r = targetRecord{V: wire.Version, Stream: created, Position: info.State.LastSeq, Held: r.Held, Sealed: r.Sealed}
	case r.Stream != created:
		r = targetRecord{V: wire.Version, Stream: created, Held: r.Held, Sealed: r.Sealed}
	}
	r.Owner = t.d.id
	t.rec, t.revision = r, revision
	return t.saveRecord(ctx)
}

// saveRecord replaces the record, also while ctx ends. It fails with [errTaken] if
// another process has done so.
func (t *target) saveRecord(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), opWait)
	defer cancel()
	data, err := wire.Marshal(t.rec)
	if err != nil {
		return err
	}
	revision, err := t.kv.Save(ctx, t.stateKey(), data, t.revision)
	if errors.Is(err, jetstream.ErrKeyExists) {
		return errTaken
	}
	if err != nil {
		return fmt.Errorf("save %s: %w", t.stateKey(), err)
	}
	t.revision, t.saved, t.dirty = revision, time.Now(), false
	return nil
}

// releaseSink lets another process go on at once. If that fails it goes on later.
func (t *target) releaseSink(ctx context.Context) {
	if ctx.Err() == nil {
		return // the server doesn't answer, or another process has it
	}
	t.rec.Owner = ""
	if err := t.saveRecord(ctx); err != nil {
		t.logger.DebugContext(ctx, "sink is not given back", "error", err)
	}
}
