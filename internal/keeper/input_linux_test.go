package keeper_test

import (
	"bytes"
	"testing"
	"time"

	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/internal/process"
)

// TestInputWhileFull has a runner write to a program with a full journal: the keeper still hears the runner, which makes room.
func TestInputWhileFull(t *testing.T) {
	each(t, func(t *testing.T, fence keeper.Fence) {
		b := open(t, fence, func(c *keeper.Config) { c.Limit = 400 << 10 })
		news := make(chan keeper.State, 100)
		b.keeper.Watch(func(s keeper.State) { news <- s })
		p := b.start(process.Config{Name: "agent", Journal: true, Argv: []string{"/bin/sh", "-c", "head -c 2000000 /dev/zero; echo x > $DIR/mark"}})
		if s := <-news; s.Full == "" {
			t.Fatal(s)
		}
		if _, err := p.Stdin.Write(append(bytes.Repeat([]byte("a"), 100<<10), '\n')); err != nil {
			t.Fatal(err)
		}
		limit := time.After(30 * time.Second)
		var end uint64
		for b.mark("mark") == "" {
			select {
			case f := <-p.Frames:
				end = f.Offset + uint64(len(f.Data))
				p.Rested(process.Rest{Offset: end})
			case <-limit:
				t.Fatal("it stands still at", end)
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
}
