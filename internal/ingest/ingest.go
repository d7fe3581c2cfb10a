// Package ingest records an agent that wake doesn't drive: what the agent
// prints, or a session file that it left, becomes a run.
package ingest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/agent/codex"
	"code.wake.dev/wake/internal/completeness"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// Format is what the input is.
type Format string

// The formats.
const (
	Auto            Format = "auto"             // one of the others, by the first lines
	StreamJSON      Format = "stream-json"      // `claude --output-format stream-json`
	Transcript      Format = "transcript"       // a session file
	Codex           Format = "codex"            // `codex exec --json`
	CodexSession    Format = "codex-session"    // a session file of Codex
	Gemini          Format = "gemini"           // `gemini --output-format stream-json`
	GeminiSession   Format = "gemini-session"   // a session file of Gemini's CLI
	OpenCode        Format = "opencode"         // `opencode run --format json`
	OpenCodeSession Format = "opencode-session" // `opencode export`
	Kahn            Format = "kahn"             // agent transition events, see [Lines]
)

// Formats are those that can be named.
func Formats() []Format {
	return []Format{Auto, StreamJSON, Transcript, Codex, CodexSession, Gemini, GeminiSession, OpenCode, OpenCodeSession, Kahn}
}

// Names are the names of formats, for people.
func Names() string {
	var names []string
	for _, f := range Formats() {
		names = append(names, string(f))
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// IsAgent reports whether an input of the format is of one agent.
func (f Format) IsAgent() bool { return f != Auto && f != Kahn && slices.Contains(Formats(), f) }

// isSession reports whether the input is what a program has kept of a session.
func (f Format) isSession() bool {
	return f == Transcript || f == CodexSession || f == GeminiSession || f == OpenCodeSession
}

func (f Format) program() string {
	switch f {
	case Codex, CodexSession:
		return "codex"
	case Gemini, GeminiSession:
		return "gemini"
	case OpenCode, OpenCodeSession:
		return "opencode"
	case Auto, StreamJSON, Transcript, Kahn:
	}
	return "claude"
}

// Options say which run the input becomes.
type Options struct {
	RunID  string // required
	NodeID string // default "agent"
	Name   string // of the flow, default "ingest"
	Format Format // default Auto
	Labels map[string]string
	Blocks agent.Blocks
	Runner string // the writer's name; required
	// Prices are those of models, before the known ones of Anthropic's.
	Prices agent.Prices
	// Compared is what the comparison with the other feed of the session has shown; nil: there was none.
	Compared *completeness.Verdict
	// Join has a stream of Claude Code's join the run of its session, if others tell that: the result names it. With labels it doesn't.
	Join bool
	// Progress is called now and then with what has been read. It may be nil.
	Progress func(Result)
}

// Result is what has been read and written.
type Result struct {
	RunID   string        `json:"runId"`
	NodeID  string        `json:"nodeId"`
	Format  Format        `json:"format"`
	Lines   int           `json:"lines"`
	Events  int           `json:"events"`
	Raw     int           `json:"raw"`    // lines without a type of their own
	Failed  bool          `json:"failed"` // the agent failed
	Error   string        `json:"error,omitempty"`
	Elapsed time.Duration `json:"-"`
	// Verdict is what the comparison with the run that it joined has shown.
	Verdict *completeness.Verdict `json:"verdict,omitempty"`
	// Next is what became of the rest of a stream that joined a run, if another session follows there.
	Next *Result `json:"next,omitempty"`
}

// ErrExists is returned if the run exists already.
var ErrExists = errors.New("the run exists already")

// ErrEmpty is returned for an input without a line.
var ErrEmpty = errors.New("the input is empty")

// Run reads r to its end and writes it as a run, event by event as it comes.
// The log's Run must be running. If ctx ends before r does, the run ends as
// failed; what was read is kept, and a reader that waits for more of r goes on
// waiting until r gives something or is closed.
func Run(ctx context.Context, log *eventlog.Log, r io.Reader, o Options) (Result, error) {
	res := Result{RunID: o.RunID, NodeID: o.NodeID}
	res.NodeID = cmp.Or(res.NodeID, "agent")
	o.Name = cmp.Or(o.Name, "ingest")
	in := bufio.NewReaderSize(r, detectBytes)
	format, err := detectFormat(in, o.Format)
	switch {
	case err == nil && format == Kahn && o.Format == Kahn:
		err = errors.New("lines of KAHN name their runs and agents themselves")
	case err == nil && format == Kahn:
		format = StreamJSON // a caller that wants it otherwise asks Detect, and then Lines
	}
	if err != nil {
		return res, err
	}
	res.Format = format
	i := &ingestion{log: log, options: o, result: res, exec: run.ExecID(res.NodeID, 1)}
	switch first := firstTime(in, format); {
	case format.isSession():
		i.first = first
	case (format == StreamJSON || format == Gemini || format == OpenCode) && first > 0 && first < time.Now().Add(-live).UnixMilli():
		i.first, i.over, i.last = first, true, first
	}
	if o.Join && len(o.Labels) == 0 && format == StreamJSON {
		id := sessionIn(in)
		err = i.joinRuns(ctx, inputLines(ctx, in), id)
		return i.result, err
	}
	err = i.run(ctx, inputLines(ctx, in))
	return i.result, err
}

// ingestion is one input that becomes a run.
type ingestion struct {
	log     *eventlog.Log
	options Options
	result  Result
	exec    string
	owner   *eventlog.Writer
	worker  *eventlog.Writer
	started time.Time
	first   int64 // time of the first line that tells one, Unix ms; 0: the input comes as it happens
	last    int64 // of its last event
	over    bool  // a stream that ended before: its lines tell when they came
}

// live is how old the first time of a stream may be that is read while it comes.
const live = time.Minute

func (i *ingestion) run(ctx context.Context, lines iter.Seq2[[]byte, error]) error {
	if _, exists, err := i.log.Last(ctx, i.options.RunID, wire.RunNode); err != nil {
		return err
	} else if exists {
		return fmt.Errorf("%w: %s", ErrExists, i.options.RunID)
	}
	i.started = time.Now()
	if err := i.beginRun(ctx); err != nil {
		return err
	}
	outcome, readErr := i.readInput(ctx, lines)
	// What was read is brought to its end, whatever ended the reading.
	final, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	err := errors.Join(readErr, i.endRun(final, outcome, readErr))
	i.result.Elapsed = time.Since(i.started)
	return err
}

// beginRun writes the beginning of the run and of its one node.
func (i *ingestion) beginRun(ctx context.Context) (err error) {
	o := i.options
	claim := eventlog.Claim{Runner: o.Runner}
	if i.owner, err = i.log.Claim(ctx, o.RunID, wire.RunNode, claim); err != nil {
		return err
	}
	if seq, _ := i.owner.Last(); seq > 1 {
		return fmt.Errorf("%w: %s", ErrExists, o.RunID)
	}
	definition, err := wire.Marshal(map[string]any{
		"name":  o.Name,
		"nodes": []any{map[string]any{"id": i.result.NodeID, "type": "agent", "input": map[string]any{"provider": i.result.Format.program(), "prompt": ""}}},
	})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(definition)
	_, err = i.owner.Append(ctx,
		&wire.Event{Timestamp: i.first, Payload: &wire.FlowStart{
			FlowName: o.Name, Definition: definition, DefinitionHash: hex.EncodeToString(sum[:]),
			Labels: o.Labels, Imported: wire.ImportedIngest,
		}},
		&wire.Event{Timestamp: i.first, ExecID: i.exec, Payload: &wire.NodeScheduled{Target: i.result.NodeID, Attempt: 1}},
	)
	if err != nil {
		return err
	}
	claim.ExecID = i.exec
	if i.worker, err = i.log.Claim(ctx, o.RunID, i.result.NodeID, claim); err != nil {
		return err
	}
	_, err = i.worker.Append(ctx, &wire.Event{Timestamp: i.first, ExecID: i.exec, Payload: &wire.NodeStart{NodeType: "agent", Attempt: 1}})
	return err
}

// readInput writes the events of the input. Terminal ones are written too: the
// outcome remembers them. A line at which its reader panics ends the input: it is a stranger's, and must not end the process.
func (i *ingestion) readInput(ctx context.Context, lines iter.Seq2[[]byte, error]) (outcome *agent.Outcome, err error) {
	outcome = &agent.Outcome{}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("read the input: line %d: a defect of wake: %v", i.result.Lines+1, p)
		}
	}()
	n := i.newReader()
	for line, err := range lines {
		var long *claude.LineTooLongError
		var events []*wire.Event
		now := i.lineTime(line)
		switch {
		case errors.As(err, &long):
			events = n.TooLong(now, long)
		case err != nil:
			return outcome, fmt.Errorf("read the input: %w", err)
		default:
			events = n.Line(now, line)
		}
		i.result.Lines++
		if err := i.writeEvents(ctx, outcome, events); err != nil {
			return outcome, err
		}
		if i.options.Progress != nil && i.result.Lines%1000 == 0 {
			i.options.Progress(i.result)
		}
	}
	if o, is := n.(*openCode); is {
		for events := range o.documentEvents() {
			if err := i.writeEvents(ctx, outcome, events); err != nil {
				return outcome, err
			}
		}
	}
	return outcome, i.writeEvents(ctx, outcome, n.Finish(i.lineTime(nil)))
}

