package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// Message is what a stream has at a position, as it is stored.
type Message struct {
	Subject string    `json:"subject"`
	Pos     uint64    `json:"seq"`
	Data    []byte    `json:"data"`
	Time    time.Time `json:"time"`
	Header  []byte    `json:"hdrs"` // as it was sent, where it was asked for
	Trace   string    `json:"-"`    // to which trace it belongs, where the reader knows, see [tracing.Parent]
}

// getRequest is the request of $JS.API.STREAM.MSG.GET.
type getRequest struct {
	Seq    uint64 `json:"seq,omitempty"`
	LastBy string `json:"last_by_subj,omitempty"`
	NextBy string `json:"next_by_subj,omitempty"`
	NoHdr  bool   `json:"no_hdr"`
}

// lastBy returns the last message with a subject that matches filter, or
// [errNotFound]. It is the leader's answer; a leader that was just deposed may
// give an old one.
func (l *Log) lastBy(ctx context.Context, filter string) (Message, error) {
	return l.getMessage(ctx, getRequest{LastBy: filter, NoHdr: true})
}

// nextBy returns the first message at or behind position from with a subject that
// matches filter, or [errNotFound].
func (l *Log) nextBy(ctx context.Context, filter string, from uint64) (Message, error) {
	return l.getMessage(ctx, getRequest{Seq: max(from, 1), NextBy: filter, NoHdr: true})
}

func (l *Log) getMessage(ctx context.Context, r getRequest) (Message, error) {
	return l.getFrom(ctx, l.names.EventsStream(), r)
}

func (l *Log) getFrom(ctx context.Context, stream string, r getRequest) (Message, error) {
	var answer struct {
		Message Message   `json:"message"`
		Error   *apiError `json:"error"`
	}
	if err := l.askServer(ctx, "STREAM.MSG.GET."+stream, r, &answer); err != nil {
		return Message{}, err
	}
	switch {
	case answer.Error != nil && answer.Error.Code == codeNotFound:
		return Message{}, errNotFound
	case answer.Error != nil:
		return Message{}, answer.Error
	}
	return answer.Message, nil
}

// lastOnly returns the last message with a subject that matches filter, or [errNotFound], with its headers, as the only replica of a
// stream has it: to ask that directly costs a third of asking it as a leader. Where there are several, it is unanswered.
func (l *Log) lastOnly(ctx context.Context, stream, filter string) (Message, nats.Header, error) {
	if l.replicas != 1 || !l.direct || !l.nc.IsConnected() {
		return Message{}, nil, errUnanswered
	}
	wait, cancel := context.WithTimeout(ctx, l.o.ReadWait)
	defer cancel()
	answer, err := l.nc.RequestWithContext(wait, "$JS.API.DIRECT.GET."+stream+"."+filter, nil)
	switch {
	case ctx.Err() != nil:
		return Message{}, nil, ctx.Err()
	case err != nil:
		return Message{}, nil, fmt.Errorf("%w: %w", errUnanswered, err)
	case answer.Header.Get("Status") == "404":
		return Message{}, nil, errNotFound
	case answer.Header.Get("Status") != "":
		return Message{}, nil, errUnanswered
	}
	m, err := directMessage(answer)
	if err != nil {
		return Message{}, nil, fmt.Errorf("%w: %w", errUnanswered, err)
	}
	return m, answer.Header, nil
}

// IsUnknown reports whether the log surely has nothing of a run at the moment.
func (l *Log) IsUnknown(ctx context.Context, run string) bool {
	_, _, err := l.lastOnly(ctx, l.names.EventsStream(), l.names.RunEvents(run))
	return errors.Is(err, errNotFound)
}

// bounds is what the leader says of the stream itself.
type bounds struct {
	first, last uint64
	bytes       uint64
	maxBytes    int64
	maxMsgSize  int
	incarnation string
	replicas    int
	allowDirect bool
	leader      string            // of a cluster
	subjects    map[string]uint64 // those within a subject that was asked for, with their messages; nil: none, or too many
	many        bool              // too many
}

// eventBounds asks the leader for the state of the stream of events.
func (l *Log) eventBounds(ctx context.Context) (bounds, error) {
	return l.boundsOf(ctx, l.names.EventsStream())
}

func (l *Log) boundsOf(ctx context.Context, stream string) (bounds, error) {
	return l.boundsWithin(ctx, stream, "")
}

