// Package shell runs the command of an exec node and says what it does in
// events: exec:start, exec:output as it comes, exec:exit.
package shell

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"wake/internal/process"
	"wake/pkg/wire"
)

// Command is what to run.
type Command struct {
	Argv  []string
	Dir   string
	Env   []string // the whole environment
	Stdin string
}

// line is the command as a user would write it.
func (c Command) line() string {
	if len(c.Argv) == 3 && c.Argv[0] == sh && c.Argv[1] == "-c" {
		return c.Argv[2]
	}
	return strings.Join(c.Argv, " ")
}

const sh = "/bin/sh"

// Parse reads the command of a node's input: a text for `sh -c`, or a list of
// words that no shell looks at.
func Parse(v wire.Raw) ([]string, error) {
	if text, ok := v.Text(); ok && strings.TrimSpace(text) != "" {
		return []string{sh, "-c", text}, nil
	}
	list, _ := v.Any().([]any)
	argv := make([]string, 0, len(list))
	for _, word := range list {
		s, ok := word.(string)
		if !ok {
			return nil, errors.New("command must be a text or a list of words")
		}
		argv = append(argv, s)
	}
	if len(argv) == 0 {
		return nil, errors.New("command must be a text or a list of words")
	}
	return argv, nil
}

// MaxOutput is the number of bytes of each of stdout and stderr that the result
// keeps: the last ones. The events have all of it.
const MaxOutput = 64 << 10

// grace is how long processes may take to end when they are asked to.
const grace = 5 * time.Second

// Result is how the command ended.
type Result struct {
	ExitCode        int    `json:"exitCode"` // -1 if a signal ended it
	Signal          string `json:"signal,omitempty"`
	Stdout          string `json:"stdout"`
	Stderr          string `json:"stderr"`
	DurationMs      int64  `json:"durationMs"`
	StdoutTruncated bool   `json:"stdoutTruncated,omitempty"`
	StderrTruncated bool   `json:"stderrTruncated,omitempty"`
}

// Run runs the command until it has ended with all that it started, and gives
// its events to record in order. When ctx ends it is ended. The error is that of
// a command that can't be started, of record, or the cause of ctx.
func Run(ctx context.Context, c Command, record func(*wire.Event) error) (Result, error) {
	start := time.Now()
	p, err := process.Start(process.Config{Argv: c.Argv, Dir: c.Dir, Env: c.Env})
	if err != nil {
		return Result{}, fmt.Errorf("start the command: %w", err)
	}
	r := &running{process: p, record: record, chunks: make(chan chunk)}
	r.readers.Go(func() { r.read("stdout", p.Stdout) })
	r.readers.Go(func() { r.read("stderr", p.Stderr) })
	r.readers.Go(func() { r.feed(c.Stdin) })
	r.readers.Go(func() { r.await(ctx) })
	go func() {
		r.readers.Wait()
		close(r.chunks)
	}()
	err = r.tell(&wire.ExecStart{Command: c.line(), Cwd: c.Dir, Pid: p.Pid()})
	if err != nil {
		_ = p.End(0) // await reports what can't be ended
	}
	return r.result(ctx, start, err)
}

// running is a command that runs.
type running struct {
	process        *process.Process
	record         func(*wire.Event) error
	readers        sync.WaitGroup
	chunks         chan chunk
	stdout, stderr tail
	endErr         error // of ending the processes; set before chunks is closed
}

type chunk struct{ stream, text string }

func (r *running) tell(p wire.Payload) error { return r.record(&wire.Event{Payload: p}) }

// result records what comes until the end. After a failure to record, the
// command is ended and the rest is read and dropped.
func (r *running) result(ctx context.Context, start time.Time, err error) (Result, error) {
	for c := range r.chunks {
		if c.stream == "stdout" {
			r.stdout.add(c.text)
		} else {
			r.stderr.add(c.text)
		}
		if err == nil {
			err = r.tell(&wire.ExecOutput{Stream: c.stream, Content: c.text})
			if err != nil {
				_ = r.process.End(0) // await reports what can't be ended
			}
		}
	}
	exit, waitErr := r.process.Wait(context.WithoutCancel(ctx))
	err = errors.Join(err, waitErr, r.endErr, r.process.Close())
	res := Result{ExitCode: exit.Code, Signal: exit.Signal, DurationMs: time.Since(start).Milliseconds()}
	res.Stdout, res.StdoutTruncated = r.stdout.end()
	res.Stderr, res.StderrTruncated = r.stderr.end()
	if err != nil {
		return res, err
	}
	end := &wire.ExecExit{
		ExitCode: int64(exit.Code), Signal: exit.Signal, DurationMs: res.DurationMs,
		TimedOut: ctx.Err() != nil,
	}
	return res, errors.Join(r.tell(end), context.Cause(ctx))
}

// await ends the command's processes when it has ended or ctx has. What a
// command leaves running in the background ends with it.
func (r *running) await(ctx context.Context) {
	select {
	case <-r.process.Exited():
	case <-ctx.Done():
	}
	r.endErr = r.process.End(grace)
}

func (r *running) feed(stdin string) {
	_, _ = io.WriteString(r.process.Stdin, stdin) // a command needn't read it
	_ = r.process.Stdin.Close()
}

// maxChunk is the size of the pieces in which output is recorded.
const maxChunk = 16 << 10

// read sends the output in pieces that don't cut a character in two.
func (r *running) read(stream string, from io.Reader) {
	buf := make([]byte, maxChunk)
	kept := 0
	for {
		n, err := from.Read(buf[kept:])
		n += kept
		whole := n
		if err == nil {
			whole = wholeRunes(buf[:n])
		}
		if whole > 0 {
			r.chunks <- chunk{stream: stream, text: strings.ToValidUTF8(string(buf[:whole]), "\uFFFD")}
		}
		kept = copy(buf, buf[whole:n])
		if err != nil {
			return
		}
	}
}

// wholeRunes returns the length of b without a character that is cut off at its
// end.
func wholeRunes(b []byte) int {
	for i := len(b) - 1; i >= 0 && i >= len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if utf8.FullRune(b[i:]) {
				return len(b)
			}
			return i
		}
	}
	return len(b)
}

// tail keeps the end of a text.
type tail struct {
	text []byte
	cut  bool
}

func (t *tail) add(s string) {
	t.text = append(t.text, s...)
	if over := len(t.text) - MaxOutput; over > MaxOutput {
		t.text = append(t.text[:0], t.text[over:]...)
		t.cut = true
	}
}

// end returns the last [MaxOutput] bytes, and whether there were more.
func (t *tail) end() (text string, truncated bool) {
	b := t.text
	if over := len(b) - MaxOutput; over > 0 {
		b, t.cut = b[over:], true
		for len(b) > 0 && !utf8.RuneStart(b[0]) {
			b = b[1:]
		}
	}
	return string(b), t.cut
}
