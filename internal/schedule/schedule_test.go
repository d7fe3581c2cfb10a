package schedule_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/schedule"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

func at(t *testing.T, text string) time.Time {
	t.Helper()
	when, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return when
}

func TestDue(t *testing.T) {
	const since = "2026-03-01T00:00:00Z"
	for _, tt := range []struct {
		name    string
		s       schedule.Schedule
		now     string
		want    string // times
		settled string // "": nothing is
	}{
		{"not yet", schedule.Schedule{Cron: "0 3 * * *"}, "2026-03-01T02:59:59Z", "", ""},
		{"to the second", schedule.Schedule{Cron: "0 3 * * *"}, "2026-03-01T03:00:00Z", "2026-03-01T03:00:00Z", "2026-03-01T03:00:00Z"},
		{"not when it was added", schedule.Schedule{Cron: "0 0 * * *"}, "2026-03-01T00:00:30Z", "", ""},
		{"one for all that were missed", schedule.Schedule{Cron: "0 * * * *"}, "2026-03-01T05:10:00Z", "2026-03-01T05:00:00Z", "2026-03-01T05:00:00Z"},
		{"none for what was missed", schedule.Schedule{Cron: "0 * * * *", CatchUp: schedule.CatchNone}, "2026-03-01T05:10:00Z", "", "2026-03-01T05:00:00Z"},
		{"but for what is late", schedule.Schedule{Cron: "0 * * * *", CatchUp: schedule.CatchNone}, "2026-03-01T05:00:59Z", "2026-03-01T05:00:00Z", "2026-03-01T05:00:00Z"},
		{"each", schedule.Schedule{Cron: "0 * * * *", CatchUp: schedule.CatchAll}, "2026-03-01T03:10:00Z", "2026-03-01T01:00:00Z 2026-03-01T02:00:00Z 2026-03-01T03:00:00Z", "2026-03-01T03:00:00Z"},
		{"settled", schedule.Schedule{Cron: "0 * * * *", Fired: at(t, "2026-03-01T05:00:00Z").UnixMilli()}, "2026-03-01T05:10:00Z", "", ""},
		{"paused", schedule.Schedule{Cron: "0 * * * *", Paused: true}, "2026-03-01T05:10:00Z", "", ""},
		{"a zone", schedule.Schedule{Cron: "30 3 * * *", Zone: "Europe/Berlin"}, "2026-03-01T02:30:00Z", "2026-03-01T02:30:00Z", "2026-03-01T02:30:00Z"},
		{"its summer", schedule.Schedule{Cron: "30 3 * * *", Zone: "Europe/Berlin", Fired: at(t, "2026-06-30T01:30:00Z").UnixMilli()}, "2026-07-01T01:30:00Z", "2026-07-01T01:30:00Z", "2026-07-01T01:30:00Z"},
		{"a clock that was set back", schedule.Schedule{Cron: "0 * * * *", Fired: at(t, "2026-03-01T09:00:00Z").UnixMilli()}, "2026-03-01T05:10:00Z", "", "2026-03-01T05:09:00Z"},
		{"for seconds", schedule.Schedule{Cron: "0 * * * *", Fired: at(t, "2026-03-01T05:00:00Z").UnixMilli()}, "2026-03-01T04:59:50Z", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.s.Since = at(t, since).UnixMilli()
			due, settled, err := tt.s.Due(at(t, tt.now))
			if err != nil {
				t.Fatal(err)
			}
			var times []string
			for _, d := range due {
				times = append(times, d.UTC().Format(time.RFC3339))
			}
			if diff := cmp.Diff(tt.want, strings.Join(times, " ")); diff != "" {
				t.Errorf("due (-want +got):\n%s", diff)
			}
			got := ""
			if !settled.IsZero() {
				got = settled.UTC().Format(time.RFC3339)
			}
			if got != tt.settled {
				t.Errorf("settled %s, want %s", got, tt.settled)
			}
		})
	}
}

