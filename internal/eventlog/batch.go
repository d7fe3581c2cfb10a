package eventlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
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

// attempt publishes frames as one atomic batch, or as a plain publish if there
// is one, and waits for the outcome. nil means that all are stored. What any
// other outcome means is up to store; frames stay as they are.
func (l *lane) attempt(ctx context.Context, frames []*frame) error {
	if !l.log.nc.IsConnected() {
		return errDisconnected
	}
	reply := l.nextReply()
	if err := l.publish(frames, l.tag+reply[len(l.inbox)+1:], reply); err != nil {
		return err
	}
	ack, err := l.answer(ctx, reply)
	if err != nil {
		return err
	}
	if len(frames) > 1 && ack.Count != len(frames) {
		return fmt.Errorf("%w: %d of %d events acknowledged", errUnanswered, ack.Count, len(frames))
	}
	first := ack.Seq - uint64(len(frames)) + 1
	for i, f := range frames {
		f.w.stored(f.seq, first+uint64(i))
	}
	return nil
}

// nextReply returns the subject for the answers to a new attempt, and forgets
// those to earlier ones.
func (l *lane) nextReply() string {
	l.attempts++
	for {
		select {
		case <-l.answers:
		case <-l.status:
		default:
			return l.inbox + "." + strconv.FormatUint(l.attempts, 36)
		}
	}
}

// publish sends frames. The first and the last ask for an answer: the first
// since a batch that isn't opened is refused there.
func (l *lane) publish(frames []*frame, id, reply string) error {
	ends := partEnds(frames)
	m := &nats.Msg{}
	for i, f := range frames {
		m.Subject, m.Data, m.Reply, m.Header = f.subject, f.data, "", nats.Header{}
		if i == 0 || i == len(frames)-1 {
			m.Reply = reply
		}
		if ends[i] {
			_, pos := f.w.Last()
			m.Header[headerLast] = []string{strconv.FormatUint(pos, 10)}
			m.Header[headerSubject] = []string{f.w.expect}
		}
		if len(frames) > 1 {
			m.Header[headerBatch] = []string{id}
			m.Header[headerBatchSeq] = []string{strconv.Itoa(i + 1)}
			if i == len(frames)-1 {
				m.Header[headerBatchOver] = []string{"1"}
			}
		}
		if err := l.log.nc.PublishMsg(m); errors.Is(err, nats.ErrMaxPayload) {
			return &apiError{Code: codeTooLarge, Description: err.Error()}
		} else if err != nil {
			return fmt.Errorf("%w: %w", errUnanswered, err)
		}
	}
	return nil
}

// partEnds marks the first and the last frame of each writer: those carry the
// expectation. The server forgets the expectation of the first when it has
// stored it; the last keeps other writers out until the whole part is stored.
func partEnds(frames []*frame) []bool {
	ends := make([]bool, len(frames))
	last := map[*Writer]int{}
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

// elected is the subject on which the server tells that the stream has another
// leader. Whatever the former one was about to answer is lost.
func (l *Log) elected() string {
	return "$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED." + l.names.EventsStream()
}

// answer waits for the server's answer to an attempt.
func (l *lane) answer(ctx context.Context, reply string) (pubAck, error) {
	timeout := time.NewTimer(l.patience)
	defer timeout.Stop()
	for {
		select {
		case m := <-l.answers:
			if m.Subject == l.log.elected() {
				return pubAck{}, fmt.Errorf("%w: the stream has another leader", errUnanswered)
			}
			if m.Subject != reply {
				continue
			}
			if ack, ok, err := parseAck(m); ok {
				l.patience = l.log.o.AckWait
				return ack, err
			}
		case s := <-l.status:
			if s != nats.CONNECTED {
				return pubAck{}, fmt.Errorf("%w: the connection was lost", errUnanswered)
			}
		case <-timeout.C:
			err := fmt.Errorf("%w within %s (a publish that isn't permitted gets none either)", errUnanswered, l.patience)
			l.patience = min(2*l.patience, 4*l.log.o.AckWait) // a server that is only slow isn't helped by more of the same
			return pubAck{}, err
		case <-ctx.Done():
			return pubAck{}, ctx.Err()
		}
	}
}
