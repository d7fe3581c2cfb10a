package projection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/trace"

	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/internal/rebuild"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// minSize is what a value counts at least towards Config.MaxBytes.
const minSize = 4 << 10

// saveWait bounds one save.
const saveWait = 5 * time.Second

// saveAll saves the values that are due, the oldest change first. If the server
// doesn't answer, the rest waits.
func (p *Projection[V]) saveAll(ctx context.Context, due func(*trackedValue[V]) bool) {
	var list []*trackedValue[V]
	for _, t := range p.dirty {
		if due(t) {
			list = append(list, t)
		}
	}
	if len(list) == 0 {
		return
	}
	slices.SortFunc(list, func(a, b *trackedValue[V]) int { return cmp.Compare(a.unsaved, b.unsaved) })
	ctx, span := p.saveSpan(ctx, list)
	defer span.End()
	for _, t := range list {
		if err := p.saveValue(ctx, t); err != nil {
			tracing.Fail(span, err)
			p.delaySaving(ctx, err, t.run)
			return
		}
	}
	p.noteSaveWorks()
}

// noteSaveWorks notes that saving doesn't fail any more.
func (p *Projection[V]) noteSaveWorks() {
	if p.failing {
		p.c.Health.Set(p.savingPart(), nil)
		p.failing = false
	}
}

// saveSpan starts the span of saving values, in the trace of what changed them.
func (p *Projection[V]) saveSpan(ctx context.Context, list []*trackedValue[V]) (context.Context, trace.Span) {
	var origins []trace.SpanContext
	for _, t := range list {
		origins = append(origins, trace.SpanContextFromContext(tracing.With(ctx, t.trace)))
	}
	ctx, links := tracing.Join(ctx, origins)
	return p.log.Tracer().Start(ctx, tracing.ValuesSaved, trace.WithLinks(links...),
		trace.WithAttributes(tracing.Group.String(p.c.Service), tracing.Values.Int(len(list))))
}

// saveValue saves one value, or replaces it by what another process has saved.
func (p *Projection[V]) saveValue(ctx context.Context, t *trackedValue[V]) error {
	wait, cancel := context.WithTimeout(ctx, saveWait)
	defer cancel()
	size, err := p.service.Save(wait, t.v)
	switch {
	case errors.Is(err, ErrConflict):
		return p.reloadValue(ctx, t)
	case tooLarge(err): // it never will be saved, and must not hold up what can be
		p.logger.ErrorContext(ctx, "value is too large to be saved", "run", t.run, "error", err)
		p.unusable.Inc()
	case err != nil:
		return err
	default:
		p.saves.Inc()
	}
	p.size += max(size, minSize) - t.size
	t.size = max(size, minSize)
	t.unsaved, t.urgent = 0, false
	delete(p.dirty, t.run)
	if t.deadline == 0 && p.service.Ended(t.v) {
		p.removeValue(t.run)
	}
	return nil
}

// tooLarge reports whether the server doesn't take messages of that size.
func tooLarge(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, nats.ErrMaxPayload) || ok && api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum
}

// reloadValue takes over what another process has saved, folds what it lacks and saves
// that later. A value that is already further stays as it is in the bucket. Where
// two processes work at once, one of them is told so again and again.
func (p *Projection[V]) reloadValue(ctx context.Context, t *trackedValue[V]) error {
	p.logger.DebugContext(ctx, "stored value was replaced by another process", "run", t.run)
	_, err := p.loadValue(ctx, t.run, p.handled, false)
	return err
}

// delaySaving puts off saving after a failure.
func (p *Projection[V]) delaySaving(ctx context.Context, err error, runID string) {
	p.retryAt = time.Now().Add(time.Second)
	if ctx.Err() != nil {
		return // not a failure: [Projection.saveRest] saves
	}
	if !p.failing && runID != subjects.NoRun {
		err = fmt.Errorf("run %s: %w", runID, err)
	}
	p.c.Health.Set(p.savingPart(), err)
	p.failing = true
}

// savingPart is how trouble with saving is told.
func (p *Projection[V]) savingPart() string { return p.c.Service + ": saving" }

// evictValues forgets saved values, those of the most quiet runs first, until there is
// room again.
func (p *Projection[V]) evictValues() {
	if p.size <= p.c.MaxBytes {
		return
	}
	var list []*trackedValue[V]
	for _, t := range p.runs {
		if t.unsaved == 0 && t.deadline == 0 {
			list = append(list, t)
		}
	}
	slices.SortFunc(list, func(a, b *trackedValue[V]) int { return cmp.Compare(a.pos, b.pos) })
	for _, t := range list {
		if p.size <= p.c.MaxBytes*3/4 {
			return
		}
		p.removeValue(t.run)
	}
}

// commitEvery is how often the position is saved.
const commitEvery = time.Second

