package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// scriptVerb is a verb as a script says it: its arguments, its folder and its environment.
type scriptVerb struct {
	Args    []string
	Dir     string
	Environ map[string]string
	Within  time.Duration
}

// verbEnd is what came of it.
type verbEnd struct {
	Code           int
	Stdout, Stderr string
}

// serveVerbs is the program that runs the verbs of a script one after the other, without a process for each: that takes longer to
// begin than most verbs take. Nothing but the process is another one: a verb has its folder, its environment and its output.
func serveVerbs() {
	calls, ends := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var c scriptVerb
		if err := calls.Decode(&c); err != nil {
			return
		}
		if err := ends.Encode(c.run()); err != nil {
			panic(err)
		}
	}
}

func (c scriptVerb) run() verbEnd {
	os.Clearenv()
	for name, value := range c.Environ {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	if err := os.Chdir(c.Dir); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.Within)
	defer cancel()
	var out, errOut bytes.Buffer
	a := &app{in: strings.NewReader(""), out: &out, errOut: &errOut}
	code := a.main(ctx, c.Args)
	return verbEnd{Code: code, Stdout: out.String(), Stderr: errOut.String()}
}

// verbRunner is such a program.
type verbRunner struct {
	process *exec.Cmd
	in      io.WriteCloser
	ends    *json.Decoder
}

func startRunner(ts *testscript.TestScript) *verbRunner {
	path, err := exec.LookPath("run-verbs")
	ts.Check(err)
	r := &verbRunner{process: exec.Command(path)} // it ends with its input
	r.process.Stderr = os.Stderr                  // of a panic
	r.in, err = r.process.StdinPipe()
	ts.Check(err)
	out, err := r.process.StdoutPipe()
	ts.Check(err)
	r.ends = json.NewDecoder(out)
	ts.Check(r.process.Start())
	return r
}

func (r *verbRunner) run(c scriptVerb) (verbEnd, error) {
	var end verbEnd
	err := json.NewEncoder(r.in).Encode(c)
	if err == nil {
		err = r.ends.Decode(&end)
	}
	if err != nil {
		return end, fmt.Errorf("wake %q ended its process: %w", c.Args, err)
	}
	return end, nil
}

func (r *verbRunner) close() error {
	return errors.Join(r.in.Close(), r.process.Wait())
}

// verbRunners are the runners of a script, which it has as its value for this key.
type verbRunners struct {
	variables []string // that the script may have set
	runner    *verbRunner
}

type runnersKey struct{}

// ownProcess are verbs that are processes of their own wherever a script says so: services, and what reads its input.
var ownProcess = []string{"up", "console", "runner", "recorder", "snapshotter", "alerter", "watch", "mcp", "attach", "supervise", "hooks", "decode", "ingest"}

// isVerb reports whether a program with its arguments is a verb that needs no process of its own.
func isVerb(program []string) bool {
	return len(program) > 1 && program[0] == "wake" && !slices.Contains(ownProcess, program[1])
}

// verbOf returns the verb with the folder and the environment that the script has now.
func verbOf(ts *testscript.TestScript, args []string) scriptVerb {
	c := scriptVerb{Args: args, Dir: ts.MkAbs("."), Environ: map[string]string{}, Within: 10 * time.Minute}
	for _, name := range ts.Value(runnersKey{}).(*verbRunners).variables {
		if value := ts.Getenv(name); value != "" {
			c.Environ[name] = value
		}
	}
	return c
}

// runnerOf returns the runner of a script.
func runnerOf(ts *testscript.TestScript) *verbRunner {
	all := ts.Value(runnersKey{}).(*verbRunners)
	if all.runner == nil {
		all.runner = startRunner(ts)
		ts.Defer(func() { _ = all.runner.close() })
	}
	return all.runner
}

// runVerb runs a verb of a script, which then has what it printed.
func runVerb(ts *testscript.TestScript, args []string) verbEnd {
	end, err := runnerOf(ts).run(verbOf(ts, args))
	ts.Check(err)
	for w, printed := range map[io.Writer]string{ts.Stdout(): end.Stdout, ts.Stderr(): end.Stderr} {
		b := w.(*strings.Builder)
		b.Reset() // what an earlier one has printed, which is waited for
		b.WriteString(printed)
	}
	return end
}

// variablesOf returns the names of all variables that scripts set, and those that each has.
func variablesOf(scripts, initial []string) ([]string, error) {
	var names []string
	for _, variable := range initial {
		name, _, _ := strings.Cut(variable, "=")
		names = append(names, name)
	}
	set := regexp.MustCompile(`(?m)^env (\w+)=`)
	for _, path := range scripts {
		script, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for _, m := range set.FindAllSubmatch(script, -1) {
			names = append(names, string(m[1]))
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
