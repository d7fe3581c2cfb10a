package runner_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// blocked returns a folder for runs in which those of these ids can't get one: a
// file stands in the way.
func (b *bench) blocked(ids ...string) func(*runner.Config) {
	b.t.Helper()
	dir := b.t.TempDir()
	for _, id := range ids {
		if err := os.WriteFile(filepath.Join(dir, id), []byte("in the way"), 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
	return func(c *runner.Config) { c.Workspaces = dir }
}

// runsWaiting returns how many requests for runs haven't been acknowledged.
func (b *bench) runsWaiting() uint64 {
	b.t.Helper()
	c, err := b.log.JetStream().Consumer(b.t.Context(), subjects.Default.QueueStream(), subjects.RunsConsumer)
	if err != nil {
		b.t.Fatal(err)
	}
	i := c.CachedInfo()
	return i.NumPending + uint64(i.NumAckPending)
}

// A run whose folder no runner can make fails on record after some attempts, and is
// asked for no more; the record says what to do. What was sent to it is answered.
func TestFolderCannotBeMade(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &scripted{say: echo}
		b.runner("r1", p, b.blocked("run1"))
		start := time.Now()
		b.submit("run1", one)
		b.command("run1", wire.Command{Type: "send", Message: "hello"})
		state, entries := b.ended("run1")
		if took := time.Since(start); took < 10*time.Second || took > 3*time.Minute {
			t.Errorf("it took %s", took)
		}
		claims := count(entries, wire.TypeNodeClaimed) + count(entries, wire.TypeRunClaimed)
		if state.Result != wire.FlowStatusFailed || state.FlowName != "one" || claims < 3 || claims > 10 || len(p.started()) != 0 {
			t.Errorf("run ended as %s after %d claims:\n%s", state.Result, claims, story(entries))
		}
		for _, want := range []string{"run1", "r1", "start the run again"} {
			if !strings.Contains(state.Error, want) {
				t.Errorf("the reason doesn't tell of %q: %s", want, state.Error)
			}
		}
		<-time.After(10 * time.Minute)
		all := b.read("run1")
		if len(all) > len(entries)+1 || b.runsWaiting() != 0 {
			t.Errorf("%d requests wait; %d events since:\n%s", b.runsWaiting(), len(all)-len(entries), story(all))
		}
		if _, found := b.registered("run1"); found {
			t.Error("the run is still looked for")
		}
		if got := append(records(all), records(b.read("_"))...); len(got) != 1 || got[0].Accepted {
			t.Errorf("the message is on record as %+v", got)
		}
	})
}

// A runner that can make the folder begins a run that another one couldn't.
func TestFolderIsMadeByAnother(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		stop := b.runner("r1", &scripted{say: echo}, b.blocked("run1"))
		b.submit("run1", one)
		b.awaits("a claim", func() bool { return len(b.read("run1")) > 0 })
		b.runner("r2", &scripted{say: echo})
		<-time.After(2 * time.Second)
		stop()
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete || b.owner("run1") != "r2" {
			t.Errorf("run ended as %s with %s:\n%s", state.Result, b.owner("run1"), story(entries))
		}
	})
}

// A fork whose folder no runner can make fails on record, and nothing of its parent is
// open there.
func TestForkFolderCannotBeMade(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		var dir string
		b.runner("r1", gated(nil), func(c *runner.Config) { dir = c.Workspaces })
		b.submit("run1", one)
		b.until("run1", wire.TypeAgentStart)
		// From here on no folder can be made there: it is a file.
		if err := os.Rename(dir, dir+".away"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if r := b.tell(wire.Command{Type: "fork", RunID: "run1", NewID: "fork1"}); code(r) != "accepted" {
			t.Fatalf("%+v", r)
		}
		state, entries := b.ended("fork1")
		if state.Result != wire.FlowStatusFailed || !strings.Contains(state.Error, "start the run again") || state.VoidEvents != 0 {
			t.Errorf("the fork ended as %s, %q:\n%s", state.Result, state.Error, story(entries))
		}
		for node, n := range state.Nodes {
			if n.Open() {
				t.Errorf("%s is open", node)
			}
		}
		<-time.After(10 * time.Minute)
		if n := b.runsWaiting(); n != 0 {
			t.Errorf("%d requests wait", n)
		}
	})
}

// A command to an unknown run is recorded though there is always some
// request for a run that doesn't begin: it waits for none that came later.
func TestStrayBesideLaterRequests(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		var ids []string
		for i := range 20 {
			ids = append(ids, fmt.Sprintf("bad%d", i))
		}
		b.runner("r1", &scripted{say: echo}, b.blocked(ids...))
		b.submit(ids[0], one)
		<-time.After(time.Second)
		b.command("nobody", wire.Command{Type: "pause"})
		start := time.Now()
		for _, id := range ids[1:] {
			<-time.After(5 * time.Second)
			if len(records(b.read("_"))) > 0 {
				break
			}
			b.submit(id, one)
		}
		if took := time.Since(start); took > 90*time.Second {
			t.Errorf("it isn't on record after %s", took)
		}
	})
}

// Nor does it wait for ever for a request that was there before: that of a run
// that another runner acts for.
func TestStrayBesideRequestThatStays(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.session("other")
		other := b.schedule("run1", shared(one), "other")
		b.runner("r1", &scripted{say: echo})
		b.submit("run1", one)
		<-time.After(time.Second)
		b.command("nobody", wire.Command{Type: "pause"})
		start := time.Now()
		<-time.After(30 * time.Second)
		if n := len(records(b.read("_"))); n != 0 {
			t.Errorf("%d commands are on record, and the request may be for their run", n)
		}
		b.awaits("a record", func() bool { return len(records(b.read("_"))) == 1 || time.Since(start) > 10*time.Minute })
		if took := time.Since(start); took > 2*time.Minute {
			t.Errorf("it took %s", took)
		}
		b.giveBack(other.owner, "other")
		b.ended("run1")
	})
}

// A runner that doesn't see the shared folder of a run says so, and what to do.
func TestSharedWorkspaceElsewhere(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		r1 := b.process("r1", gated(nil))
		b.submit("run1", shared(one))
		b.until("run1", wire.TypeAgentStart)
		state := b.fold("run1", b.read("run1"))
		r1.kill()
		if err := os.RemoveAll(state.Workspace); err != nil {
			t.Fatal(err)
		}
		b.process("r2", &scripted{say: echo})
		state, _ = b.ended("run1")
		if want := "this runner has no " + state.Workspace; !strings.Contains(state.Error, want) {
			t.Errorf("the run ended with %q, want %q in it", state.Error, want)
		}
	})
}
