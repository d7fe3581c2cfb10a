package alerter_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/alerter"
)

var update = flag.Bool("update", false, "rewrite testdata/lines.golden")

func TestMain(m *testing.M) { natstest.Main(m) }

// The lines of the seeds, to the byte, and what raises them. Each case is a run
// of its own.
func TestLines(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	var got bytes.Buffer
	for _, c := range alertScenarios() {
		var out printed
		stop := start(t, log, alerter.Config{Out: &out})
		h := begin(t, log, strings.ReplaceAll(c.name, " ", "-"), c.labels)
		for _, e := range c.events {
			h.add(e)
		}
		waitRead(t, log, h.last)
		stop()
		fmt.Fprintf(&got, "# %s\n%s", c.name, out.String())
		for _, a := range alerts(t, log, h.run) {
			data, err := wire.AppendJSON(nil, a.Data)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&got, "%s %s %s@%d %s\n", a.Kind, a.Severity, a.NodeID, a.Position.Seq-h.first+1, data)
		}
		got.WriteByte('\n')
	}
	const golden = "testdata/lines.golden"
	if *update {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got.String()); d != "" {
		t.Errorf("%s (-update rewrites it):\n%s", golden, d)
	}
	for _, line := range []string{
		"[subagent:sentinella] ❌ API error: rate limited (retry 2/5)\n",
		"[subagent:sentinella] 🔁 3 consecutive Bash failures — possibly stuck\n",
	} {
		if !strings.Contains(got.String(), line) {
			t.Errorf("the line of the seed is missing: %s", line)
		}
	}
}

type scenario struct {
	name   string
	labels map[string]string
	events []*wire.Event
}

var sentinella = map[string]string{"name": "sentinella"}