// lineTime returns when a line came: now, or of a stream that is over, what the line tells, or the one before it.
func (i *ingestion) lineTime(line []byte) int64 {
	now := time.Now().UnixMilli()
	if !i.over {
		return now
	}
	if at := timeIn(line); at <= now {
		i.last = max(i.last, at)
	}
	return i.last
}

// A formatReader makes events of the lines of one agent's input.
type formatReader interface {
	Line(at int64, line []byte) []*wire.Event
	TooLong(at int64, line *claude.LineTooLongError) []*wire.Event
	Finish(at int64) []*wire.Event
}

func (i *ingestion) newReader() formatReader {
	format := claude.Stream
	told := newStory(i.result.Format, i.first, i.options)
	switch i.result.Format {
	case Codex:
		return codexReader{codex.NewStream(i.options.Blocks)}
	case CodexSession:
		return &rollout{story: told, codes: map[string]int{}}
	case Gemini:
		return &geminiStream{story: told}
	case GeminiSession:
		return &geminiSession{story: told, heard: map[string]bool{}, said: map[string]*geminiSaid{}}
	case OpenCode, OpenCodeSession:
		return &openCode{story: told, document: i.result.Format == OpenCodeSession}
	case Transcript:
		format = claude.Transcript
	case Auto, StreamJSON, Kahn: // lines of KAHN are no agent's
	}
	return claudeReader{claude.NewNormalizer(claude.NormalizerOptions{
		Format: format, Blocks: i.options.Blocks, Provider: "ingest", PriceOf: i.options.Prices.Of,
	})}
}

