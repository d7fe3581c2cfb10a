package pull

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// ErrDisconnected is the cause of the end of a context of [Connected].
var ErrDisconnected = errors.New("the connection to the server was lost")

// Connected returns a context that ends when the connection is lost: what a
// consumer does after that is unknown. Release must be called.
func Connected(ctx context.Context, nc *nats.Conn) (connected context.Context, release func()) {
	connected, cancel := context.WithCancelCause(ctx)
	lost := nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-lost:
			cancel(ErrDisconnected)
		case <-connected.Done():
		}
	})
	return connected, func() {
		cancel(nil)
		watching.Wait()
		nc.RemoveStatusListener(lost)
	}
}

// AwaitConnection waits until the connection is back, or closed, or ctx ends.
func AwaitConnection(ctx context.Context, nc *nats.Conn) {
	back := nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer nc.RemoveStatusListener(back)
	if nc.IsConnected() || nc.IsClosed() {
		return
	}
	select {
	case <-back:
	case <-ctx.Done():
	}
}

// Sleep waits for d or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