func alertScenarios() []scenario {
	fail, ok := tool("Bash", "exit code 1"), tool("Bash", "")
	retry := func(attempt int64) *wire.Event {
		return about("coder", &wire.AgentError{
			ErrorType: wire.ErrorRateLimit, Message: fmt.Sprintf("rate limited: retry %d/5", attempt), Severity: wire.SeverityWarning,
			Phase: "model", Attempt: &attempt, MaxAttempts: 5,
		})
	}
	return []scenario{
		{"failure loop A1", sentinella, []*wire.Event{fail, fail, fail, fail, ok, fail, fail, fail}},
		{"failure loop of several tools", nil, []*wire.Event{fail, tool("Read", "no such file"), tool("Write", strings.Repeat("long ", 100))}},
		{"no loop: a success between", nil, []*wire.Event{fail, fail, ok, fail, fail}},
		{"no loop: siblings count once", nil, []*wire.Event{
			intent("m1", "c1"), intent("m1", "c2"), intent("m1", "c3"), call("c1", fail), call("c2", fail), call("c3", fail),
			intent("m2", "c4"), call("c4", fail),
		}},
		{"failure loop of batches", nil, []*wire.Event{
			intent("m1", "c1"), intent("m1", "c2"), call("c1", fail), call("c2", tool("Read", "no such file")),
			intent("m2", "c3"), call("c3", fail), intent("m3", "c4"), call("c4", fail),
		}},
		{"no loop: refused calls don't count", nil, []*wire.Event{fail, denied(), denied(), fail, denied()}},
		{"failure loop: refused calls don't interrupt", nil, []*wire.Event{fail, denied(), fail, denied(), fail}},
		{"failure loop of a sub-agent", sentinella, []*wire.Event{
			fail, fail, under("task1", fail), under("task1", fail), ok, under("task1", fail), under("task2", fail), under("task2", fail),
		}},
		{"no loop: the sub-agent has ended", nil, []*wire.Event{under("task1", fail), under("task1", fail), call("task1", ok), under("task1", fail)}},
		{"no loop: another session", nil, []*wire.Event{fail, fail, about("coder", &wire.AgentStart{Prompt: wire.Null}), fail, fail}},
		{"api retry", sentinella, []*wire.Event{retry(1), retry(2), retry(3)}},
		{"no alert: the first retry", nil, []*wire.Event{retry(1), about("coder", &wire.Usage{MessageID: "m"}), retry(1)}},
		{"api retries, twice", nil, []*wire.Event{retry(1), retry(2), about("coder", &wire.Usage{MessageID: "m"}), retry(1), retry(2)}},
		{"api error", nil, []*wire.Event{about("coder", &wire.AgentError{ErrorType: "api_error", Message: "credit balance is too low", Severity: wire.SeverityError, Phase: "model", Status: 400})}},
		{"max turns", nil, []*wire.Event{about("coder", &wire.AgentError{ErrorType: wire.ErrorMaxTurns, Message: "a; b", Severity: wire.SeverityError, Phase: "model"})}},
		{"no alert: the user stopped it", nil, []*wire.Event{about("coder", &wire.AgentError{ErrorType: wire.ErrorUser, Message: "cancelled"})}},
		{"crash, then its node, then the run", sentinella, []*wire.Event{
			about("coder", &wire.AgentError{ErrorType: wire.ErrorProcessDied, Message: "killed by signal 9", Severity: wire.SeverityError, Phase: "lifecycle"}),
			about("coder", &wire.NodeError{Error: "killed by signal 9", ErrorType: wire.ErrorProcessDied}),
			about(wire.RunNode, &wire.FlowComplete{FlowName: "review", Status: wire.FlowStatusFailed, Error: "coder: killed by signal 9", FailedNode: "coder"}),
		}},
		{"node error", nil, []*wire.Event{about("test", &wire.NodeError{Error: "exit code 2", ErrorType: "exit"})}},
		{"node error of an item", nil, []*wire.Event{about("each/3", &wire.NodeError{Error: "exit code 2", ErrorType: "exit"})}},
		{"node error on behalf", nil, []*wire.Event{about(wire.RunNode, &wire.NodeError{Target: "ask", Error: "nobody answered", ErrorType: "timeout"})}},
		{"no alert: the flow goes on", nil, []*wire.Event{about("lenient", &wire.NodeError{Error: "exit code 1", ErrorType: "exit"}), about("lenient/7", &wire.NodeError{Error: "exit code 1"})}},
		{"no alert: withdrawn", nil, []*wire.Event{about("coder", &wire.NodeError{Error: "cancelled", ErrorType: "cancelled"})}},
		{"node error of the last try", nil, []*wire.Event{
			scheduled("stubborn", 1), about("stubborn", &wire.NodeError{Error: "exit code 1", ErrorType: "exit"}),
			scheduled("stubborn", 2), about("stubborn", &wire.NodeError{Error: "exit code 1 again", ErrorType: "exit"}),
		}},
		{"completion", sentinella, []*wire.Event{
			about("coder", &wire.AgentComplete{Result: "Fixed.\n\nAll 14 tests pass."}),
			about("coder", &wire.NodeComplete{Output: wire.RawOf(map[string]any{"text": "Fixed.\n\nAll 14 tests pass."})}),
			about("test", &wire.NodeComplete{Output: wire.RawOf(map[string]any{"exitCode": 0, "stdout": ""})}),
			about(wire.RunNode, &wire.FlowComplete{FlowName: "review", Status: wire.FlowStatusComplete}),
		}},
		{"completion without a word", nil, []*wire.Event{about(wire.RunNode, &wire.FlowComplete{FlowName: "review", Status: wire.FlowStatusComplete})}},
		{"completion with a blob", nil, []*wire.Event{
			about("coder", &wire.AgentComplete{Result: strings.Repeat("very ", 100_000) + "long"}),
			about(wire.RunNode, &wire.FlowComplete{FlowName: "review", Status: wire.FlowStatusComplete}),
		}},
		{"a human has to decide", sentinella, []*wire.Event{
			about("deploy", &wire.NodeError{Error: "its runner died", ErrorType: wire.ErrorInterrupted}),
			about(wire.RunNode, &wire.FlowPaused{Reason: wire.PauseRequiresAction, Message: "interrupted: deploy"}),
			about(wire.RunNode, &wire.InputRequested{Target: "ask", PromptID: "p1", Prompt: "Deploy?\nReally?"}),
			call("c9", about("coder", &wire.PermissionRequired{ToolName: "Bash", ToolInput: wire.Null})),
		}},
		{"what ended its runners", nil, []*wire.Event{about(wire.RunNode, &wire.FlowPaused{
			Reason: wire.PauseEndedItsRunner, Message: "3 processes in a row ended while they took the run over",
		})}},
		{"no alert: an operator's pause", nil, []*wire.Event{about(wire.RunNode, &wire.FlowPaused{Reason: wire.PauseOperator})}},
		{"hostile words", map[string]string{"name": "evil\x1b[2J\nname" + strings.Repeat("x", 200)}, []*wire.Event{
			tool("\x1b]0;title\x07Ba\u202esh", "\x1b[31mred"), tool("\x1b]0;title\x07Ba\u202esh", "a\r\nb"), tool("\x1b]0;title\x07Ba\u202esh", "\x00"),
			about("coder", &wire.AgentError{ErrorType: "x\x1b[1m", Message: "one\ntwo\x1b[2Jthree", Severity: wire.SeverityError}),
		}},
	}
}

