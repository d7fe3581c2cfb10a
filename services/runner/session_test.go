package runner_test

import (
	"testing"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
)

// D-NORM N10: an agent whose session came back under another id goes on with that
// one, whatever its node began with.
func TestReboundSession(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		l := b.leave("run1", single, "r1")
		l.work(&wire.AgentStart{Prompt: wire.RawString("do it")}, &wire.TurnStart{})
		l.append(l.worker, &wire.Event{ExecID: "a#1", SessionID: "s2", Payload: &wire.SessionBound{OldSession: "s1", NewSession: "s2"}})
		p := &puppet{}
		b.runner("r1", p)
		entries := l.offer(wire.TypeNodeComplete)
		if r := p.asked()[0]; !r.Resume || r.SessionID != "s2" {
			t.Errorf("it was asked for %+v", r)
		}
		if s := b.fold("run1", b.read("run1")); s.AgentSessions["a"] != "s2" {
			t.Errorf("the session of a is %q:\n%s", s.AgentSessions["a"], story(entries))
		}
	})
}