// codexReader is a [formatReader] of Codex's. Where the input's first lines are missing, nothing names its session.
type codexReader struct{ stream *codex.Stream }

// Line makes events of a line.
func (r codexReader) Line(at int64, line []byte) []*wire.Event {
	return nameSession(r.stream.Line(at, line))
}

// TooLong makes events of a line that is too long.
func (r codexReader) TooLong(at int64, line *claude.LineTooLongError) []*wire.Event {
	return nameSession(r.stream.TooLong(at, line.Head, line.Error()))
}

// Finish ends the session.
func (r codexReader) Finish(at int64) []*wire.Event { return nameSession(r.stream.Finish(at)) }

// nameSession has events without a session be of [unnamed].
func nameSession(events []*wire.Event) []*wire.Event {
	for _, e := range events {
		e.SessionID = cmp.Or(e.SessionID, unnamed)
	}
	return events
}

// claudeReader is a [formatReader] of Claude Code's.
type claudeReader struct{ *claude.Normalizer }

// Finish doesn't know how the program has ended.
func (r claudeReader) Finish(at int64) []*wire.Event {
	return r.Normalizer.Finish(at, claude.Exit{Unknown: true})
}

// inputLines yields the lines of the input until it or ctx ends.
func inputLines(ctx context.Context, in io.Reader) iter.Seq2[[]byte, error] {
	type item struct {
		line []byte
		err  error
	}
	return func(yield func([]byte, error) bool) {
		items, done := make(chan item), make(chan struct{})
		defer close(done)
		go func() { // reading can't be cancelled
			defer close(items)
			for line, err := range claude.Lines(in, claude.MaxLine) {
				select {
				case items <- item{bytes.Clone(line), err}:
				case <-done:
					return
				}
			}
		}()
		for {
			select {
			case it, more := <-items:
				if !more || !yield(it.line, it.err) {
					return
				}
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			}
		}
	}
}

func (i *ingestion) writeEvents(ctx context.Context, outcome *agent.Outcome, events []*wire.Event) error {
	for _, e := range events {
		e.ExecID = i.exec
		i.last = max(i.last, e.Timestamp)
		outcome.Observe(e)
		if err := i.worker.Enqueue(ctx, e); err != nil {
			return err
		}
		i.result.Events++
		if e.Type() == wire.TypeRaw {
			i.result.Raw++
		}
	}
	return nil
}

