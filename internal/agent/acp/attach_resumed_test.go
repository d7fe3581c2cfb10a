package acp_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/acp"
	"code.wake.dev/wake/internal/process/processtest"
)

// What a session recovers while it is loaded is there once, at whatever event its runner died, and the agent is told of it. The next runner
// isn't given which calls the log had.
func TestAttachResumed(t *testing.T) {
	run := func(t *testing.T, dieAt int, rest bool) (lines []string, told string) {
		t.Helper()
		p := newPlace(t)
		if err := os.WriteFile(filepath.Join(p.home, "ours"), []byte("1"), 0o600); err != nil {
			t.Fatal(err)
		}
		host := new(processtest.Keeper)
		defer host.Close()
		var log processtest.Record
		for sessions, over := 1, false; !over; sessions++ {
			if sessions > 100 {
				t.Fatal("it doesn't get on")
			}
			r := p.request(t, "!load\n!knows c1 c2? c3\n--\nsay Hi.")
			r.Host, r.Resume = host, true
			if sessions == 1 {
				r.Calls = agent.Calls{Ended: []string{"c1"}}
				r.Facts = []agent.Fact{{Mark: "c1", Text: "- c1 has ended"}}
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
				if added != dieAt || sessions != 1 || !host.Has("agent") {
					return false
				}
				s.(agent.Leaver).Leave()
				return true
			})
			_ = s.Close()
		}
		for _, e := range log.Events {
			lines = append(lines, render(e))
		}
		return lines, p.read(t, "prompts")
	}
	want, wantTold := run(t, -1, false)
	if !strings.Contains(strings.Join(want, "\n"), "tool:intent c2") || !strings.Contains(wantTold, "outcome is unknown") {
		t.Fatalf("it did\n%s\nand was told %q", strings.Join(want, "\n"), wantTold)
	}
	t.Logf("undisturbed:\n%s", strings.Join(want, "\n"))
	for _, rest := range []bool{false, true} {
		for dieAt := 1; dieAt < len(want); dieAt++ {
			t.Run(fmt.Sprintf("%d rest %v", dieAt, rest), func(t *testing.T) {
				got, told := run(t, dieAt, rest)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if told != wantTold {
					t.Errorf("it was told %q, want %q", told, wantTold)
				}
			})
		}
	}
}
