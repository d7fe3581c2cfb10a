package alerter_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/alerter"
)

// A stream that fills up and a recorder that doesn't record are told, and again
// after an hour, each once, whichever alerter looks.
func TestSystem(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t)
		nc := s.Conn(t)
		logtest.Init(t, nc, topology.Config{MaxBytes: 100_000})
		log := logtest.Open(t, nc)
		var out printed
		for range 2 { // alerters
			start(t, logtest.Open(t, s.Conn(t)), alerter.Config{Out: &out})
		}
		h := &history{t: t, log: log, run: "r1", writers: map[string]*eventlog.Writer{}}
		h.add(about("coder", &wire.TurnStart{}))
		<-time.After(4 * time.Minute)
		if out.lines() != 0 {
			t.Errorf("printed %q", out.String())
		}
		h.add(about("coder", &wire.UserMessage{Content: strings.Repeat("x", 75_000), Source: "command"}))
		<-time.After(2 * time.Minute)
		for i := range 2 {
			if out.lines() != 2*(i+1) {
				t.Errorf("printed %q", out.String())
			}
			h.add(about("coder", &wire.TurnStart{}))
			h.add(about("coder", &wire.TurnEnd{}))
			<-time.After(time.Hour)
		}
		for _, want := range []string{
			"[subagent:wake] 💾 Event storage is 76% full (74.", "KiB of 97.7 KiB)\n",
			"[subagent:wake] 🐌 The recorder is 5 minutes behind (3 events)\n",
		} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q isn't in %q", want, out.String())
			}
		}
		for _, a := range alerts(t, log, wire.NoRun) {
			if a.Kind != "storage_pressure" && a.Kind != "recorder_lag" || a.Label != "wake" {
				t.Errorf("alert %+v", a)
			}
		}
	})
}

// That storage fills up is told where nothing is known of the recorder.
func TestStorageWithoutRecorder(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.New(t).Conn(t)
		logtest.Init(t, nc, topology.Config{MaxBytes: 100_000})
		log := logtest.Open(t, nc)
		if err := log.JetStream().DeleteConsumer(t.Context(), log.Names().EventsStream(), subjects.RecorderConsumer); err != nil {
			t.Fatal(err)
		}
		var out printed
		start(t, log, alerter.Config{Out: &out})
		h := &history{t: t, log: log, run: "r1", writers: map[string]*eventlog.Writer{}}
		h.add(about("coder", &wire.UserMessage{Content: strings.Repeat("x", 75_000), Source: "command"}))
		<-time.After(2 * time.Minute)
		if got, want := out.String(), "[subagent:wake] 💾 Event storage is 75% full ("; out.lines() != 1 || !strings.HasPrefix(got, want) {
			t.Errorf("printed %q, want %q", got, want)
		}
	})
}

// What keeps a part of a process from its work is told, once an hour and not if it is over soon.
func TestTrouble(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.New(t).Conn(t)
		logtest.Init(t, nc, topology.Config{})
		log := logtest.Open(t, nc)
		var out printed
		start(t, log, alerter.Config{Out: &out})
		board := health.NewBoard(slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- board.Publish(ctx, log.JetStream(), log.Names(), "up-1", "wake up on box") }()
		<-time.After(20 * time.Second)
		board.Set("recorder: recording", errors.New("short"))
		<-time.After(15 * time.Second)
		board.Set("recorder: recording", nil)
		<-time.After(25 * time.Second)
		board.Set("recorder: recording", errors.New("disk full"))
		board.Set("recorder: full text", errors.New("disk full"))
		<-time.After(10 * time.Minute)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got, want := out.String(), "[subagent:wake] 🩺 The recorder doesn't work (wake up on box): disk full\n"; got != want {
			t.Errorf("printed %q, want %q", got, want)
		}
	})
}

