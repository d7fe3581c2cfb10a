package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/topology"
)

// Bounds of what the server may take.
const (
	checkWait = 10 * time.Minute // to check a stream, before it sends it; and to build it again
	chunkWait = 30 * time.Second // for the next piece

	leaderWait = 2 * time.Second // before the stream's leader is looked up again
)

// pieceSize is how much of a stream, before it is compressed, is restored at once. The server (v2.15) stores each message anew, synced if
// it is to sync always, and gives the restoration up if it isn't done with what came last within 5 s: with what it sends itself, some
// thousand messages at once, it was.
const pieceSize = 64 << 10

// serverAnswer is what the server answers to a request of its API.
type serverAnswer struct {
	Error   *jetstream.APIError `json:"error"`
	Config  json.RawMessage     `json:"config"`
	State   json.RawMessage     `json:"state"`
	Deliver string              `json:"deliver_subject"`
}

// askServer asks the server's API.
func askServer(ctx context.Context, nc *nats.Conn, wait time.Duration, subject string, question any) (a serverAnswer, err error) {
	data, ok := question.([]byte)
	if !ok {
		if data, err = json.Marshal(question); err != nil {
			return a, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, subject, data)
	if err != nil {
		return a, err
	}
	return readAnswer(m)
}

func readAnswer(m *nats.Msg) (a serverAnswer, err error) {
	if len(m.Data) == 0 {
		return a, nil
	}
	if err := json.Unmarshal(m.Data, &a); err != nil {
		return a, fmt.Errorf("answer of the server: %w", err)
	}
	if a.Error != nil {
		return a, a.Error
	}
	return a, nil
}

// leader is the server that leads a stream, since when, and over which connection: an answer doesn't come over one that was lost.
type leader struct {
	server     string
	elected    time.Time
	reconnects uint64
}

func leaderOf(ctx context.Context, js jetstream.JetStream, stream string) (l leader, err error) {
	l.reconnects = js.Conn().Stats().Reconnects
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return l, err
	}
	if c := s.CachedInfo().Cluster; c != nil {
		l.server = c.Leader
		if c.LeaderSince != nil {
			l.elected = *c.LeaderSince
		}
	}
	return l, nil
}

// askLeader asks the leader of a stream what takes him long. No other server answers, not even that it isn't the leader: so it is
// given up with [topology.ErrLeaderMoved] once another one leads.
func askLeader(ctx context.Context, js jetstream.JetStream, stream, subject string, question any) (serverAnswer, error) {
	before, err := leaderOf(ctx, js, stream)
	if err != nil {
		return serverAnswer{}, err
	}
	data, err := json.Marshal(question)
	if err != nil {
		return serverAnswer{}, err
	}
	inbox := js.Conn().NewInbox()
	sub, err := js.Conn().SubscribeSync(inbox)
	if err != nil {
		return serverAnswer{}, err
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection is gone then
	if err := js.Conn().PublishRequest(subject, inbox, data); err != nil {
		return serverAnswer{}, err
	}
	for deadline := time.Now().Add(checkWait); ; {
		wait, cancel := context.WithTimeout(ctx, leaderWait)
		m, err := sub.NextMsgWithContext(wait)
		cancel()
		switch {
		case err == nil:
			return readAnswer(m)
		case ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) || time.Now().After(deadline):
			return serverAnswer{}, err
		}
		if now, err := leaderOf(ctx, js, stream); err != nil {
			return serverAnswer{}, err
		} else if now != before {
			return serverAnswer{}, topology.ErrLeaderMoved
		}
	}
}

// snapshotStream has the server check a stream and send it, with its consumers, as of one
// moment. take gets the pieces.
func snapshotStream(ctx context.Context, js jetstream.JetStream, stream string, take func([]byte) error) (config, state json.RawMessage, err error) {
	nc := js.Conn()
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, nil, err
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection is gone then
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, nil, err // the server sends 8 MiB ahead at most
	}
	a, err := askLeader(ctx, js, stream, "$JS.API.STREAM.SNAPSHOT."+stream, map[string]any{"deliver_subject": inbox, "jsck": true})
	if err != nil {
		return nil, nil, err
	}
	for next := 1; ; next++ {
		m, err := nextChunk(ctx, sub)
		if err != nil {
			return nil, nil, err
		}
		if len(m.Data) == 0 {
			return a.Config, a.State, snapshotError(m)
		}
		if m.Reply != "" { // the last piece has none
			if i := m.Reply[strings.LastIndexByte(m.Reply, '.')+1:]; i != strconv.Itoa(next) {
				return nil, nil, fmt.Errorf("%w: piece %s came instead of %d", topology.ErrLeaderMoved, i, next)
			}
			if err := nc.Publish(m.Reply, nil); err != nil {
				return nil, nil, err
			}
		}
		if err := take(m.Data); err != nil {
			return nil, nil, err
		}
	}
}

func nextChunk(ctx context.Context, sub *nats.Subscription) (*nats.Msg, error) {
	wait, cancel := context.WithTimeout(ctx, chunkWait)
	defer cancel()
	m, err := sub.NextMsgWithContext(wait)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, fmt.Errorf("%w: it sent nothing for %s", topology.ErrLeaderMoved, chunkWait)
	}
	return m, err
}

// snapshotError says how the end of a snapshot went.
func snapshotError(m *nats.Msg) error {
	if status := m.Header.Get("Status"); status != "" && status != "204" {
		return fmt.Errorf("%w: it gave up: %s %s", topology.ErrLeaderMoved, status, m.Header.Get("Description"))
	}
	return nil
}

// rebuildStream has the server build a stream from a snapshot.
func rebuildStream(ctx context.Context, nc *nats.Conn, stream string, config, state json.RawMessage, in io.Reader, sent func(int)) error {
	a, err := askServer(ctx, nc, chunkWait, "$JS.API.STREAM.RESTORE."+stream, map[string]any{"config": config, "state": state})
	if err != nil {
		return err
	}
	content := s2.NewReader(readCounter{in, sent})
	pieces := s2.NewWriter(pieceSender{ctx, nc, a.Deliver}, s2.WriterBlockSize(pieceSize), s2.WriterConcurrency(1))
	_, err = io.Copy(struct{ io.Writer }{pieces}, content) // not by ReadFrom, which would send on while it fails
	if err := errors.Join(err, pieces.Close()); err != nil {
		return err
	}
	_, err = askServer(ctx, nc, checkWait, a.Deliver, []byte{})
	return err
}

// readCounter tells how much is read.
type readCounter struct {
	io.Reader

	read func(int)
}

// Read implements [io.Reader].
func (r readCounter) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.read(n)
	return n, err
}

// pieceSender sends a snapshot to the server, which has taken each piece before the next one goes.
type pieceSender struct {
	ctx context.Context //nolint:containedctx // of one stream
	nc  *nats.Conn
	to  string
}

// Write implements [io.Writer].
func (s pieceSender) Write(p []byte) (int, error) {
	_, err := askServer(s.ctx, s.nc, chunkWait, s.to, bytes.Clone(p))
	return len(p), err
}