// A detector sees the log as it is: what a fenced writer wrote doesn't count.
func TestVoidEvents(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	h := begin(t, log, "r1", nil)
	h.add(tool("Bash", "e"))
	for i := range 3 { // by other ways than the log: a foreign publisher
		e := tool("Bash", "e")
		e.RunID, e.NodeID, e.Seq, e.Epoch, e.Timestamp = "r1", "coder", uint64(100+i), 0, 1
		e.Epoch = 1
		h.void = append(h.void, e)
	}
	h.writers["coder"] = logtest.Claim(t, log, "r1", "coder") // epoch 2
	for _, e := range h.void {
		b, err := wire.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		ack, err := log.JetStream().Publish(t.Context(), log.Names().Event("r1", "coder", "tool"), b)
		if err != nil {
			t.Fatal(err)
		}
		h.last = ack.Sequence
	}
	start(t, log, alerter.Config{})
	waitRead(t, log, h.last)
	if got := alerts(t, log, "r1"); len(got) != 0 {
		t.Errorf("alerts %v", texts(got))
	}
}

// Between the alert and the state that knows of it, the process is killed: the
// next one finds the same and says it to nobody.
func TestKilledBeforeSave(t *testing.T) {
	t.Parallel()
	s, log := logtest.StartServer(t)
	h := begin(t, log, "r1", nil)
	var first, second printed
	conn := s.Conn(t)
	kill := start(t, logtest.Open(t, conn), alerter.Config{Out: &first, Delay: time.Hour})
	for range 4 {
		h.add(tool("Bash", "e"))
	}
	waitRead(t, log, h.last)
	conn.Close()
	kill()
	if stored(t, log, "alerter.r1") {
		t.Fatal("the state was saved")
	}
	stop := start(t, log, alerter.Config{Out: &second, Delay: time.Millisecond})
	h.add(tool("Bash", "e"))
	h.add(about(wire.RunNode, &wire.FlowComplete{Status: wire.FlowStatusComplete}))
	waitRead(t, log, h.last)
	stop()
	want := []string{"[subagent:coder] 🔁 3 consecutive Bash failures — possibly stuck", "[subagent:review] ✅ Completed"}
	if d := cmp.Diff(want, texts(alerts(t, log, "r1"))); d != "" {
		t.Error(d)
	}
	if got := first.String() + second.String(); got != strings.Join(want, "\n")+"\n" || first.String() == "" {
		t.Errorf("printed %q, then %q", first.String(), second.String())
	}
}

// Runs that do nothing but end cost a share of a batch of alerts: no question, and a stored state only where a batch of
// events ends within one. What comes of one afterwards raises nothing again, also if its alert is gone.
func TestShortRuns(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	const runs = 50
	var last *history
	for i := range runs {
		last = begin(t, log, fmt.Sprintf("r%d", i), nil)
		last.add(about(wire.RunNode, &wire.FlowComplete{Status: wire.FlowStatusComplete}))
	}
	asked, err := log.Conn().SubscribeSync("$JS.API.STREAM.INFO." + log.Names().EventsStream())
	if err != nil {
		t.Fatal(err)
	}
	var out printed
	start(t, log, alerter.Config{Out: &out, Delay: time.Millisecond})
	waitRead(t, log, last.last)
	if n := strings.Count(out.String(), "Completed"); n != runs {
		t.Errorf("%d of %d ends were printed", n, runs)
	}
	if n, _, err := asked.Pending(); err != nil || n > runs/2 {
		t.Errorf("the server was asked %d times about the stream, %v", n, err)
	}
	s := stream(t, log)
	batches, states := map[string]bool{}, 0
	for i := range runs {
		if stored(t, log, fmt.Sprintf("alerter.r%d", i)) {
			states++
		}
		m, err := s.GetMsg(t.Context(), uint64(i+1))
		if err != nil {
			t.Fatal(err)
		}
		batches[m.Header.Get("Nats-Batch-Id")] = true
	}
	if len(batches) > runs/5 || states > runs/5 {
		t.Errorf("%d alerts came in %d batches, and %d states are stored", runs, len(batches), states)
	}
	all := "alerter." + wire.NoRun
	await(t, "what was read to be noted", func() bool { return stored(t, log, all) && position(t, log, all) >= last.last })
	if err := s.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	last.add(scheduled("coder", 1))
	waitRead(t, log, last.last)
	if list := alerts(t, log, last.run); len(list) > 0 {
		t.Errorf("raised again: %q", texts(list))
	}
}

// A few alerts are no batch.
func TestFewAlerts(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	const runs = 6
	var last *history
	for i := range runs {
		last = begin(t, log, fmt.Sprintf("r%d", i), nil)
		last.add(about(wire.RunNode, &wire.FlowComplete{Status: wire.FlowStatusComplete}))
	}
	start(t, log, alerter.Config{Delay: time.Millisecond})
	waitRead(t, log, last.last)
	s := stream(t, log)
	for i := range runs {
		if m, err := s.GetMsg(t.Context(), uint64(i+1)); err != nil || m.Header.Get("Nats-Batch-Id") != "" {
			t.Errorf("alert %d: %v, %v", i, m, err)
		}
	}
}

