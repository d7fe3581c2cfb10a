package runner_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

const askFlow = `
name: asker
nodes:
  - {id: q, type: ask, input: {prompt: "Go on?"}}
`

// parks has a runner park what waits for ten seconds.
func parks(c *runner.Config) { c.ParkAfter = 10 * time.Second }

// parkedRun is what a registration says of a parked run.
type parkedRun struct {
	Runner   string `json:"runner"`
	Parked   int64  `json:"parked"`
	Due      int64  `json:"due"`
	Released uint64 `json:"released"`
}

// parked waits until a run is parked, and returns its registration.
func (b *bench) parked(id string) (reg parkedRun) {
	b.t.Helper()
	b.awaits(id+" is parked", func() bool {
		reg = b.registration(id)
		return reg.Parked > 0
	})
	return reg
}

func (b *bench) registration(id string) (reg parkedRun) {
	b.t.Helper()
	if value, found := b.registered(id); found {
		if err := wire.Unmarshal(value, &reg); err != nil {
			b.t.Fatal(err)
		}
	}
	return reg
}

// claims returns who has claimed a run, in order.
func claims(entries []eventlog.Entry) (runners []string) {
	for _, e := range entries {
		if p, ok := e.Event.Payload.(*wire.RunClaimed); ok {
			runners = append(runners, p.Runner)
		}
	}
	return runners
}

// A run that only sleeps has no owner, no lease and nothing in its runner but an alarm; it is woken when it is due, by the runner
// that parked it and no other one, and nothing on record says that it was interrupted.
func TestParked(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.process("r1", &scripted{say: echo}, parks)
		b.process("r2", &scripted{say: echo}, parks, func(c *runner.Config) { c.Pools = []string{"none"} })
		b.submit("run1", sleepFlow)
		waits := b.until("run1", wire.TypeNodeWaiting)
		due := waits[len(waits)-1].Event.Payload.(*wire.NodeWaiting).Until
		reg := b.parked("run1")
		if reg.Due != due || reg.Released == 0 {
			t.Errorf("it is parked until %d, not %d, of epoch %d", reg.Due, due, reg.Released)
		}
		state, entries := b.ended("run1")
		late := time.Duration(entries[len(entries)-1].Event.Timestamp-due) * time.Millisecond
		if state.Result != wire.FlowStatusComplete || late < 0 || late > 3*time.Second {
			t.Errorf("it ended as %s, %s late:\n%s", state.Result, late, story(entries))
		}
		if by := claims(entries); !slices.Equal(by, []string{reg.Runner, reg.Runner}) || count(entries, wire.TypeFlowResumed) != 0 {
			t.Errorf("claimed by %v, parked by %s:\n%s", by, reg.Runner, story(entries))
		}
		b.awaits("it isn't registered any more", func() bool { _, found := b.registered("run1"); return !found })
	})
}

// What a runner has parked is woken in time by another one, if that runner is gone, and by the same one after a restart, however
// late that is.
func TestParkedOutlivesItsRunner(t *testing.T) {
	for name, c := range map[string]struct {
		back string
		away time.Duration
	}{
		"another one":            {"r2", time.Minute},
		"the same one":           {"r1", time.Minute},
		"the same one, too late": {"r1", 30 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				r1 := b.process("r1", &scripted{say: echo}, parks)
				b.submit("run1", sleepFlow)
				reg := b.parked("run1")
				r1.kill()
				<-time.After(c.away)
				earliest := max(reg.Due, time.Now().UnixMilli())
				b.process(c.back, &scripted{say: echo}, parks)
				state, entries := b.ended("run1")
				late := time.Duration(entries[len(entries)-1].Event.Timestamp-earliest) * time.Millisecond
				if state.Result != wire.FlowStatusComplete || late < 0 || late > time.Minute {
					t.Errorf("it ended as %s, %s late:\n%s", state.Result, late, story(entries))
				}
				if by := claims(entries); !slices.Equal(by, []string{"r1", c.back}) || count(entries, wire.TypeFlowResumed) != 0 {
					t.Errorf("claimed by %v:\n%s", by, story(entries))
				}
			})
		})
	}
}