// boundsWithin is boundsOf together with the subjects within one, "" for none.
func (l *Log) boundsWithin(ctx context.Context, stream, within string) (bounds, error) {
	var request any
	if within != "" {
		request = map[string]string{"subjects_filter": within}
	}
	var answer struct {
		Total int `json:"total"` // subjects

		Config struct {
			MaxBytes    int64             `json:"max_bytes"`
			MaxMsgSize  int               `json:"max_msg_size"`
			Replicas    int               `json:"num_replicas"`
			AllowDirect bool              `json:"allow_direct"`
			Metadata    map[string]string `json:"metadata"`
		} `json:"config"`
		State struct {
			First uint64 `json:"first_seq"`
			Last  uint64 `json:"last_seq"`
			Bytes uint64 `json:"bytes"`

			Subjects map[string]uint64 `json:"subjects"`
		} `json:"state"`
		Cluster struct {
			Leader string `json:"leader"`
		} `json:"cluster"`
		Error *apiError `json:"error"`
	}
	if err := l.askServer(ctx, "STREAM.INFO."+stream, request, &answer); err != nil {
		return bounds{}, err
	}
	if answer.Error != nil {
		return bounds{}, answer.Error
	}
	return bounds{
		first: answer.State.First, last: answer.State.Last,
		bytes: answer.State.Bytes, maxBytes: answer.Config.MaxBytes, maxMsgSize: answer.Config.MaxMsgSize,
		incarnation: answer.Config.Metadata[incarnationKey],
		replicas:    answer.Config.Replicas,
		allowDirect: answer.Config.AllowDirect,
		leader:      answer.Cluster.Leader,
		subjects:    answer.State.Subjects,
		many:        answer.Total > len(answer.State.Subjects),
	}, nil
}

// askServer sends a request to the JetStream API and decodes its answer.
func (l *Log) askServer(ctx context.Context, verb string, request, answer any) error {
	var body []byte
	if request != nil {
		var err error
		if body, err = json.Marshal(request); err != nil {
			return err
		}
	}
	if !l.nc.IsConnected() {
		return errDisconnected
	}
	wait, cancel := context.WithTimeout(ctx, l.o.ReadWait)
	defer cancel()
	m, err := l.nc.RequestWithContext(wait, "$JS.API."+verb, body)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %s", errUnanswered, verb)
	case err != nil:
		return fmt.Errorf("%w: %w", errUnanswered, err)
	}
	if err := json.Unmarshal(m.Data, answer); err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	return nil
}

// A position is believed to be beyond the end of the stream when one leader has said so for
// this long and this often, without a break: one that was deposed answers for a while, and
// one that was elected may yet learn what it lacks.
const (
	steadyTime    = 30 * time.Second
	steadyAnswers = 10
)

// checkPosition waits until the stream has position pos. It fails with [ErrIncarnation] if
// that is none of this stream, and with [ErrBeyond].
func (l *Log) checkPosition(ctx context.Context, stream string, pos uint64) error {
	var leader string
	var since time.Time
	answers := 0
	for wait := newPauses(l.o.MaxBackoff); ; {
		b, err := l.boundsOf(ctx, stream)
		switch {
		case err != nil && (ctx.Err() != nil || isFinal(err)):
			return err
		case err != nil:
			answers = 0
		case l.isOtherStream(stream, b):
			return fmt.Errorf("%w: it is %q, the position is of %q", ErrIncarnation, b.incarnation, l.incarnation)
		case pos <= b.last:
			return nil
		case answers == 0 || b.leader != leader:
			leader, since, answers = b.leader, time.Now(), 1
		default:
			answers++
			if answers >= steadyAnswers && time.Since(since) >= steadyTime {
				return fmt.Errorf("%w: it is %d, the last one is %d", ErrBeyond, pos, b.last)
			}
		}
		if err := wait.pauseNext(ctx); err != nil {
			return err
		}
	}
}

// isOtherStream reports whether the stream of events isn't the one that was opened. The
// incarnation of other streams isn't looked at.
func (l *Log) isOtherStream(stream string, b bounds) bool {
	return stream == l.names.EventsStream() && b.incarnation != l.incarnation
}

// retryRead repeats f until it works, ctx ends, the server refuses or f finds that it
// never will.
func (l *Log) retryRead(ctx context.Context, f func() error) error {
	for wait := newPauses(l.o.MaxBackoff); ; {
		err := f()
		if err == nil || isFinal(err) || errors.Is(err, ErrIncarnation) {
			return err
		}
		if e := wait.pauseNext(ctx); e != nil {
			return fmt.Errorf("%w (%w)", e, err)
		}
	}
}
