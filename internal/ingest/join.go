package ingest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/completeness"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	watched "code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// The times of a stream that joins.
const (
	beginTime = 2 * time.Second // in which a watcher begins the run of a session whose stream has begun
	tellTime  = 5 * time.Second // in which it tells what the stream has told
)

// The bounds of what is held of a stream for what its run may lack, in bytes, of the events that are stored together, and of the sessions
// of a stream that join.
const (
	maxHeld     = 16 << 20
	lineCost    = 256 // of a line, beside its text
	maxTogether = 300
	maxJoined   = 16
)

// sessionIn returns the session that a stream names in its beginning, "" if none.
func sessionIn(in *bufio.Reader) string {
	head, _ := in.Peek(in.Buffered()) // what detect has looked at
	for line := range bytes.Lines(head) {
		var l struct {
			Session string `json:"session_id"`
		}
		if json.Unmarshal(line, &l) == nil && l.Session != "" && subjects.CheckID(l.Session) == nil {
			return l.Session
		}
	}
	return ""
}

// hasRun reports whether the log has the run of a session, as a watcher or a listener of hooks tells it. That of a live one may begin in
// a moment.
func (i *ingestion) hasRun(ctx context.Context, id string) (bool, error) {
	q := eventlog.Query{Run: id, Node: wire.RunNode, Kinds: []wire.Kind{wire.KindFlow}}
	limited, stop := context.WithTimeout(ctx, beginTime)
	defer stop()
	events := i.log.Read(ctx, q)
	if !i.over {
		events = i.log.Follow(limited, q)
	}
	for e, err := range events {
		if err != nil && limited.Err() != nil {
			return false, ctx.Err()
		} else if err != nil {
			return false, err
		}
		if e.Err != nil {
			continue
		}
		if start, is := e.Event.Payload.(*wire.FlowStart); is {
			return start.Imported == wire.ImportedIngest && start.Labels["session"] == id, nil
		}
	}
	return false, nil
}

// heldLine is a line of a stream that the session's own file has, too.
type heldLine struct {
	text    []byte
	key     string
	message string // that it is a part of, if it is the agent's
	at      int64
}

// streamFields are what is to be known of a line of a stream.
type streamFields struct {
	Type    string `json:"type"`
	UUID    string `json:"uuid"`
	Session string `json:"session_id"`
	Parent  string `json:"parent_tool_use_id"`
	Message struct {
		ID    string `json:"id"`
		Model string `json:"model"`
	} `json:"message"`
}

// isKept reports whether the session's own file has the line, too.
func (l *streamFields) isKept(text []byte) bool {
	told := l.Type == "assistant" && l.Message.Model != "<synthetic>" || l.Type == "user" && bytes.Contains(text, []byte(`"tool_result"`))
	return told && l.Parent == "" && uuid.Validate(l.UUID) == nil
}

// joinRuns has a stream join the runs of its sessions. From the first session on that has none, it is a run of its own.
func (i *ingestion) joinRuns(ctx context.Context, lines iter.Seq2[[]byte, error], id string) error {
	pull, stop := iter.Pull2(lines)
	defer stop()
	var first []byte // of the next session
	rest := func(yield func([]byte, error) bool) {
		if line := first; line != nil {
			if first = nil; !yield(line, nil) {
				return
			}
		}
		for {
			if line, err, more := pull(); !more || !yield(line, err) {
				return
			}
		}
	}
	for range maxJoined {
		if subjects.CheckID(id) != nil {
			break
		}
		there, err := i.hasRun(ctx, id)
		if err != nil {
			return err
		} else if !there {
			break
		}
		next := &ingestion{log: i.log, options: i.options, result: i.result, exec: i.exec, over: i.over}
		if first, id, err = i.joinSession(ctx, rest, id); err != nil || first == nil {
			return err
		}
		i.result.Next, next.last = &next.result, i.last
		if i = next; i.over {
			i.first = i.last
		}
	}
	return i.run(ctx, rest)
}