// The first of the runners that see a parked run as theirs has it, alone.
func TestParkedWokenByAll(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		r1 := b.process("r1", &scripted{say: echo}, parks)
		b.submit("run1", sleepFlow)
		b.parked("run1")
		r1.kill()
		for _, id := range []string{"r2", "r3", "r4"} {
			b.process(id, &scripted{say: echo}, parks)
		}
		state, entries := b.ended("run1")
		if state.Result != wire.FlowStatusComplete || len(claims(entries)) != 2 || state.VoidEvents != 0 {
			t.Errorf("it ended as %s, claimed by %v:\n%s", state.Result, claims(entries), story(entries))
		}
	})
}

// Commands find a parked run: each is obeyed within seconds, and the run is parked again.
func TestParkedObeys(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.process("r1", &scripted{say: echo}, parks)
		tell := func(c wire.Command) {
			t.Helper()
			begun := time.Now()
			if r := b.tell(c); code(r) != "accepted" {
				t.Errorf("%s: %+v", c.Type, r)
			}
			if took := time.Since(begun); took > 5*time.Second {
				t.Errorf("%s took %s", c.Type, took)
			}
		}
		b.submit("run1", askFlow)
		if reg := b.parked("run1"); reg.Due != 0 {
			t.Errorf("a question is due at %d", reg.Due)
		}
		tell(wire.Command{Type: "pause", RunID: "run1"})
		b.parked("run1")
		tell(wire.Command{Type: "fork", RunID: "run1", NewID: "fork1"})
		b.parked("run1")
		tell(wire.Command{Type: "resume", RunID: "run1"})
		b.parked("run1")
		b.parked("fork1")
		prompt := b.fold("run1", b.read("run1")).Nodes["q"].PromptID
		tell(wire.Command{Type: "reply", RunID: "run1", PromptID: prompt, Content: wire.RawString("yes")})
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete {
			t.Errorf("it ended as %s:\n%s", state.Result, story(entries))
		}
		tell(wire.Command{Type: "abort", RunID: "fork1"})
		if state, entries := b.ended("fork1"); state.Status != wire.RunAborted {
			t.Errorf("the fork ended as %s:\n%s", state.Status, story(entries))
		}
	})
}

// A command that comes while no runner is there wakes the run when one is.
func TestParkedObeysLater(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		r1 := b.process("r1", &scripted{say: echo}, parks)
		b.submit("run1", askFlow)
		b.parked("run1")
		r1.kill()
		b.command("run1", wire.Command{Type: "abort", RunID: "run1"})
		<-time.After(time.Hour)
		b.process("r2", &scripted{say: echo}, parks)
		if state, entries := b.ended("run1"); state.Status != wire.RunAborted {
			t.Errorf("it ended as %s:\n%s", state.Status, story(entries))
		}
	})
}

const besideFlow = `
name: beside
workspace: shared
nodes:
  - {id: s, type: sleep, input: {for: 1h}}
  - {id: a, type: agent, input: {prompt: work}}
`

// A run in which an agent is at work isn't parked, however long the agent says nothing.
func TestNotParkedAtWork(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		b.process("r1", gated(release), parks)
		b.submit("run1", besideFlow)
		b.until("run1", wire.TypeAgentStart)
		for range 50 {
			<-time.After(time.Second)
			if reg := b.registration("run1"); reg.Parked > 0 {
				t.Fatalf("it is parked: %+v", reg)
			}
		}
		close(release)
		b.until("run1", wire.TypeNodeComplete)
		b.parked("run1")
		if state, _ := b.ended("run1"); state.Result != wire.FlowStatusComplete {
			t.Errorf("it ended as %s", state.Result)
		}
	})
}

