package projection

import (
	"context"
	"errors"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/rebuild"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Renewer is a service that has to know which of its values are made again, since
// what it did because of them isn't to be done again.
type Renewer[V any] interface {
	// Renew makes a value fresh, as Reset does. It will account again for the events
	// up to a position for which it, or an earlier one, has accounted before.
	Renew(v V, upTo uint64)
}

// renewal is a rebuild: the log is read from its beginning again, and each run that
// it still has the beginning of gets a value that owes nothing to the stored one.
// What was stored stays until it is replaced, and no position is lowered: a value
// is folded at once up to where it was.
type renewal struct {
	id    string          // of the last order that was obeyed, or is
	until uint64          // where the service was; 0: no rebuild is under way
	made  map[string]bool // runs with values that this process has made again
	desk  *rebuild.Desk
	look  time.Time // when an order was last looked for
}

// obeyRebuildOrder looks for an order and begins to obey it: the position that is saved says
// so from then on. Whether it did is reported; then the log is to be read anew.
func (p *Projection[V]) obeyRebuildOrder(ctx context.Context, now time.Time) bool {
	if now.Before(p.renewal.look.Add(rebuild.Every)) {
		return false
	}
	p.renewal.look = now
	wait, cancel := context.WithTimeout(ctx, saveWait)
	defer cancel()
	o, err := p.renewal.desk.Order(wait)
	if err != nil || o.ID == "" || o.ID == p.renewal.id {
		return false // what can't be read now can be later
	}
	p.saveAll(wait, func(*trackedValue[V]) bool { return true })
	if err := p.beginRebuild(wait, o.ID); err != nil {
		p.delaySaving(ctx, err, subjects.NoRun)
		return false
	}
	return true
}

// beginRebuild saves that a rebuild begins, unless another process of the service has
// done so, and begins it.
func (p *Projection[V]) beginRebuild(ctx context.Context, id string) error {
	r, err := p.readCommitted(ctx)
	if err != nil {
		return err
	}
	if r.Rebuilt != id {
		first, _, err := p.log.Bounds(ctx)
		if err != nil {
			return err
		}
		until := max(p.safePosition(), p.commit.position.Seq)
		if until < first {
			until = 0 // nothing of it is left
		}
		r = stateRecord{V: wire.Version, Position: wire.Position{Incarnation: p.log.Incarnation()}, Rebuilt: id, Until: until}
		data, err := wire.Marshal(r)
		if err != nil {
			return err
		}
		if p.commit.revision, err = p.writeCommitted(ctx, data); err != nil {
			return err
		}
	}
	p.logger.InfoContext(ctx, "makes all values again", "order", id, "until", r.Until)
	p.dropValues()
	p.commit.position, p.handled = r.Position, r.Position.Seq
	p.renewal.id, p.renewal.until, p.renewal.made = id, r.Until, map[string]bool{}
	p.reportProgress(ctx)
	return nil
}

func (p *Projection[V]) dropValues() {
	clear(p.runs)
	clear(p.dirty)
	clear(p.waiting)
	p.size = 0
}

// reportProgress reports how far the rebuild is. That it can't is no reason to stop.
func (p *Projection[V]) reportProgress(ctx context.Context) {
	r := p.renewal
	err := r.desk.Report(ctx, rebuild.Progress{
		ID: r.id, Part: min(p.commit.position.Seq, r.until), Of: r.until, Unit: "positions", Done: r.until == 0 || p.commit.position.Seq >= r.until,
	})
	if err != nil {
		p.logger.WarnContext(ctx, "progress is not shown", "error", err)
	}
}

// noteCommit notes what was saved, and whether that was the end of the rebuild.
func (p *Projection[V]) noteCommit(ctx context.Context) {
	if p.renewal.until == 0 {
		return
	}
	p.reportProgress(ctx)
	if p.commit.position.Seq >= p.renewal.until {
		p.logger.InfoContext(ctx, "made all values again", "runs", len(p.renewal.made))
		p.renewal.until, p.renewal.made = 0, nil
	}
}

// renewValue makes a value again that was loaded for an event behind position to, if a
// rebuild wants that, and returns up to where it has to be folded. A stored value
// that doesn't reach the event has been made again already: the rebuild has read
// all that is before. If the log has dropped the run's beginning, the value stays.
func (p *Projection[V]) renewValue(ctx context.Context, runID string, stored *Loaded[V], to uint64) (uint64, error) {
	was := stored.Position.Seq
	if p.renewal.until <= to || p.renewal.made[runID] || was > 0 && was <= to {
		return to, nil
	}
	whole, err := p.hasFirstEvent(ctx, runID)
	if err != nil || !whole {
		return to, err
	}
	if r, ok := p.service.(Renewer[V]); ok {
		r.Renew(stored.Value, max(was, p.renewal.until))
	} else {
		p.service.Reset(stored.Value)
	}
	stored.Position = wire.Position{}
	p.renewal.made[runID] = true
	return max(to, was), nil
}

// hasFirstEvent reports whether the log still has the first event of a run.
func (p *Projection[V]) hasFirstEvent(ctx context.Context, runID string) (bool, error) {
	for e, err := range p.log.Read(ctx, eventlog.Query{Run: runID, Kinds: p.c.Kinds}) {
		if err != nil {
			return false, err
		}
		return beginsRun(e), nil
	}
	return false, nil
}

// errRenewed means that another process of the service has begun a rebuild.
var errRenewed = errors.New("projection: the service makes all values again")