// Where clocks are put forward or back, a time that is left out or comes twice is due once, if the expression names its hour. One that doesn't
// is due as often as clocks show it. All ways to catch up go by the same times, none is due before it comes, and time goes on.
func TestClocksAreChanged(t *testing.T) {
	for _, tt := range []struct{ cron, zone, from, to, want string }{
		{"30 2 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", "2027-03-29T12:00:00Z", "03-28T03:00+02:00 03-29T02:30+02:00"},
		{"30 2 * * *", "Europe/Berlin", "2027-10-30T12:00:00Z", "2027-11-01T12:00:00Z", "10-31T02:30+02:00 11-01T02:30+01:00"},
		{"0 0 * * *", "Europe/Berlin", "2027-10-30T12:00:00Z", "2027-11-01T12:00:00Z", "10-31T00:00+02:00 11-01T00:00+01:00"},
		{"15,45 * * * *", "Europe/Berlin", "2027-10-31T00:00:00Z", "2027-10-31T02:00:00Z", "10-31T02:15+02:00 10-31T02:45+02:00 10-31T02:15+01:00 10-31T02:45+01:00"},
		{"15 * * * *", "Europe/Berlin", "2027-03-28T00:00:00Z", "2027-03-28T02:00:00Z", "03-28T01:15+01:00 03-28T03:15+02:00"},
		{"0 3 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", "2027-03-28T12:00:00Z", "03-28T03:00+02:00"},
		{"0,30 2,3 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", "2027-03-28T12:00:00Z", "03-28T03:00+02:00 03-28T03:30+02:00"},
		{"0,30 2,3 * * *", "Europe/Berlin", "2027-10-30T12:00:00Z", "2027-10-31T12:00:00Z", "10-31T02:00+02:00 10-31T02:30+02:00 10-31T03:00+01:00 10-31T03:30+01:00"},
		{"0 3 * * 1", "America/Santiago", "2027-09-03T07:00:00Z", "2027-09-20T12:00:00Z", "09-06T03:00-03:00 09-13T03:00-03:00 09-20T03:00-03:00"},
		{"@daily", "America/Santiago", "2027-09-03T12:00:00Z", "2027-09-06T12:00:00Z", "09-04T00:00-04:00 09-05T01:00-03:00 09-06T00:00-03:00"},
		{"@weekly", "America/Havana", "2027-03-12T13:00:00Z", "2027-03-22T12:00:00Z", "03-14T01:00-04:00 03-21T00:00-04:00"},
		{"@daily", "America/Havana", "2027-11-06T12:00:00Z", "2027-11-08T12:00:00Z", "11-07T00:00-04:00 11-08T00:00-05:00"},
		{"59 1 * * *", "Australia/Lord_Howe", "2027-04-03T00:00:00Z", "2027-04-04T20:00:00Z", "04-04T01:59+11:00 04-05T01:59+10:30"},
		{"30 12 29 2 *", "Europe/Berlin", "2027-01-01T00:00:00Z", "2033-01-01T00:00:00Z", "02-29T12:30+01:00 02-29T12:30+01:00"},
	} {
		t.Run(tt.cron+" "+tt.zone+" "+tt.from, func(t *testing.T) {
			from, to := at(t, tt.from), at(t, tt.to)
			s := schedule.Schedule{Name: "s", Cron: tt.cron, Zone: tt.zone, CatchUp: schedule.CatchAll, Since: from.UnixMilli()}
			due, _, err := s.Due(to)
			if err != nil {
				t.Fatal(err)
			}
			zone, err := time.LoadLocation(tt.zone)
			if err != nil {
				t.Fatal(err)
			}
			var times []string
			for _, d := range due {
				times = append(times, d.In(zone).Format("01-02T15:04-07:00"))
			}
			if diff := cmp.Diff(tt.want, strings.Join(times, " ")); diff != "" {
				t.Fatalf("due (-want +got):\n%s", diff)
			}
			if to.Sub(from) > 24*20*time.Hour {
				return // by the minute it takes too long
			}
			for _, c := range []schedule.CatchUp{schedule.CatchLast, schedule.CatchNone} {
				s, begun := s, due[:0:0]
				s.CatchUp = c
				for now := from; !now.After(to); now = now.Add(time.Minute) {
					due, settled, err := s.Due(now)
					if err != nil || len(due) > 0 && (!due[0].Equal(now) || len(due) > 1) {
						t.Fatalf("at %v is due: %v, %v", now, due, err)
					}
					if begun = append(begun, due...); !settled.IsZero() {
						s.Settle(settled)
					}
				}
				if diff := cmp.Diff(due, begun); diff != "" {
					t.Errorf("%q (-all +it):\n%s", c, diff)
				}
			}
		})
	}
}

