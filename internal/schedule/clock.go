package schedule

import (
	"fmt"
	"strings"
	"time"

	"github.com/adhocore/gronx"
)

// wallClock tells when the clocks of a zone show what an expression asks for. The expression is asked of clocks that are never changed,
// those of the stretches between two changes, as times in UTC: package gronx doesn't get over a time that is left out, or comes twice.
//
// An expression that names hours is due once for a time that comes twice, the first time, and for times that are left out at the moment in
// which the clocks are put forward. One that leaves the hour open goes by what the clocks show, whatever that is.
type wallClock struct {
	cron  string
	zone  *time.Location
	hours bool // the expression names hours
}

// newWallClock returns the clock of an expression that is valid.
func newWallClock(cron string, zone *time.Location) wallClock {
	c := wallClock{cron: cron, zone: zone}
	if fields, err := gronx.Segments(cron); err == nil { // from seconds on
		c.hours = !strings.HasPrefix(fields[2], "*") && fields[2] != "?"
	}
	return c
}

// stretch is a time in which the clocks aren't changed.
type stretch struct {
	begin, end time.Time     // zero: there was no change, or comes none
	offset     time.Duration // what clocks show, less UTC

	before, after time.Duration // the offsets of the stretches beside it
}

func (c wallClock) stretchAt(t time.Time) (s stretch) {
	s.begin, s.end = t.In(c.zone).ZoneBounds()
	s.offset = c.offsetAt(t)
	s.before, s.after = s.offset, s.offset
	if !s.begin.IsZero() {
		s.before = c.offsetAt(s.begin.Add(-1))
	}
	if !s.end.IsZero() {
		s.after = c.offsetAt(s.end)
	}
	return s
}

func (c wallClock) offsetAt(t time.Time) time.Duration {
	_, seconds := t.In(c.zone).Zone()
	return time.Duration(seconds) * time.Second
}

// clockTime is what clocks with an offset show at a time, as a time in UTC.
func clockTime(t time.Time, offset time.Duration) time.Time { return t.UTC().Add(offset) }

// nextDue returns the first time behind another one that is due.
func (c wallClock) nextDue(after time.Time) (time.Time, error) {
	for t, inclusive := after, false; ; inclusive = true {
		s := c.stretchAt(t)
		from := clockTime(t, s.offset)
		if again := clockTime(s.begin, s.before); c.hours && !s.begin.IsZero() && from.Before(again) { // up to there all was shown before
			from, inclusive = again, true
		}
		tick, err := gronx.NextTickAfter(c.cron, from, inclusive)
		if err != nil {
			return time.Time{}, fmt.Errorf("cron expression %q: its time never comes", c.cron)
		}
		due := tick.Add(-s.offset)
		switch {
		case s.end.IsZero() || due.Before(s.end):
			return due.In(c.zone), nil
		case c.hours && tick.Before(clockTime(s.end, s.after)): // it is left out
			return s.end, nil
		}
		t = s.end
	}
}

// lastDue returns the last time that was due up to another one.
func (c wallClock) lastDue(t time.Time) (time.Time, error) {
	for {
		s := c.stretchAt(t)
		tick, err := gronx.PrevTickBefore(c.cron, clockTime(t, s.offset), true)
		if err != nil {
			return time.Time{}, fmt.Errorf("cron expression %q: its time never came", c.cron)
		}
		due, isShown := tick.Add(-s.offset), !tick.Before(clockTime(s.begin, s.offset))
		isNew := !tick.Before(clockTime(s.begin, s.before)) // the stretch before didn't show it
		switch {
		case s.begin.IsZero() || isShown && (isNew || !c.hours):
			return due.In(c.zone), nil
		case c.hours && isNew: // it is left out
			return s.begin, nil
		}
		t = s.begin.Add(-1)
	}
}
