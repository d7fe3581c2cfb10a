package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/tracing"
)

// The headers of a publish. An event that is stored alone has the first two; one
// of a batch has batch and sequence, and the first two where it begins or ends
// its node's part of the batch.
const (
	headerLast      = "Nats-Expected-Last-Subject-Sequence"
	headerSubject   = "Nats-Expected-Last-Subject-Sequence-Subject"
	headerBatch     = "Nats-Batch-Id"
	headerBatchSeq  = "Nats-Batch-Sequence"
	headerBatchOver = "Nats-Batch-Commit"
)

// attemptStore publishes frames and waits for the outcome. nil means that all are
// stored. What another outcome means is up to try; some may be stored, and their
// writers know.
func (l *lane) attemptStore(ctx context.Context, frames []*frame) error {
	switch {
	case !l.log.nc.IsConnected():
		return errDisconnected
	case l.log.replicas == 1:
		return l.log.joint.storeShare(ctx, l, frames)
	default:
		return l.attemptFrames(ctx, frames)
	}
}

// attemptFrames publishes frames in the way that takes the least time.
func (l *lane) attemptFrames(ctx context.Context, frames []*frame) error {
	if l.canSendSingly(frames) {
		return l.attemptEach(ctx, frames)
	}
	return l.attemptBatch(ctx, frames)
}

// smallBatch is the number of events up to which a single server stores them
// about as fast one by one as in a batch, for which it sets a store up on disk.
const smallBatch = 8

// canSendSingly reports whether frames are rather published one by one: they are few,
// none was appended with another, and none has to wait for another unless there
// is one replica, where that takes no longer than a batch.
func (l *lane) canSendSingly(frames []*frame) bool {
	if len(frames) > smallBatch || slices.ContainsFunc(frames, func(f *frame) bool { return f.more }) {
		return false
	}
	return l.log.replicas == 1 || len(partsByWriter(frames)) == len(frames)
}

// attemptEach publishes frames one by one: at once the first of each writer, then
// the second of each, since that must say which position it follows.
func (l *lane) attemptEach(ctx context.Context, frames []*frame) error {
	for left := partsByWriter(frames); len(left) > 0; {
		if err := l.attemptFirsts(ctx, left); err != nil {
			return err
		}
		for _, p := range left {
			p.frames = p.frames[1:]
		}
		left = slices.DeleteFunc(left, func(p *writerPart) bool { return len(p.frames) == 0 })
	}
	return nil
}

// attemptFirsts publishes the first frame of each part and waits for all
// answers. It returns the first error.
func (l *lane) attemptFirsts(ctx context.Context, all []*writerPart) error {
	reply := l.nextReply()
	asked := make(map[string]*frame, len(all))
	for i, p := range all {
		to := reply + "-" + strconv.Itoa(i)
		asked[to] = p.frames[0]
		m := &nats.Msg{Subject: p.frames[0].subject, Reply: to, Data: p.frames[0].data, Header: nats.Header{}}
		p.w.expectIn(m.Header)
		l.traceIn(m.Header)
		if err := l.sendMessage(m); err != nil {
			return err
		}
	}
	var failed error
	err := l.readAnswers(ctx, func(m *nats.Msg) (over bool, _ error) {
		f := asked[m.Subject]
		ack, ok, err := parseAck(m)
		if f == nil || !ok {
			return false, nil
		}
		if err == nil {
			l.noteStored(f.w, f.seq, ack.Seq)
		}
		failed = cmp.Or(failed, err)
		delete(asked, m.Subject)
		return len(asked) == 0, nil
	})
	return cmp.Or(failed, err)
}

// attemptBatch publishes frames as one atomic batch.
func (l *lane) attemptBatch(ctx context.Context, frames []*frame) error {
	reply := l.nextReply()
	if err := l.publishBatch(frames, l.tag+reply[len(l.inbox)+1:], reply); err != nil {
		return err
	}
	var ack pubAck
	err := l.readAnswers(ctx, func(m *nats.Msg) (over bool, err error) {
		if m.Subject == reply {
			ack, over, err = parseAck(m)
		}
		return over, err
	})
	if serverCode(err) == codeBatchTooLarge {
		l.log.lowerBatch(err, len(frames))
	}
	if err != nil {
		return err
	}
	if ack.Count != len(frames) {
		return fmt.Errorf("%w: %d of %d events acknowledged", errUnanswered, ack.Count, len(frames))
	}
	first := ack.Seq - uint64(len(frames)) + 1
	for i, f := range frames {
		l.noteStored(f.w, f.seq, first+uint64(i))
	}
	return nil
}