func TestCheck(t *testing.T) {
	now := at(t, "2026-03-01T00:00:00Z")
	for _, tt := range []struct {
		s    schedule.Schedule
		want string // of the error; "": none
	}{
		{schedule.Schedule{Name: "nightly", Cron: "0 3 * * *"}, ""},
		{schedule.Schedule{Name: "nightly", Cron: "@daily", Zone: "Asia/Tokyo", CatchUp: schedule.CatchAll}, ""},
		{schedule.Schedule{Name: "", Cron: "@daily"}, "name"},
		{schedule.Schedule{Name: "a", Cron: "* * * * * *"}, "five fields are needed"},
		{schedule.Schedule{Name: "a", Cron: "61 * * * *"}, `"61" is no minute (0-59)`},
		{schedule.Schedule{Name: "a", Cron: "0 24 * * *"}, `"24" is no hour (0-23)`},
		{schedule.Schedule{Name: "a", Cron: "0 */0 * * *"}, `"*/0" is no hour (0-23)`},
		{schedule.Schedule{Name: "a", Cron: "5-1 0 * * *"}, `"5-1" is no minute`},
		{schedule.Schedule{Name: "a", Cron: "0 0 * * fri-sun"}, `"fri-sun" is no weekday`},
		{schedule.Schedule{Name: "a", Cron: "@every 1s"}, "five fields are needed"},
		{schedule.Schedule{Name: "a", Cron: "@everySecond"}, "five fields are needed"},
		{schedule.Schedule{Name: "a", Cron: strings.Repeat("1,", 1000) + "1 * * * *"}, "five fields are needed"},
		{schedule.Schedule{Name: "a", Cron: "0 0 31 2 *"}, "never comes"},
		{schedule.Schedule{Name: "a", Cron: "@daily", Zone: "Mars"}, "time zone"},
		{schedule.Schedule{Name: "a", Cron: "@daily", Zone: "Local"}, "another one on each machine"},
		{schedule.Schedule{Name: "a", Cron: "@daily", CatchUp: "some"}, "last, none and all are known"},
	} {
		err := tt.s.Check(now)
		if got := err == nil; got != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %q", tt.s.Cron, err, tt.want)
		}
	}
}

// A name that makes ids of runs too long is none.
func TestCheckLongName(t *testing.T) {
	now := at(t, "2026-03-01T00:00:00Z")
	longest := strings.Repeat("n", subjects.MaxID-len("-20260301t0000z"))
	if err := (schedule.Schedule{Name: longest, Cron: "@daily"}).Check(now); err != nil {
		t.Error(err)
	}
	if err := (schedule.Schedule{Name: longest + "n", Cron: "@daily"}).Check(now); err == nil || !strings.Contains(err.Error(), "of the id of a run") {
		t.Error(err)
	}
}

