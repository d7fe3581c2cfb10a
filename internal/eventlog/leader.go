package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// stored is a message as the leader of the stream has it.
type stored struct {
	Subject string    `json:"subject"`
	Pos     uint64    `json:"seq"`
	Data    []byte    `json:"data"`
	Time    time.Time `json:"time"`
}

// getRequest is the request of $JS.API.STREAM.MSG.GET.
type getRequest struct {
	Seq    uint64 `json:"seq,omitempty"`
	LastBy string `json:"last_by_subj,omitempty"`
	NextBy string `json:"next_by_subj,omitempty"`
	NoHdr  bool   `json:"no_hdr"`
}

// lastBy returns the last message whose subject matches filter, or
// [errNotFound]. It is the leader's answer; a leader that was just deposed may
// give an old one.
func (l *Log) lastBy(ctx context.Context, filter string) (stored, error) {
	return l.get(ctx, getRequest{LastBy: filter, NoHdr: true})
}

// nextBy returns the first message from position from whose subject matches
// filter, or [errNotFound].
func (l *Log) nextBy(ctx context.Context, filter string, from uint64) (stored, error) {
	return l.get(ctx, getRequest{Seq: max(from, 1), NextBy: filter, NoHdr: true})
}

func (l *Log) get(ctx context.Context, r getRequest) (stored, error) {
	return l.getFrom(ctx, l.names.EventsStream(), r)
}

func (l *Log) getFrom(ctx context.Context, stream string, r getRequest) (stored, error) {
	var answer struct {
		Message stored    `json:"message"`
		Error   *apiError `json:"error"`
	}
	if err := l.ask(ctx, "STREAM.MSG.GET."+stream, r, &answer); err != nil {
		return stored{}, err
	}
	switch {
	case answer.Error != nil && answer.Error.Code == codeNotFound:
		return stored{}, errNotFound
	case answer.Error != nil:
		return stored{}, answer.Error
	}
	return answer.Message, nil
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
}

// bounds asks the leader for the state of the stream of events.
func (l *Log) bounds(ctx context.Context) (bounds, error) {
	var answer struct {
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
		} `json:"state"`
		Error *apiError `json:"error"`
	}
	if err := l.ask(ctx, "STREAM.INFO."+l.names.EventsStream(), nil, &answer); err != nil {
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
	}, nil
}

// ask sends a request to the JetStream API and decodes its answer.
func (l *Log) ask(ctx context.Context, verb string, request, answer any) error {
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

// lastGrace is how long a leader may be behind before it is believed that a
// position is beyond the end: one that was deposed answers for a while.
const lastGrace = 5 * time.Second

// checkPosition fails with [ErrIncarnation] if pos isn't a position of the
// stream.
func (l *Log) checkPosition(ctx context.Context, pos uint64) error {
	start := time.Now()
	for wait := backoff(l.o.MaxBackoff); ; {
		b, err := l.bounds(ctx)
		switch {
		case err != nil && (ctx.Err() != nil || final(err)):
			return err
		case err != nil:
		case b.incarnation != l.incarnation:
			return fmt.Errorf("%w: it is %q, the position is of %q", ErrIncarnation, b.incarnation, l.incarnation)
		case pos <= b.last:
			return nil
		case time.Since(start) > lastGrace:
			return fmt.Errorf("%w: position %d is beyond the last one, %d", ErrIncarnation, pos, b.last)
		}
		if err := wait.pause(ctx); err != nil {
			return err
		}
	}
}
