package runner_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// alert stores an alert of a run whose parent is another one.
func (b *bench) alert(run, parent, text string) {
	b.t.Helper()
	key := fmt.Sprintf("%s-%s", run, strings.ReplaceAll(text, " ", "-"))
	b.publish(subjects.Default.Alert(run, "a", "completion", key), wire.Alert{
		V: wire.Version, Key: key, Kind: "completion", Severity: wire.SeverityInfo, RunID: run, NodeID: "a", ParentRun: parent, Text: text,
	})
}

// obedient plays an agent that takes what it is sent, until it is told to stop.
func obedient(a *act) {
	a.turn()
	for {
		select {
		case m := <-a.messages:
			a.say(&wire.UserMessage{Source: "command", CommandID: m.CommandID, Content: m.Content}, "")
			if m.Content == "stop" {
				a.say(&wire.AgentComplete{Result: "told"}, "")
				return
			}
		case <-a.interrupted:
			a.say(&wire.AgentPaused{Reason: "interrupted"}, "")
			return
		case <-a.ctx.Done():
			return
		}
	}
}

// heard returns what the agents of a run took, and on which nodes.
func heard(entries []eventlog.Entry) []string {
	var all []string
	for _, e := range entries {
		if p, ok := e.Event.Payload.(*wire.UserMessage); ok {
			all = append(all, e.NodeID+": "+p.Content)
		}
	}
	return all
}

// The agents of a run are told the alerts of its children, each once: what comes
// while one is at work at once, what came before as a block. Those of the run itself
// and of other runs' children are none of its business.
func TestNotices(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &puppet{play: obedient})
		b.submit("run1", `
name: pair
nodes:
  - {id: wait, type: ask, input: {prompt: "Go?"}}
  - {id: a, type: agent, input: {prompt: "a"}}
  - {id: b, type: agent, input: {prompt: "b"}}
edges:
  - {from: wait, to: a}
  - {from: a, to: b}
`)
		asked := b.until("run1", wire.TypeInputRequested)
		for i := range 22 {
			b.alert("child", "run1", fmt.Sprintf("alert %d", i))
		}
		b.alert("run1", "run1", "its own")
		b.alert("run1", "", "its own again")
		b.alert("other", "run2", "of another")
		b.awaits("the last alert", func() bool { return count(b.read("run1"), wire.TypeCommandReceived) == 22 })
		b.command("run1", wire.Command{Type: "reply", PromptID: first[*wire.InputRequested](t, asked).PromptID, Content: wire.RawString("yes")})
		b.awaits("the block", func() bool { return len(heard(b.read("run1"))) == 1 })
		b.alert("child", "run1", "now")
		b.awaits("the line", func() bool { return len(heard(b.read("run1"))) == 2 })
		b.alert("child", "run1", "now") // the same one, again
		b.command("run1", wire.Command{Type: "send", Message: "stop"})
		b.until("run1", wire.TypeNodeComplete)
		b.alert("child", "run1", "then")
		b.awaits("the agent of b", func() bool { return len(heard(b.read("run1"))) == 4 })
		<-time.After(time.Minute)
		b.command("run1", wire.Command{Type: "send", Message: "stop"})
		_, entries := b.ended("run1")
		block := []string{"[Worker events since last session] (2 older ones were dropped)"}
		for i := 2; i < 22; i++ {
			block = append(block, fmt.Sprintf("alert %d", i))
		}
		want := []string{
			"a: " + strings.Join(block, "\n"), "a: [Worker events]\nnow", "a: stop",
			"b: [Worker events since last session]\nthen", "b: stop",
		}
		if diff := cmp.Diff(want, heard(entries)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// An alert that can't be passed on yet is passed on later: it isn't acknowledged before.
func TestNoticeWaitsForRoom(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &puppet{play: obedient})
		b.submit("run1", "name: one\nnodes:\n  - {id: a, type: agent, input: {prompt: a}}\n")
		b.awaits("the agent", func() bool { return count(b.read("run1"), wire.TypeAgentStart) == 1 })
		b.alert("child", "run1", "before")
		b.awaits("the first one", func() bool { return len(heard(b.read("run1"))) == 1 })
		b.limitCommands(1)
		b.alert("child", "run1", "meanwhile")
		<-time.After(time.Minute)
		if told := heard(b.read("run1")); len(told) != 1 {
			t.Fatalf("there is no room, and it was told %v", told)
		}
		b.limitCommands(-1)
		b.awaits("the second one", func() bool { return len(heard(b.read("run1"))) == 2 })
		b.command("run1", wire.Command{Type: "send", Message: "stop"})
		b.ended("run1")
	})
}