// What is to be caught up with is so many runs at a time, in order, until it is all.
func TestDueInPortions(t *testing.T) {
	since := at(t, "2026-03-01T00:00:00Z")
	s := schedule.Schedule{Cron: "0 * * * *", CatchUp: schedule.CatchAll, Since: since.UnixMilli()}
	now := since.Add(45*time.Hour + time.Minute)
	next := since
	for _, want := range []int{20, 20, 5, 0} {
		due, settled, err := s.Due(now)
		if err != nil || len(due) != want || settled.IsZero() != (want == 0) {
			t.Fatalf("due are %d, settled %v, %v, want %d", len(due), settled, err, want)
		}
		for _, d := range due {
			if next = next.Add(time.Hour); !d.Equal(next) {
				t.Fatalf("due is %v, want %v", d, next)
			}
		}
		if want > 0 {
			if s.Settle(settled); !settled.Equal(next) {
				t.Fatalf("settled is %v, want %v", settled, next)
			}
		}
	}
}

// A clock that is ahead by less than a minute is no reason to begin runs again.
func TestSettledAhead(t *testing.T) {
	now := at(t, "2026-03-01T05:00:00Z")
	for ahead, want := range map[time.Duration]time.Duration{
		-time.Hour: -time.Hour, 0: 0, time.Minute: time.Minute, time.Minute + time.Millisecond: -time.Minute, time.Hour: -time.Minute,
	} {
		for _, s := range []schedule.Schedule{{Since: now.Add(ahead).UnixMilli()}, {Fired: now.Add(ahead).UnixMilli(), Since: 1}} {
			if got := s.Settled(now).Sub(now); got != want {
				t.Errorf("%v ahead: settled is %v, want %v", ahead, got, want)
			}
		}
	}
	s := schedule.Schedule{Since: now.Add(time.Hour).UnixMilli()} // added by a clock that was ahead
	if s.Settle(now); !s.Settled(now).Equal(now) || s.Since != now.UnixMilli() {
		t.Errorf("settled is %v", s.Settled(now))
	}
}

// The request of a run is its own: its id tells the time in UTC, and its labels aren't those of the schedule.
func TestRequestAt(t *testing.T) {
	s := schedule.Schedule{Name: "nightly", Request: wire.RunRequest{RunID: "other", Labels: map[string]string{"team": "core", "schedule": "another"}, By: "somebody"}}
	zone := time.FixedZone("", 2*60*60)
	r := s.RequestAt(time.Date(2026, 3, 1, 1, 30, 59, 0, zone))
	want := wire.RunRequest{V: wire.Version, RunID: "nightly-20260228t2330z", Labels: map[string]string{"team": "core", "schedule": "nightly"}, By: "somebody"}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if s.Request.Labels["schedule"] != "another" || s.Request.RunID != "other" {
		t.Errorf("the schedule has become %+v", s.Request)
	}
	s.Request.Labels = nil
	if r := s.RequestAt(time.Unix(0, 0)); r.Labels["schedule"] != "nightly" || s.Request.Labels != nil {
		t.Errorf("labels %v", r.Labels)
	}
}

// Whatever stands in an expression, it is refused or its times come, one after the other.
func FuzzNext(f *testing.F) {
	for _, seed := range []string{"0 3 * * *", "*/5 1-3 L * 1#2", "@hourly", "@5minutes", "0 0 29 2 1-5", "5/0 * * * *", "* * 31 2,4 *", "1-1000000000/1 * * * *", "? ? W * 7L"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, cron string) {
		now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
		s := schedule.Schedule{Name: "s", Cron: cron}
		if s.Check(now) != nil {
			return
		}
		next, err := s.Next(now)
		if err != nil || !next.After(now) {
			t.Fatalf("%q: %v, %v", cron, next, err)
		}
		s.Since = now.UnixMilli()
		if due, _, err := s.Due(next); err != nil || len(due) != 1 || !due[0].Equal(next) {
			t.Errorf("%q: due at %v: %v, %v", cron, next, due, err)
		}
	})
}
