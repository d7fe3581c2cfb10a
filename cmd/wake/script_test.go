package main

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"code.wake.dev/wake/internal/agent/acp/acptest"
	"code.wake.dev/wake/internal/agent/codex/codextest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
)

func TestMain(m *testing.M) {
	testscript.Main(leakFree{m}, map[string]func(){
		"wake": main, "nats-server": natsServer, "unprivileged": unprivileged, "run-verbs": serveVerbs, "acp-agent": func() { acptest.Main() }, "mcp-tour": tourMCP, "codex": func() { codextest.Main() },
	})
}

// natsServer is the program nats-server, as far as the scripts need it: -c FILE. It
// writes its URL into the file nats-url and its log into server.log.
func natsServer() {
	if err := serveNATS(os.Args[len(os.Args)-1]); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serveNATS(conf string) error {
	o, err := server.ProcessConfigFile(conf)
	if err != nil {
		return err
	}
	o.Port, o.LogFile = server.RANDOM_PORT, "server.log"
	s, err := server.NewServer(o)
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		return errors.New("not ready")
	}
	err = os.WriteFile("nats-url.part", []byte(s.ClientURL()), 0o600)
	if err == nil {
		err = os.Rename("nats-url.part", "nats-url") // a script that waits for it finds it whole
	}
	if err != nil {
		return err
	}
	s.WaitForShutdown()
	return nil
}

// leakFree fails tests that leave goroutines behind.
type leakFree struct{ m *testing.M }

func (l leakFree) Run() int {
	code := l.m.Run()
	if err := goleak.Find(natstest.Leaks()...); err != nil && code == 0 {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// The scripts are examples of the command line: the real program, the real
// server, in a folder of their own.
func TestScript(t *testing.T) {
	scripts, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	if testing.Short() { // the race detector sees one process at a time: it gets those in which everything is one
		scripts = nil
		for _, name := range []string{"up", "demo", "steer", "approvals", "watch"} {
			scripts = append(scripts, "testdata/script/"+name+".txtar")
		}
	}
	testscript.Run(t, scriptParams(t, scripts...))
}

// scriptParams are what scripts run with.
func scriptParams(t *testing.T, scripts ...string) testscript.Params {
	t.Helper()
	return testscript.Params{
		Files:       scripts,
		WorkdirRoot: natstest.StoreDir(t),
		Setup: func(env *testscript.Env) error {
			env.Setenv("TZ", "UTC")
			env.Setenv("GORACE", "atexit_sleep_ms=0") // else each program takes a second to exit
			env.Setenv("XDG_CONFIG_HOME", env.WorkDir+"/config")
			top := cmp.Or(os.Getenv("GOTMPDIR"), os.TempDir())
			for dir := env.WorkDir; dir != top && dir != filepath.Dir(dir); dir = filepath.Dir(dir) { // agents of another user work there
				info, err := os.Stat(dir)
				if err == nil && info.Mode().Perm()&0o001 == 0 {
					err = os.Chmod(dir, 0o711)
				}
				if err != nil {
					return err
				}
			}
			names, err := variablesOf(scripts, env.Vars)
			env.Values[runnersKey{}] = &verbRunners{variables: names}
			return err
		},
		Condition: func(name string) (bool, error) {
			if name != "root" {
				return false, fmt.Errorf("there is no condition %q", name)
			}
			return os.Geteuid() == 0, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"run":     runSucceeds,
			"exits":   exits,
			"waitfor": waitfor,
			"msgpack": msgpack,
			"capture": capture,
			"publish": publish,
			"begins":  begins,
			"within":  within,
			"streams": hasStream,
			"sql":     changeFile,
			"api":     startAPI,
			"store":   askStore,
			"answer":  answerLink,
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	}
}

// sql FILE STATEMENTS changes a SQLite file, and waits for a recorder that writes to it.
func changeFile(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: sql FILE STATEMENTS")
	}
	db, err := sql.Open("sqlite", "file:"+ts.MkAbs(args[0])+"?_pragma=busy_timeout(30000)")
	ts.Check(err)
	_, err = db.Exec(args[1])
	ts.Check(errors.Join(err, db.Close()))
}

// exits CODE PROGRAM ARGS… runs a program that exits with CODE.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got, _ := runProgram(ts, args[1:]); got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// run PROGRAM ARGS… runs a program that runSucceeds, and a verb in no process of its own: see serveVerbs.
func runSucceeds(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) == 0 {
		ts.Fatalf("usage: [!] run PROGRAM ARGS...")
	}
	if code, _ := runProgram(ts, args); (code != 0) != neg {
		ts.Fatalf("exit code %d", code)
	}
}

// runProgram runs a program, and returns its exit code and what it printed.
func runProgram(ts *testscript.TestScript, args []string) (int, string) {
	if isVerb(args) {
		end := runVerb(ts, args[1:])
		return end.Code, end.Stdout
	}
	err := ts.Exec(args[0], args[1:]...)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, ts.ReadFile("stdout")
	case errors.As(err, &exit):
		return exit.ExitCode(), ts.ReadFile("stdout")
	}
	ts.Fatalf("%v", err)
	return -1, ""
}

