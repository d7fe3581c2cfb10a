package shell_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"code.wake.dev/wake/internal/agent/shell"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type result struct {
	events  []*wire.Event
	outcome shell.Outcome
	output  map[string]any
}

func run(ctx context.Context, t *testing.T, c shell.Command, on func(*wire.Event)) result {
	t.Helper()
	c.ExecID, c.Grace = "build#1", 50*time.Millisecond
	if c.Env == nil {
		c.Env = []string{"PATH=" + os.Getenv("PATH")}
	}
	var r result
	for e, err := range c.Run(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		e.RunID, e.NodeID, e.Seq, e.Epoch = "r", "build", uint64(len(r.events)+1), 1
		if _, err := wire.Encode(e); err != nil {
			t.Error(err)
		}
		r.events = append(r.events, e)
		r.outcome.Observe(e)
		if on != nil {
			on(e)
		}
	}
	raw, err := r.outcome.Output()
	if err != nil {
		t.Fatal(err)
	}
	r.output, _ = raw.Any().(map[string]any)
	return r
}

func (r result) last(t *testing.T) *wire.ExecExit {
	t.Helper()
	p, ok := r.events[len(r.events)-1].Payload.(*wire.ExecExit)
	if !ok {
		t.Fatalf("the last event is %s", r.events[len(r.events)-1].Type())
	}
	return p
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	r := run(t.Context(), t, shell.Command{
		Command: `echo out; echo "bad $X" >&2; pwd; cat; exit 3`, Cwd: dir, Env: []string{"X=1", "PATH=" + os.Getenv("PATH")},
	}, nil)
	if p := r.last(t); p.ExitCode != 3 || p.Signal != "" || p.TimedOut {
		t.Errorf("exit %+v", p)
	}
	if r.output["stdout"] != "out\n"+dir+"\n" || r.output["stderr"] != "bad 1\n" || r.output["exitCode"] != int64(3) {
		t.Errorf("output %v", r.output)
	}
	if p := r.events[0].Payload.(*wire.ExecStart); p.Cwd != dir || p.Pid == 0 || !strings.HasPrefix(p.Command, "echo out") {
		t.Errorf("start %+v", p)
	}
	if r.outcome.Problem() != "the command ended with exit code 3" {
		t.Errorf("problem %q", r.outcome.Problem())
	}
}

func TestArgv(t *testing.T) {
	r := run(t.Context(), t, shell.Command{Argv: []string{"/bin/echo", "$HOME; rm -rf", "a b"}}, nil)
	if r.output["stdout"] != "$HOME; rm -rf a b\n" || r.outcome.Problem() != "" {
		t.Errorf("output %v", r.output)
	}
}

func TestTimeLimit(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	r := run(t.Context(), t, shell.Command{
		Command: `trap '' TERM; setsid sh -c 'trap "" TERM; echo $$ >> ` + pids + `; while :; do sleep 100; done' & echo on; while :; do sleep 100; done`,
		Timeout: 300 * time.Millisecond,
	}, nil)
	if p := r.last(t); !p.TimedOut || p.Signal != "KILL" || p.ExitCode != -1 {
		t.Errorf("exit %+v", p)
	}
	if r.output["stdout"] != "on\n" || r.output["timedOut"] != true {
		t.Errorf("output %v", r.output)
	}
	b, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(stat), ") Z ") {
		t.Errorf("process %d lives", pid)
	}
}

