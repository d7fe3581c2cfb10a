package ingest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/kahn"
)

// LinesOptions say how lines of KAHN become runs.
type LinesOptions struct {
	RunID  string // "": that of the lines; lines of several runs are then several
	Labels map[string]string
	Runner string // the writer's name; required
	Strict bool   // the first line that isn't in order ends it, see [LineError]
	More   bool   // the file is going to grow: runs aren't completed when all their agents have ended
}

// LinesResult is what has been read and written.
type LinesResult struct {
	Format   Format         `json:"format"`
	Runs     []*LinesRun    `json:"runs"`
	Findings []kahn.Finding `json:"findings"` // the first [MaxFindings]; the line is that of the input
	Found    int            `json:"found"`    // all of them
}

// LinesRun is what has become of one run.
type LinesRun struct {
	RunID    string       `json:"runId"`
	Lines    int          `json:"lines"`
	Added    int          `json:"added"` // of them that were not there yet
	Raw      int          `json:"raw"`   // lines that are no events; they are kept as they are
	Complete bool         `json:"complete"`
	Agents   []kahn.Agent `json:"agents"`
}

// MaxFindings bounds the findings that are returned.
const MaxFindings = 100

// MaxKahnLine is the length in bytes of the longest line that is taken.
const MaxKahnLine = 256 << 10

// ErrComplete is returned for lines behind the end of a run.
var ErrComplete = errors.New("the run is complete, and the input goes on")

// ErrNoLine is returned for an input without a line of KAHN.
var ErrNoLine = errors.New("no line is an event of KAHN")

// LineError says which line of the input was refused, and why.
type LineError struct {
	RunID   string
	Line    int // from 1
	Problem string
}

// Error names the line.
func (e *LineError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Problem) }

// ChangedError says that the input tells the history of a run otherwise than it
// was told before. Nothing was written.
type ChangedError struct {
	RunID string
	Line  int // of the input, from 1
}

// Error names the run and the line.
func (e *ChangedError) Error() string {
	return fmt.Sprintf("line %d: the history of run %s differs from what is recorded", e.Line, e.RunID)
}

// Lines reads lines of KAHN to their end. Each run that they tell of is recorded as
// they tell it, in their order, whatever their times are; a line that is there
// already is not added again, so that a file can be given as often as it grows.
// Every line is kept to the byte: lines that are no events too, by the run before
// them.
//
// Its errors are [*LineError], [*ChangedError], [ErrEmpty], [ErrNoLine],
// [ErrExists], [ErrComplete] and those of the log. What was written before stays.
func Lines(ctx context.Context, log *eventlog.Log, r io.Reader, o LinesOptions) (LinesResult, error) {
	l := &lineReader{log: log, options: o, runs: map[string]*lineRun{}, result: LinesResult{Format: Kahn, Findings: []kahn.Finding{}}}
	err := l.readLines(ctx, r)
	if err == nil {
		err = l.finishRuns(ctx)
	}
	for _, run := range l.order {
		run.result.Agents = run.check.Agents()
		l.result.Runs = append(l.result.Runs, &run.result)
	}
	return l.result, err
}

// lineReader reads an input.
type lineReader struct {
	log     *eventlog.Log
	options LinesOptions
	result  LinesResult

	runs       map[string]*lineRun // by the run_id of lines
	order      []*lineRun
	last       *lineRun
	before     []numberedLine // lines that are no events before the first that is
	beforeSize int            // of their texts
	line       int            // of the input
}

type numberedLine struct {
	line    int
	text    string
	problem string
}

