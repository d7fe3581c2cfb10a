// Package schedule says at which times runs begin that a cron expression asks for, and keeps schedules in the bucket of states. What
// begins them is each runner; that a run begins once is its id, which is made of its schedule's name and the time it was due.
package schedule

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/adhocore/gronx"

	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Schedule begins a run at each time that is due.
type Schedule struct {
	Name    string          `json:"name"`
	Cron    string          `json:"cron"`           // five fields, or @hourly, @daily, @weekly …
	Zone    string          `json:"zone,omitempty"` // IANA name of a time zone; "": UTC
	CatchUp CatchUp         `json:"catchUp,omitempty"`
	Paused  bool            `json:"paused,omitempty"`
	Since   int64           `json:"since"`           // Unix ms: only what is due behind it counts
	Fired   int64           `json:"fired,omitempty"` // Unix ms: up to here it is settled what is due
	Asked   int64           `json:"asked,omitempty"` // Unix ms: the time of the last run that was asked for
	Request wire.RunRequest `json:"request"`         // of each run, but for its id
}

// CatchUp says what becomes of times at which no runner was there.
type CatchUp string

// The rules.
const (
	CatchLast CatchUp = ""     // one run for all of them, that of the last one
	CatchNone CatchUp = "none" // no run, but for a time that is less than [Grace] ago
	CatchAll  CatchUp = "all"  // a run for each
)

const (
	// Grace is how late a run may begin that isn't caught up with.
	Grace = time.Minute
	// maxAtOnce is how many runs are caught up with at once; the others follow.
	maxAtOnce = 20
	maxCron   = 128 // bytes
)

// Check fails if the schedule can't be kept, or its time never comes after now.
func (s Schedule) Check(now time.Time) error {
	if err := subjects.CheckID(s.Name); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	if err := subjects.CheckID(RunID(s.Name, now)); err != nil {
		return fmt.Errorf("name: of the id of a run: %w", err)
	}
	switch s.CatchUp {
	case CatchLast, CatchNone, CatchAll:
	default:
		return fmt.Errorf("catch up: %q is unknown; last, none and all are known", s.CatchUp)
	}
	_, err := s.Next(now)
	return err
}

// Next returns the first time behind another one that is due.
func (s Schedule) Next(after time.Time) (time.Time, error) {
	zone, err := s.zone()
	if err != nil {
		return time.Time{}, err
	}
	return newWallClock(s.Cron, zone).nextDue(after)
}

// latest returns the last time that was due up to now.
func (s Schedule) latest(now time.Time) (time.Time, error) {
	zone, err := s.zone()
	if err != nil {
		return time.Time{}, err
	}
	return newWallClock(s.Cron, zone).lastDue(now)
}

// zone checks the expression, and returns the zone that its times are in.
func (s Schedule) zone() (*time.Location, error) {
	if field := wrongField(s.Cron); field != "" {
		return nil, fmt.Errorf("cron expression %q: %s", cutExpression(s.Cron), field)
	}
	if len(s.Cron) > maxCron || !isToTheMinute(s.Cron) || !gronx.IsValid(s.Cron) {
		return nil, fmt.Errorf("cron expression %q: five fields are needed (minute hour day month weekday), such as \"30 3 * * 1-5\", or @hourly, @daily, @weekly", cutExpression(s.Cron))
	}
	if s.Zone == "Local" {
		return nil, errors.New("time zone: Local is another one on each machine: name one, such as Europe/Berlin")
	}
	zone, err := time.LoadLocation(s.Zone)
	if err != nil {
		return nil, fmt.Errorf("time zone: %w", err)
	}
	return zone, nil
}

// cronFields are the fields of an expression, and what they can be.
var cronFields = [...]string{"minute (0-59)", "hour (0-23)", "day (1-31)", "month (1-12, jan-dec)", "weekday (0-7, sun-sat)"}

// wrongField says which of an expression's five fields can't be; "": none, or there are more or fewer.
func wrongField(cron string) string {
	fields := strings.Fields(cron)
	if len(fields) != len(cronFields) || len(cron) > maxCron || strings.HasPrefix(cron, "@") {
		return ""
	}
	for i, field := range fields {
		alone := []string{"*", "*", "*", "*", "*"}
		if alone[i] = field; !gronx.IsValid(strings.Join(alone, " ")) {
			return fmt.Sprintf("%q is no %s", field, cronFields[i])
		}
	}
	return ""
}

// isToTheMinute reports whether an expression has five fields, or stands for one that has: no seconds, and no years.
func isToTheMinute(cron string) bool {
	if !strings.HasPrefix(cron, "@") {
		return len(strings.Fields(cron)) == 5
	}
	fields, err := gronx.Segments(cron) // from seconds on
	return err == nil && fields[0] == "0"
}

func cutExpression(s string) string { return s[:min(len(s), maxCron)] }

// Settled returns up to when nothing more is due. What a clock has settled that was ahead, and has been put back, isn't; when that
// happened isn't known, but runners look once a minute.
func (s Schedule) Settled(now time.Time) time.Time {
	settled := int64(0)
	for _, t := range []int64{s.Since, s.Fired} {
		if t > now.Add(Grace).UnixMilli() {
			t = now.Add(-Grace).UnixMilli()
		}
		settled = max(settled, t)
	}
	return time.UnixMilli(settled)
}

// Settle says up to when nothing more is due.
func (s *Schedule) Settle(t time.Time) {
	s.Fired = t.UnixMilli()
	s.Since = min(s.Since, s.Fired)
}

// Due returns the times for which runs begin now, and up to which time that settles it; a zero time if that is as it was. That of
// a run which has begun already may be due again, see [Schedule.Settled]: it is the same run.
func (s Schedule) Due(now time.Time) (due []time.Time, settled time.Time, err error) {
	base := s.Settled(now)
	switch {
	case s.Paused:
		return nil, time.Time{}, nil
	case base.UnixMilli() < max(s.Since, s.Fired):
		return nil, base, nil
	case !now.After(base):
		return nil, time.Time{}, nil
	}
	if s.CatchUp == CatchAll {
		for t := base; len(due) < maxAtOnce; {
			if t, err = s.Next(t); err != nil || t.After(now) {
				break
			}
			due, settled = append(due, t), t
		}
		return due, settled, err
	}
	last, err := s.latest(now)
	if err != nil || !last.After(base) {
		return nil, time.Time{}, err
	}
	if s.CatchUp == CatchNone && now.Sub(last) > Grace {
		return nil, last, nil
	}
	return []time.Time{last}, last, nil
}

// Label is the label of runs that says which schedule has begun them.
const Label = "schedule"

// RequestAt is the request for the run of a time.
func (s Schedule) RequestAt(due time.Time) wire.RunRequest {
	r := s.Request
	r.V, r.RunID = wire.Version, RunID(s.Name, due)
	r.Labels = maps.Clone(r.Labels)
	if r.Labels == nil {
		r.Labels = map[string]string{}
	}
	r.Labels[Label] = s.Name
	return r
}

// RunID is the id of the run of a schedule at a time: equal arguments mean the same run.
func RunID(name string, due time.Time) string {
	return name + "-" + strings.ToLower(due.UTC().Format("20060102T1504Z"))
}