// maxBatch is how many events the server takes in a batch, as far as is known.
func (l *Log) maxBatch() int { return int(l.batch.Load()) }

// lowerBatch notes that the server has refused a batch of that many events, and what it says that it takes: half as many if it
// doesn't.
func (l *Log) lowerBatch(refusal error, size int) {
	most := size / 2
	if e, ok := errors.AsType[*apiError](refusal); ok {
		if n, err := strconv.Atoi(e.Description[strings.LastIndexByte(e.Description, ' ')+1:]); err == nil {
			most = min(n, size-1)
		}
	}
	if most = max(1, most); most < l.maxBatch() {
		l.batch.Store(int64(most))
	}
}

// traceIn puts to which trace the batch belongs, if to any, into the headers of its
// first publish.
func (l *lane) traceIn(h nats.Header) {
	if l.parent != "" {
		h[tracing.Header] = []string{l.parent}
	}
}

func (l *lane) sendMessage(m *nats.Msg) error {
	err := l.log.nc.PublishMsg(m)
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return &apiError{Status: 400, Code: codeTooLarge, Description: err.Error()}
	case err != nil:
		return fmt.Errorf("%w: %w", errUnanswered, err)
	}
	return nil
}

// nextReply returns the subject for the answers to a new attempt, and forgets
// those to earlier ones.
func (l *lane) nextReply() string {
	l.attempts++
	for {
		select {
		case <-l.in:
		case <-l.status:
		default:
			return l.inbox + "." + strconv.FormatUint(l.attempts, 36)
		}
	}
}

// publishBatch sends frames. The first and the last ask for an answer: the first
// since a batch that isn't opened is refused there.
func (l *lane) publishBatch(frames []*frame, id, reply string) error {
	ends := partEnds(frames)
	m := &nats.Msg{}
	for i, f := range frames {
		m.Subject, m.Data, m.Reply, m.Header = f.subject, f.data, "", nats.Header{}
		if i == 0 || i == len(frames)-1 {
			m.Reply = reply
		}
		if i == 0 {
			l.traceIn(m.Header)
		}
		if ends[i] {
			f.w.expectIn(m.Header)
		}
		m.Header[headerBatch] = []string{id}
		m.Header[headerBatchSeq] = []string{strconv.Itoa(i + 1)}
		if i == len(frames)-1 {
			m.Header[headerBatchOver] = []string{"1"}
		}
		if err := l.sendMessage(m); err != nil {
			return err
		}
	}
	return nil
}

// partEnds marks the first and the last frame of each writer: those carry the
// expectation. The server forgets the expectation of the first when it has
// stored it; the last keeps other writers out until the whole part is stored.
func partEnds(frames []*frame) []bool {
	ends := make([]bool, len(frames))
	last := map[*writerState]int{}
	for i, f := range frames {
		if _, seen := last[f.w]; !seen {
			ends[i] = true
		}
		last[f.w] = i
	}
	for _, i := range last {
		ends[i] = true
	}
	return ends
}

// readAnswers hands what the servers say to take, until that is over or fails. It
// fails itself if nothing more can be expected.
func (l *lane) readAnswers(ctx context.Context, take func(*nats.Msg) (over bool, err error)) error {
	timeout := time.NewTimer(l.patience)
	defer timeout.Stop()
	for {
		select {
		case m := <-l.in:
			if m.Subject == l.log.leaderSubject() {
				return fmt.Errorf("%w: the stream has another leader", errUnanswered)
			}
			if over, err := take(m); over || err != nil {
				l.patience = l.log.o.AckWait
				return err
			}
		case s := <-l.status:
			if s != nats.CONNECTED {
				return fmt.Errorf("%w: the connection was lost", errUnanswered)
			}
		case <-timeout.C:
			err := fmt.Errorf("%w within %s (a publish that isn't permitted gets none either)", errUnanswered, l.patience)
			l.patience = min(2*l.patience, 4*l.log.o.AckWait) // a server that is only slow isn't helped by more of the same
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// expectIn puts what the writer's next event follows into the headers of a
// publish.
func (w *writerState) expectIn(h nats.Header) {
	_, pos := w.Last()
	h[headerLast] = []string{strconv.FormatUint(pos, 10)}
	h[headerSubject] = []string{w.expect}
}