// joinSession reads the stream of a session that has a run, told by a watcher, hooks or a mirror. What they don't tell in
// time is told from the stream, each line once, and the run is told what the comparison has shown. It ends at the first
// line of another session, and returns that.
func (i *ingestion) joinSession(ctx context.Context, lines iter.Seq2[[]byte, error], id string) (next []byte, session string, err error) {
	i.result.RunID, i.result.NodeID = id, watched.MainNode
	i.exec = run.ExecID(watched.MainNode, 1)
	var held []heldLine
	var readErr error
	size, unheld, untold := 0, 0, map[string]bool{}
	outcome, reader := &agent.Outcome{}, i.newReader()
	observe := func(events []*wire.Event) {
		for _, e := range events {
			outcome.Observe(e)
		}
	}
	feed := completeness.Read(func(yield func([]byte, error) bool) {
		for line, err := range lines {
			var long *claude.LineTooLongError
			var fields streamFields
			at := i.lineTime(line)
			switch {
			case errors.As(err, &long):
				observe(reader.TooLong(at, long))
			case err != nil:
				readErr = err
				return
			case json.Unmarshal(line, &fields) == nil && fields.Session != "" && fields.Session != id:
				next, session = line, fields.Session
				return
			default:
				observe(reader.Line(at, line))
			}
			i.result.Lines++
			switch kept := long == nil && fields.isKept(line); {
			case kept && size+len(line) > maxHeld:
				unheld++
			case kept:
				size += len(line) + lineCost
				held = append(held, heldLine{line, fields.UUID, fields.Message.ID, at})
				untold[fields.UUID] = true
			}
			if !yield(line, err) {
				return
			}
		}
	})
	observe(reader.Finish(i.lineTime(nil)))
	if failed := outcome.Error(); failed != nil {
		i.result.Failed, i.result.Error = true, failed.Message
	}
	final, stop := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer stop()
	if err = i.awaitTold(final, untold); err == nil {
		err = i.tellHeld(final, held, untold)
	}
	if err == nil {
		err = i.tellVerdict(final, feed, held, unheld)
	}
	return next, session, errors.Join(readErr, err)
}

// awaitTold waits until the log has the lines, for a while, and leaves those that it hasn't.
func (i *ingestion) awaitTold(ctx context.Context, untold map[string]bool) error {
	limited, stop := context.WithTimeout(ctx, tellTime)
	defer stop()
	if len(untold) == 0 {
		return nil
	}
	for e, err := range i.log.Follow(limited, eventlog.Query{Run: i.result.RunID, Kinds: []wire.Kind{wire.TypeTranscriptRead.Kind()}}) {
		if err != nil && limited.Err() != nil {
			return ctx.Err()
		} else if err != nil {
			return err
		}
		if forgetTold(untold, e); len(untold) == 0 {
			return nil
		}
	}
	return nil
}

// forgetTold takes out the lines that an entry says are told, if it says so of some.
func forgetTold(untold map[string]bool, e eventlog.Entry) bool {
	if e.Err != nil {
		return false
	}
	mark, is := e.Event.Payload.(*wire.TranscriptRead)
	if !is {
		return false
	}
	for _, key := range mark.Lines {
		delete(untold, key)
	}
	return true
}