// FailRun ends a run as failed, in the place of a runner that has died while it read the input. s is the run's state, last the last
// message of its [wire.RunNode]: where the run has gone on since, FailRun fails with [eventlog.ErrFenced] and stores nothing.
func FailRun(ctx context.Context, log *eventlog.Log, s *wire.State, last eventlog.Message, runner, reason string) error {
	own := s.Nodes[wire.RunNode]
	claim := eventlog.Claim{Runner: runner, MinEpoch: own.Epoch + 1, AtSeq: own.Seq, Last: &last}
	owner, err := log.Claim(ctx, s.RunID, wire.RunNode, claim)
	if err != nil {
		return err
	}
	end := &wire.FlowComplete{FlowName: s.FlowName, Status: wire.FlowStatusFailed, Error: reason, DurationMs: max(0, s.UpdatedAt-s.StartedAt)}
	for _, id := range slices.Sorted(maps.Keys(s.Nodes)) {
		n := s.Nodes[id]
		if id == wire.RunNode || !n.Open() || n.Started < n.Scheduled {
			continue
		}
		worker, err := log.Claim(ctx, s.RunID, id, eventlog.Claim{Runner: runner, ExecID: n.Exec, MinEpoch: n.Epoch + 1, AtSeq: n.Seq})
		if err != nil {
			return err
		}
		last := &wire.Event{Timestamp: s.UpdatedAt, ExecID: n.Exec, Payload: &wire.NodeError{
			Error: reason, ErrorType: wire.ErrorException, DurationMs: max(0, s.UpdatedAt-n.StartedAt),
		}}
		if _, err := worker.Append(ctx, last); err != nil {
			return err
		}
		if err := worker.Close(ctx); err != nil {
			return err
		}
		end.FailedNode = id
	}
	if _, err := owner.Append(ctx, &wire.Event{Timestamp: s.UpdatedAt, Payload: end}); err != nil {
		return err
	}
	return owner.Close(ctx)
}

// elapsedTime returns how long the agent worked in ms, and when it ended: now (0), or
// when the session file says.
func (i *ingestion) elapsedTime() (elapsed, at int64) {
	if i.first == 0 {
		return time.Since(i.started).Milliseconds(), 0
	}
	return max(0, i.last-i.first), max(i.first, i.last)
}

// endRun writes the end of the node and of the run.
func (i *ingestion) endRun(ctx context.Context, outcome *agent.Outcome, readErr error) error {
	elapsed, at := i.elapsedTime()
	status := wire.FlowStatusComplete
	last := &wire.Event{Timestamp: at, ExecID: i.exec}
	switch failed := outcome.Error(); {
	case readErr != nil:
		last.Payload = &wire.NodeError{Error: readErr.Error(), ErrorType: wire.ErrorException, DurationMs: elapsed}
	case failed != nil:
		last.Payload = &wire.NodeError{Error: failed.Message, ErrorType: failed.ErrorType, DurationMs: elapsed}
	case outcome.Paused() != nil:
		last.Payload = &wire.NodeError{Error: "the agent was interrupted", ErrorType: wire.ErrorExecution, DurationMs: elapsed}
	default:
		output, err := outcome.Output()
		if err != nil {
			return err
		}
		last.Payload = &wire.NodeComplete{Output: output, DurationMs: elapsed}
	}
	if p, ok := last.Payload.(*wire.NodeError); ok {
		status, i.result.Failed, i.result.Error = wire.FlowStatusFailed, true, p.Error
	}
	if v := i.options.Compared; v != nil {
		compared := &wire.Event{Timestamp: at, ExecID: i.exec, SessionID: outcome.SessionID, Payload: v.Event()}
		if err := i.worker.Enqueue(ctx, compared); err != nil {
			return err
		}
		i.result.Events++
	}
	if _, err := i.worker.Append(ctx, last); err != nil {
		return err
	}
	complete := &wire.FlowComplete{FlowName: i.options.Name, Status: status, Error: i.result.Error, DurationMs: elapsed}
	if i.result.Failed {
		complete.FailedNode = i.result.NodeID
	}
	if _, err := i.owner.Append(ctx, &wire.Event{Timestamp: at, Payload: complete}); err != nil {
		return err
	}
	return errors.Join(i.worker.Close(ctx), i.owner.Close(ctx))
}
