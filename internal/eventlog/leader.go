package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
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
	Behind  uint64    `json:"-"`    // see [Entry.Behind]
}

// leader asks a server, which has the leader of a stream answer.
type leader struct {
	nc         *nats.Conn
	readWait   time.Duration // for one answer
	maxBackoff time.Duration // between attempts
	waits      *waitNotes
}

// waitNotes tells that readers wait for the server: once a minute, however many they are.
type waitNotes struct {
	logger *slog.Logger
	told   atomic.Int64 // when, Unix ns
}

// longRead is how long a reader retries until that is told.
const longRead = 5 * time.Second

// tellWait tells of a reader that has tried in vain since a time.
func (w *waitNotes) tellWait(ctx context.Context, begun time.Time, err error) {
	last, now := w.told.Load(), time.Now()
	if now.Sub(begun) >= longRead && now.UnixNano()-last > int64(time.Minute) && w.told.CompareAndSwap(last, now.UnixNano()) {
		w.logger.WarnContext(ctx, "waiting for the server", "error", err)
	}
}

// getRequest is the request of $JS.API.STREAM.MSG.GET.
type getRequest struct {
	Seq    uint64 `json:"seq,omitempty"`
	LastBy string `json:"last_by_subj,omitempty"`
	NextBy string `json:"next_by_subj,omitempty"`
	NoHdr  bool   `json:"no_hdr"`
}

func (l leader) getFrom(ctx context.Context, stream string, r getRequest) (Message, error) {
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

func (l leader) boundsOf(ctx context.Context, stream string) (bounds, error) {
	return l.boundsWithin(ctx, stream, "")
}

// boundsWithin is boundsOf together with the subjects within one, "" for none.
func (l leader) boundsWithin(ctx context.Context, stream, within string) (bounds, error) {
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
func (l leader) askServer(ctx context.Context, verb string, request, answer any) error {
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
	wait, cancel := context.WithTimeout(ctx, l.readWait)
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

// retryRead repeats f until it works, ctx ends, the server refuses or f finds that it
// never will.
func (l leader) retryRead(ctx context.Context, f func() error) error {
	begun := time.Now()
	for wait := newPauses(l.maxBackoff); ; {
		err := f()
		if err == nil || isFinal(err) || errors.Is(err, ErrIncarnation) {
			return err
		}
		l.waits.tellWait(ctx, begun, err)
		if e := wait.pauseNext(ctx); e != nil {
			return fmt.Errorf("%w (%w)", e, err)
		}
	}
}

// incarnationKey is the stream's metadata that names its incarnation.
const incarnationKey = "wake.incarnation"
