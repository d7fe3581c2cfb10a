package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// errGap means that a consumer skipped something: it has to be set to where its
// reader is.
var errGap = errors.New("the consumer jumped")

// How messages are pulled. A consumer that says nothing for two heartbeats is
// taken for lost.
const (
	pullExpiry    = 10 * time.Second
	pullHeartbeat = 2 * time.Second
)

// puller takes messages from a consumer, in order and without gap, or fails with
// [errGap]. It doesn't use the client's own iterator since that one keeps to
// itself what a heartbeat says: how much was delivered, be it to somebody else,
// as to a request of an earlier reader that the server hasn't forgotten yet.
// Without that a gap at the end of the stream would go unnoticed.
type puller struct {
	log     *Log
	request string // subject
	most    int    // messages to ask for ahead
	inbox   string
	sub     *nats.Subscription
	in      chan *nats.Msg

	asked     int    // messages that are still to come for our requests
	delivered uint64 // consumer sequence of the last message
}

// pulled is a message of a consumer.
type pulled struct {
	*nats.Msg
	pos   uint64
	time  time.Time
	again bool // it has been delivered before
}

// pull begins to take messages from a consumer that has delivered none yet.
func (l *Log) pull(consumer string, most int) (*puller, error) {
	p := &puller{
		log: l, most: most, inbox: l.nc.NewInbox(),
		request: "$JS.API.CONSUMER.MSG.NEXT." + l.names.EventsStream() + "." + consumer,
		in:      make(chan *nats.Msg, 2*most+16), // messages and what is said about requests
	}
	sub, err := l.nc.ChanSubscribe(p.inbox, p.in)
	if err != nil {
		return nil, err
	}
	p.sub = sub
	return p, nil
}

// stop ends the puller before anything else is sent on the connection.
func (p *puller) stop() { _ = p.sub.Unsubscribe() } // fails if the connection is gone

// next waits for the next message.
func (p *puller) next(ctx context.Context) (pulled, error) {
	for {
		if err := p.ask(); err != nil {
			return pulled{}, err
		}
		m, err := p.receive(ctx)
		if err != nil {
			return pulled{}, err
		}
		if m.Reply != "" { // where to acknowledge it
			return p.accept(m)
		}
		if err := p.told(m.Header.Get("Status"), m.Header); err != nil {
			return pulled{}, err
		}
	}
}

// ask keeps at least half of what may be asked for on order.
func (p *puller) ask() error {
	if p.asked > p.most/2 {
		return nil
	}
	n := p.most - p.asked
	body, err := json.Marshal(struct {
		Batch     int           `json:"batch"`
		Expires   time.Duration `json:"expires"`
		Heartbeat time.Duration `json:"idle_heartbeat"`
	}{n, pullExpiry, pullHeartbeat})
	if err != nil {
		return err
	}
	p.asked += n
	return p.log.nc.PublishRequest(p.request, p.inbox, body)
}

func (p *puller) receive(ctx context.Context) (*nats.Msg, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	select {
	case m := <-p.in:
		return m, nil
	default:
	}
	silence := time.NewTimer(2*pullHeartbeat + pullHeartbeat/2)
	defer silence.Stop()
	select {
	case m := <-p.in:
		return m, nil
	case <-silence.C:
		return nil, fmt.Errorf("%w: the consumer is silent", errUnanswered)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// told deals with what the server says about our requests.
func (p *puller) told(status string, h nats.Header) error {
	switch status {
	case "100": // heartbeat
		if h.Get("Nats-Last-Consumer") != strconv.FormatUint(p.delivered, 10) {
			return errGap
		}
		return nil
	case "408": // a request expired
		left, err := strconv.Atoi(h.Get("Nats-Pending-Messages"))
		if err != nil {
			return fmt.Errorf("%w: %s", errUnanswered, h.Get("Description"))
		}
		p.asked = max(0, p.asked-left)
		return nil
	default:
		return fmt.Errorf("%w: %s %s", errUnanswered, status, h.Get("Description"))
	}
}

func (p *puller) accept(m *nats.Msg) (pulled, error) {
	meta, err := m.Metadata()
	if err != nil {
		return pulled{}, err
	}
	p.asked--
	p.delivered++
	if meta.Sequence.Consumer != p.delivered {
		return pulled{}, errGap
	}
	return pulled{Msg: m, pos: meta.Sequence.Stream, time: meta.Timestamp, again: meta.NumDelivered > 1}, nil
}

// whileConnected returns a context that ends when the connection is lost: what
// a consumer does after that is anybody's guess.
func (l *Log) whileConnected(ctx context.Context) (connected context.Context, release func()) {
	connected, cancel := context.WithCancelCause(ctx)
	lost := l.nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-lost:
			cancel(errDisconnected)
		case <-connected.Done():
		}
	})
	return connected, func() {
		cancel(nil)
		watching.Wait()
		l.nc.RemoveStatusListener(lost)
	}
}

// awaitConnection waits until the connection is back.
func (l *Log) awaitConnection(ctx context.Context) {
	back := l.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer l.nc.RemoveStatusListener(back)
	if l.nc.IsConnected() || l.nc.IsClosed() {
		return
	}
	select {
	case <-back:
	case <-ctx.Done():
	}
}