// What isn't an event, on a subject of events, is told once: the recorder has set
// it aside.
func TestLetter(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.New(t).Conn(t)
		logtest.Init(t, nc, topology.Config{})
		log := logtest.Open(t, nc)
		var out printed
		start(t, log, alerter.Config{Out: &out})
		<-time.After(2 * time.Minute)
		letter := eventlog.Entry{Subject: "wake.events.r1.coder.agent", Pos: 1, Data: []byte("{}")}
		for range 2 {
			if err := log.DeadLetter(t.Context(), "recorder", "wire: malformed: not a map", letter); err != nil {
				t.Fatal(err)
			}
			<-time.After(2 * time.Minute)
		}
		<-time.After(113*time.Minute + 50*time.Second) // the next look is after the hour
		if err := log.DeadLetter(t.Context(), "recorder", "the last one of the hour", letter); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Minute)
		if want := "[subagent:wake] 📮 The recorder has set aside what isn't an event: wire: malformed: not a map\n" +
			"[subagent:wake] 📮 The recorder has set aside what isn't an event: the last one of the hour\n"; out.String() != want {
			t.Errorf("printed %q, want %q", out.String(), want)
		}
	})
}

// Events that are missing between others are told when the run has ended; those
// that the alerter isn't given aren't missing.
func TestGap(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	h := begin(t, log, "r1", nil)
	for range 3 {
		h.add(about("coder", &wire.AgentTextDelta{Content: "x", Block: 1}))
		h.add(about("coder", &wire.TurnStart{}))
	}
	for _, seq := range []uint64{1, 2, 5, 6, 8} { // as if the log had lost some
		e := about("holes", &wire.TurnStart{})
		e.RunID, e.Seq, e.Epoch, e.Timestamp = "r1", seq, 1, 1
		b, err := wire.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := log.JetStream().Publish(t.Context(), log.Names().Event("r1", "holes", "agent"), b); err != nil {
			t.Fatal(err)
		}
	}
	h.add(about(wire.RunNode, &wire.FlowComplete{Status: wire.FlowStatusComplete}))
	var out printed
	start(t, log, alerter.Config{Out: &out})
	waitRead(t, log, h.last)
	want := []string{
		"[subagent:holes] 🕳️ 2 events of holes missing in the log (seq 3 to 4)",
		"[subagent:holes] 🕳️ 1 event of holes missing in the log (seq 7)",
		"[subagent:review] ✅ Completed",
	}
	if d := cmp.Diff(want, texts(alerts(t, log, "r1"))); d != "" {
		t.Error(d)
	}
}