// A run waits for the run of a flow node: that may be parked, its parent isn't.
func TestParkedChild(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.process("r1", &scripted{say: echo}, parks)
		b.submit("run1", "name: parent\nnodes:\n  - id: sub\n    type: flow\n    input:\n      flow: {name: child, nodes: [{id: s, type: sleep, input: {for: 1h}}]}\n")
		b.parked("run1.sub#1")
		if reg := b.registration("run1"); reg.Parked != 0 {
			t.Errorf("the parent is parked: %+v", reg)
		}
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete {
			t.Errorf("it ended as %s:\n%s", state.Result, story(entries))
		}
	})
}

// park leaves a run that sleeps as its owner leaves it when it has parked it.
func (b *bench) park(id, by string, due time.Time, edits ...func(reg map[string]any)) {
	b.t.Helper()
	l := b.sleeps(id, by, due)
	reg := map[string]any{
		"run": id, "runner": by, "since": 1, "incarnation": b.log.Incarnation(), "process": by,
		"released": l.owner.Epoch(), "parked": time.Now().UnixMilli(), "due": due.UnixMilli(),
	}
	for _, edit := range edits {
		edit(reg)
	}
	value, err := wire.Marshal(reg)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.states().Put(b.t.Context(), subjects.Default.StateKey("runner", id), value); err != nil {
		b.t.Fatal(err)
	}
}

// Its owner may die between any two lines of parking and waking: the run is found.
func TestDiesWhileItParks(t *testing.T) {
	lease := func(b *bench) {
		t := b.t
		kv, err := b.log.JetStream().KeyValue(t.Context(), subjects.Default.LeasesBucket())
		if err != nil {
			t.Fatal(err)
		}
		value, err := wire.Marshal(map[string]any{"runner": "dead", "home": "dead", "process": "dead", "at": 1})
		if err == nil {
			_, err = kv.Create(t.Context(), subjects.Default.SessionKey("dead", "dead"), value)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		prepare func(b *bench)
		resumed int
	}{
		"registered as parked, the lease is there, and it is due": {func(b *bench) {
			b.park("run1", "dead", time.Now())
			lease(b)
		}, 0},
		"not registered as parked, the lease is there": {func(b *bench) {
			b.park("run1", "dead", time.Now().Add(time.Minute), func(reg map[string]any) {
				delete(reg, "parked")
				delete(reg, "released")
			})
			lease(b)
		}, 1},
		"woken: registered, not claimed": {func(b *bench) {
			b.park("run1", "dead", time.Now().Add(time.Minute), func(reg map[string]any) { delete(reg, "parked") })
		}, 1},
		"woken: claimed by a runner that is gone, still registered as parked by the one before": {func(b *bench) {
			b.park("run1", "dead", time.Now().Add(time.Minute), func(reg map[string]any) { reg["released"] = 0 })
		}, 1},
		"parked in another log": {func(b *bench) {
			b.park("run1", "dead", time.Now().Add(time.Minute))
			b.park("run2", "dead", time.Now().Add(24*time.Hour), func(reg map[string]any) { reg["incarnation"] = "another" })
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				c.prepare(b)
				b.process("r1", &scripted{say: echo}, parks)
				state, entries := b.ended("run1")
				if state.Result != wire.FlowStatusComplete || count(entries, wire.TypeFlowResumed) != c.resumed {
					t.Errorf("it ended as %s:\n%s", state.Result, story(entries))
				}
				if strings.HasPrefix(name, "parked in another") {
					b.awaits("the registration of another log is gone", func() bool { _, found := b.registered("run2"); return !found })
				}
			})
		})
	}
}