// A state that was saved, with a position that wasn't, doesn't count anything
// twice.
func TestKilledBeforeCommit(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s, log := logtest.StartServer(t)
		conn := s.Conn(t)
		kill := start(t, logtest.Open(t, conn), alerter.Config{Delay: time.Millisecond})
		h := begin(t, log, "r1", nil)
		<-time.After(5 * time.Second)
		h.add(tool("Bash", "e"))
		<-time.After(100 * time.Millisecond)
		h.add(tool("Bash", "e"))
		<-time.After(100 * time.Millisecond)
		conn.Close()
		kill()
		if got, want := position(t, log, "alerter.r1"), h.last; got != want {
			t.Fatalf("saved at %d, want %d", got, want)
		}
		if got := position(t, log, "alerter._"); got >= h.last {
			t.Fatalf("committed %d", got)
		}
		start(t, log, alerter.Config{Delay: time.Millisecond})
		<-time.After(5 * time.Second)
		if got := alerts(t, log, "r1"); len(got) != 0 {
			t.Errorf("alerts %v after two failures", texts(got))
		}
		h.add(tool("Bash", "e"))
		waitRead(t, log, h.last)
		if got := alerts(t, log, "r1"); len(got) != 1 {
			t.Errorf("alerts %v after three failures", texts(got))
		}
	})
}

// What was counted in a stream that is gone doesn't count in the next one.
func TestIncarnation(t *testing.T) {
	t.Parallel()
	nc := natstest.Start(t)
	logtest.Init(t, nc, topology.Config{})
	log := logtest.Open(t, nc)
	h := begin(t, log, "r1", nil)
	h.add(tool("Bash", "e"))
	h.add(tool("Bash", "e"))
	stop := start(t, log, alerter.Config{})
	waitRead(t, log, h.last)
	stop()
	if err := log.JetStream().DeleteStream(t.Context(), log.Names().EventsStream()); err != nil {
		t.Fatal(err)
	}
	logtest.Init(t, nc, topology.Config{})
	log = logtest.Open(t, nc)
	h = begin(t, log, "r1", nil)
	for range 5 {
		h.add(about("coder", &wire.Usage{MessageID: "m"}))
	}
	start(t, log, alerter.Config{})
	h.add(tool("Bash", "e"))
	waitRead(t, log, h.last)
	if got := alerts(t, log, "r1"); len(got) != 0 {
		t.Errorf("alerts %v", texts(got))
	}
	h.add(about("test", &wire.NodeError{Error: "e"}))
	waitRead(t, log, h.last)
	if got := alerts(t, log, "r1"); len(got) != 1 || got[0].Position.Incarnation != log.Incarnation() {
		t.Errorf("alerts %v", texts(got))
	}
}

