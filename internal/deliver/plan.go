package deliver

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// What a digest shows of its alerts.
const (
	maxLines = 20
	maxLine  = 300 // characters
	lateWait = 10 * time.Second
)

// targetRecord is what a target knows, as it is stored.
type targetRecord struct {
	V        int    `json:"v"`
	Owner    string `json:"owner"`    // the process that sends; "" if none does
	Stream   int64  `json:"stream"`   // when WAKE_ALERTS was created, Unix ns
	Position uint64 `json:"position"` // in WAKE_ALERTS, up to which all is decided

	Held   []digestBatch `json:"held,omitempty"`
	Sealed *Notification `json:"sealed,omitempty"` // a digest that is being sent
	Window window        `json:"window"`
	Tried  attemptCount  `json:"tried"`
}

// digestBatch are alerts that become one digest.
type digestBatch struct {
	Key      string        `json:"key"`
	Due      int64         `json:"due"` // Unix ms
	Severity wire.Severity `json:"severity"`
	Digest   Digest        `json:"digest"`
}

// window counts what was sent in a span of a [Rate].
type window struct {
	Start int64 `json:"start"` // Unix ms
	Count int   `json:"count"`
}

// attemptCount counts attempts of one notification.
type attemptCount struct {
	ID    string `json:"id"`
	Count int    `json:"count"`
}

// plan decides for one sink. It is pure.
type plan struct {
	sink  string
	cfg   *Sink
	rules *Rules
}

// decideAlert returns whether the alert at a position, stored at some time, is sent now,
// and what the record has become if it isn't.
func (p plan) decideAlert(r targetRecord, pos uint64, a *wire.Alert, stored, now time.Time) (next targetRecord, send bool) {
	rule, number := p.rules.ruleFor(p.sink, a)
	if rule == nil {
		return r, false
	}
	hold := func(reason, key string, due time.Time) (targetRecord, bool) {
		return r.holdAlert(reason, key, pos, a, due), false
	}
	if now.Sub(stored) > cmp.Or(p.cfg.Expire, 24*time.Hour) {
		return hold(reasonLate, reasonLate, now.Add(lateWait))
	}
	if end, quiet := rule.Quiet.quietEnd(now); quiet && severityRank(a.Severity) < severityRank(rule.Quiet.Pass) {
		if rule.Quiet.Drop != "" && severityRank(a.Severity) < severityRank(rule.Quiet.Drop) {
			return r, false
		}
		return hold(reasonQuiet, fmt.Sprintf("quiet %d", number), end)
	}
	if rule.Digest > 0 {
		return hold(reasonDigest, fmt.Sprintf("digest %d", number), now.Add(rule.Digest))
	}
	if end, full := p.rateLimitEnd(r, now); full {
		return hold(reasonRate, reasonRate, end)
	}
	return r, true
}

// rateLimitEnd reports whether the sink's rate is used up, and until when.
func (p plan) rateLimitEnd(r targetRecord, now time.Time) (end time.Time, full bool) {
	if p.cfg.Rate == nil {
		return now, false
	}
	end = time.UnixMilli(r.Window.Start).Add(p.cfg.Rate.Per)
	return end, now.Before(end) && r.Window.Count >= p.cfg.Rate.Count
}

// countSent accounts for an alert that was sent.
func (p plan) countSent(r targetRecord, now time.Time) targetRecord {
	if p.cfg.Rate == nil {
		r.Window = window{}
		return r
	}
	if !now.Before(time.UnixMilli(r.Window.Start).Add(p.cfg.Rate.Per)) {
		r.Window = window{Start: now.UnixMilli()}
	}
	r.Window.Count++
	return r
}

// holdAlert adds an alert to the batch of a key, which it may begin.
func (r targetRecord) holdAlert(reason, key string, pos uint64, a *wire.Alert, due time.Time) targetRecord {
	r.Held = slices.Clone(r.Held)
	i := slices.IndexFunc(r.Held, func(b digestBatch) bool { return b.Key == key })
	if i < 0 {
		i = len(r.Held)
		r.Held = append(r.Held, digestBatch{Key: key, Due: due.UnixMilli(), Severity: a.Severity, Digest: Digest{Reason: reason, First: pos, From: a.Timestamp}})
	}
	b := &r.Held[i]
	d := &b.Digest
	d.Count = maps.Clone(d.Count)
	if d.Count == nil {
		d.Count = map[wire.Severity]int{}
	}
	d.Count[a.Severity]++
	d.Last, d.To = pos, a.Timestamp
	if severityRank(a.Severity) > severityRank(b.Severity) {
		b.Severity = a.Severity
	}
	if (reason == reasonQuiet || reason == reasonDigest) && len(d.Lines) < maxLines {
		d.Lines = append(slices.Clone(d.Lines), timeline.Line(a.Text, maxLine))
	}
	return r
}

