package acp_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/acp"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/process/processtest"
	"code.wake.dev/wake/pkg/wire"
)

// A session whose runner dies is gone on with by the next one, at whatever event it died: nothing is lost, nothing there
// twice, the agent is asked nothing twice and its commands run once.
func TestAttach(t *testing.T) {
	script := strings.Join([]string{
		"think Hm.", "say One.", "plan a, b", `call c1 execute {"command":"ls"}`, "update c1 in_progress", "update c1 completed x",
		`ask c2 edit {"path":"b.txt"}`, "update c2 completed y", "write b.txt text", "run . echo ran >> ran; cat b.txt", "say Two.", "usage 10 20 0.5", "tokens 3 4",
	}, "\n")
	rested := 0 // not in each session: one whose lines are all there at once comes to no rest
	run := func(t *testing.T, dieAt int, rest bool) (lines []string, sessions int, p place) {
		t.Helper()
		p = newPlace(t)
		host := new(processtest.Keeper)
		defer host.Close()
		var log processtest.Record
		for over := false; !over; {
			sessions++
			if sessions > 100 {
				t.Fatal("it doesn't get on")
			}
			r := p.request(t, script)
			r.Host, r.Decided = host, map[string]*wire.PermissionDecided{}
			r.Options.PermissionMode, r.Resume = "approval", sessions > 1
			r.Options.Decide = func(context.Context, agent.Permission) agent.Verdict { return agent.Verdict{Allow: true, By: "ann"} }
			for _, e := range log.Events {
				if d, ok := e.Payload.(*wire.PermissionDecided); ok {
					r.Decided[e.CallID] = d
				}
				if b, ok := e.Payload.(*wire.SessionBound); ok {
					r.SessionID = b.NewSession
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
			over = log.Add(t, s.Events(), func(added int) bool {
				if added != dieAt || !host.Has("agent") {
					return false
				}
				s.(agent.Leaver).Leave()
				return true
			})
			_ = s.Close()
		}
		if host.LastRest("agent").Offset != 0 {
			rested++
		}
		for _, e := range log.Events {
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
	if rested < len(want)/2 {
		t.Errorf("%d of %d sessions rested", rested, len(want)-1)
	}
}

// What another version has left can't be gone on with, and that is said.
func TestAttachOther(t *testing.T) {
	p := newPlace(t)
	host := new(processtest.Keeper)
	defer host.Close()
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
	host.LeaveState("agent", state)
	r.Resume = true
	got := drain(t, start(t, r), nil)
	if !slices.ContainsFunc(got, func(line string) bool { return strings.Contains(line, wire.ErrorJournalUnreadable) }) {
		t.Errorf("it did\n%s", strings.Join(got, "\n"))
	}
}

// A program that was asked nothing yet, since its runner died before, is lost: another one begins.
func TestAttachUnasked(t *testing.T) {
	p := newPlace(t)
	host := new(processtest.Keeper)
	defer host.Close()
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
