package eventlog_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
)

// Readers wait for a server that is away, and say so, but not each of them.
func TestReadersTellThatTheyWait(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t)
		nc := s.Conn(t, nats.ReconnectBufSize(-1))
		logtest.Init(t, nc, topology.Config{})
		said := new(logtest.Output)
		log, err := eventlog.Open(t.Context(), nc, eventlog.Options{Logger: slog.New(slog.NewTextHandler(said, nil))})
		if err != nil {
			t.Fatal(err)
		}
		s.Stop()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		done := make(chan error)
		for range 5 {
			go func() {
				for _, err := range log.Read(ctx, eventlog.Query{Run: "r1"}) {
					done <- err
					return
				}
				done <- nil
			}()
		}
		for range 5 {
			if err := <-done; err == nil {
				t.Error("it could be read")
			}
		}
		if n := strings.Count(said.String(), "waiting for the server"); n != 1 {
			t.Errorf("told %d times:\n%s", n, said)
		}
		s.Start(t)
	})
}
