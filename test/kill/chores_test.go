//go:build kill && claudecli

package kill_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
)

// chore is a command that leaves a line in the ledger when it begins, and one when it ends.
func (l *bench) chore(name string, takes time.Duration) string {
	return fmt.Sprintf("echo %[1]s start $$ >> %[2]s; sleep %.2[3]f; echo %[1]s end $$ >> %[2]s; echo did %[1]s", name, l.ledger(), takes.Seconds())
}

// ledger is where chores leave their lines.
func (l *bench) ledger() string { return filepath.Join(l.Dir, "ledger", "chores") }

// lines are the lines of the ledger.
func (l *bench) lines() []string {
	l.Helper()
	b, err := os.ReadFile(l.ledger())
	l.Must(err)
	return slices.Collect(strings.Lines(string(b)))
}

// script is what the model says: n chores of name, one call after the other.
func (l *bench) script(name, tool string, n int, takes time.Duration) string {
	l.Helper()
	return l.scriptOf(name, tool, n, func(step string) string { return l.chore(step, takes) })
}

// gatedScript is script with chores that end when their gates are open.
func (l *bench) gatedScript(name, tool string, n int) string {
	l.Helper()
	return l.scriptOf(name, tool, n, func(step string) string {
		wait := fmt.Sprintf("until [ -e %s ]; do sleep 0.05; done", l.gate(step))
		return strings.Replace(l.chore(step, 0), "sleep 0.00", wait, 1)
	})
}

func (l *bench) scriptOf(name, tool string, n int, command func(step string) string) string {
	l.Helper()
	type block map[string]any
	type turn struct {
		Blocks []block `json:"blocks"`
	}
	var turns []turn
	for i := range n {
		step := step(name, i)
		turns = append(turns, turn{[]block{
			{"t": "text", "text": "Now " + step + "."},
			{"t": "tool", "name": tool, "input": map[string]string{"command": command(step), "description": "Do " + step}},
		}})
	}
	turns = append(turns, turn{[]block{{"t": "text", "text": "All of " + name + " is done."}}})
	b, err := json.Marshal(map[string]any{"turns": turns})
	l.Must(err)
	return string(b)
}

// step names the chore of a script, counted from 0.
func step(script string, i int) string { return fmt.Sprintf("%s-%d", script, i+1) }

// gate is the file that a gated chore waits for.
func (l *bench) gate(step string) string { return filepath.Join(l.Dir, "ledger", "gate-"+step) }

// open lets a gated chore come to its end.
func (l *bench) open(step string) {
	l.Helper()
	l.Must(os.WriteFile(l.gate(step), nil, 0o600))
}

// closeGates has all gated chores wait again.
func (l *bench) closeGates() {
	l.Helper()
	gates, err := filepath.Glob(l.gate("*"))
	l.Must(err)
	for _, g := range gates {
		l.Must(os.Remove(g))
	}
}

// flow is a flow of nodes at work side by side.
func (l *bench) flow(id string, nodes ...string) {
	l.Helper()
	l.Flow(id, "name: chores\nworkspace: node\nnodes:"+strings.Join(nodes, "")+"\nedges: []\n")
}

// claudeNode is Claude at work on a script.
func claudeNode(script string) string {
	return fmt.Sprintf(`
  - id: %[1]s
    type: agent
    input: {provider: claude, prompt: "Do the chores [[scn:%[1]s]]", env: {IS_SANDBOX: "1"}}`, script)
}

// nativeNode is the native agent at work on a script.
func nativeNode(script string) string {
	return fmt.Sprintf(`
  - id: %[1]s
    type: agent
    input: {provider: native, model: claude-sonnet-4-5, maxTurns: 10000, prompt: "Do the chores [[scn:%[1]s]]"}`, script)
}

// commandNode is a command that does n chores, and must not run twice.
func (l *bench) commandNode(name string, n int, takes time.Duration) string {
	var chores []string
	for i := range n {
		chores = append(chores, l.chore(fmt.Sprintf("%s-%d", name, i+1), takes))
	}
	return fmt.Sprintf(`
  - id: %s
    type: exec
    input: {command: "%s"}`, name, strings.Join(chores, "; "))
}

