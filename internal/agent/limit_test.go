package agent_test

import (
	"testing"
	"time"

	"code.wake.dev/wake/internal/agent"
)

func TestLimitReset(t *testing.T) {
	zone := time.FixedZone("here", 2*60*60)
	now := time.Date(2026, 11, 25, 14, 30, 0, 0, zone)
	for text, want := range map[string]string{
		"Claude AI usage limit reached|1795676400":                                       "2026-11-26T09:00:00+02:00",
		"5-hour limit reached ∙ resets 3pm":                                              "2026-11-25T15:00:00+02:00",
		"You've hit your limit · resets 2:15pm":                                          "2026-11-26T14:15:00+02:00",
		"You've hit your limit · resets 2:29pm":                                          "2026-11-25T14:29:00+02:00",
		"You're out of extra usage · resets 2pm (America/Denver)":                        "2026-11-25T23:00:00+02:00",
		"You've hit your limit · resets 12am (Asia/Tokyo)":                               "2026-11-25T17:00:00+02:00",
		"Weekly limit reached ∙ resets Nov 28, 1pm":                                      "2026-11-28T13:00:00+02:00",
		"Weekly limit reached ∙ resets Jan 2 at 12:30am":                                 "2027-01-02T00:30:00+02:00",
		"You've hit your usage limit. Try again in 2 days 3 hours 5 minutes.":            "2026-11-27T17:35:00+02:00",
		"You've hit your usage limit. Try again at Nov 29th, 2026 3:05 PM.":              "2026-11-29T15:05:00+02:00",
		"You exhausted your capacity on this model. Your quota will reset after 1h48m3s": "2026-11-25T16:18:03+02:00",
		"Rate limit reached for tokens per min. Please try again in 11.5s. Visit x":      "2026-11-25T14:30:11.5+02:00",
		"Rate limit reached. Please try again in 120ms.":                                 "2026-11-25T14:30:00.12+02:00",
		"Rate limit reached. Try again later.":                                           "",
		"limit · resets 13pm":                                                            "",
		"limit · resets 2pm (Nowhere/Land)":                                              "",
		"limit · resets Foo 2, 1pm":                                                      "",
		"the counter resets when the build is over":                                      "",
		"": "",
	} {
		at, ok := agent.LimitReset(text, now)
		got := ""
		if ok {
			got = at.In(zone).Format(time.RFC3339Nano)
		}
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func FuzzLimitReset(f *testing.F) {
	f.Add("usage limit reached|1795676400")
	f.Add("limit · resets Nov 28, 1:05pm (Europe/Berlin)")
	f.Add("try again in 2 days, 3 hours and 5.5 s")
	now := time.Date(2026, 2, 28, 23, 59, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string) {
		if at, ok := agent.LimitReset(text, now); !ok && !at.IsZero() {
			t.Errorf("%q: %s, and it isn't known", text, at)
		}
	})
}
