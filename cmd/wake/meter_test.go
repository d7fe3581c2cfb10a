package main

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A meter says how much is done, of how much, how fast and for how long still, some times a second on a terminal and once a
// second as JSON, and nothing of what is over sooner.
func TestMeter(t *testing.T) {
	play := func(json bool, of int64) string {
		var out bytes.Buffer
		a := &app{errOut: &out, json: json}
		m := a.newMeter("verify", "events")
		m.out = &out // as if it were a terminal
		for i := range 20 {
			m.note(int64(i)*100, of)
			<-time.After(100 * time.Millisecond)
		}
		m.eraseLine()
		return out.String()
	}
	synctest.Test(t, func(t *testing.T) {
		lines := strings.Split(play(false, 4000), "\r\x1b[K")
		if want := "verify: 300 of 4000 events, 1000/s, 4s left"; lines[1] != want {
			t.Errorf("on a terminal %q, want %q", lines[1], want)
		}
		if last := lines[len(lines)-1]; last != "" || len(lines) != 8 {
			t.Errorf("%d lines, in the end %q", len(lines)-2, last)
		}
		got := play(true, 4000)
		want := `{"progress":{"verb":"verify","done":1000,"of":4000,"unit":"events","perSecond":1000,"leftSeconds":3}}` + "\n"
		if got != want {
			t.Errorf("as JSON %s, want %s", got, want)
		}
		if got := play(true, 0); !strings.Contains(got, `"done":1000,"unit"`) {
			t.Errorf("of an unknown amount: %s", got)
		}
	})
}