// deed is what was done of a chore: by the ledger, and by the log.
type deed struct {
	starts, ends int // in the ledger
	calls        int // in the log
	whole        int // calls with a result
	sealed       int // calls whose end nobody saw
	said         int // in the output of a command
}

var (
	choreStarts = regexp.MustCompile(`echo (\S+) start `)
	choreDone   = regexp.MustCompile(`did (\S+)`)
)

// deeds compares the ledger with the log of a run.
func (l *bench) deeds(run string) map[string]*deed {
	l.Helper()
	deeds := make(map[string]*deed)
	of := func(name string) *deed {
		if deeds[name] == nil {
			deeds[name] = new(deed)
		}
		return deeds[name]
	}
	last := make(map[string]string) // what each node has begun last
	for _, line := range l.lines() {
		f := strings.Fields(line)
		if len(f) != 3 {
			l.Errorf("the ledger has the line %q", line)
			continue
		}
		node, _, _ := strings.Cut(f[0], "-")
		if f[1] == "start" {
			of(f[0]).starts++
			last[node] = f[0] + f[2]
			continue
		}
		of(f[0]).ends++
		if last[node] != f[0]+f[2] {
			l.Errorf("%s was at work when another call of %s had begun", f[0], node)
		}
	}
	chores := make(map[string]string) // by call
	output := make(map[string]string) // by execution
	for _, x := range l.Stored(run) {
		switch p := x.E.Payload.(type) {
		case *wire.ToolIntent:
			command := p.ToolInput.TextAt("command")
			if m := choreStarts.FindStringSubmatch(command); m != nil {
				chores[x.E.CallID] = m[1]
				of(m[1]).calls++
			} else if command != "" {
				l.Errorf("a call of nothing: %s %q", x, command)
			}
		case *wire.ToolSealed:
			of(chores[x.E.CallID]).sealed++
		case *wire.AgentTool:
			if name := chores[x.E.CallID]; name != "" && p.Error == "" {
				of(name).whole++
			}
		case *wire.ExecOutput:
			output[x.E.ExecID] += p.Content
		}
	}
	for _, text := range output {
		for _, m := range choreDone.FindAllStringSubmatch(text, -1) {
			of(m[1]).said++
		}
	}
	return deeds
}

// agree checks that the ledger and the log of a run tell the same: nothing was done that the log lacks, nothing twice
// save what the log says was run again, and what has a result was done.
func (l *bench) agree(run string) {
	l.Helper()
	deeds := l.deeds(run)
	for _, name := range slices.Sorted(maps.Keys(deeds)) {
		d := *deeds[name]
		if d.calls == 0 && d.said > 0 { // of a command
			if (d != deed{starts: 1, ends: 1, said: 1}) {
				l.Errorf("%s: %+v", name, d)
			}
			continue
		}
		if d.whole > 1 || d.starts > d.calls || d.ends > d.starts || d.whole > d.ends || d.calls > d.whole+d.sealed {
			l.Errorf("%s: the ledger and the log disagree: %+v", name, d)
		}
	}
}

// perfect checks that everything was done once, and that nobody was told of an interruption.
func (l *bench) perfect(run string, steps int) {
	l.Helper()
	deeds := l.deeds(run)
	if len(deeds) != steps {
		l.Errorf("%d chores were done, want %d", len(deeds), steps)
	}
	for _, name := range slices.Sorted(maps.Keys(deeds)) {
		d := *deeds[name]
		if (d != deed{starts: 1, ends: 1, calls: 1, whole: 1}) && (d != deed{starts: 1, ends: 1, said: 1}) {
			l.Errorf("%s: %+v", name, d)
		}
	}
	for _, x := range l.Stored(run) {
		switch x.E.Payload.(type) {
		case *wire.AgentResumed, *wire.ToolSealed:
			l.Errorf("an agent was disturbed: %s", x)
		}
	}
}