// Neither a reset of the consumer nor the loss of all state raises an old alert.
func TestResetRaisesNothing(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	h := begin(t, log, "r1", nil)
	for range 3 {
		h.add(tool("Bash", "e"))
	}
	h.add(about("coder", &wire.NodeError{Error: "e"}))
	h.add(about(wire.RunNode, &wire.FlowComplete{Status: wire.FlowStatusFailed, Error: "e"}))
	var out printed
	stop := start(t, log, alerter.Config{Out: &out, Delay: time.Millisecond})
	waitRead(t, log, h.last)
	before := alerts(t, log, "r1")
	if len(before) != 3 || out.lines() != 3 {
		t.Fatalf("alerts %v, printed %q", texts(before), out.String())
	}
	reset := func() {
		t.Helper()
		if _, err := log.JetStream().ResetConsumerToSequence(t.Context(), log.Names().EventsStream(), "alerter", 1); err != nil {
			t.Fatal(err)
		}
	}
	reset() // while it works
	h.add(about("other", &wire.NodeError{Error: "e", ErrorType: "cancelled"}))
	waitRead(t, log, h.last)
	stop()
	for _, key := range []string{"alerter._", "alerter.r1"} {
		if err := bucket(t, log).Purge(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	reset() // with nothing left of what it knew
	start(t, log, alerter.Config{Out: &out, Delay: time.Millisecond})
	waitRead(t, log, h.last)
	if d := cmp.Diff(before, alerts(t, log, "r1")); d != "" || out.lines() != 3 {
		t.Errorf("printed %q:\n%s", out.String(), d)
	}
}

// What a run did that was imported has been told where it did it.
func TestImportedRunRaisesNothing(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	var out printed
	start(t, log, alerter.Config{Out: &out})
	state := wire.RawOf(wire.State{RunID: "r0", Imported: wire.ImportedCopy})
	for run, beginning := range map[string]wire.Payload{
		"r1": &wire.FlowStart{FlowName: "review", Definition: wire.RawOf(map[string]any{}), DefinitionHash: "h", Imported: wire.ImportedCopy},
		"r2": &wire.RunForked{ParentRun: "r0", State: state},
	} {
		h := &history{t: t, log: log, run: run, writers: map[string]*eventlog.Writer{}}
		h.add(about(wire.RunNode, beginning))
		for range 5 {
			h.add(tool("Bash", "e"))
		}
		h.add(about(wire.RunNode, &wire.FlowComplete{Status: wire.FlowStatusFailed, Error: "e"}))
		waitRead(t, log, h.last)
		if got := alerts(t, log, run); len(got) > 0 || out.lines() > 0 {
			t.Errorf("alerts %v, printed %q", texts(got), out.String())
		}
	}
}

// An acknowledgement that is lost makes the alerter ask again; the line is
// printed once all the same. So are those of alerts that were stored together.
func TestLostAcknowledgement(t *testing.T) {
	t.Run("one", func(t *testing.T) { checkLostAcknowledgement(t, 1) })
	t.Run("batch", func(t *testing.T) { checkLostAcknowledgement(t, 8) })
}

func checkLostAcknowledgement(t *testing.T, n int) {
	natstest.Bubble(t, func(t *testing.T) {
		s, log := logtest.StartServer(t)
		h := begin(t, log, "r1", nil)
		d := &deaf{server: s, word: `"stream":"WAKE_ALERTS"`, release: make(chan struct{})}
		conn := s.Conn(t, nats.InProcessServer(d))
		var out printed
		var want strings.Builder
		for i := range n {
			node := fmt.Sprintf("test%d", i)
			h.add(about(node, &wire.NodeError{Error: "exit code 2"}))
			fmt.Fprintf(&want, "[subagent:%s] ❌ Node %s failed: exit code 2\n", node, node)
		}
		start(t, logtest.Open(t, conn), alerter.Config{Out: &out})
		<-time.After(7 * time.Second)
		if out.lines() != 0 {
			t.Errorf("printed %q before the acknowledgement", out.String())
		}
		if got := alerts(t, log, "r1"); len(got) != n {
			t.Fatalf("alerts %v", texts(got))
		}
		close(d.release)
		waitRead(t, log, h.last)
		if got := out.String(); got != want.String() {
			t.Errorf("printed %q", got)
		}
		if got := alerts(t, log, "r1"); len(got) != n {
			t.Errorf("alerts %v", texts(got))
		}
	})
}

// The successor of a killed process finds what that had stored and printed. Its first
// question gets no answer: what is stored is the other's all the same.
func TestLostAcknowledgementOfAnother(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s, log := logtest.StartServer(t)
		h := begin(t, log, "r1", nil)
		var first, second printed
		conn := s.Conn(t)
		kill := start(t, logtest.Open(t, conn), alerter.Config{Out: &first, Delay: time.Hour})
		h.add(about("test", &wire.NodeError{Error: "exit code 2"}))
		waitRead(t, log, h.last)
		conn.Close()
		kill()
		d := &deaf{server: s, word: `"stream":"WAKE_ALERTS"`, release: make(chan struct{})}
		start(t, logtest.Open(t, s.Conn(t, nats.InProcessServer(d))), alerter.Config{Out: &second})
		<-time.After(7 * time.Second)
		close(d.release)
		h.add(about("test", &wire.NodeError{Error: "exit code 3"}))
		await(t, "the next alert", func() bool { return second.lines() > 0 })
		waitRead(t, log, h.last)
		if first.lines() != 1 || second.String() != "[subagent:test] ❌ Node test failed: exit code 3\n" {
			t.Errorf("printed %q, then %q", first.String(), second.String())
		}
	})
}

// The line of a run's end is printed, and then the server is away while the alerter looks whether the run is in the
// log as a whole. It begins again with the alert, and gets no answer: what is stored has been printed.
func TestLostAfterItWasPrinted(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s, log := logtest.StartServer(t)
		h := begin(t, log, "r1", nil)
		d := &deaf{server: s, word: `"subjects":{"wake.events.r1`, release: make(chan struct{})}
		var out printed
		start(t, logtest.Open(t, s.Conn(t, nats.InProcessServer(d))), alerter.Config{Out: &out})
		h.add(about(wire.RunNode, &wire.FlowComplete{Status: wire.FlowStatusComplete}))
		<-time.After(15 * time.Second)
		close(d.release)
		waitRead(t, log, h.last)
		if got := alerts(t, log, "r1"); len(got) != 1 || out.lines() != 1 {
			t.Errorf("%d alerts, printed %q", len(got), out.String())
		}
	})
}

