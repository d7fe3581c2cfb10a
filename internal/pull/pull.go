// Package pull takes messages from the pull consumers of a stream.
//
// The client has iterators for that. They keep to themselves what a heartbeat
// says, can't be stopped while the server is away, or hold a lock while they wait
// for it.
package pull

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// ErrGap means that a consumer skipped something: it has to be set to where its
// reader is.
var ErrGap = errors.New("the consumer jumped")

// ErrUnanswered means that the server doesn't serve the consumer any more, or
// that it is unknown whether it does.
var ErrUnanswered = errors.New("no answer from the server")

// How messages are pulled. A consumer that says nothing for two heartbeats is
// taken for lost.
const (
	// Expiry is how long the server heeds a request.
	Expiry    = 10 * time.Second
	heartbeat = 2 * time.Second
)

// Puller takes messages from a consumer, in order and without gap, or fails with
// [ErrGap]. From heartbeats it knows how much was delivered, be it to another
// reader, as to a request of an earlier one that the server hasn't forgotten yet.
// Without that a gap at the end of the stream would go unnoticed. It is used by
// one goroutine.
type Puller struct {
	nc      *nats.Conn
	request string // subject
	most    int    // messages to ask for ahead
	inbox   string
	sub     *nats.Subscription
	in      chan *nats.Msg

	asked     int    // messages that are still to come for our requests
	delivered uint64 // consumer sequence of the last message
}

// Message is a message of a consumer.
type Message struct {
	*nats.Msg

	Pos     uint64 // in the stream
	Time    time.Time
	Pending uint64 // messages behind it
}

// New begins to take messages from a consumer that has delivered none yet. It asks
// for most of them ahead.
func New(nc *nats.Conn, stream, consumer string, most int) (*Puller, error) {
	p := &Puller{
		nc: nc, most: most, inbox: nc.NewInbox(),
		request: "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + consumer,
		in:      make(chan *nats.Msg, 2*most+16), // messages and what is said about requests
	}
	sub, err := nc.ChanSubscribe(p.inbox, p.in)
	if err != nil {
		return nil, err
	}
	p.sub = sub
	return p, nil
}

// Stop ends the puller before anything else is sent on the connection.
func (p *Puller) Stop() { _ = p.sub.Unsubscribe() } // fails if the connection is gone

// Next waits for the next message. It fails with [ErrGap], [ErrUnanswered], the
// cause of ctx, or what the connection says.
func (p *Puller) Next(ctx context.Context) (Message, error) {
	for {
		if err := p.askMore(); err != nil {
			return Message{}, err
		}
		in, err := p.receiveNext(ctx)
		if err != nil {
			return Message{}, err
		}
		if m, ok, err := p.readMessage(in); ok || err != nil {
			return m, err
		}
	}
}

// Come returns the next message, if it has come, and fails as [Puller.Next] does.
func (p *Puller) Come() (m Message, ok bool, err error) {
	for {
		if err := p.askMore(); err != nil {
			return Message{}, false, err
		}
		select {
		case in := <-p.in:
			if m, ok, err := p.readMessage(in); ok || err != nil {
				return m, ok, err
			}
		default:
			return Message{}, false, nil
		}
	}
}

// readMessage tells a message from what is said about requests.
func (p *Puller) readMessage(in *nats.Msg) (m Message, ok bool, err error) {
	if in.Reply == "" { // nowhere to acknowledge it
		return Message{}, false, p.handleStatus(in.Header.Get("Status"), in.Header)
	}
	m, err = p.acceptMessage(in)
	return m, err == nil, err
}

// askMore keeps at least half of what may be asked for on order.
func (p *Puller) askMore() error {
	if p.asked > p.most/2 {
		return nil
	}
	n := p.most - p.asked
	body, err := json.Marshal(struct {
		Batch     int           `json:"batch"`
		Expires   time.Duration `json:"expires"`
		Heartbeat time.Duration `json:"idle_heartbeat"`
	}{n, Expiry, heartbeat})
	if err != nil {
		return err
	}
	p.asked += n
	return p.nc.PublishRequest(p.request, p.inbox, body)
}

func (p *Puller) receiveNext(ctx context.Context) (*nats.Msg, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	select {
	case m := <-p.in:
		return m, nil
	default:
	}
	silence := time.NewTimer(2*heartbeat + heartbeat/2)
	defer silence.Stop()
	select {
	case m := <-p.in:
		return m, nil
	case <-silence.C:
		return nil, fmt.Errorf("%w: the consumer is silent", ErrUnanswered)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// handleStatus deals with what the server says about our requests.
func (p *Puller) handleStatus(status string, h nats.Header) error {
	switch status {
	case "100": // heartbeat
		if h.Get("Nats-Last-Consumer") != strconv.FormatUint(p.delivered, 10) {
			return ErrGap
		}
		return nil
	case "408": // a request expired
		left, err := strconv.Atoi(h.Get("Nats-Pending-Messages"))
		if err != nil {
			return fmt.Errorf("%w: %s", ErrUnanswered, h.Get("Description"))
		}
		p.asked = max(0, p.asked-left)
		return nil
	default:
		return fmt.Errorf("%w: %s %s", ErrUnanswered, status, h.Get("Description"))
	}
}

func (p *Puller) acceptMessage(m *nats.Msg) (Message, error) {
	meta, err := m.Metadata()
	if err != nil {
		return Message{}, err
	}
	p.asked--
	p.delivered++
	if meta.Sequence.Consumer != p.delivered {
		return Message{}, ErrGap
	}
	return Message{Msg: m, Pos: meta.Sequence.Stream, Time: meta.Timestamp, Pending: meta.NumPending}, nil
}
