package acp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/acp"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// keeper holds programs in the place of sessions that come and go, and keeps what they say.
type keeper struct {
	mu       sync.Mutex
	programs map[string]*kept
}

func (k *keeper) Has(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.programs[name] != nil
}

func (k *keeper) Forget(string) {}

func (k *keeper) Start(c process.Config) (*process.Process, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	x, attached := k.programs[c.Name], k.programs[c.Name] != nil
	if !attached {
		p, err := process.Start(c)
		if err != nil {
			return nil, err
		}
		x = &kept{Process: p}
		k.programs[c.Name] = x
		go x.pump()
	}
	return x.connect(attached), nil
}

// end ends all programs.
func (k *keeper) end(t *testing.T) {
	for _, x := range k.programs {
		if err := x.End(time.Second); err != nil {
			t.Error(err)
		}
		_ = x.Close()
	}
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
	for f := range x.Process.Frames {
		if f.Direction != process.Live {
			x.mu.Lock()
			x.add(f.Direction, f.Data)
			x.mu.Unlock()
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
	if !x.conn.gone {
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

func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone && c.Stdin != nil {
		return c.Stdin.Close()
	}
	return nil
}

func (c *conn) Rested(r process.Rest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone {
		c.last = r
	}
}

func (c *conn) End(grace time.Duration) error {
	c.mu.Lock()
	gone := c.gone && !c.over
	c.mu.Unlock()
	if gone {
		return nil
	}
	return c.Process.End(grace)
}

func (c *conn) Leave() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone {
		c.gone = true
		close(c.frames)
	}
	return true
}

// A session whose runner dies is gone on with by the next one, at whatever event it died: nothing is lost, nothing there
// twice, the agent is asked nothing twice and its commands run once.
func TestAttach(t *testing.T) {
	script := strings.Join([]string{
		"think Hm.", "say One.", "plan a, b", `call c1 execute {"command":"ls"}`, "update c1 in_progress", "update c1 completed x",
		`ask c2 edit {"path":"b.txt"}`, "update c2 completed y", "write b.txt text", "run . echo ran >> ran; cat b.txt", "say Two.", "usage 10 20 0.5", "tokens 3 4",
	}, "\n")
	run := func(t *testing.T, dieAt int, rest bool) (lines []string, sessions int, p place) {
		t.Helper()
		p = newPlace(t)
		host := &keeper{programs: map[string]*kept{}}
		defer host.end(t)
		var log []*wire.Event
		var mark [2]uint64 // of the journal: offset, index
		for over := false; !over; {
			sessions++
			if sessions > 100 {
				t.Fatal("it doesn't get on")
			}
			r := p.request(t, script)
			r.Host, r.Decided = host, map[string]*wire.PermissionDecided{}
			r.Options.PermissionMode, r.Resume = "approval", sessions > 1
			r.Options.Decide = func(context.Context, agent.Permission) agent.Verdict { return agent.Verdict{Allow: true, By: "ann"} }
			for _, e := range log {
				if d, ok := e.Payload.(*wire.PermissionDecided); ok {
					r.Decided[e.CallID] = d
				}
				if e.SessionID != "" {
					r.SessionID = e.SessionID
				}
			}
			provider := &acp.Provider{Environ: os.Environ(), Grace: time.Second}
			if rest {
				provider.RestEvery(1)
			}
			s, err := provider.Start(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			seen := 0
			over = true
			for e, err := range s.Events() {
				if err != nil {
					t.Fatal(err)
				}
				at := [2]uint64{e.JournalOffset, uint64(e.JournalIndex)}
				if at[0] != 0 && (at[0] < mark[0] || at[0] == mark[0] && at[1] <= mark[1]) {
					continue // the log has it
				}
				if at[0] != 0 {
					mark = at
				}
				log = append(log, e)
				if seen++; seen == dieAt && host.Has("agent") {
					s.(agent.Leaver).Leave()
					over = false
					break
				}
			}
			_ = s.Close()
		}
		if x := host.programs["agent"]; rest && x.last.Offset == 0 {
			t.Error("it has never rested")
		}
		for _, e := range log {
			lines = append(lines, render(e))
		}
		return lines, sessions, p
	}
	want, _, _ := run(t, -1, false)
	if len(want) < 20 || !strings.HasPrefix(want[len(want)-1], "agent:complete") {
		t.Fatalf("it did\n%s", strings.Join(want, "\n"))
	}
	for _, rest := range []bool{false, true} {
		for dieAt := 1; dieAt < len(want); dieAt++ {
			t.Run(fmt.Sprintf("%d rest %v", dieAt, rest), func(t *testing.T) {
				got, sessions, p := run(t, dieAt, rest)
				// A runner that dies behind a decision has said that the call begins, or the call's end says so.
				begun := func(line string) bool { return line == "tool:state c2 EXECUTING" }
				if diff := cmp.Diff(slices.DeleteFunc(slices.Clone(want), begun), slices.DeleteFunc(got, begun)); diff != "" {
					t.Errorf("in %d sessions (-want +got):\n%s", sessions, diff)
				}
				if ran, _ := os.ReadFile(filepath.Join(p.dir, "ran")); string(ran) != "ran\n" {
					t.Errorf("its command ran %q", ran)
				}
				if asked := p.read(t, "prompts"); strings.Count(asked, "\n") != 1 {
					t.Errorf("it was asked %q", asked)
				}
			})
		}
	}
}

// What another version has left can't be gone on with, and that is said.
func TestAttachOther(t *testing.T) {
	p := newPlace(t)
	host := &keeper{programs: map[string]*kept{}}
	defer host.end(t)
	r := p.request(t, "say One.\nhang")
	r.Host = host
	s := start(t, r)
	for e, err := range s.Events() {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type() == wire.TypeAgentTextDelta {
			s.(agent.Leaver).Leave()
			break
		}
	}
	state, _ := wire.Marshal(map[string]any{"version": 99})
	host.programs["agent"].last.State = state
	r.Resume = true
	got := drain(t, start(t, r), nil)
	if !slices.ContainsFunc(got, func(line string) bool { return strings.Contains(line, wire.ErrorJournalUnreadable) }) {
		t.Errorf("it did\n%s", strings.Join(got, "\n"))
	}
}

// A program that was asked nothing yet, since its runner died before, is lost: another one begins.
func TestAttachUnasked(t *testing.T) {
	p := newPlace(t)
	host := &keeper{programs: map[string]*kept{}}
	defer host.end(t)
	r := p.request(t, "say One.")
	if _, err := host.Start(process.Config{Name: "agent", Argv: []string{"sleep", "60"}, Journal: true}); err != nil {
		t.Fatal(err)
	}
	r.Host, r.Resume = host, true
	for e, err := range start(t, r).Events() {
		if !errors.Is(err, agent.ErrLost) {
			t.Errorf("it says %v, %v", e, err)
		}
	}
}