// Two alerters at once say everything once.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	s, log := logtest.StartServer(t)
	var out printed
	for range 2 {
		start(t, logtest.Open(t, s.Conn(t)), alerter.Config{Out: &out, Delay: time.Millisecond})
	}
	h := begin(t, log, "r1", nil)
	want := 0
	for range 10 {
		for range 3 {
			h.add(tool("Bash", "e"))
		}
		h.add(tool("Bash", ""))
		want++
	}
	h.add(about(wire.RunNode, &wire.FlowComplete{Status: wire.FlowStatusComplete}))
	want++
	await(t, "the last alert and its line", func() bool { return len(alerts(t, log, "r1")) >= want && out.lines() >= want })
	if got := alerts(t, log, "r1"); len(got) != want || out.lines() != want {
		t.Errorf("%d alerts, %d lines, want %d", len(got), out.lines(), want)
	}
}

// On a cluster whose leaders step down all the time, everything is said once.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := natstest.NewCluster(t, 3)
	nc := c.Conn(t)
	logtest.Init(t, nc, topology.Config{Replicas: 3})
	log := logtest.Open(t, nc)
	var out printed
	start(t, log, alerter.Config{Out: &out, Delay: 10 * time.Millisecond})
	calm := logtest.Go(t, func(ctx context.Context) error {
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-tick.C:
				stream := []string{"WAKE_EVENTS", "WAKE_ALERTS", "KV_WAKE_STATE"}[i%3]
				_ = c.StepDown(ctx, nc, stream) // it may have no leader at the moment
			case <-ctx.Done():
				return nil
			}
		}
	})
	const runs = 10
	for i := range runs {
		h := begin(t, log, fmt.Sprintf("r%d", i), nil)
		for range 4 {
			h.add(tool("Bash", "e"))
		}
		h.add(about(wire.RunNode, &wire.FlowComplete{Status: wire.FlowStatusComplete}))
	}
	await(t, "all alerts", func() bool { return out.lines() >= 2*runs })
	calm()
	c.WaitReady(t, "WAKE_ALERTS") // any replica may answer now
	for i := range runs {
		want := []string{"[subagent:coder] 🔁 3 consecutive Bash failures — possibly stuck", "[subagent:review] ✅ Completed"}
		if d := cmp.Diff(want, texts(alerts(t, log, fmt.Sprintf("r%d", i)))); d != "" {
			t.Error(d)
		}
	}
	if out.lines() != 2*runs {
		t.Errorf("printed %d lines, want %d", out.lines(), 2*runs)
	}
}

// What can't be decoded is set aside and the next event is looked at.
func TestPoison(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	letters, err := log.Conn().SubscribeSync(log.Names().DeadLetter("alerter"))
	if err != nil {
		t.Fatal(err)
	}
	var out printed
	start(t, log, alerter.Config{Out: &out})
	h := begin(t, log, "r1", nil)
	huge := make([]byte, log.Conn().MaxPayload()-100)
	for _, data := range [][]byte{[]byte("garbage"), huge} {
		if _, err := log.JetStream().Publish(t.Context(), log.Names().Event("r1", "b", "tool"), data); err != nil {
			t.Fatal(err)
		}
	}
	h.add(about("test", &wire.NodeError{Error: "exit code 2"}))
	waitRead(t, log, h.last)
	if out.lines() != 1 {
		t.Errorf("printed %q", out.String())
	}
	for _, size := range []int{7, len(huge) - 100_000} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		m, err := letters.NextMsgWithContext(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		var p wire.Poison
		if err := wire.Unmarshal(m.Data, &p); err != nil || len(p.Data) < size || p.Reason == "" {
			t.Errorf("dead letter of %d bytes: %q, %v", len(p.Data), p.Reason, err)
		}
	}
}

// An event that no alert can be made of is set aside too: a run's id may be as
// long as an event.
func TestHugeID(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	var out printed
	start(t, log, alerter.Config{Out: &out, Delay: time.Millisecond})
	id := strings.Repeat("r", int(log.Conn().MaxPayload())-10_000)
	e := &wire.Event{RunID: id, NodeID: "n", Seq: 1, Epoch: 1, Timestamp: 1, ExecID: "n#1", Payload: &wire.NodeError{Error: strings.Repeat("e", 9_000)}}
	b, err := wire.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := log.JetStream().Publish(t.Context(), log.Names().Event(id, "n", "flow"), b); err != nil {
			t.Fatal(err)
		}
	}
	h := begin(t, log, "r1", nil)
	h.add(about("test", &wire.NodeError{Error: "exit code 2"}))
	waitRead(t, log, h.last)
	if out.lines() == 0 || !strings.HasSuffix(out.String(), "Node test failed: exit code 2\n") {
		t.Errorf("printed %d bytes", len(out.String()))
	}
}

