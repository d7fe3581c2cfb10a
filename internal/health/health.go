// Package health knows what keeps the parts of a process from their work.
package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Trouble is why a part can't do its work at the moment. The part goes on trying.
type Trouble struct {
	Part  string    // such as "recorder"
	Err   error     // the latest
	Since time.Time // when it began
}

// Board has the troubles of a process. Its methods may be called by many goroutines.
type Board struct {
	logger *slog.Logger

	mu       sync.Mutex
	troubles map[string]Trouble
	changed  chan struct{} // closed at the next change
}

// NewBoard returns a board without troubles. Each is logged when it begins and when it is over.
func NewBoard(logger *slog.Logger) *Board {
	return &Board{logger: logger, troubles: map[string]Trouble{}, changed: make(chan struct{})}
}

// Set notes why a part can't work, or with nil that it can.
func (b *Board) Set(part string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old, ill := b.troubles[part]
	switch {
	case err == nil && !ill:
		return
	case err == nil:
		delete(b.troubles, part)
		b.logger.Info("works again", slog.String("part", part), slog.Duration("after", time.Since(old.Since).Round(time.Millisecond)))
	case !ill:
		b.troubles[part] = Trouble{Part: part, Err: err, Since: time.Now()}
		b.logger.Warn("doesn't work at the moment, and goes on trying", slog.String("part", part), slog.Any("error", err))
	case old.Err.Error() == err.Error():
		return
	default:
		old.Err = err
		b.troubles[part] = old
	}
	close(b.changed)
	b.changed = make(chan struct{})
}

// Troubles returns what keeps parts from their work, by part.
func (b *Board) Troubles() []Trouble {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.SortedFunc(maps.Values(b.troubles), func(x, y Trouble) int { return cmp.Compare(x.Part, y.Part) })
}

// Err says everything that doesn't work, or is nil.
func (b *Board) Err() error {
	var all []string
	for _, t := range b.Troubles() {
		all = append(all, fmt.Sprintf("%s: %v", t.Part, t.Err))
	}
	if len(all) == 0 {
		return nil
	}
	return errors.New(strings.Join(all, "; "))
}

// Changed returns a channel that is closed at the next change.
func (b *Board) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// How long to wait before a part that failed is begun again.
const (
	firstPause = 100 * time.Millisecond
	longPause  = 10 * time.Second
)

// Keep runs a part, and begins it again when it fails, after a pause that grows, until ctx
// ends. It returns an error that final says won't go away. A part that hasn't failed for the
// longest pause works.
func (b *Board) Keep(ctx context.Context, part string, final func(error) bool, run func(context.Context) error) error {
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		begun := time.Now()
		well := time.AfterFunc(longPause, func() { b.Set(part, nil) })
		err := run(ctx)
		well.Stop()
		switch {
		case ctx.Err() != nil && !final(err), err == nil:
			b.Set(part, nil)
			return nil
		case final(err):
			return err
		case time.Since(begun) > longPause:
			pause = firstPause
		}
		b.logger.Warn("failed, and begins again", slog.String("part", part), slog.Duration("in", pause), slog.Any("error", err))
		b.Set(part, err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}
