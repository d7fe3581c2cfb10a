package deliver

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nicholas-fedor/shoutrrr/pkg/types"
)

// deafService never answers the first calls.
type deafService struct {
	types.Service

	deaf    int64 // how many
	calls   *atomic.Int64
	release <-chan struct{}
}

func (s deafService) Send(string, *types.Params) error {
	if s.calls.Add(1) <= s.deaf {
		<-s.release
	}
	return nil
}

// A service that never answers a call gets another one some minutes later, and then what comes next, but not without end.
func TestChatNeverAnswers(t *testing.T) {
	send := func(t *testing.T, c *chat, id string) error {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return c.sendNotification(ctx, Notification{ID: id, Text: id})
	}
	for deaf, want := range map[int64]int64{1: 3, 100: maxStuck + 1} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			defer close(release)
			s := deafService{deaf: deaf, calls: new(atomic.Int64), release: release}
			c := &chat{locate: func() (types.Service, error) { return s, nil }}
			tries := 0
			for begun := time.Now(); time.Since(begun) < 2*time.Hour; tries++ {
				err := send(t, c, "first")
				if err == nil {
					break
				}
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
				<-time.After(time.Minute)
			}
			if deaf == 1 {
				if err := send(t, c, "second"); err != nil || tries > 6 {
					t.Errorf("%v after %d tries", err, tries)
				}
			}
			if n := s.calls.Load(); n != want {
				t.Errorf("%d calls of which %d aren't answered, want %d", n, deaf, want)
			}
		})
	}
}