func TestAlert(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	start(t, log, alerter.Config{})
	owner := logtest.Claim(t, log, "r1", wire.RunNode)
	logtest.Append(t, owner, &wire.Event{Payload: &wire.FlowStart{
		FlowName: "f", DefinitionHash: "h", Definition: wire.Null, ParentRun: "r0",
		Labels: map[string]string{"name": "sentinella", "team": "core", "unbounded": strings.Repeat("x", 4096)},
	}})
	w := logtest.Claim(t, log, "r1", "coder")
	pos := logtest.Append(t, w, &wire.Event{ExecID: "coder#1", Timestamp: 1767400000000, Payload: &wire.NodeError{Error: "exit code 2", ErrorType: "exit"}})
	waitRead(t, log, pos)
	data, err := wire.RawFromJSON([]byte(`{"type":"event","event":"error","agentId":"sentinella","errorType":"exit","message":"exit code 2","nodeId":"coder"}`))
	if err != nil {
		t.Fatal(err)
	}
	key := fmt.Sprintf("error-%d", pos)
	want := []wire.Alert{{
		V: 1, Key: key, Kind: "error", Severity: wire.SeverityError, RunID: "r1", NodeID: "coder", ExecID: "coder#1", Label: "sentinella",
		Position: wire.Position{Incarnation: log.Incarnation(), Seq: pos}, Timestamp: 1767400000000, ParentRun: "r0",
		Flow: "f", Labels: map[string]string{"name": "sentinella", "team": "core"},
		Text: "[subagent:sentinella] ❌ Node coder failed: exit code 2", Data: data,
	}}
	if d := cmp.Diff(want, alerts(t, log, "r1")); d != "" {
		t.Error(d)
	}
	if _, err := stream(t, log).GetLastMsgForSubject(t.Context(), log.Names().Alert("r1", "coder", "error", key)); err != nil {
		t.Errorf("the alert isn't on its subject: %v", err)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	if _, err := alerter.New(alerter.Config{Batch: -1}, nil, nil); err == nil {
		t.Error("a negative batch is accepted")
	}
}

// However often the alerter is stopped or killed, it raises what one that was
// never disturbed raises, once.
func TestDisturbed(t *testing.T) {
	t.Parallel()
	s, log := logtest.StartServer(t)
	serial := 0
	rapid.Check(t, func(r *rapid.T) {
		serial++
		var out printed
		cfg := alerter.Config{Out: &out, Delay: time.Duration(rapid.IntRange(1, 50).Draw(r, "delay")) * time.Millisecond, Batch: 3}
		h := begin(t, log, fmt.Sprintf("run%d", serial), nil)
		conn := s.Conn(t)
		stop := start(t, logtest.Open(t, conn), cfg)
		want, row := 0, 0
		for range rapid.IntRange(1, 25).Draw(r, "steps") {
			switch rapid.IntRange(0, 9).Draw(r, "step") {
			case 0:
				stop()
				stop = start(t, logtest.Open(t, conn), cfg)
			case 1:
				conn.Close()
				stop()
				conn = s.Conn(t)
				stop = start(t, logtest.Open(t, conn), cfg)
			case 2:
				h.add(tool("Bash", ""))
				row = 0
			case 3:
				h.add(about("test", &wire.NodeError{Error: "e"}))
				want++
			default:
				h.add(tool("Bash", "e"))
				if row++; row == 3 {
					want++
				}
			}
		}
		h.add(about(wire.RunNode, &wire.FlowComplete{Status: wire.FlowStatusComplete}))
		want++
		await(t, "all alerts", func() bool { return len(alerts(t, log, h.run)) >= want })
		waitRead(t, log, h.last)
		stop()
		conn.Close()
		if got := alerts(t, log, h.run); len(got) != want || out.lines() > want {
			t.Errorf("%d alerts, %d lines, want %d:\n%s", len(got), out.lines(), want, strings.Join(texts(got), "\n"))
		}
	})
}

// history appends the events of a run.
type history struct {
	t           testing.TB
	log         *eventlog.Log
	run         string
	writers     map[string]*eventlog.Writer
	first, last uint64 // positions
	void        []*wire.Event
}

// begin starts a run whose flow has some policies.
func begin(t testing.TB, log *eventlog.Log, id string, labels map[string]string) *history {
	t.Helper()
	h := &history{t: t, log: log, run: id, writers: map[string]*eventlog.Writer{}}
	definition := wire.RawOf(map[string]any{"name": "review", "nodes": []any{
		map[string]any{"id": "coder"},
		map[string]any{"id": "lenient", "policy": map[string]any{"continueOnError": true}},
		map[string]any{"id": "stubborn", "policy": map[string]any{"retry": map[string]any{"maxAttempts": 2}}},
	}})
	h.add(about(wire.RunNode, &wire.FlowStart{FlowName: "review", Definition: definition, DefinitionHash: "h", Labels: labels}))
	h.first = h.last
	return h
}

// add appends a copy of an event to the node it names.
func (h *history) add(e *wire.Event) {
	h.t.Helper()
	c := *e
	w := h.writers[c.NodeID]
	if w == nil {
		w = logtest.Claim(h.t, h.log, h.run, c.NodeID)
		h.writers[c.NodeID] = w
	}
	h.last = logtest.Append(h.t, w, &c)
}

func about(node string, p wire.Payload) *wire.Event {
	e := &wire.Event{NodeID: node, Payload: p}
	if node != wire.RunNode {
		e.ExecID = node + "#1"
	}
	if _, ok := p.(*wire.AgentStart); ok {
		e.SessionID = "s"
	}
	return e
}

func scheduled(node string, attempt int) *wire.Event {
	return &wire.Event{NodeID: wire.RunNode, ExecID: node + "#1", Payload: &wire.NodeScheduled{Target: node, Attempt: attempt}}
}

func tool(name, problem string) *wire.Event {
	return about("coder", &wire.AgentTool{ToolName: name, ToolInput: wire.Null, ToolOutput: wire.Null, Error: problem})
}

func denied() *wire.Event {
	return about("coder", &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null, Error: "denied", Denied: true})
}