// firstDue returns when the first batch is due.
func (r targetRecord) firstDue() (time.Time, bool) {
	if len(r.Held) == 0 {
		return time.Time{}, false
	}
	first := slices.MinFunc(r.Held, func(a, b digestBatch) int { return cmp.Compare(a.Due, b.Due) })
	return time.UnixMilli(first.Due), true
}

// sealDigest makes a notification of the first batch if it is due.
func (p plan) sealDigest(r targetRecord, now time.Time) (targetRecord, bool) {
	at, ok := r.firstDue()
	if !ok || now.Before(at) || r.Sealed != nil {
		return r, false
	}
	i := slices.IndexFunc(r.Held, func(b digestBatch) bool { return b.Due == at.UnixMilli() })
	b := r.Held[i]
	r.Held = slices.Delete(slices.Clone(r.Held), i, i+1)
	r.Sealed = &Notification{
		ID:   fmt.Sprintf("digest-%x-%d-%d", r.Stream, b.Digest.First, b.Digest.Last),
		Time: now.UnixMilli(), Severity: b.Severity, Text: b.Digest.summaryText(p.cfg.Rate), Digest: &b.Digest,
	}
	return r, true
}

// Delivery is a notification that a sink would have got.
type Delivery struct {
	At           time.Time    `json:"at"`
	Sink         string       `json:"sink"`
	Notification Notification `json:"notification"`

	numbers []int // of the alerts in it, by [Simulate]
}

// Of reports whether an alert is what is delivered, or part of it. Number is that
// of the alert among those that were simulated, from 0 on.
func (d Delivery) Of(number int) bool { return slices.Contains(d.numbers, number) }

// Simulate returns what rules would have sent of alerts, the time of each taken
// for that of its delivery. The alerts are in the order of their time.
func Simulate(rules *Rules, alerts []wire.Alert) []Delivery {
	var all []Delivery
	for _, name := range slices.Sorted(maps.Keys(rules.Sinks)) {
		all = append(all, plan{sink: name, cfg: rules.Sinks[name], rules: rules}.simulateAlerts(alerts)...)
	}
	slices.SortStableFunc(all, func(a, b Delivery) int { return a.At.Compare(b.At) })
	return all
}

func (p plan) simulateAlerts(alerts []wire.Alert) []Delivery {
	var r targetRecord
	var out []Delivery
	held := map[string][]int{} // numbers by the key of their batch
	flush := func(until time.Time) {
		for at, ok := r.firstDue(); ok && !until.Before(at); at, ok = r.firstDue() {
			before := r.Held
			r, _ = p.sealDigest(r, at)
			key := goneBatch(before, r.Held)
			out = append(out, Delivery{At: at, Sink: p.sink, Notification: *r.Sealed, numbers: held[key]})
			delete(held, key)
			r.Sealed = nil
		}
	}
	for i := range alerts {
		now := time.UnixMilli(alerts[i].Timestamp)
		flush(now)
		next, send := p.decideAlert(r, uint64(i+1), &alerts[i], now, now)
		for _, b := range next.Held {
			if b.Digest.Last == uint64(i+1) {
				held[b.Key] = append(held[b.Key], i)
			}
		}
		if r = next; send {
			out = append(out, Delivery{At: now, Sink: p.sink, Notification: alertNotification(&alerts[i]), numbers: []int{i}})
			r = p.countSent(r, now)
		}
	}
	if len(r.Held) > 0 {
		last := slices.MaxFunc(r.Held, func(a, b digestBatch) int { return cmp.Compare(a.Due, b.Due) })
		flush(time.UnixMilli(last.Due))
	}
	return out
}

// goneBatch returns the key of the batch that isn't held any more.
func goneBatch(before, after []digestBatch) string {
	for _, b := range before {
		if !slices.ContainsFunc(after, func(c digestBatch) bool { return c.Key == b.Key }) {
			return b.Key
		}
	}
	return ""
}