// readLines takes the lines. What waits is written whenever the input has no more to
// give at the moment.
func (l *lineReader) readLines(ctx context.Context, r io.Reader) error {
	type item struct {
		line []byte
		err  error
	}
	items, done := make(chan item, 256), make(chan struct{})
	defer close(done)
	go func() { // reading can't be cancelled
		defer close(items)
		in := bufio.NewReaderSize(r, 64<<10)
		for {
			line, err := readLine(in)
			select {
			case items <- item{line, err}:
			case <-done:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	for {
		var it item
		select {
		case it = <-items:
		default:
			if err := l.flushRuns(ctx); err != nil {
				return err
			}
			select {
			case it = <-items:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := l.takeLine(ctx, it.line); err != nil {
			return err
		}
		switch {
		case errors.Is(it.err, io.EOF):
			return l.flushRuns(ctx)
		case it.err != nil:
			return errors.Join(fmt.Errorf("read the input: %w", it.err), l.flushRuns(ctx))
		}
	}
}

// errLong is the error of a line of more than [MaxKahnLine] bytes.
var errLong = fmt.Errorf("longer than %d bytes", MaxKahnLine)

func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > MaxKahnLine:
			return nil, errLong
		case errors.Is(err, bufio.ErrBufferFull):
		default:
			return line, err
		}
	}
}

// takeLine takes a line of the input; an empty one is none.
func (l *lineReader) takeLine(ctx context.Context, raw []byte) error {
	if raw == nil {
		return nil
	}
	l.line++
	text := strings.ToValidUTF8(string(bytes.TrimSpace(raw)), "\uFFFD")
	if text == "" {
		return nil
	}
	e, err := kahn.Parse([]byte(text))
	if err != nil {
		return l.takeRaw(ctx, numberedLine{l.line, text, err.Error()})
	}
	r, err := l.runOf(ctx, e)
	if err != nil {
		return err
	}
	for _, f := range r.check.Add(e) {
		f.Line = l.line
		l.addFinding(f)
		if l.options.Strict && f.Severity == kahn.Violation {
			return &LineError{RunID: r.id, Line: l.line, Problem: f.Problem}
		}
	}
	return r.takeLine(ctx, l.line, text, e)
}

func (l *lineReader) addFinding(f kahn.Finding) {
	if l.result.Found++; len(l.result.Findings) < MaxFindings {
		l.result.Findings = append(l.result.Findings, f)
	}
}

// What bounds the lines in front of the first one of KAHN, which are of the run that it names: they wait in memory.
const (
	maxBefore     = 1000
	maxBeforeSize = 8 << 20
)

// takeRaw takes a line that is no event.
func (l *lineReader) takeRaw(ctx context.Context, n numberedLine) error {
	if l.options.Strict {
		return &LineError{Line: n.line, Problem: n.problem}
	}
	if l.last == nil {
		l.before = append(l.before, n)
		if l.beforeSize += len(n.text); len(l.before) > maxBefore || l.beforeSize > maxBeforeSize {
			return fmt.Errorf("%w, up to line %d: %s", ErrNoLine, n.line, n.problem)
		}
		return nil
	}
	l.addFinding(kahn.Finding{Line: n.line, Severity: kahn.Violation, RunID: l.last.id, Problem: n.problem})
	l.last.check.Skip()
	l.last.result.Raw++
	l.last.problem = n.problem
	return l.last.takeLine(ctx, n.line, n.text, nil)
}

func (l *lineReader) runOf(ctx context.Context, e *kahn.Event) (*lineRun, error) {
	if r := l.runs[e.RunID]; r != nil {
		l.last = r
		return r, nil
	}
	id := e.RunID
	if l.options.RunID != "" {
		if id = l.options.RunID; len(l.runs) > 0 {
			return nil, &LineError{RunID: e.RunID, Line: l.line, Problem: "is of a second run, and all were to be one"}
		}
	}
	r, err := openLines(ctx, l.log, id, l.options)
	if err != nil {
		return nil, err
	}
	l.runs[e.RunID], l.last = r, r
	l.order = append(l.order, r)
	before := l.before
	l.before = nil
	for _, n := range before {
		if err := l.takeRaw(ctx, n); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// flushRuns writes what waits.
func (l *lineReader) flushRuns(ctx context.Context) error {
	for _, r := range l.order {
		if err := r.flushWaiting(ctx); err != nil {
			return err
		}
	}
	return nil
}

// finishRuns completes the runs in which all agents have ended.
func (l *lineReader) finishRuns(ctx context.Context) error {
	switch {
	case l.last == nil && len(l.before) > 0:
		return ErrNoLine
	case l.last == nil:
		return ErrEmpty
	}
	for _, r := range l.order {
		if err := r.finishRun(ctx, l.options.More); err != nil {
			return err
		}
	}
	return nil
}

// digest stands for a line that is recorded.
type digest [sha256.Size]byte

func digestOf(line string) digest { return sha256.Sum256([]byte(line)) }

// isKahn reports whether the fields of a line are those of KAHN's.
func isKahn(names []string) bool {
	return !slices.ContainsFunc([]string{"ts", "run_id", "event", "agent_id"}, func(name string) bool { return !slices.Contains(names, name) })
}