func intent(batch, id string) *wire.Event {
	return call(id, about("coder", &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.Null, Batch: batch}))
}

func call(id string, e *wire.Event) *wire.Event {
	c := *e
	c.CallID = id
	return &c
}

func under(parent string, e *wire.Event) *wire.Event {
	c := *e
	c.Parent = parent
	return &c
}

func start(t testing.TB, log *eventlog.Log, cfg alerter.Config) (stop func()) {
	t.Helper()
	a, err := alerter.New(cfg, log, logtest.Logger(t))
	if err != nil {
		t.Fatal(err)
	}
	return logtest.Go(t, func(ctx context.Context) error {
		if err := a.Run(ctx); !log.Conn().IsClosed() {
			return err
		}
		return nil // the process was killed
	})
}

// waitRead waits until the alerter has dealt with what is at a position.
func waitRead(t testing.TB, log *eventlog.Log, pos uint64) {
	t.Helper()
	await(t, fmt.Sprintf("position %d to be read", pos), func() bool {
		c, err := log.JetStream().Consumer(t.Context(), log.Names().EventsStream(), "alerter")
		if err != nil {
			t.Fatal(err)
		}
		return c.CachedInfo().AckFloor.Stream >= pos
	})
}

func await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(30 * time.Second)
	for !condition() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("waited for %s", what)
		}
	}
}

func stream(t testing.TB, log *eventlog.Log) jetstream.Stream {
	t.Helper()
	s, err := log.JetStream().Stream(t.Context(), log.Names().AlertsStream())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// alerts returns what is stored of a run, in order.
func alerts(t testing.TB, log *eventlog.Log, run string) []wire.Alert {
	t.Helper()
	s := stream(t, log)
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter(log.Names().RunAlerts(run)))
	if err != nil {
		t.Fatal(err)
	}
	var list []wire.Alert
	for subject, n := range info.State.Subjects {
		m, err := s.GetLastMsgForSubject(t.Context(), subject)
		if err != nil || n != 1 {
			t.Fatalf("%d alerts on %s, %v", n, subject, err)
		}
		var a wire.Alert
		if err := wire.Unmarshal(m.Data, &a); err != nil {
			t.Fatal(err)
		}
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b wire.Alert) int { return int(a.Position.Seq) - int(b.Position.Seq) })
	return list
}

func texts(list []wire.Alert) []string {
	var all []string
	for _, a := range list {
		all = append(all, a.Text)
	}
	return all
}

func bucket(t testing.TB, log *eventlog.Log) jetstream.KeyValue {
	t.Helper()
	kv, err := log.JetStream().KeyValue(t.Context(), log.Names().StateBucket())
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

func stored(t testing.TB, log *eventlog.Log, key string) bool {
	t.Helper()
	_, err := bucket(t, log).Get(t.Context(), key)
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Fatal(err)
	}
	return err == nil
}

// position is what a value in WAKE_STATE says of which position it is.
func position(t testing.TB, log *eventlog.Log, key string) uint64 {
	t.Helper()
	e, err := bucket(t, log).Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	seq, _ := wire.Raw(e.Value()).Get("position").Get("seq").Any().(int64)
	return uint64(seq)
}

// printed is a terminal.
type printed struct{ logtest.Output }

func (p *printed) lines() int { return strings.Count(p.String(), "\n") }

// deaf is a way to the server on which nothing comes back once a word has been
// heard, until release is closed.
type deaf struct {
	server  *natstest.Server
	word    string
	release chan struct{}
}

// InProcessConn implements [nats.InProcessConnProvider].
func (d *deaf) InProcessConn() (net.Conn, error) {
	c, err := d.server.InProcessConn()
	return deafConn{c, d}, err
}

type deafConn struct {
	net.Conn
	d *deaf
}

func (c deafConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if bytes.Contains(b[:n], []byte(c.d.word)) {
		<-c.d.release
	}
	return n, err
}