// keeper returns the process of an agent's keeper.
func (l *bench) keeper(agent int) int {
	l.Helper()
	for pid := agent; pid > 1; {
		argv, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		l.Must(err)
		if string(argv) == "wake\x00keeper\x00" {
			return pid
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		l.Must(err)
		_, rest, _ := strings.Cut(string(status), "\nPPid:")
		pid = 0
		_, err = fmt.Sscan(rest, &pid)
		l.Must(err)
	}
	l.Fatalf("agent %d has no keeper", agent)
	return 0
}

// started waits until a chore has begun.
func (l *bench) started(name string) {
	l.Helper()
	l.Until(name+" begins", 60*time.Second, func() bool {
		b, _ := os.ReadFile(l.ledger()) // none is none
		return bytes.Contains(b, []byte(name+" start "))
	})
}

// What of a request is another one each time.
var volatile = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UUID"},
	{regexp.MustCompile(`\b(toolu|msg)_01\w{22}\b`), "${1}_ID"},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "HASH"},
	{regexp.MustCompile(`cch=[0-9a-f]+`), "cch=HASH"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`), "TIME"},
}

// requests returns what the API was asked with a script, in order, as it would be in any run.
func (l *bench) requests(script, run string, after int) (all []string, last int) {
	l.Helper()
	names, err := filepath.Glob(filepath.Join(l.Dir, "requests", "*-"+script+"-*.json"))
	l.Must(err)
	slices.Sort(names)
	for _, name := range names {
		n := 0
		_, err := fmt.Sscanf(filepath.Base(name), "%d-", &n)
		l.Must(err)
		if n <= after {
			continue
		}
		b, err := os.ReadFile(name)
		l.Must(err)
		text := strings.ReplaceAll(string(b), run, "RUN")
		for _, v := range volatile {
			text = v.pattern.ReplaceAllString(text, v.with)
		}
		all, last = append(all, text), n
	}
	return all, last
}

// refusals checks that nobody has told the model of a refusal: nobody has refused anything.
func (l *bench) refusals() {
	l.Helper()
	names, err := filepath.Glob(filepath.Join(l.Dir, "requests", "*.json"))
	l.Must(err)
	for _, name := range names {
		b, err := os.ReadFile(name)
		l.Must(err)
		var r struct{ Messages json.RawMessage }
		l.Must(json.Unmarshal(b, &r))
		if i := bytes.Index(r.Messages, []byte("The user doesn't want to")); i >= 0 {
			l.Errorf("%s: %.200s", filepath.Base(name), r.Messages[i:])
		}
	}
}

// same checks that two lists of requests are equal, byte for byte.
func (l *bench) same(got, want []string) {
	l.Helper()
	if len(got) != len(want) {
		l.Errorf("the API got %d requests, want %d", len(got), len(want))
	}
	for i := range min(len(got), len(want)) {
		if got[i] == want[i] {
			continue
		}
		at := 0
		for at < min(len(got[i]), len(want[i])) && got[i][at] == want[i][at] {
			at++
		}
		from := max(0, at-200)
		l.Errorf("request %d differs at %d:\n got …%.400s\nwant …%.400s", i+1, at, got[i][from:], want[i][from:])
	}
}

// undisturbed lets a run of the same flow come to its end, and returns the n requests that the API got for it.
func (l *bench) undisturbed(script string, n int, nodes ...string) (want []string, last int) {
	l.Helper()
	l.flow("calm", nodes...)
	l.Reach("calm", 2*time.Minute, wire.RunComplete)
	if want, last = l.requests(script, "calm", 0); len(want) != n {
		l.Fatalf("the API got %d requests, want %d", len(want), n)
	}
	l.Must(os.Remove(l.ledger()))
	return want, last
}

// claims returns who has claimed a node of a run, once for each epoch.
func (l *bench) claims(run, node string) (runners []string) {
	l.Helper()
	var epoch uint64
	for _, x := range l.Stored(run) {
		if p, ok := x.E.Payload.(*wire.NodeClaimed); ok && x.E.NodeID == node && x.E.Epoch > epoch {
			runners, epoch = append(runners, p.Runner), x.E.Epoch
		}
	}
	return runners
}

// usage is what the agents of a run have used.
func (l *bench) usage(run string) wire.UsageTotals {
	l.Helper()
	return l.State(run).Usage
}

// verified checks that the log of a run is whole.
func (l *bench) verified(run string) *lab.Audit {
	l.Helper()
	a := l.Check(run)
	a.Completed("complete")
	l.Wake("verify", run, "--store", filepath.Join(l.Dir, "recorder", "recorder.db"))
	return a
}
