package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
)

// An event that the server refuses for good is found soon, also while other lanes have something to store all the time.
func TestRefusedAmongOthers(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{Lanes: 4, BlobLimit: 1 << 20})
	p.withStream(func(c *jetstream.StreamConfig) { c.MaxMsgSize = 8 << 10 })
	busy, stop := context.WithCancel(t.Context())
	defer stop()
	var others sync.WaitGroup
	defer others.Wait()
	for i := range 24 {
		w := p.claim(fmt.Sprint("r", i), "n")
		others.Go(func() {
			for busy.Err() == nil {
				if _, err := w.Append(t.Context(), text("x"), text("y"), text("z")); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	bad := p.claim("bad", "n")
	for range 5 {
		appendTo(t, bad, text("fine"), text("too"))
	}
	limited, end := context.WithTimeout(t.Context(), 20*time.Second)
	defer end()
	_, err := bad.Append(limited, text("a"), text(strings.Repeat("x", 20<<10)), text("c"))
	stop()
	if !errors.Is(err, eventlog.ErrFenced) {
		t.Errorf("Append of an event that is too large: %v", err)
	}
}
