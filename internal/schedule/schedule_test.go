package schedule_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/schedule"
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

// Where clocks are put forward or back, a time that isn't there or is there twice is one run a day, and time goes on.
func TestClocksAreChanged(t *testing.T) {
	for _, day := range []string{"2026-03-28T12:00:00Z", "2026-10-24T12:00:00Z"} {
		s := schedule.Schedule{Name: "s", Cron: "30 2 * * *", Zone: "Europe/Berlin", CatchUp: schedule.CatchAll, Since: at(t, day).UnixMilli()}
		ids, n := map[string]bool{}, 0
		for hour := range 72 {
			due, settled, err := s.Due(at(t, day).Add(time.Duration(hour) * time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range due {
				ids[schedule.RunID(s.Name, d)] = true
				n++
			}
			if !settled.IsZero() {
				s.Fired = settled.UnixMilli()
			}
		}
		if len(ids) != n || n < 2 || n > 4 {
			t.Errorf("from %s on: %d runs, %d ids: %v", day, n, len(ids), ids)
		}
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
		{schedule.Schedule{Name: "a", Cron: "61 * * * *"}, "five fields are needed"},
		{schedule.Schedule{Name: "a", Cron: "@every 1s"}, "five fields are needed"},
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
