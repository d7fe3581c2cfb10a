package main

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"code.wake.dev/wake/services/watcher"
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

// What is read of sessions at the start is shown with its files, as soon as it is known; the last line stays.
func TestMeterOfHistory(t *testing.T) {
	play := func(json bool) string {
		var out bytes.Buffer
		a := &app{errOut: &out, json: json}
		m := a.newMeter("watch", unitBytes)
		m.part, m.shown, m.out = "history", time.Time{}, &out
		m.showHistory(watcher.Progress{})
		m.showHistory(watcher.Progress{Files: 2, DoneFiles: 1, Bytes: 4 << 20, DoneBytes: 1 << 20, Elapsed: time.Second})
		m.eraseLine()
		m.showHistory(watcher.Progress{Files: 2, DoneFiles: 2, Bytes: 4 << 20, DoneBytes: 4 << 20, Elapsed: 2 * time.Second})
		m.eraseLine()
		return out.String()
	}
	synctest.Test(t, func(t *testing.T) {
		const erase = "\r\x1b[K"
		want := erase + "history: 1 of 2 files, 1.0 MiB of 4.0 MiB, 1.0 MiB/s, 4s left" + erase + erase + "history: 2 of 2 files, 4.0 MiB of 4.0 MiB, 2.0 MiB/s\n"
		if got := play(false); got != want {
			t.Errorf("on a terminal %q, want %q", got, want)
		}
		want = `{"progress":{"verb":"watch","part":"history","done":1048576,"of":4194304,"unit":"bytes","perSecond":1048576,"leftSeconds":3}}
{"progress":{"verb":"watch","part":"history","done":4194304,"of":4194304,"unit":"bytes","perSecond":2097152}}
`
		if got := play(true); got != want {
			t.Errorf("as JSON %s, want %s", got, want)
		}
	})
}