// commitState is the position that is saved.
type commitState struct {
	position wire.Position
	revision uint64
	at       time.Time // of the last save
}

// stateRecord is its form in WAKE_STATE.
type stateRecord struct {
	V        int           `json:"v"`
	Position wire.Position `json:"position"`
	Rebuilt  string        `json:"rebuilt,omitempty"` // the last order to make all values again that was obeyed, or is
	Until    uint64        `json:"until,omitempty"`   // where the service was when it came; 0: it is obeyed
}

func (p *Projection[V]) positionKey() string {
	return p.log.Names().StateKey(p.c.Service, subjects.NoRun)
}

// openState reads the committed position.
func (p *Projection[V]) openState(ctx context.Context) error {
	bucket := p.log.Names().StateBucket()
	kv, err := p.log.JetStream().KeyValue(ctx, bucket)
	if err != nil {
		return fmt.Errorf("open %s: %w", bucket, err)
	}
	p.kv = kv
	r, err := p.readCommitted(ctx)
	if err != nil {
		return fmt.Errorf("read the position: %w", err)
	}
	if r.Position.Incarnation != p.log.Incarnation() {
		if r.Position.Seq > 0 {
			p.logger.WarnContext(ctx, "begins anew", "cause", "the position is of another incarnation of the log")
			p.unusable.Inc()
		}
		r.Position, r.Until = wire.Position{Incarnation: p.log.Incarnation()}, 0
	}
	p.commit.position, p.handled = r.Position, r.Position.Seq
	p.renewal.id, p.renewal.until, p.renewal.made = r.Rebuilt, r.Until, map[string]bool{}
	if p.renewal.desk, err = rebuild.Open(ctx, p.log.JetStream(), p.log.Names(), p.c.Service); err != nil {
		return err
	}
	p.obeyRebuildOrder(ctx, time.Now())
	return nil
}

// readCommitted reads what is committed and its revision. What can't be read counts as
// nothing.
func (p *Projection[V]) readCommitted(ctx context.Context) (stateRecord, error) {
	var r stateRecord
	e, err := p.kv.Get(ctx, p.positionKey())
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		p.commit.revision = 0
		return r, nil
	}
	if err != nil {
		return r, err
	}
	p.commit.revision = e.Revision()
	if err := wire.Unmarshal(e.Value(), &r); err != nil {
		p.logger.WarnContext(ctx, "position can't be read", "error", err)
		p.unusable.Inc()
		return stateRecord{}, nil
	}
	return r, nil
}

// safePosition is the position below which everything is saved.
func (p *Projection[V]) safePosition() uint64 {
	target := p.handled
	for _, t := range p.dirty {
		target = min(target, t.unsaved-1)
	}
	return target
}

func (p *Projection[V]) commitDue(ctx context.Context, now time.Time) {
	if p.safePosition() <= p.commit.position.Seq || !p.force && now.Sub(p.commit.at) < commitEvery {
		return
	}
	wait, cancel := context.WithTimeout(ctx, saveWait)
	defer cancel()
	if err := p.commitPosition(wait); err != nil {
		p.delaySaving(ctx, err, subjects.NoRun)
		return
	}
	p.noteSaveWorks()
}

// commitPosition commits the target. If another process committed meanwhile, the higher
// position stays.
func (p *Projection[V]) commitPosition(ctx context.Context) error {
	for {
		r := stateRecord{V: wire.Version, Position: wire.Position{Incarnation: p.log.Incarnation(), Seq: p.safePosition()}, Rebuilt: p.renewal.id}
		if r.Position.Seq < p.renewal.until {
			r.Until = p.renewal.until
		}
		data, err := wire.Marshal(r)
		if err != nil {
			return err
		}
		rev, err := p.writeCommitted(ctx, data)
		if err == nil {
			p.commit = commitState{position: r.Position, revision: rev, at: time.Now()}
			p.force = false
			p.noteCommit(ctx)
			return nil
		}
		if !keys.IsConflict(err) {
			return err
		}
		theirs, err := p.readCommitted(ctx)
		if err != nil {
			return err
		}
		if theirs.Rebuilt != r.Rebuilt {
			p.renewal.look = time.Time{}
			return errRenewed // this process joins in
		}
		if theirs.Position.Incarnation == r.Position.Incarnation && theirs.Position.Seq >= r.Position.Seq {
			p.commit.position, p.commit.at, p.force = theirs.Position, time.Now(), false
			return nil
		}
	}
}

func (p *Projection[V]) writeCommitted(ctx context.Context, data []byte) (uint64, error) {
	if p.commit.revision == 0 {
		return p.kv.Create(ctx, p.positionKey(), data)
	}
	return p.kv.Update(ctx, p.positionKey(), data, p.commit.revision)
}