// tellHeld tells the lines that the log lacks, in the place of the watcher of the session's file, which goes on from there by their keys.
func (i *ingestion) tellHeld(ctx context.Context, held []heldLine, untold map[string]bool) error {
	if len(untold) == 0 {
		return nil
	}
	begun, counted, err := i.claimNode(ctx, untold)
	if err != nil {
		return err
	}
	defer func() { _ = i.worker.Close(ctx) }() // what was appended is stored
	var events []*wire.Event
	if !begun {
		events = append(events, &wire.Event{Payload: &wire.NodeStart{NodeType: "agent", Attempt: 1}})
	}
	var keys []string
	tell := func() error {
		if len(keys) == 0 && len(events) == 0 {
			return nil
		}
		for _, e := range events {
			e.ExecID, e.SessionID = i.exec, i.result.RunID
		}
		// The watcher reads anew what stands before the mark.
		mark := wire.TranscriptRead{File: watched.StreamFile, Digest: hex.EncodeToString(sha256.New().Sum(nil)), Lines: keys}
		i.result.Events += len(events)
		_, err := i.worker.Append(ctx, append(events, &wire.Event{ExecID: i.exec, Payload: &mark})...)
		events, keys = nil, nil
		return err
	}
	told := claude.NewNormalizer(claude.NormalizerOptions{Format: claude.Transcript, Provider: "ingest", PriceOf: i.options.Prices.Of})
	mine := map[string]bool{} // messages that the stream tells
	isCounted := func(e *wire.Event) bool {
		p, is := e.Payload.(*wire.Usage)
		return is && counted[p.MessageID]
	}
	isOthers := func(e *wire.Event) bool { // the watcher of the file tells the usage of its messages
		p, is := e.Payload.(*wire.Usage)
		return is && (counted[p.MessageID] || !mine[p.MessageID])
	}
	isTold := func(e *wire.Event) bool { return e.Type() != wire.TypeUsage || isOthers(e) }
	for _, l := range held {
		if len(events) >= maxTogether {
			if err := tell(); err != nil {
				return err
			}
		}
		of := told.Line(l.at, l.text)
		if !untold[l.key] {
			events = append(events, slices.DeleteFunc(of, isTold)...) // a message's usage may come with a later line
			continue
		}
		mine[l.message] = true
		events, keys = append(events, slices.DeleteFunc(of, isCounted)...), append(keys, l.key)
	}
	// Older versions don't say that the last message is over.
	events = append(events, slices.DeleteFunc(told.Rest(), isOthers)...)
	return tell()
}

// claimNode takes the node of the session, and reports whether something was told on it, and of which messages the usage was.
func (i *ingestion) claimNode(ctx context.Context, untold map[string]bool) (begun bool, counted map[string]bool, err error) {
	if i.worker, err = i.log.Claim(ctx, i.result.RunID, watched.MainNode, eventlog.Claim{Runner: i.options.Runner, ExecID: i.exec}); err != nil {
		return false, nil, err
	}
	counted = map[string]bool{}
	for e, err := range i.log.Read(ctx, eventlog.Query{Run: i.result.RunID, Kinds: []wire.Kind{wire.TypeTranscriptRead.Kind(), wire.TypeUsage.Kind()}}) {
		if err != nil {
			return false, nil, err
		}
		if e.Err != nil {
			continue
		}
		if p, is := e.Event.Payload.(*wire.Usage); is && e.NodeID == watched.MainNode && p.MessageID != "" {
			counted[p.MessageID] = true
		}
		begun = forgetTold(untold, e) && e.NodeID == watched.MainNode || begun
	}
	return begun, counted, nil
}

// tellVerdict compares the stream with what others tell of its session, and tells what that shows.
func (i *ingestion) tellVerdict(ctx context.Context, stream completeness.Feed, held []heldLine, unheld int) error {
	messages := map[string]string{} // of lines
	for _, l := range held {
		messages[l.key] = l.message
	}
	kept := completeness.NewFeed(i.result.RunID)
	kept.MarkPartial() // files of sub-agents may come later
	for e, err := range i.log.Read(ctx, eventlog.Query{Run: i.result.RunID}) {
		if err != nil {
			return err
		}
		if e.Err != nil {
			continue
		}
		if watched.IsPrinted(e.Event.Payload) {
			kept.MarkPrinted(e.Event.Epoch)
		} else if mark, is := e.Event.Payload.(*wire.TranscriptRead); is {
			for _, key := range mark.Lines {
				kept.AddMessage(messages[key], e.Event.Epoch, e.Pos)
			}
		}
		of := *e.Event
		if e.NodeID != watched.MainNode {
			of.Parent = cmp.Or(of.Parent, e.NodeID)
		}
		kept.AddEvent(&of, e.Pos)
	}
	v := completeness.Compare(stream, *kept)
	if unheld > 0 && v.TranscriptShort > 0 {
		text := fmt.Sprintf("of %d lines of the stream, behind %d MiB, nothing was added", unheld, maxHeld>>20)
		v.Reason = strings.TrimPrefix(v.Reason+"; "+text, "; ")
	}
	i.result.Verdict = &v
	w, err := i.log.Claim(ctx, i.result.RunID, watched.StreamNode, eventlog.Claim{Runner: i.options.Runner})
	if err != nil {
		return err
	}
	_, err = w.Append(ctx, &wire.Event{SessionID: i.result.RunID, Payload: v.Event()})
	return errors.Join(err, w.Close(ctx))
}