// limitCommands bounds the number of commands that the log has room for; -1: none.
func (b *bench) limitCommands(most int64) {
	b.t.Helper()
	s, err := b.log.JetStream().Stream(b.t.Context(), subjects.Default.CommandsStream())
	if err != nil {
		b.t.Fatal(err)
	}
	c := s.CachedInfo().Config
	c.MaxMsgs = most
	if _, err := b.log.JetStream().UpdateStream(b.t.Context(), c); err != nil {
		b.t.Fatal(err)
	}
}

// An agent that waits for another one is told its end by the call's result only, but what
// else there is to say of it too.
func TestNoticesOfCalls(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &puppet{play: obedient})
		b.submit("run1", "name: one\nnodes:\n  - {id: a, type: agent, input: {prompt: a}}\n")
		b.awaits("the agent", func() bool { return count(b.read("run1"), wire.TypeAgentStart) == 1 })
		for i, a := range []wire.Alert{
			{RunID: "run1.a#1.t0", ParentCall: "a#1/t0", Kind: "completion", Text: "its result"},
			{RunID: "child-0123", ParentCall: "a#1/t1", Kind: "error", Text: "its failure"},
			{RunID: "child-0123", ParentCall: "a#1/t1", Kind: "cc_message", Text: "its question"},
			{RunID: "child-0123", ParentCall: "a#1/t1", Kind: "waiting", Text: "its question to a human"},
			{RunID: "run1.a#1.t0", ParentCall: "a#1/t0", Kind: "stuck", Text: "it is stuck"},
			{RunID: "by-hand", Kind: "completion", Text: "of a run that nobody waits for"},
		} {
			a.V, a.Key, a.NodeID, a.Severity, a.ParentRun = wire.Version, strconv.Itoa(i), "a", wire.SeverityInfo, "run1"
			b.publish(subjects.Default.Alert(a.RunID, a.NodeID, a.Kind, a.Key), a)
		}
		b.awaits("the last one", func() bool {
			h := heard(b.read("run1"))
			return len(h) > 0 && strings.Contains(h[len(h)-1], "nobody waits for")
		})
		b.command("run1", wire.Command{Type: "send", Message: "stop"})
		_, entries := b.ended("run1")
		told := strings.Join(heard(entries), "\n")
		if strings.Contains(told, "its result") || strings.Contains(told, "its failure") || strings.Contains(told, "its question") || !strings.Contains(told, "it is stuck") {
			t.Errorf("told %s", told)
		}
	})
}

