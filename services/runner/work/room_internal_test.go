package work

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/turn"
)

// TestAwaitsRoom begins something on a disk that has no room: it is begun when there is some, unless the execution is halted, or
// ends, before that. What fails for another reason fails at once.
func TestAwaitsRoom(t *testing.T) {
	t.Parallel()
	full := fmt.Errorf("keeper: %w", &os.PathError{Op: "mkdir", Path: "x", Err: syscall.ENOSPC})
	other, withdrawn := errors.New("another one"), errors.New("withdrawn")
	for name, c := range map[string]struct {
		during func(x *execution, cancel context.CancelCauseFunc)
		then   error // of what is begun once there is room
		want   error
		tries  int
	}{
		"room":      {want: nil, tries: 8},
		"other":     {then: other, want: other, tries: 8},
		"paused":    {during: func(x *execution, _ context.CancelCauseFunc) { x.halt.tellReason("paused") }, want: errHalted, tries: 4},
		"drained":   {during: func(x *execution, _ context.CancelCauseFunc) { x.cfg.Draining.Give() }, want: errHalted, tries: 4},
		"withdrawn": {during: func(_ *execution, cancel context.CancelCauseFunc) { cancel(withdrawn) }, want: withdrawn, tries: 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				board := health.NewBoard(slog.New(slog.DiscardHandler))
				x := &execution{cfg: &Config{Health: board, Draining: turn.NewSignal()}, offer: &wire.NodeOffer{RunID: "r", NodeID: "n", ExecID: "n#1"}}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				x.ctx = ctx
				if c.during != nil {
					time.AfterFunc(3*roomAgain+roomAgain/2, func() { c.during(x, cancel) })
				}
				tries := 0
				err := x.awaitRoom(func() error {
					if tries++; tries > 1 && board.Err() == nil {
						t.Error("health says nothing")
					}
					if tries < 8 {
						return full
					}
					return c.then
				})
				if !errors.Is(err, c.want) || tries != c.tries || board.Err() != nil {
					t.Errorf("%v after %d tries, health says %v", err, tries, board.Err())
				}
			})
		})
	}
}