// A command that leaves something behind ends all the same.
func TestLeftBehind(t *testing.T) {
	r := run(t.Context(), t, shell.Command{Command: `setsid sh -c 'while :; do sleep 100; done' & echo done`}, nil)
	if p := r.last(t); p.ExitCode != 0 || p.DurationMs > 20_000 || r.output["stdout"] != "done\n" {
		t.Errorf("exit %+v, output %v", p, r.output)
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := run(ctx, t, shell.Command{Command: `echo on; exec sleep 100`}, func(e *wire.Event) {
		if _, ok := e.Payload.(*wire.ExecOutput); ok {
			cancel()
		}
	})
	if p := r.last(t); p.Signal != "TERM" || p.TimedOut {
		t.Errorf("exit %+v", p)
	}
}

func TestLeavingEarly(t *testing.T) {
	for e, err := range (shell.Command{Command: `while :; do echo on; done`, Grace: time.Millisecond}).Run(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := e.Payload.(*wire.ExecOutput); ok {
			break
		}
	}
}

func TestLongOutput(t *testing.T) {
	r := run(t.Context(), t, shell.Command{Command: `i=0; while [ $i -lt 20000 ]; do echo "line $i é"; i=$((i+1)); done`}, nil)
	var whole strings.Builder
	for _, e := range r.events {
		if p, ok := e.Payload.(*wire.ExecOutput); ok {
			whole.WriteString(p.Content)
		}
	}
	out, _ := r.output["stdout"].(string)
	if n := strings.Count(whole.String(), "\n"); n != 20000 || strings.ContainsRune(whole.String(), utf8.RuneError) {
		t.Errorf("%d lines in the events", n)
	}
	if r.output["stdoutTruncated"] != true || r.output["stdoutBytes"] != int64(whole.Len()) || len(out) > 64<<10 || !strings.HasSuffix(whole.String(), out) {
		t.Errorf("%d bytes kept, truncated %v of %v", len(out), r.output["stdoutTruncated"], r.output["stdoutBytes"])
	}
}

func TestInvalidBytes(t *testing.T) {
	r := run(t.Context(), t, shell.Command{Command: `printf 'a\377b\303'`}, nil)
	if r.output["stdout"] != "a\uFFFDb\uFFFD" {
		t.Errorf("output %q", r.output["stdout"])
	}
}

func TestCannotStart(t *testing.T) {
	for name, c := range map[string]shell.Command{
		"no folder":  {Command: "true", Cwd: "/nonexistent"},
		"no program": {Argv: []string{"/nonexistent/program"}},
	} {
		var last error
		for _, err := range c.Run(t.Context()) {
			last = err
		}
		if !errors.Is(last, os.ErrNotExist) {
			t.Errorf("%s: error %v", name, last)
		}
	}
}

// However a text is cut into pieces, it comes out whole.
func TestPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		want := strings.ToValidUTF8(text, "\uFFFD")
		var got strings.Builder
		for _, piece := range shell.Cut([]byte(text), rapid.SliceOf(rapid.IntRange(1, 5)).Draw(t, "sizes")) {
			if !utf8.ValidString(piece) {
				t.Fatalf("piece %q isn't UTF-8", piece)
			}
			got.WriteString(piece)
		}
		if got.String() != want {
			t.Fatalf("got %q, want %q", got.String(), want)
		}
	})
}

// A command that closes its streams before it exits ends by itself.
func TestClosesItsStreamsFirst(t *testing.T) {
	r := run(t.Context(), t, shell.Command{Command: `exec >&- 2>&-; sleep 0.3; exit 4`}, nil)
	if p := r.last(t); p.ExitCode != 4 || p.Signal != "" {
		t.Errorf("exit %+v", p)
	}
}

// The node's output is the end, and says how much there was.
func TestExcerptIsTold(t *testing.T) {
	r := run(t.Context(), t, shell.Command{Command: `yes | head -c 1000000; echo; echo the end`, Limit: 10_000}, nil)
	size := 0
	for _, e := range r.events {
		if p, ok := e.Payload.(*wire.ExecOutput); ok {
			size += len(p.Content)
		}
	}
	out, _ := r.output["stdout"].(string)
	if size > 200_000 || r.output["stdoutTruncated"] != true || r.output["stdoutBytes"] != int64(1_000_009) || !strings.HasSuffix(out, "\nthe end\n") {
		t.Errorf("%d bytes are recorded, of %v, truncated %v: %.100q", size, r.output["stdoutBytes"], r.output["stdoutTruncated"], out)
	}
}

// TestQuietStream shows that the end of each stream is in the node's output, however much the other one says before and behind it.
func TestQuietStream(t *testing.T) {
	noise := `yes | head -c 1000000 >&2; `
	r := run(t.Context(), t, shell.Command{Command: noise + `seq 1 9; ` + noise + `echo "the résult"; ` + noise, Limit: 100_000}, nil)
	out, _ := r.output["stdout"].(string)
	if out != "1\n2\n3\n4\n5\n6\n7\n8\n9\nthe résult\n" || r.output["stdoutTruncated"] != nil {
		t.Errorf("stdout is %q, truncated %v", out, r.output["stdoutTruncated"])
	}
	if said, _ := r.output["stderr"].(string); len(said) != 64<<10 || r.output["stderrBytes"] != int64(3_000_000) {
		t.Errorf("stderr are %d bytes of %v", len(said), r.output["stderrBytes"])
	}
}

// lateHost starts programs, and says so later, as a host that has much else to do.
type lateHost struct {
	process.Direct

	asked *time.Time
}

func (h lateHost) Start(c process.Config) (*process.Process, error) {
	*h.asked = time.Now()
	p, err := h.Direct.Start(c)
	<-time.After(50 * time.Millisecond)
	return p, err
}

// A command begins when its host is asked to start it: the log says so, by which a worker that comes back counts how long it took.
func TestBeginOfLateHost(t *testing.T) {
	var asked time.Time
	r := run(t.Context(), t, shell.Command{Command: "true", Host: lateHost{asked: &asked}}, nil)
	if start := r.events[0]; start.Type() != wire.TypeExecStart || start.Timestamp > asked.UnixMilli() {
		t.Errorf("%s has the time %d, the host was asked at %d", start.Type(), start.Timestamp, asked.UnixMilli())
	}
}
