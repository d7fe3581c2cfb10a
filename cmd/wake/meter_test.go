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
		<-time.After(30 * time.Millisecond)
		for i := range 19 {
			m.note(int64(i)*100, of)
			<-time.After(100 * time.Millisecond)
		}
		m.eraseLine()
		return out.String()
	}
	synctest.Test(t, func(t *testing.T) {
		lines := strings.Split(play(false, 3600), "\r\x1b[K")
		if want := "verify: 200 of 3600 events, 800/s, 5s left"; lines[1] != want {
			t.Errorf("on a terminal %q, want %q", lines[1], want)
		}
		if last := lines[len(lines)-1]; last != "" || len(lines) != 9 {
			t.Errorf("%d lines, in the end %q", len(lines)-2, last)
		}
		got := play(true, 3600)
		want := `{"progress":{"verb":"verify","done":900,"of":3600,"unit":"events","perSecond":900,"leftSeconds":3}}` + "\n"
		if got != want {
			t.Errorf("as JSON %s, want %s", got, want)
		}
		var out bytes.Buffer
		m := (&app{errOut: &out}).newMeter("verify", "events")
		m.out = &out
		m.start()
		m.notePart("events", 1000, 3000)
		<-time.After(2100 * time.Millisecond) // in which nothing is heard of it
		m.notePart("full text", 0, 0)
		<-time.After(300 * time.Millisecond)
		m.eraseLine()
		<-time.After(time.Second)
		quiet := strings.Split(out.String(), "\r\x1b[K")
		if want := "events: 1000 of 3000 events, 500/s, 5s left"; len(quiet) != 11 || quiet[8] != want || quiet[9] != "full text: 0s" {
			t.Errorf("while nothing is noted %q, want %q", quiet, want)
		}
		if got := play(true, 0); !strings.Contains(got, `"done":900,"unit"`) {
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

// The removal of runs has a line as long as it takes, and leaves none; what is over in a moment has none.
func TestMeterOfRemoval(t *testing.T) {
	play := func(json bool) string {
		var out bytes.Buffer
		m := (&app{errOut: &out, json: json}).newMeter("recorder", "runs")
		m.out = &out
		m.showRemoval(0, 2)
		m.showRemoval(2, 2)
		m.showRemoval(0, 0)
		m.showRemoval(0, 400)
		<-time.After(time.Second)
		synctest.Wait()
		m.showRemoval(100, 400)
		m.showRemoval(0, 0)
		<-time.After(time.Minute)
		return out.String()
	}
	synctest.Test(t, func(t *testing.T) {
		const erase = "\r\x1b[K"
		if got := play(false); strings.Count(got, erase+"removal: 0 of 400 runs") < 3 || !strings.HasSuffix(got, erase) || strings.Contains(got, "of 2 ") {
			t.Errorf("on a terminal %q", got)
		}
		if got := play(true); !strings.HasPrefix(got, `{"progress":{"verb":"recorder","part":"removal","done":0,"of":400,"unit":"runs"}}`) {
			t.Errorf("as JSON %s", got)
		}
	})
}
