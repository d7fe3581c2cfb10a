package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/internal/service"
)

// meter tells how far long work has come: on a terminal by a line that is replaced, with --json by objects on stderr.
type meter struct {
	out          io.Writer // nil: no reader looks
	json         bool
	verb, unit   string
	part         string // what of it is under way; "": all of it
	files        string // how many of these are done, for people; "": there are none
	begun, shown time.Time
	done, of     int64 // of: 0: how much there is isn't known
	open         bool  // its line is on the terminal
}

// The time between two lines of a meter, and before the first.
const (
	meterPause = 250 * time.Millisecond
	jsonPause  = time.Second
)

// unitBytes is the unit of what people read as sizes.
const unitBytes = "bytes"

// progress is what a meter tells as JSON.
type progress struct {
	Verb        string  `json:"verb"`
	Part        string  `json:"part,omitempty"` // what of it is under way
	Done        int64   `json:"done"`
	Of          int64   `json:"of,omitempty"` // 0: it isn't known
	Unit        string  `json:"unit"`
	PerSecond   float64 `json:"perSecond,omitempty"`
	LeftSeconds float64 `json:"leftSeconds,omitempty"`
}

// newMeter returns the meter of a verb. It speaks to a terminal, and with --json to anyone.
func (a *app) newMeter(verb, unit string) *meter {
	m := &meter{json: a.json, verb: verb, unit: unit, begun: time.Now(), shown: time.Now()}
	if a.json || service.IsTerminal(a.errOut) {
		m.out = a.errOut
	}
	return m
}

// note says how much is done, and of how much.
func (m *meter) note(done, of int64) {
	m.done, m.of = done, of
	m.show()
}

// show shows how far it is, now and then.
func (m *meter) show() {
	pause := meterPause
	if m.json {
		pause = jsonPause
	}
	if m.out == nil || time.Since(m.shown) < pause {
		return
	}
	m.shown = time.Now()
	p := progress{Verb: m.verb, Part: m.part, Done: m.done, Of: m.of, Unit: m.unit, PerSecond: float64(m.done) / max(time.Since(m.begun).Seconds(), 0.001)}
	if m.of > m.done && p.PerSecond > 0 {
		p.LeftSeconds = float64(m.of-m.done) / p.PerSecond
	}
	if m.json {
		writeProgress(m.out, p)
		return
	}
	m.open = true
	amount := func(n int64) string {
		if m.unit == unitBytes {
			return bytesText(uint64(max(n, 0)))
		}
		return fmt.Sprint(n)
	}
	text := cmp.Or(m.part, m.verb) + ": " + m.files + amount(m.done)
	if m.of > 0 {
		text += " of " + amount(m.of)
	}
	if m.unit != unitBytes {
		text += " " + m.unit
	}
	text += ", " + amount(int64(p.PerSecond)) + "/s"
	if p.LeftSeconds > 0 {
		text += ", " + (time.Duration(p.LeftSeconds+1) * time.Second).String() + " left"
	}
	_, _ = io.WriteString(m.out, "\r\x1b[K"+text)
}

// writeProgress writes how far work is as a line of JSON.
func writeProgress(w io.Writer, p progress) {
	if line, err := json.Marshal(map[string]progress{"progress": p}); err == nil {
		_, _ = w.Write(append(line, '\n'))
	}
}

// eraseLine removes the line, which may come again.
func (m *meter) eraseLine() {
	if m.open {
		m.open = false
		_, _ = io.WriteString(m.out, "\r\x1b[K")
	}
}

// conclude shows how much was done, for good.
func (m *meter) conclude(done, of int64) {
	m.shown = time.Time{}
	m.note(done, of)
	if m.open {
		m.open = false
		_, _ = io.WriteString(m.out, "\n")
	}
}

// countEvents passes events on and counts them.
func (m *meter) countEvents(events export.Events) iter.Seq2[eventlog.Entry, error] {
	return func(yield func(eventlog.Entry, error) bool) {
		for e, err := range events {
			if m.done++; m.done%256 == 0 {
				m.show()
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// counted passes on what is read of an input, and counts it.
type counted struct {
	io.Reader

	m *meter
}

// newCounted counts an input by a meter, which knows its size if it is a file.
func newCounted(in io.Reader, m *meter) counted {
	if f, ok := in.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			m.of = info.Size()
		}
	}
	return counted{in, m}
}

// Read implements [io.Reader].
func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.m.done += int64(n)
	c.m.show()
	return n, err
}
