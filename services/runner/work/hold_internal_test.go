package work

import (
	"log/slog"
	"testing"

	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/pkg/wire"
)

// TestEndedTwice ends the tending of a keeper that is given up, and then has no keeper: nothing could be begun in its
// place.
func TestEndedTwice(t *testing.T) {
	t.Parallel()
	stopped := 0
	h := &hold{
		exec:   &execution{cfg: &Config{Health: health.NewBoard(slog.New(slog.DiscardHandler))}, offer: &wire.NodeOffer{}},
		keeper: &keeper.Keeper{}, stop: func() { stopped++ },
	}
	h.stopTending()
	h.keeper = nil
	h.stopTending()
	if stopped != 1 {
		t.Errorf("stopped %d times", stopped)
	}
}
