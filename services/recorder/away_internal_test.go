package recorder

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"code.wake.dev/wake/internal/health"
)

// A store that says nothing is a trouble after a while, and why questions get no answer; both are over when it answers again.
func TestSilentStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		board := health.NewBoard(slog.New(slog.DiscardHandler))
		r := &Recorder{c: Config{Health: board}, logger: slog.New(slog.DiscardHandler)}
		answer := make(chan error)
		go func() {
			answer <- r.retryStore(t.Context(), recording, func() error {
				<-time.After(time.Minute)
				return nil
			})
		}()
		<-time.After(storePatience - time.Second)
		if board.Err() != nil || r.awayStore(context.DeadlineExceeded) != "" {
			t.Errorf("told too early: %v", board.Err())
		}
		<-time.After(2 * time.Second)
		if board.Err() == nil || r.awayStore(context.DeadlineExceeded) == "" {
			t.Errorf("not told: %v", board.Err())
		}
		if r.awayStore(errors.New("defect")) != "" || r.awayStore(io.ErrUnexpectedEOF) == "" {
			t.Error("a defect is the store's, or a lost connection to its database isn't")
		}
		if err := <-answer; err != nil || board.Err() != nil {
			t.Errorf("%v, %v", err, board.Err())
		}
	})
}
