package shell_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent/shell"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// ended is a host that has a command which has ended meanwhile.
type ended struct {
	frames []process.Frame
	last   process.Rest
}

func (h *ended) Has(string) bool { return true }

func (h *ended) Forget(string) {}

func (h *ended) Start(c process.Config) (*process.Process, error) {
	if c.Name != "command" || !c.Journal {
		return nil, fmt.Errorf("it is %q", c.Name)
	}
	frames := make(chan process.Frame, len(h.frames))
	for _, f := range h.frames {
		frames <- f
	}
	close(frames)
	return &process.Process{Backend: h, Stdin: input{}, Frames: frames, Attached: true, Last: h.last}, nil
}

type input struct{ bytes.Buffer }

func (input) Write(p []byte) (int, error) { return len(p), nil }
func (input) Close() error                { return nil }

func (h *ended) Pid() int                { return 1 }
func (h *ended) Exit() process.Exit      { return process.Exit{Code: 3} }
func (h *ended) Words() string           { return "" }
func (h *ended) Close() error            { return nil }
func (h *ended) Leave() bool             { return false }
func (h *ended) End(time.Duration) error { return nil }
func (h *ended) Rested(r process.Rest)   { h.last = r }

func (h *ended) Exited() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// A command that the host has already is recorded from its journal: its output in the same places each time, its exit,
// and no second start. Where a character is cut, it doesn't rest.
func TestAttach(t *testing.T) {
	h := &ended{frames: []process.Frame{
		{Offset: 0, Direction: process.Out, At: 1, Data: []byte("a \xe2\x82")},
		{Offset: 4, Direction: process.Err, At: 2, Data: []byte("b")},
		{Offset: 5, Direction: process.Out, At: 3, Data: []byte("\xac.")},
		{Offset: 7, Direction: process.Live},
		{Offset: 7, Direction: process.Out, At: 4, Data: []byte("c")},
		{Offset: 8, Direction: process.Out, At: 5, Data: []byte("\xe2")},
	}}
	want := []string{"exec:output 4/0 1 stdout a ", "exec:output 5/0 2 stderr b", "exec:output 7/0 3 stdout €.", "exec:output 8/0 4 stdout c", "exec:output 9/1 stdout \uFFFD", "exec:exit 3"}
	// A log that has no exec:start gets it first: the former runner died before it was stored.
	for begin, first := range map[time.Time][]string{time.UnixMilli(1): nil, {}: {"exec:start"}} {
		for e, err := range (shell.Command{Command: "true", Host: h, Name: "command", Begin: begin}).Run(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if got := e.Type() == wire.TypeExecStart; got != (first != nil) {
				t.Errorf("begun at %v: the first event is %s", begin, e.Type())
			}
			break
		}
	}
	for range 2 {
		var got []string
		c := shell.Command{Command: "true", Host: h, Name: "command", Begin: time.UnixMilli(1)}
		for e, err := range c.Run(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			switch p := e.Payload.(type) {
			case *wire.ExecOutput:
				at := fmt.Sprint(e.Timestamp, " ")
				if e.Timestamp > 9 {
					at = ""
				}
				got = append(got, fmt.Sprintf("%s %d/%d %s%s %s", e.Type(), e.JournalOffset, e.JournalIndex, at, p.Stream, p.Content))
			case *wire.ExecExit:
				got = append(got, fmt.Sprintf("%s %d", e.Type(), p.ExitCode))
			default:
				got = append(got, string(e.Type()))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if h.last.Offset != 8 {
			t.Errorf("it rests at %d", h.last.Offset)
		}
		if len(h.frames) > 1 {
			h.frames, want = h.frames[5:], want[4:]
		}
	}
}

// The time of a command counts from its begin. One that ended in time has its exit, though its runner was away for longer.
func TestAttachLate(t *testing.T) {
	live := []process.Frame{{Direction: process.Live}}
	for _, test := range []struct {
		name string
		host func() process.Host
		want wire.ExecExit
	}{
		{"ended", func() process.Host { return &ended{frames: live} }, wire.ExecExit{ExitCode: 3}},
		{
			"at work", func() process.Host { return &endless{ended: ended{frames: live}, over: make(chan struct{})} },
			wire.ExecExit{ExitCode: 3, TimedOut: true},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				c := shell.Command{Command: "true", Host: test.host(), Name: "command", Begin: begin.Add(-time.Hour), Timeout: time.Minute}
				var exit *wire.ExecExit
				for e, err := range c.Run(t.Context()) {
					if err != nil {
						t.Fatal(err)
					}
					exit, _ = e.Payload.(*wire.ExecExit)
				}
				if exit == nil || exit.ExitCode != test.want.ExitCode || exit.TimedOut != test.want.TimedOut || time.Since(begin) > 10*time.Second {
					t.Errorf("after %s its exit is %+v", time.Since(begin), exit)
				}
			})
		})
	}
}

// endless is a host that has a command which doesn't end by itself.
type endless struct {
	ended

	over chan struct{}
}

func (h *endless) Start(c process.Config) (*process.Process, error) {
	p, err := h.ended.Start(c)
	p.Backend = h
	return p, err
}

func (h *endless) Exited() <-chan struct{} { return h.over }

func (h *endless) End(time.Duration) error {
	select {
	case <-h.over:
	default:
		close(h.over)
	}
	return nil
}

// Of long output the beginning and the end are recorded, and how much is left out: also if another runner
// records it from the middle on.
func TestExcerpt(t *testing.T) {
	record := func(h *ended) (got []string) {
		var cut []string
		c := shell.Command{
			Command: "true", Host: h, Name: "command", Begin: time.UnixMilli(1), Limit: 20,
			Cut: func(stream string) { cut = append(cut, stream) },
		}
		for e, err := range c.Run(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if p, ok := e.Payload.(*wire.ExecOutput); ok {
				if slices.Contains(cut, p.Stream) && e.JournalIndex == 0 {
					t.Error("the beginning goes on behind its end")
				}
				if p.Omitted > 0 && !slices.Contains(cut, p.Stream) {
					t.Errorf("%d bytes of %s were left out, of which the host wasn't told", p.Omitted, p.Stream)
				}
				got = append(got, fmt.Sprintf("%d/%d %s %s %d", e.JournalOffset, e.JournalIndex, p.Stream, p.Content, p.Omitted))
			}
		}
		return got
	}
	var frames []process.Frame
	for i := range 20 {
		f := process.Frame{Offset: uint64(10 * i), Direction: process.Out, At: 1, Data: fmt.Appendf(nil, "piece %02d. ", i)}
		if i == 3 || i == 5 {
			f.Direction = process.Err
		}
		frames = append(frames, f)
	}
	want := []string{"10/0 stdout piece 00.  0", "20/0 stdout piece 01.  0", "200/1 stdout piece 18.  140", "200/2 stdout piece 19.  0", "200/3 stderr piece 03. piece 05.  0"}
	if diff := cmp.Diff(want, record(&ended{frames: frames})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for n := range frames {
		before := &ended{frames: append(append([]process.Frame{}, frames[:n]...), process.Frame{Offset: uint64(10 * n), Direction: process.Live}, frames[n])}
		first := record(before)
		behind := &ended{last: before.last}
		for _, f := range frames {
			if f.Offset >= before.last.Offset {
				behind.frames = append(behind.frames, f)
			}
		}
		at := min(n+1, 2) // of the beginning; the end wasn't over when the first was left
		if diff := cmp.Diff(want, append(first[:at:at], record(behind)...)); diff != "" {
			t.Errorf("another after %d pieces, at %d (-want +got):\n%s", n+1, before.last.Offset, diff)
		}
	}
}
