package codex_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/process/processtest"
	"code.wake.dev/wake/pkg/wire"
)

// A session whose runner dies is gone on with by the next one, at whatever event it died, also in the turn of a message: nothing is
// lost, nothing is there twice, and Codex is asked nothing twice. So it is where the journal is given up after each line.
func TestAttach(t *testing.T) {
	run := func(t *testing.T, dieAt int, rests time.Duration) (lines []string, p place) {
		t.Helper()
		p = newPlace(t)
		gate := filepath.Join(p.home, "go")
		script := "think Hm.\nbegin item_1 make\nend item_1 0 ok\nawait " + gate + "\nsay One.\ntokens 10 0 1\n--\nsay Two.\nchange item_1 a.txt\ntokens 20 5 2"
		host := new(processtest.Keeper)
		defer host.Close()
		var log processtest.Record
		for over, sessions := false, 1; !over; sessions++ {
			if sessions > 100 {
				t.Fatal("it doesn't get on")
			}
			r := p.request(script)
			r.Host, r.Resume = host, sessions > 1
			taken := false
			for _, e := range log.Events {
				if b, ok := e.Payload.(*wire.SessionBound); ok {
					r.SessionID = b.NewSession
				}
				taken = taken || e.Type() == wire.TypeUserMessage
			}
			before := slices.Clone(log.Events)
			r.History = func(yield func(*wire.Event, error) bool) {
				for _, e := range before {
					if !yield(e, nil) {
						return
					}
				}
			}
			codex := provider(t)
			codex.RestEvery(rests)
			s, err := codex.Start(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if !taken { // the run's inbox gives it again
				if err := s.Send(t.Context(), agent.Message{CommandID: "cmd-1", Content: "And now?"}); err != nil {
					t.Fatal(err)
				}
			}
			if err := touch(gate); err != nil {
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
		for _, e := range log.Events {
			lines = append(lines, render(e))
		}
		return lines, p
	}
	want, _ := run(t, -1, 0)
	if len(want) < 15 || !strings.HasPrefix(want[len(want)-1], "agent:complete") {
		t.Fatalf("it did\n%s", strings.Join(want, "\n"))
	}
	for dieAt := 1; dieAt < len(want); dieAt++ {
		for _, rests := range []time.Duration{0, 1} {
			t.Run(fmt.Sprintf("%d, %d", dieAt, rests), func(t *testing.T) {
				got, p := run(t, dieAt, rests)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if asked := p.read(t, "prompts"); asked != "thread-1: Do it.\nthread-1: And now?\n" {
					t.Errorf("it was asked %q", asked)
				}
			})
		}
	}
}

// A turn that a message had cut short, for which its program was ended, is no failure for the session that goes on when the runner has died in
// the next turn, or before that has begun.
func TestAttachCut(t *testing.T) {
	for _, dieAt := range []wire.Type{wire.TypeUserMessage, wire.TypeTurnStart, wire.TypeAgentText, ""} {
		t.Run(string(dieAt), func(t *testing.T) {
			p := newPlace(t)
			gate := filepath.Join(p.home, "go")
			script := "say One.\nhang\n--\nsay Two.\nawait " + gate + "\nsay Three.\ntokens 20 5 2"
			host := new(processtest.Keeper)
			defer host.Close()
			var log processtest.Record
			start := func(resume bool) agent.Session {
				r := p.request(script)
				before := slices.Clone(log.Events)
				r.Host, r.Resume, r.History = host, resume, func(yield func(*wire.Event, error) bool) {
					for _, e := range before {
						if !yield(e, nil) {
							return
						}
					}
				}
				if resume {
					r.SessionID = "thread-1"
				}
				s, err := provider(t).Start(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			send := func(s agent.Session) {
				if err := s.Send(t.Context(), agent.Message{CommandID: "cmd-1", Content: "And now?", Interrupt: true}); err != nil {
					t.Error(err)
				}
			}
			s, told, dead := start(false), false, false
			log.Add(t, s.Events(), func(int) bool {
				e := log.Events[len(log.Events)-1]
				switch {
				case !told && e.Type() == wire.TypeAgentText:
					if told = true; dieAt == "" { // right behind the end of the program
						program, err := host.Start(process.Config{Name: "agent"})
						if err != nil {
							t.Fatal(err)
						}
						if err := program.End(time.Second); err != nil {
							t.Fatal(err)
						}
						dead = true
					} else {
						send(s)
					}
				case told && e.Type() == dieAt:
					dead = true
				}
				if dead {
					s.(agent.Leaver).Leave()
				}
				return dead
			})
			_ = s.Close()
			if err := touch(gate); err != nil {
				t.Fatal(err)
			}
			s = start(true)
			if dieAt == "" {
				for e, err := range s.Events() {
					if err != nil && !errors.Is(err, agent.ErrLost) || err == nil && e.Type() == wire.TypeAgentError {
						t.Errorf("it says %v, %v", e, err)
					}
				}
				return
			}
			log.Add(t, s.Events(), func(int) bool { return false })
			_ = s.Close()
			if last := render(log.Events[len(log.Events)-1]); !strings.HasPrefix(last, `agent:complete "Three."`) {
				t.Errorf("it ends with %s", last)
			}
			if asked := p.read(t, "prompts"); asked != "thread-1: Do it.\nthread-1: And now?\n" {
				t.Errorf("it was asked %q", asked)
			}
		})
	}
}

// A program that was asked nothing yet, since its runner died before, is lost: another one begins.
func TestAttachUnasked(t *testing.T) {
	host := new(processtest.Keeper)
	defer host.Close()
	if _, err := host.Start(process.Config{Name: "agent", Argv: []string{"sleep", "60"}, Journal: true}); err != nil {
		t.Fatal(err)
	}
	r := newPlace(t).request("say One.")
	r.Host, r.Resume = host, true
	for e, err := range start(t, r).Events() {
		if !errors.Is(err, agent.ErrLost) {
			t.Errorf("it says %v, %v", e, err)
		}
	}
}
