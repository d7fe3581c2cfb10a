package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"sync"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/internal/service"
)

// meter tells how far long work has come: on a terminal by a line that is replaced, with --json by objects on stderr. It does so as
// long as the work takes, also while nothing is noted.
type meter struct {
	out        io.Writer // nil: no reader looks
	json       bool
	verb, unit string

	mu           sync.Mutex
	part         string // what of it is under way; "": all of it
	files        string // how many of these are done, for people; "": there are none
	begun, shown time.Time
	done, of     int64 // of: 0: how much there is isn't known
	open         bool  // its line is on the terminal
	next         *time.Timer
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

// newMeter returns the meter of a verb. It speaks to a terminal, and with --json to any reader, until it is erased or concluded.
func (a *app) newMeter(verb, unit string) *meter {
	m := &meter{json: a.json, verb: verb, unit: unit, begun: time.Now(), shown: time.Now()}
	if a.json || service.IsTerminal(a.errOut) {
		m.out = a.errOut
	}
	return m
}

// start has the meter tell that work is under way, though nothing of it is known yet.
func (m *meter) start() *meter {
	m.add(0)
	return m
}

// note says how much is done, and of how much.
func (m *meter) note(done, of int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done, m.of = done, of
	m.show()
}

// notePart is [meter.note] of a part of the work, which has its own rate.
func (m *meter) notePart(part string, done, of int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if part != m.part {
		m.part, m.begun = part, time.Now()
	}
	m.done, m.of = done, of
	m.show()
}

// add says how much more is done.
func (m *meter) add(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += n
	m.show()
}

// pause is the time between two lines, and before the first.
func (m *meter) pause() time.Duration {
	if m.json {
		return jsonPause
	}
	return meterPause
}

// show shows how far it is, now and then, and goes on with that.
func (m *meter) show() {
	if m.out == nil {
		return
	}
	wait := m.pause() - time.Since(m.shown)
	if wait <= 0 {
		m.write()
		wait = m.pause()
	}
	if m.next == nil {
		m.next = time.AfterFunc(wait, m.showAgain)
	}
}

// showAgain shows it if nothing was noted meanwhile.
func (m *meter) showAgain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.next != nil {
		m.next = nil
		m.show()
	}
}

// write writes how far it is.
func (m *meter) write() {
	m.shown = time.Now()
	took := time.Since(m.begun)
	p := progress{Verb: m.verb, Part: m.part, Done: m.done, Of: m.of, Unit: m.unit, PerSecond: float64(m.done) / max(took.Seconds(), 0.001)}
	if m.of > m.done && p.PerSecond > 0 {
		p.LeftSeconds = float64(m.of-m.done) / p.PerSecond
	}
	if m.json {
		writeProgress(m.out, p)
		return
	}
	m.open = true
	_, _ = io.WriteString(m.out, "\r\x1b[K"+m.line(p, took))
}

// line is what people are told.
func (m *meter) line(p progress, took time.Duration) string {
	text := cmp.Or(m.part, m.verb) + ": " + m.files
	if m.done == 0 && m.of == 0 {
		return text + took.Round(time.Second).String()
	}
	amount := func(n int64) string {
		if m.unit == unitBytes {
			return bytesText(uint64(max(n, 0)))
		}
		return fmt.Sprint(n)
	}
	text += amount(m.done)
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
	return text
}

// writeProgress writes how far work is as a line of JSON.
func writeProgress(w io.Writer, p progress) {
	if line, err := json.Marshal(map[string]progress{"progress": p}); err == nil {
		_, _ = w.Write(append(line, '\n'))
	}
}

// eraseLine removes the line, which may come again.
func (m *meter) eraseLine() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stop()
	if m.open {
		m.open = false
		_, _ = io.WriteString(m.out, "\r\x1b[K")
	}
}

// stop has nothing shown any more but what is noted.
func (m *meter) stop() {
	if m.next != nil {
		m.next.Stop()
		m.next = nil
	}
}

// conclude shows how much was done, for good.
func (m *meter) conclude(done, of int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done, m.of = done, of
	if m.out != nil {
		m.write()
	}
	m.stop()
	if m.open {
		m.open = false
		_, _ = io.WriteString(m.out, "\n")
	}
}

// countEvents passes events on and counts them, and those that are to come, where the reader knows of them.
func (m *meter) countEvents(events export.Events) iter.Seq2[eventlog.Entry, error] {
	return func(yield func(eventlog.Entry, error) bool) {
		n, of := int64(0), int64(0)
		for e, err := range events {
			if e.Behind > 0 {
				of = n + 1 + int64(e.Behind)
			}
			if n++; n > of {
				of = 0
			}
			if n%256 == 0 {
				m.note(n, of)
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// follow notes how a file grows until stop is called.
func (m *meter) follow(part, file string, of int64) (stop func()) {
	over := make(chan struct{})
	var working sync.WaitGroup
	working.Go(func() {
		tick := time.NewTicker(meterPause)
		defer tick.Stop()
		for {
			size := int64(0)
			if info, err := os.Stat(file); err == nil {
				size = info.Size()
			}
			m.notePart(part, min(size, of), of)
			select {
			case <-tick.C:
			case <-over:
				return
			}
		}
	})
	return func() { close(over); working.Wait() }
}

// counted passes on what is read of an input, and counts it.
type counted struct {
	io.Reader

	m *meter
}

// sizeOf returns the size of an input that is a file, else 0.
func sizeOf(in io.Reader) int64 {
	if f, ok := in.(interface{ Stat() (fs.FileInfo, error) }); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			return info.Size()
		}
	}
	return 0
}

// newCounted counts an input, of a size if that is known, by a meter.
func newCounted(in io.Reader, size int64, m *meter) counted {
	m.note(0, size)
	return counted{in, m}
}

// Read implements [io.Reader].
func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.m.add(int64(n))
	return n, err
}
