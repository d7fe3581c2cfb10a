package codex_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/process/processtest"
	"code.wake.dev/wake/pkg/wire"
)

// What a session tells of its program's end comes behind what the program said last, also where the runner has died in between, and the
// journal was given up to there.
func TestAttachAtTheEnd(t *testing.T) {
	run := func(t *testing.T, leaves bool) (lines []string) {
		t.Helper()
		host := new(processtest.Keeper)
		defer host.Close()
		p := newPlace(t)
		gate := filepath.Join(p.home, "go")
		var log processtest.Record
		for over, sessions := false, 1; !over; sessions++ {
			r := p.request("begin item_1 make\nsay One.\nawait " + gate + "\ndie 3")
			r.Host, r.Resume = host, sessions > 1
			for _, e := range log.Events {
				if b, ok := e.Payload.(*wire.SessionBound); ok {
					r.SessionID = b.NewSession
				}
			}
			codex := provider(t)
			codex.RestEvery(1)
			s, err := codex.Start(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			left := make(chan struct{})
			log.Add(t, s.Events(), func(int) bool {
				if log.Events[len(log.Events)-1].Type() != wire.TypeAgentText {
					return false
				}
				go func() { // the last line was taken by then
					defer close(left)
					<-time.After(200 * time.Millisecond)
					if leaves && sessions == 1 {
						s.(agent.Leaver).Leave()
					}
					if err := touch(gate); err != nil {
						t.Error(err)
					}
				}()
				return false
			})
			if sessions == 1 {
				<-left
			}
			over = log.Events[len(log.Events)-1].Type() == wire.TypeAgentError || sessions == 3
			_ = s.Close()
		}
		for _, e := range log.Events {
			lines = append(lines, render(e))
		}
		return lines
	}
	want := run(t, false)
	if last := want[len(want)-1]; !strings.HasPrefix(last, "agent:error") {
		t.Fatalf("it did\n%s", strings.Join(want, "\n"))
	}
	if diff := cmp.Diff(want, run(t, true)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
