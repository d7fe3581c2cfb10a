package shell

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// tailSize bounds what a node's output keeps of a stream; the whole is in the
// events.
const tailSize = 64 << 10

// Outcome follows the events of a command to its end. The zero value is ready.
type Outcome struct {
	stdout, stderr streamTail
	exit           *wire.ExecExit
}

// streamTail is the end of a stream.
type streamTail struct {
	text string
	cut  bool
	size int64
}

func (t *streamTail) add(s string, omitted int64) {
	if omitted > 0 { // only what comes behind is its end
		t.text, t.cut, t.size = "", true, t.size+omitted
	}
	t.size += int64(len(s))
	t.text += s
	if over := len(t.text) - tailSize; over > 0 {
		for over < len(t.text) && !utf8.RuneStart(t.text[over]) {
			over++
		}
		t.text, t.cut = strings.Clone(t.text[over:]), true
	}
}

// Observe takes the next event.
func (o *Outcome) Observe(e *wire.Event) {
	switch p := e.Payload.(type) {
	case *wire.ExecStart: // another try
		*o = Outcome{}
	case *wire.ExecOutput:
		if p.Stream == "stderr" {
			o.stderr.add(p.Content, p.Omitted)
		} else {
			o.stdout.add(p.Content, p.Omitted)
		}
	case *wire.ExecExit:
		o.exit = p
	}
}

// output is a node's output.
type output struct {
	ExitCode        int64  `json:"exitCode"`
	Stdout          string `json:"stdout"`
	Stderr          string `json:"stderr"`
	StdoutTruncated bool   `json:"stdoutTruncated,omitempty"` // only its end is kept
	StderrTruncated bool   `json:"stderrTruncated,omitempty"`
	StdoutBytes     int64  `json:"stdoutBytes,omitempty"` // of the whole, if it is truncated
	StderrBytes     int64  `json:"stderrBytes,omitempty"`
	DurationMs      int64  `json:"durationMs"`
	TimedOut        bool   `json:"timedOut,omitempty"`
	Signal          string `json:"signal,omitempty"`
}

// Output returns the node's output: {exitCode, stdout, stderr, durationMs, …}; nil if
// the command hasn't ended. Of a long stream the last 64 KiB are kept, which
// stdoutTruncated and stderrTruncated tell.
func (o *Outcome) Output() (wire.Raw, error) {
	if o.exit == nil {
		return nil, nil
	}
	out := output{
		ExitCode: o.exit.ExitCode, Signal: o.exit.Signal, TimedOut: o.exit.TimedOut, DurationMs: o.exit.DurationMs,
		Stdout: o.stdout.text, Stderr: o.stderr.text, StdoutTruncated: o.stdout.cut, StderrTruncated: o.stderr.cut,
	}
	if o.stdout.cut {
		out.StdoutBytes = o.stdout.size
	}
	if o.stderr.cut {
		out.StderrBytes = o.stderr.size
	}
	return wire.Marshal(&out)
}

// Problem says why the command counts as failed, or "": a time limit, a
// signal, an exit code other than 0.
func (o *Outcome) Problem() string {
	switch {
	case o.exit == nil:
		return "the command did not end"
	case o.exit.TimedOut:
		return fmt.Sprintf("the command was ended after %d ms: its time limit", o.exit.DurationMs)
	case o.exit.MemoryBytes != 0:
		return "the command was killed: " + process.BoundText(o.exit.MemoryBytes)
	case o.exit.Signal != "":
		return "the command was ended by signal " + o.exit.Signal
	case o.exit.ExitCode != 0:
		return fmt.Sprintf("the command ended with exit code %d", o.exit.ExitCode)
	}
	return ""
}