// So are those that the owner itself lacks, where it alone has written.
func TestGapOfTheOwner(t *testing.T) {
	t.Parallel()
	log := logtest.Start(t)
	var pos uint64
	for _, e := range []*wire.Event{
		{Seq: 1, Payload: &wire.RunClaimed{Runner: "m", Nonce: "n"}},
		{Seq: 2, Payload: &wire.FlowStart{FlowName: "f", DefinitionHash: "h", Definition: wire.Null}},
		{Seq: 4, Payload: &wire.FlowComplete{Status: wire.FlowStatusComplete}},
	} {
		e.RunID, e.NodeID, e.Epoch, e.Timestamp = "r1", wire.RunNode, 1, 1
		b, err := wire.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		ack, err := log.JetStream().Publish(t.Context(), log.Names().Event("r1", wire.RunNode, "flow"), b)
		if err != nil {
			t.Fatal(err)
		}
		pos = ack.Sequence
	}
	start(t, log, alerter.Config{})
	waitRead(t, log, pos)
	want := []string{"[subagent:f] 🕳️ 1 event of _run missing in the log (seq 3)", "[subagent:f] ✅ Completed"}
	got := texts(alerts(t, log, "r1"))
	slices.Sort(got)
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// What an operator sets is used from the next event on; what is wrong is refused.
func TestSettings(t *testing.T) {
	t.Parallel()
	if err := alerter.Defaults().Validate(); err != nil {
		t.Error(err)
	}
	s := alerter.Defaults()
	s.Stuck.After, s.Budget.Run, s.Context.Percent = -1, []float64{2, 1}, []int{50, 101}
	s.Build.Commands = []alerter.Command{{Name: "x", Pattern: "("}}
	s.System.Repeat, s.Budget.Shares = time.Microsecond, []float64{50, 80}
	err := s.Validate()
	for _, want := range []string{"stuck.after: ", "budget.run: ", "budget.shares: ", "context.percent: ", "build.commands[0]: ", "system.repeat: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	log := logtest.Start(t)
	if _, err := alerter.New(alerter.Config{Settings: &s}, log, logtest.Logger(t)); err == nil {
		t.Error("wrong settings are accepted")
	}
	a, err := alerter.New(alerter.Config{}, log, logtest.Logger(t))
	if err != nil {
		t.Fatal(err)
	}
	if a.Set(s) == nil {
		t.Error("wrong settings are accepted later")
	}
	s = alerter.Defaults()
	s.Loop.Failures = 2
	if err := a.Set(s); err != nil {
		t.Fatal(err)
	}
	logtest.Go(t, a.Run)
	h := begin(t, log, "r1", nil)
	h.add(tool("Bash", "e"))
	h.add(tool("Bash", "e"))
	waitRead(t, log, h.last)
	if got := alerts(t, log, "r1"); len(got) != 1 || !strings.Contains(got[0].Text, "2 consecutive") {
		t.Errorf("alerts %v", texts(got))
	}
}

// Each signal can be switched off.
func TestSwitchedOff(t *testing.T) {
	t.Parallel()
	off := alerter.Settings{}
	if err := off.Validate(); err != nil {
		t.Fatal(err)
	}
	always := []string{"completion", "error", "process_died", "waiting", "cc_message", "permission_blocked", "task_milestone", "git_commit", "mirror_error", "model_limit"}
	for _, kind := range kindsOf(t, off) {
		if !slices.Contains(always, kind) {
			t.Errorf("%s is found all the same", kind)
		}
	}
	if kinds := kindsOf(t, alerter.Defaults()); len(kinds) < 12 {
		t.Errorf("kinds %v", kinds)
	}
}

func kindsOf(t *testing.T, s alerter.Settings) []string {
	t.Helper()
	seen := map[string]bool{}
	var kinds []string
	histories(t, func(_ *testing.T, _ string, _ *archive, entries []eventlog.Entry) {
		for _, a := range alerter.Backtest(s, entries) {
			if !seen[a.Kind] {
				seen[a.Kind], kinds = true, append(kinds, a.Kind)
			}
		}
	})
	return kinds
}

// What tools print about their builds and tests, and what is made of it.
func TestOutputs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ command, output, want string }{
		{"go test ./...", "--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/sub (0.00s)\n--- FAIL: TestB (0.01s)\nFAIL\nFAIL\twake\t0.1s\nok  \twake/x\t0.1s", "Tests failed: 2 failed (TestA, TestB)"},
		{"cd /x && CGO_ENABLED=0 go test -race ./...", "./a.go:3:4: undefined: x\n./a.go:9:1: undefined: y\nFAIL\twake [build failed]\nFAIL", "Tests failed: 1 failed (wake)"},
		{"go build ./...", "# wake\n./a.go:3:4: undefined: x\n./b.go:9:1: undefined: y", "Build failed: 2 errors in 2 files"},
		{"npm test", "Test Suites: 1 failed, 3 passed, 4 total\nTests:       2 failed, 40 passed, 42 total\nTime: 1 s", "Tests failed: 2 failed, 40 passed"},
		{"npx vitest run", " Test Files  1 failed | 3 passed (4)\n      Tests  1 failed | 13 passed (14)\n", "Tests failed: 1 failed, 13 passed"},
		{"npx mocha", "  12 passing (30ms)\n  1 failing\n", "Tests failed: 1 failed, 12 passed"},
		{"python3 -m pytest -q", "FAILED test_a.py::test_x\n==== 2 failed, 3 passed, 1 error in 0.12s ====", "Tests failed: 3 failed, 3 passed"},
		{"uv run pytest", "1 failed, 3 passed in 0.12s", "Tests failed: 1 failed, 3 passed"},
		{"cargo test", "test result: ok. 4 passed; 0 failed; 0 ignored\ntest result: FAILED. 3 passed; 1 failed; 0 ignored\nerror: test failed, to rerun pass `--lib`", "Tests failed: 1 failed, 7 passed"},
		{"cargo build", "error[E0308]: mismatched types\n --> src/main.rs:4:5\nerror[E0425]: cannot find value\n  --> src/main.rs:9:5\nerror: could not compile `x` due to 2 previous errors", "Build failed: 2 errors in main.rs"},
		{"npx tsc --noEmit", "src/bridge.ts(1,2): error TS2345: no\nsrc/log.ts(1,2): error TS2345: no\nerror TS6053: File not found", "Build failed: 3 errors in 2 files"},
		{"tsc", "\x1b[96msrc/bridge.ts\x1b[0m:\x1b[93m4\x1b[0m:\x1b[93m1\x1b[0m - \x1b[91merror\x1b[0m\x1b[90m TS2304: \x1b[0mCannot find name 'x'.\n\nFound 1 error in src/bridge.ts:4\n", "Build failed: 1 error in bridge.ts"},
		{"make", "a.c:1:2: error: expected ';'\nmake: *** [Makefile:2: all] Error 1", "Build failed: 1 error in a.c"},
		{"make", "make: *** [Makefile:2: all] Error 1", "Build failed: make failed"},
		{"make test", "./run.sh\nmake: *** [Makefile:2: test] Error 1", "Tests failed: make failed"},
		{"pnpm run build", "✖ 12 problems (12 errors, 0 warnings)", "Build failed: 12 errors"},
		{"mix test", "5 tests, 2 failures", "Tests failed: 2 failed, 3 passed"},
		{"bundle exec rspec", "7 examples, 1 failure", "Tests failed: 1 failed, 6 passed"},
		{"mvn -q verify", "BUILD FAILURE", "Tests failed: exit code 1"},
		{"timeout 60 ./gradlew test", "> Task :test FAILED", "Tests failed: exit code 1"},
	} {
		e := about("coder", &wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawOf(map[string]any{"command": c.command}), ToolOutput: wire.Null, Error: "Exit code 1\n" + c.output})
		e.RunID = "r1"
		list := alerter.Backtest(alerter.Defaults(), []eventlog.Entry{{Pos: 1, Time: begin0, RunID: "r1", NodeID: "coder", Event: e}})
		if want := "[subagent:coder] 🔨 " + c.want; len(list) != 1 || list[0].Text != want {
			t.Errorf("%s: %v, want %s", c.command, texts(list), want)
		}
	}
	for _, command := range []string{"ls", "cat Makefile", "echo make", "git commit -m 'go test'", "cat <<EOF > x\ngo test\nEOF", "grep -r \"npm test\" .", "makefoo", "gotcha", "npm run tests-ui-docs"} {
		e := about("coder", &wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawOf(map[string]any{"command": command}), ToolOutput: wire.Null, Error: "Exit code 1"})
		e.RunID = "r1"
		if list := alerter.Backtest(alerter.Defaults(), []eventlog.Entry{{Pos: 1, Time: begin0, RunID: "r1", NodeID: "coder", Event: e}}); len(list) > 0 {
			t.Errorf("%s: %v", command, texts(list))
		}
	}
}