// Of several agents at work the one that began first is told, and no other.
func TestNoticesToOne(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &puppet{play: obedient})
		b.submit("run1", `
name: pair
nodes:
  - {id: b, type: agent, input: {prompt: "b"}}
  - {id: a, type: agent, input: {prompt: "a"}}
`)
		b.awaits("both", func() bool { return count(b.read("run1"), wire.TypeAgentStart) == 2 })
		s := b.fold("run1", b.read("run1"))
		first, second := "a", "b"
		if s.Nodes["b"].Started < s.Nodes["a"].Started {
			first, second = "b", "a"
		}
		b.alert("child", "run1", "one")
		b.awaits("the first", func() bool { return len(heard(b.read("run1"))) == 1 })
		<-time.After(time.Minute)
		b.command("run1", wire.Command{Type: "send", NodeID: first, Message: "stop"})
		b.until("run1", wire.TypeNodeComplete)
		b.alert("child", "run1", "two")
		b.awaits("the second", func() bool { return len(heard(b.read("run1"))) == 3 })
		b.command("run1", wire.Command{Type: "send", NodeID: second, Message: "stop"})
		_, entries := b.ended("run1")
		want := []string{
			first + ": [Worker events since last session]\none", first + ": stop",
			second + ": [Worker events since last session]\ntwo", second + ": stop",
		}
		if diff := cmp.Diff(want, heard(entries)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// What an agent has taken isn't told the one that goes on in its place; what it
// was given and hasn't taken is.
func TestNoticesAfterTakeover(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		stop := b.runner("r1", &puppet{play: obedient})
		b.submit("run1", single)
		b.until("run1", wire.TypeAgentStart)
		b.alert("child", "run1", "one")
		b.awaits("the first", func() bool { return len(heard(b.read("run1"))) == 1 })
		stop()
		b.alert("child", "run1", "two")
		b.runner("r2", &puppet{play: obedient})
		b.awaits("the second", func() bool { return len(heard(b.read("run1"))) == 2 })
		<-time.After(time.Minute)
		b.command("run1", wire.Command{Type: "send", Message: "stop"})
		_, entries := b.ended("run1")
		want := []string{
			"a: [Worker events since last session]\none", "a: [Worker events since last session]\ntwo", "a: stop",
		}
		if diff := cmp.Diff(want, heard(entries)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// An answer goes to the question that has waited longest, whichever agent asked it; what an
// agent has asked and wasn't answered is asked of the session that goes on too.
func TestSteerOldest(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &puppet{play: func(a *act) {
			a.turn()
			if a.nth <= 2 {
				for i := range 2 {
					wait := time.Duration(i+1) * 2 * time.Second
					if a.request.NodeID == "a" { // begins first and asks last
						wait += time.Second
					}
					<-time.After(wait)
					a.say(&wire.CCMessage{Text: "which?", Priority: wire.PriorityQuestion}, fmt.Sprintf("%s%d", a.request.NodeID, i))
				}
			}
			obedient(a)
		}}
		stop := b.runner("r1", p)
		b.submit("run1", `
name: pair
nodes:
  - {id: a, type: agent, input: {prompt: "a"}}
  - {id: b, type: agent, input: {prompt: "b"}}
`)
		b.awaits("questions", func() bool { return count(b.read("run1"), wire.TypeCCMessage) == 4 })
		steer := func(nth int, message string) {
			b.command("run1", wire.Command{Type: "steer", Message: message})
			b.awaits("an answer", func() bool { return len(heard(b.read("run1"))) == nth })
		}
		steer(1, "one")
		steer(2, "two")
		s := b.fold("run1", b.read("run1"))
		for node, open := range map[string]string{"a": "a1", "b": "b1"} {
			n := s.Nodes[node]
			if len(n.Asked) != 1 || n.Asked[0].ID != open || n.Reason != "question" || n.AgentStatus != "blocked-on-clarification" {
				t.Errorf("%s: %+v", node, n)
			}
		}
		stop()
		b.runner("r2", p)
		b.awaits("sessions that go on", func() bool { return len(p.asked()) == 4 })
		for _, r := range p.asked()[2:] {
			if diff := cmp.Diff([]string{r.NodeID + "1"}, r.Asked); diff != "" {
				t.Errorf("%s: (-want +got):\n%s", r.NodeID, diff)
			}
		}
		steer(3, "three")
		steer(4, "stop")
		if r := b.tell(wire.Command{Type: "steer", RunID: "run1", Message: "five"}); code(r) != "COMMAND_REJECTED" {
			t.Errorf("there is nothing to answer: %+v", r)
		}
		want := []string{"b: one", "a: two", "b: three", "a: stop"}
		if diff := cmp.Diff(want, heard(b.read("run1"))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// An agent that has ended its turn goes on with a message that its program, which hasn't exited yet, doesn't read any more: in another program.
// The first program's answer is no output then.
func TestMessageBehindTheLastTurn(t *testing.T) {
	for name, test := range map[string]struct {
		order []wire.Command
		want  []string
	}{
		"one":            {[]wire.Command{{Type: "send", Message: "stop"}}, []string{"a: stop"}},
		"two":            {[]wire.Command{{Type: "send", Message: "wait"}, {Type: "send", Message: "stop"}}, []string{"a: wait", "a: stop"}},
		"behind a pause": {[]wire.Command{{Type: "pause"}, {Type: "send", Message: "stop"}, {Type: "resume"}}, []string{"a: stop"}},
		"paused":         {[]wire.Command{{Type: "send", Message: "stop"}, {Type: "pause"}, {Type: "resume"}}, []string{"a: stop"}},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				p := &puppet{lingers: true, play: func(a *act) {
					if a.nth > 1 {
						obedient(a)
						return
					}
					a.over.Store(true)
					a.turn()
					<-time.After(5 * time.Second)
					a.say(&wire.AgentComplete{Result: "first"}, "")
				}}
				b.runner("r1", p)
				b.submit("run1", "name: one\nnodes:\n  - {id: a, type: agent, input: {prompt: hello}}\n")
				b.until("run1", wire.TypeTurnStart)
				for _, c := range test.order {
					if c.Type == "resume" {
						b.until("run1", wire.TypeFlowPaused)
						<-time.After(10 * time.Second)
					}
					b.command("run1", c)
				}
				b.ended("run1")
				entries := b.read("run1")
				if diff := cmp.Diff(test.want, heard(entries)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				s := b.fold("run1", entries)
				if !strings.Contains(string(s.Outputs["a"]), "told") || len(s.Inbox) != 0 || count(entries, wire.TypeAgentComplete) != 1 {
					t.Errorf("output %s, inbox %v, %d ends", s.Outputs["a"], s.Inbox, count(entries, wire.TypeAgentComplete))
				}
			})
		})
	}
}

// TestMessageBehindTheSession sends a message when the agent's program is gone, and its folder is audited: the agent goes on with that in its
// session, at once, and is audited again.
func TestMessageBehindTheSession(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	begun, goes := filepath.Join(dir, "begun"), filepath.Join(dir, "goes")
	b.runner("r1", &puppet{lingers: true, play: func(a *act) {
		if a.nth > 1 {
			obedient(a)
			return
		}
		a.turn()
		a.say(&wire.TurnEnd{}, "")
		a.say(&wire.AgentComplete{Result: "first"}, "")
	}})
	b.submit("run1", fmt.Sprintf(`
name: audited
nodes:
  - id: a
    type: agent
    input: {prompt: hello}
    audits: [{id: "audit:wait", command: "echo x >> %s; until test -f %s; do sleep 0.02; done"}]
`, begun, goes))
	b.awaits("the audit", func() bool { _, err := os.Stat(begun); return err == nil })
	b.command("run1", wire.Command{Type: "send", Message: "stop"})
	b.until("run1", wire.TypeCommandReceived)
	if err := os.WriteFile(goes, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.ended("run1")
	entries := b.read("run1")
	if diff := cmp.Diff([]string{"a: stop"}, heard(entries)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	s := b.fold("run1", entries)
	if !strings.Contains(string(s.Outputs["a"]), "told") || len(s.Inbox) != 0 || count(entries, wire.TypeAgentComplete) != 1 {
		t.Errorf("output %s, inbox %v, %d ends", s.Outputs["a"], s.Inbox, count(entries, wire.TypeAgentComplete))
	}
	if audits, err := os.ReadFile(begun); err != nil || string(audits) != "x\nx\n" || count(entries, wire.TypeAuditCheckpoint) != 2 {
		t.Errorf("audited %q (%v), %d audits on record", audits, err, count(entries, wire.TypeAuditCheckpoint))
	}
	if took := s.EndedAt - s.StartedAt; took > 8_000 { // what a worker has left that didn't get on is offered again behind 10 s
		t.Errorf("the run took %d ms", took)
	}
}

// The consumer of alerts is in the server's memory. What was told when that ended isn't told again, and what wasn't is.
func TestNoticesOutliveTheServer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.runner("r1", &puppet{play: obedient})
		b.submit("run1", single)
		b.until("run1", wire.TypeAgentStart)
		b.alert("child", "run1", "one")
		<-time.After(10 * time.Second)
		for _, text := range []string{"two", "three", "four", "five"} {
			b.alert("child", "run1", text)
		}
		told := func(texts ...string) bool { // two that wait at once are one message
			all := strings.Join(heard(b.read("run1")), "\n")
			return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(all, text) })
		}
		b.awaits("the others", func() bool { return told("one", "two", "three", "four", "five") })
		<-time.After(30 * time.Second)
		b.server.Stop()
		b.server.Start(t)
		<-time.After(time.Second)
		b.alert("child", "run1", "six")
		b.awaits("the last one", func() bool { return told("six") })
		c, err := b.log.JetStream().Consumer(t.Context(), subjects.Default.AlertsStream(), "notices")
		if err != nil {
			t.Fatal(err)
		}
		if i := c.CachedInfo(); i.Delivered.Consumer != 1 || !i.Config.MemoryStorage {
			t.Errorf("in memory %t, %d alerts were looked at again", i.Config.MemoryStorage, i.Delivered.Consumer-1)
		}
		b.command("run1", wire.Command{Type: "send", Message: "stop"})
		_, entries := b.ended("run1")
		for _, text := range []string{"one", "two", "three", "four", "five", "six"} {
			if all := strings.Join(heard(entries), "\n"); strings.Count(all, text) != 1 {
				t.Errorf("it was told %q", heard(entries))
			}
		}
	})
}

