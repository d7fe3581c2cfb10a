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
	"io"
	"time"

	"github.com/google/uuid"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/completeness"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// The times of a stream that joins.
const (
	beginTime = 2 * time.Second // in which a watcher begins the run of a session whose stream has begun
	tellTime  = 5 * time.Second // in which it tells what the stream has told
)

// The bounds of what is held of a stream for what its run may lack, in bytes, and of the events that are stored together.
const (
	maxHeld     = 16 << 20
	maxTogether = 300
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

// heldLine is a line of a stream that is held.
type heldLine struct {
	text []byte
	key  string // of what the session's own file has, too; "" else
}

// holdLine returns a line as it is held; nothing of parts of messages that are still coming.
func holdLine(text []byte) (l heldLine, ok bool) {
	var fields struct {
		Type    string `json:"type"`
		UUID    string `json:"uuid"`
		Parent  string `json:"parent_tool_use_id"`
		Message struct {
			Model string `json:"model"`
		} `json:"message"`
	}
	if json.Unmarshal(text, &fields) != nil || fields.Type == "stream_event" {
		return l, false
	}
	l.text = text
	told := fields.Type == "assistant" && fields.Message.Model != "<synthetic>" || fields.Type == "user" && bytes.Contains(text, []byte(`"tool_result"`))
	if told && fields.Parent == "" && uuid.Validate(fields.UUID) == nil {
		l.key = fields.UUID
	}
	return l, true
}

// join reads the stream of a session whose run others tell. What they don't tell in time is told from the stream, each line once, and
// the run is told what the comparison has shown.
func (i *ingestion) join(ctx context.Context, in io.Reader, id string) error {
	i.result.RunID, i.result.NodeID = id, session.MainNode
	i.exec = run.ExecID(session.MainNode, 1)
	var held []heldLine
	var readErr error
	size, untold := 0, map[string]bool{}
	feed := completeness.Read(func(yield func([]byte, error) bool) {
		for line, err := range inputLines(ctx, in) {
			if err != nil && !errors.As(err, new(*claude.LineTooLongError)) {
				readErr = err
				return
			}
			i.result.Lines++
			if l, ok := holdLine(line); ok && err == nil && size+len(line) <= maxHeld {
				size += len(line)
				held = append(held, l)
				untold[l.key] = l.key != ""
			}
			if !yield(line, err) {
				return
			}
		}
	})
	final, stop := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer stop()
	delete(untold, "")
	err := i.awaitTold(final, untold)
	if err == nil {
		err = i.tellHeld(final, held, untold)
	}
	if err == nil {
		err = i.tellVerdict(final, feed)
	}
	return errors.Join(readErr, err)
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

// tellHeld tells the lines that the log lacks, in the place of who tells the session's file: who does goes on from there, by the keys of
// the lines. It finds out how the agent has ended, too.
func (i *ingestion) tellHeld(ctx context.Context, held []heldLine, untold map[string]bool) error {
	// What stands before the mark is read anew by who tells the file.
	mark := wire.TranscriptRead{File: session.StreamFile, Digest: hex.EncodeToString(sha256.New().Sum(nil))}
	var events []*wire.Event
	if len(untold) > 0 {
		begun, err := i.claimNode(ctx, untold)
		if err != nil {
			return err
		}
		defer func() { _ = i.worker.Close(ctx) }() // what was appended is stored
		if !begun {
			events = append(events, &wire.Event{Payload: &wire.NodeStart{NodeType: "agent", Attempt: 1}})
		}
	}
	outcome, stream, keys := &agent.Outcome{}, i.newReader(), []string(nil)
	told := claude.NewNormalizer(claude.NormalizerOptions{Format: claude.Transcript, Provider: "ingest", PriceOf: i.options.Prices.Of})
	tell := func() error {
		if len(keys) == 0 {
			return nil
		}
		next := mark
		next.Lines = keys
		for _, e := range events {
			e.ExecID, e.SessionID = i.exec, i.result.RunID
		}
		i.result.Events += len(events)
		_, err := i.worker.Append(ctx, append(events, &wire.Event{ExecID: i.exec, Payload: &next})...)
		events, keys = nil, nil
		return err
	}
	for _, l := range held {
		at := i.lineTime(l.text)
		for _, e := range stream.Line(at, l.text) {
			outcome.Observe(e)
		}
		if l.key == "" {
			continue
		}
		lines := told.Line(at, l.text)
		if untold[l.key] {
			events, keys = append(events, lines...), append(keys, l.key)
		}
		if len(events) >= maxTogether {
			if err := tell(); err != nil {
				return err
			}
		}
	}
	for _, e := range stream.Finish(i.lineTime(nil)) {
		outcome.Observe(e)
	}
	if failed := outcome.Error(); failed != nil {
		i.result.Failed, i.result.Error = true, failed.Message
	}
	return tell()
}

// claimNode takes the node of the session, and reports whether something was told on it.
func (i *ingestion) claimNode(ctx context.Context, untold map[string]bool) (begun bool, err error) {
	if i.worker, err = i.log.Claim(ctx, i.result.RunID, session.MainNode, eventlog.Claim{Runner: i.options.Runner, ExecID: i.exec}); err != nil {
		return false, err
	}
	for e, err := range i.log.Read(ctx, eventlog.Query{Run: i.result.RunID, Kinds: []wire.Kind{wire.TypeTranscriptRead.Kind()}}) {
		if err != nil {
			return false, err
		}
		begun = forgetTold(untold, e) && e.NodeID == session.MainNode || begun
	}
	return begun, nil
}

// tellVerdict compares the stream with what others tell of its session, and tells what that shows.
func (i *ingestion) tellVerdict(ctx context.Context, stream completeness.Feed) error {
	kept := completeness.NewFeed(i.result.RunID)
	kept.MarkPartial() // files of sub-agents may come later
	for e, err := range i.log.Read(ctx, eventlog.Query{Run: i.result.RunID}) {
		if err != nil {
			return err
		}
		if e.Err != nil || i.worker != nil && e.NodeID == session.MainNode && e.Event.Epoch == i.worker.Epoch() {
			continue
		}
		of := *e.Event
		if e.NodeID != session.MainNode {
			of.Parent = cmp.Or(of.Parent, e.NodeID)
		}
		kept.AddEvent(&of, e.Pos)
	}
	v := completeness.Compare(stream, *kept)
	i.result.Verdict = &v
	w, err := i.log.Claim(ctx, i.result.RunID, session.StreamNode, eventlog.Claim{Runner: i.options.Runner})
	if err != nil {
		return err
	}
	_, err = w.Append(ctx, &wire.Event{SessionID: i.result.RunID, Payload: v.Event()})
	return errors.Join(err, w.Close(ctx))
}