// Every alert of a line of seeds/004 is there to the byte (D-DET A12).
func TestSeedLines(t *testing.T) {
	t.Parallel()
	got := map[string]bool{}
	histories(t, func(_ *testing.T, _ string, _ *archive, entries []eventlog.Entry) {
		for _, a := range alerter.Backtest(alerter.Defaults(), entries) {
			got[a.Text] = true
		}
	})
	for _, line := range []string{
		"❌ API error: rate limited (retry 2/5)", "⚠️ No progress for 5 minutes (last: editing bridge.ts)", "💰 $0.50 spent (budget: $1.00)",
		"📋 [2/5] Read specs and source files ✅", "📋 [3/5] Implement ring buffer + get_log", "🔨 Build passed ✅ (0 errors)",
		"🔨 Build failed: 12 errors in bridge.ts", `📝 Committed: "feat: add event ring buffer and get_log command"`,
		"🧠 Context at 75% — may compact soon", "🔄 Spawned 3 sub-agents (team: refactor-squad)",
		"🔁 3 consecutive Bash failures — possibly stuck", `💬 "Build fails — missing dep X. Install it?"`, "✅ Completed: Fixed.",
	} {
		if !got[fmt.Sprintf("[subagent:sentinella] %s", line)] {
			t.Errorf("the line of the seed is missing: %s", line)
		}
	}
}