// A consumer on disk, as earlier versions made it, gives way to one in memory, which goes on where it was, unless a runner
// takes from it.
func TestConsumersOnDisk(t *testing.T) {
	for _, taken := range []bool{false, true} {
		t.Run(fmt.Sprintf("taken from %t", taken), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				js := b.log.JetStream()
				onDisk := func(stream, durable, filter string, pending int) jetstream.Consumer {
					c, err := js.CreateConsumer(t.Context(), stream, jetstream.ConsumerConfig{
						Durable: durable, FilterSubject: filter, AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second, MaxDeliver: -1, MaxAckPending: pending,
					})
					if err != nil {
						t.Fatal(err)
					}
					return c
				}
				notices := onDisk("WAKE_ALERTS", "notices", "", 1)
				runs := onDisk("WAKE_QUEUE", "runs", subjects.Default.QueueRun(), 1000)
				b.alert("child", "run1", "before")
				m, err := notices.Next()
				if err != nil {
					t.Fatal(err)
				}
				if err := m.DoubleAck(t.Context()); err != nil {
					t.Fatal(err)
				}
				if taken {
					for _, c := range []jetstream.Consumer{notices, runs} {
						if _, err := c.Fetch(1, jetstream.FetchMaxWait(time.Minute)); err != nil {
							t.Fatal(err)
						}
					}
				}
				b.runner("r1", &puppet{play: obedient})
				<-time.After(time.Second)
				b.submit("run0", "\nname: x\nnodes:\n  - {id: s, type: set, input: {set: {x: 1}}}\n")
				b.submit("run1", single)
				b.until("run1", wire.TypeAgentStart)
				b.alert("child", "run0", "for the other fetch")
				b.alert("child", "run1", "after")
				b.awaits("the alert", func() bool { return len(heard(b.read("run1"))) > 0 })
				if got := heard(b.read("run1")); len(got) != 1 || !strings.Contains(got[0], "after") {
					t.Errorf("it was told %q", got)
				}
				for stream, durable := range map[string]string{"WAKE_ALERTS": "notices", "WAKE_QUEUE": "runs"} {
					c, err := js.Consumer(t.Context(), stream, durable)
					if err != nil {
						t.Fatal(err)
					}
					if in := c.CachedInfo().Config.MemoryStorage; in == taken {
						t.Errorf("%s is in memory %t", durable, in)
					}
				}
				b.command("run1", wire.Command{Type: "send", Message: "stop"})
				b.ended("run1")
			})
		})
	}
}