// within DURATION PROGRAM ARGS… runs a program that ends in that time, however
// it ends.
func within(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: within DURATION PROGRAM ARGS...")
	}
	limit, err := time.ParseDuration(args[0])
	ts.Check(err)
	start := time.Now()
	runProgram(ts, args[1:])
	if took := time.Since(start); took > limit {
		ts.Fatalf("took %s, want at most %s", took, limit)
	}
}

// waitfor file PATH waits until a file exists; waitfor PATTERN PROGRAM ARGS…
// until the output of a program that succeeds matches.
func waitfor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: waitfor file PATH | PATTERN PROGRAM ARGS...")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	met := func() bool {
		code, printed := runProgram(ts, args[1:])
		return code == 0 && pattern.MatchString(printed)
	}
	if args[0] == "file" {
		met = func() bool {
			_, err := os.Stat(ts.MkAbs(args[1]))
			return err == nil
		}
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(30 * time.Second); !met(); {
		select {
		case <-tick.C:
		case <-deadline:
			ts.Fatalf("not met after 30s: %s", strings.Join(args, " "))
		}
	}
}

// msgpack JSON OUT writes the values of a file of JSON lines as msgpack.
func msgpack(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: msgpack JSON OUT")
	}
	var out []byte
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		raw, err := wire.RawFromJSON([]byte(line))
		ts.Check(err)
		out = slices.Concat(out, raw)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), out, 0o600))
}

// begins FILE checks that the output of the last program begins with a file.
func begins(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: begins FILE")
	}
	want := ts.ReadFile(args[0])
	if got := ts.ReadFile("stdout"); want == "" || !strings.HasPrefix(got, want) {
		ts.Fatalf("the output doesn't begin with %s:\n%s", args[0], want)
	}
}

// publish SUBJECT TEXT publishes to the server of the data directory, past
// everything that keeps the log in order.
func publish(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: publish SUBJECT TEXT")
	}
	nc, err := nats.Connect(strings.TrimSpace(ts.ReadFile(".wake/nats-url")))
	ts.Check(err)
	defer nc.Close()
	ack, err := nc.Request(args[0], []byte(args[1]), 5*time.Second)
	ts.Check(err)
	if !strings.Contains(string(ack.Data), `"seq"`) {
		ts.Fatalf("not stored: %s", ack.Data)
	}
}

// streams PATTERN waits until the server of the data directory has a stream whose
// name matches; with ! it checks that it has none now.
func hasStream(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: [!] streams PATTERN")
	}
	pattern, err := regexp.Compile(args[0])
	ts.Check(err)
	nc, err := nats.Connect(strings.TrimSpace(ts.ReadFile(".wake/nats-url")))
	ts.Check(err)
	defer nc.Close()
	js, err := nc.JetStream()
	ts.Check(err)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(30 * time.Second); ; {
		names := slices.Collect(func(yield func(string) bool) {
			for name := range js.StreamNames() {
				if pattern.MatchString(name) && !yield(name) {
					return
				}
			}
		})
		switch {
		case neg && len(names) > 0:
			ts.Fatalf("streams %s are there", names)
		case neg || len(names) > 0:
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			ts.Fatalf("no stream %s after 30s", args[0])
		}
	}
}

// capture NAME PATTERN sets a variable to what the first group of a pattern
// matches in the output of the last program.
func capture(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: capture NAME PATTERN")
	}
	m := regexp.MustCompile("(?m)" + args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
	if len(m) != 2 {
		ts.Fatalf("%s matches nothing", args[1])
	}
	ts.Setenv(args[0], m[1])
}