// An owner that was stopped for so long that another one has taken its run doesn't park it: the other one would be forgotten
// if it died.
func TestLatePark(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.process("r1", &scripted{say: echo}, parks)
		b.submit("run1", sleepFlow)
		b.until("run1", wire.TypeNodeWaiting)
		b.register("run1", "other") // as the next owner does first
		<-time.After(time.Minute)
		if reg := b.registration("run1"); reg.Runner == "r1" && reg.Parked > 0 && reg.Released == 0 || reg.Runner == "other" && reg.Parked > 0 {
			t.Errorf("%+v", reg)
		}
		first := claims(b.read("run1"))
		if len(first) < 2 {
			t.Errorf("r1 has parked over the registration of another owner: it was claimed by %v", first)
		}
		if state, entries := b.ended("run1"); state.Result != wire.FlowStatusComplete {
			t.Errorf("it ended as %s:\n%s", state.Result, story(entries))
		}
	})
}

// Parked runs don't age out of the stream: they are woken for their anchors, too, and what is parked again and again counts from
// what is stored.
func TestParkedIsAnchored(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.limit(topology.Config{MaxAge: 3 * time.Minute})
		b.process("r1", gated(nil), parks)
		b.submit("run1", shared(chain))
		b.until("run1", wire.TypeAgentStart)
		b.command("run1", wire.Command{Type: "pause", RunID: "run1"})
		entries := b.until("run1", wire.TypeFlowPaused)
		b.save(b.fold("run1", entries))
		b.parked("run1")
		for range 60 {
			<-time.After(30 * time.Second)
			for _, node := range []string{wire.RunNode, "a"} {
				_, found, err := b.log.Last(t.Context(), "run1", node)
				if err != nil || !found {
					t.Fatalf("%s has events: %t, %v", node, found, err)
				}
			}
		}
		b.parked("run1")
	})
}

// sleeps makes the history of a run that sleeps until a time.
func (b *bench) sleeps(id, by string, due time.Time) *left {
	b.t.Helper()
	l := &left{b: b, id: id, owner: b.claim(id, wire.RunNode, by)}
	def := b.sleeper()
	l.append(l.owner, append(startOf(def, b.t.TempDir(), id),
		&wire.Event{ExecID: "s#1", Payload: &wire.NodeScheduled{Target: "s", Attempt: 1, Input: def.Nodes[0].Input}},
		&wire.Event{ExecID: "s#1", Payload: &wire.NodeStart{Target: "s", NodeType: "sleep", Attempt: 1, Input: def.Nodes[0].Input}},
		&wire.Event{ExecID: "s#1", Payload: &wire.NodeWaiting{Target: "s", Until: due.UnixMilli(), Reason: "sleep"}})...)
	return l
}

func (b *bench) sleeper() *flow.Definition {
	b.t.Helper()
	def, err := flow.Parse("test.yaml", []byte(shared(sleepFlow)))
	if err != nil {
		b.t.Fatal(err)
	}
	return def
}

func startOf(def *flow.Definition, workspace, id string) []*wire.Event {
	return flow.Start(def, wire.RunRequest{V: wire.Version, RunID: id, Definition: def.Raw(), Workspace: workspace})
}

// TestParkedAfterAnOutage: an owner with a late lease, as the server was away, has decided nothing, and yet parks its run until it is
// due.
func TestParkedAfterAnOutage(t *testing.T) {
	for longer := time.Duration(0); longer < 12*time.Second; longer += 1150 * time.Millisecond {
		t.Run(longer.String(), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				b.process("r1", &scripted{say: echo}, func(c *runner.Config) { c.ParkAfter = 20 * time.Second })
				b.submit("run1", sleepFlow)
				waits := b.until("run1", wire.TypeNodeWaiting)
				due := waits[len(waits)-1].Event.Payload.(*wire.NodeWaiting).Until // it is that
				<-time.After(10 * time.Second)
				b.server.Stop()
				<-time.After(time.Minute + longer)
				b.server.Start(t)
				<-time.After(time.Minute)
				if reg := b.parked("run1"); reg.Due != due {
					t.Errorf("it is parked until %d, not %d", reg.Due, due)
				}
				if n := b.fold("run1", b.read("run1")).Nodes[wire.RunNode]; n.Epoch != 1 {
					t.Errorf("it has had %d owners", n.Epoch)
				}
			})
		})
	}
}
