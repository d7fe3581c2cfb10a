//go:build !linux

package keeper

import (
	"context"
	"errors"
	"time"

	"code.wake.dev/wake/internal/process"
)

// errSystem says that there are no keepers here.
var errSystem = errors.New("keeper: only on Linux")

// Keeper is a keeper; there are none here.
type Keeper struct{ process.Direct }

// Fence returns "".
func (*Keeper) Fence() Fence { return "" }

// Stood returns 0.
func (*Keeper) Stood() time.Duration { return 0 }

// Gone returns nil.
func (*Keeper) Gone() <-chan struct{} { return nil }

// Watch does nothing.
func (*Keeper) Watch(func(State)) {}

// Extend does nothing.
func (*Keeper) Extend(_, _ time.Duration) error { return errSystem }

// Leave does nothing.
func (*Keeper) Leave() {}

// Quit does nothing.
func (*Keeper) Quit(time.Duration) error { return nil }

// Tail is what a keeper has left; there are none here.
type Tail struct{ process.Direct }

// Ended reports false.
func (*Tail) Ended(string) bool { return false }

// Client is the process of a simulated machine; there are none here.
type Client struct{}

// Shelf has the keepers of a runner; there are none here.
type Shelf struct{}

// NewShelf fails: programs run as children of the runner.
func NewShelf(context.Context, ShelfConfig) (*Shelf, error) { return nil, errSystem }

// Fence returns "".
func (*Shelf) Fence() Fence { return "" }

// Means returns "".
func (*Shelf) Means() string { return "" }

// Bounds reports false.
func (*Shelf) Bounds() bool { return false }

// Open fails.
func (*Shelf) Open(context.Context, Label, int64, time.Duration, time.Duration) (*Keeper, error) {
	return nil, errSystem
}

// Mark does nothing.
func (*Shelf) Mark(Label) error { return nil }

// Find finds nothing.
func (*Shelf) Find(_, _, _ string) (Label, bool) { return Label{}, false }

// List returns nothing.
func (*Shelf) List() ([]Label, error) { return nil, nil }

// Attach fails.
func (*Shelf) Attach(context.Context, Label) (*Keeper, error) { return nil, ErrGone }

// Lives reports false.
func (*Shelf) Lives(context.Context, Label) bool { return false }

// Tail fails.
func (*Shelf) Tail(Label) (*Tail, error) { return nil, errSystem }

// SetAside fails.
func (*Shelf) SetAside(Label) (*Tail, error) { return nil, errSystem }

// Remove does nothing.
func (*Shelf) Remove(Label) error { return nil }

// Bytes returns 0.
func (*Shelf) Bytes() int64 { return 0 }

// Survey finds nothing.
func (*Shelf) Survey(context.Context) ([]Finding, error) { return nil, nil }

// Survey finds nothing.
func Survey(context.Context, string) ([]Finding, error) { return nil, nil }

// ProbeGroups finds none.
func ProbeGroups(context.Context, Fence) Groups { return Groups{} }

// Try fails.
func Try(context.Context, Fence, Groups) error { return errSystem }
