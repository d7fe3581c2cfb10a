// Package processtest is a host of programs for tests.
package processtest

import (
	"bytes"
	"errors"
	"sync"
	"time"

	"code.wake.dev/wake/internal/process"
)

// Keeper holds programs in the place of sessions that come and go, and keeps what they say: a [process.Host] as keepers are,
// in the process of a test. The zero value is ready.
type Keeper struct {
	mu       sync.Mutex
	programs map[string]*kept
	pumps    sync.WaitGroup
}

// Has implements [process.Host].
func (k *Keeper) Has(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.programs[name] != nil
}

// Forget implements [process.Host].
func (*Keeper) Forget(string) {}

// Start implements [process.Host].
func (k *Keeper) Start(c process.Config) (*process.Process, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	x, attached := k.programs[c.Name], k.programs[c.Name] != nil
	if !attached {
		p, err := process.Start(c)
		if err != nil {
			return nil, err
		}
		x = &kept{Process: p}
		if k.programs == nil {
			k.programs = map[string]*kept{}
		}
		k.programs[c.Name] = x
		k.pumps.Go(x.pump)
	}
	return x.connect(attached), nil
}

// Close ends all programs.
func (k *Keeper) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, x := range k.programs {
		errs = append(errs, x.End(time.Second))
		_ = x.Close()
	}
	k.pumps.Wait()
	return errors.Join(errs...)
}

// LastRest returns where a program rests.
func (k *Keeper) LastRest(name string) process.Rest {
	k.mu.Lock()
	x := k.programs[name]
	k.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.last
}

// LeaveState replaces what a program's session has left at its resting point.
func (k *Keeper) LeaveState(name string, state []byte) {
	k.mu.Lock()
	x := k.programs[name]
	k.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.last.State = state
}

// kept is a program and its journal.
type kept struct {
	*process.Process

	mu     sync.Mutex
	frames []process.Frame
	end    uint64
	over   bool
	last   process.Rest
	conn   *conn
}

// conn is what one session has of a program.
type conn struct {
	*kept

	frames chan process.Frame
	gone   bool
}

// pump keeps what the program says.
func (x *kept) pump() {
	for f := range x.Frames {
		if f.Direction != process.Live {
			x.mu.Lock()
			x.add(f.Direction, f.Data)
			x.mu.Unlock()
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
	if x.conn != nil && !x.conn.gone {
		x.conn.gone = true
		close(x.conn.frames)
	}
}

func (x *kept) add(d process.Direction, data []byte) {
	f := process.Frame{Offset: x.end, Direction: d, At: 1, Data: bytes.Clone(data)}
	x.end += uint64(len(data))
	x.frames = append(x.frames, f)
	if d != process.In && x.conn != nil && !x.conn.gone {
		x.conn.frames <- f
	}
}

func (x *kept) connect(attached bool) *process.Process {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := &conn{kept: x, frames: make(chan process.Frame, 1<<12)}
	x.conn = c
	if attached {
		for _, f := range x.frames {
			if end := f.Offset + uint64(len(f.Data)); end > x.last.Offset {
				skip := max(f.Offset, x.last.Offset) - f.Offset
				f.Offset, f.Data = f.Offset+skip, f.Data[skip:]
				c.frames <- f
			}
		}
	}
	c.frames <- process.Frame{Offset: x.end, Direction: process.Live}
	if !attached {
		for _, f := range x.frames {
			c.frames <- f
		}
	}
	if x.over {
		c.gone = true
		close(c.frames)
	}
	return &process.Process{Backend: c, Stdin: c, Frames: c.frames, Attached: attached, Last: x.last}
}

// Write is the program's stdin.
func (c *conn) Write(line []byte) (int, error) {
	c.mu.Lock()
	if c.gone {
		c.mu.Unlock()
		return 0, errors.New("gone")
	}
	c.add(process.In, line)
	c.mu.Unlock()
	return c.Stdin.Write(line)
}

// Close closes that.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone && c.Stdin != nil {
		return c.Stdin.Close()
	}
	return nil
}

// Rested implements [process.Backend].
func (c *conn) Rested(r process.Rest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone {
		c.last = r
	}
}

// End implements [process.Backend].
func (c *conn) End(grace time.Duration) error {
	c.mu.Lock()
	gone := c.gone && !c.over
	c.mu.Unlock()
	if gone {
		return nil
	}
	return c.Process.End(grace)
}

// Leave implements [process.Backend].
func (c *conn) Leave() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone {
		c.gone = true
		close(c.frames)
	}
	return true
}
