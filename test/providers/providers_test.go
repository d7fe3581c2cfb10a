// Package providers_test asks scripted agents of several kinds for the same things, and makes the table of docs/flows.md of what they did.
package providers_test

import (
	"cmp"
	"context"
	"flag"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/acp/acptest"
	"code.wake.dev/wake/internal/agent/codex/codextest"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/kahn"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/process/processtest"
	"code.wake.dev/wake/pkg/wire"
)

var update = flag.Bool("update", false, "rewrite the table of docs/flows.md")

func TestMain(m *testing.M) {
	if acptest.Main() || codextest.Main() || playClaude() {
		return
	}
	natstest.Main(m)
}

// kind is a kind of agent, and how it is had to do the same things.
type kind struct {
	name     string
	provider func(x *trial) agent.Provider
	script   func(x *trial, r *agent.Request, script string) // has the agent play it
	about    string                                          // before the script
	first    string                                          // the session that it begins; "": it has none
	work     string                                          // a line of a call that doesn't end
	wait     string                                          // waits for its interruption
	dies     string                                          // its program ends; "": it has none
}

// trial is an agent of a kind in a folder.
type trial struct {
	t *testing.T
	kind

	home, dir string
	log       []*wire.Event   // of all that it has told
	model     *apitest.Script // of a native agent
	command   string          // of an exec node
}

// run plays a script and returns what the agent tells. see is asked before each next event; change may be nil.
func (x *trial) run(script string, change func(*agent.Request), see func(agent.Session, *wire.Event) bool) (events []*wire.Event) {
	x.t.Helper()
	r := agent.Request{RunID: "r", NodeID: "n", ExecID: "n#1", SessionID: "ours", Prompt: wire.RawString("Do it.")}
	r.History = history(slices.Clone(x.log))
	x.script(x, &r, x.about+script)
	if r.Options.Cwd = x.dir; change != nil {
		change(&r)
	}
	s, err := x.provider(x).Start(x.t.Context(), r)
	if err != nil {
		return []*wire.Event{{Payload: &wire.AgentError{ErrorType: "refused", Message: err.Error(), Severity: wire.SeverityError}}}
	}
	for e, err := range s.Events() {
		if err != nil {
			x.t.Fatal(err)
		}
		events = append(events, e)
		if see != nil && !see(s, e) {
			break
		}
	}
	x.log = append(x.log, events...)
	if err := s.Close(); err != nil {
		x.t.Error(err)
	}
	return events
}

func history(log []*wire.Event) iter.Seq2[*wire.Event, error] {
	return func(yield func(*wire.Event, error) bool) {
		for _, e := range log {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// program is this program: as a process it plays a script.
func (x *trial) program() string {
	x.t.Helper()
	program, err := os.Executable()
	if err != nil {
		x.t.Fatal(err)
	}
	return program
}

func (x *trial) prompted() bool {
	_, err := os.Stat(filepath.Join(x.home, "prompts"))
	return err == nil
}

// find returns the first payload of a type.
func find[P wire.Payload](events []*wire.Event) (p P, ok bool) {
	for _, e := range events {
		if p, ok = e.Payload.(P); ok {
			return p, true
		}
	}
	return p, false
}

func endsWell(events []*wire.Event) bool {
	if exit, ok := find[*wire.ExecExit](events); ok {
		return exit.ExitCode == 0
	}
	_, ok := find[*wire.AgentComplete](events)
	return ok
}

const two = "say One.\n--\nsay Two."

// row is something that is asked for, and what it came to.
type row struct {
	name   string
	agents bool // it makes no sense for commands
	try    func(*trial) string
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

// known says whether something is told: always, or by agents whose script has it.
func known(x *trial, script string, is func(*wire.AgentComplete) bool) string {
	for _, y := range []struct{ script, says string }{{"say Hi.", "yes"}, {script, "if the agent does"}} {
		if p, ok := find[*wire.AgentComplete](x.run(y.script, nil, nil)); ok && is(p) {
			return y.says
		}
	}
	return "no"
}

func rows() []row {
	return []row{
		{"session on record before the prompt", true, func(x *trial) string {
			before := true
			x.run("say Hi.", nil, func(_ agent.Session, e *wire.Event) bool {
				if e.Type() == wire.TypeAgentStart || e.Type() == wire.TypeSessionBound {
					before = !x.prompted()
				}
				return true
			})
			return yes(before)
		}},
		{"goes on in its session", true, func(x *trial) string {
			x.run(two, nil, nil)
			return yes(endsWell(x.run(two, func(r *agent.Request) { r.Resume, r.SessionID = true, x.first }, nil)))
		}},
		{"says so if it doesn't know its session", true, func(x *trial) string {
			p, _ := find[*wire.AgentError](x.run(two, func(r *agent.Request) { r.Resume = true }, nil))
			return yes(p != nil && p.ErrorType == wire.ErrorSessionNotFound)
		}},
		{"forks its whole session", true, func(x *trial) string {
			x.run(two, nil, nil)
			return yes(endsWell(x.run(two, func(r *agent.Request) { r.ForkOf, r.SessionID = x.first, "other" }, nil)))
		}},
		{"forks at a point", true, func(x *trial) string {
			point := cmp.Or(pointOf(x.run(`ask c1 execute {"command":"make"}`, nil, nil)), "p")
			events := x.run(two, func(r *agent.Request) { r.ForkOf, r.ForkAt, r.SessionID = x.first, point, "other" }, nil)
			warning, _ := find[*wire.AgentError](events)
			return yes(endsWell(events) && warning == nil)
		}},
		{"takes a message", true, func(x *trial) string {
			gate, sent, said := filepath.Join(x.home, "go"), false, ""
			events := x.run("say One.\nawait "+gate+"\nsay Two.\n--\nsay Three.", nil, func(s agent.Session, e *wire.Event) bool {
				switch p := e.Payload.(type) {
				case *wire.TurnStart:
					if !sent {
						sent = s.Send(x.t.Context(), agent.Message{CommandID: "c", Content: "And?"}) == nil
						x.open(gate)
					}
				case *wire.AgentTextDelta:
					said += p.Content
				case *wire.AgentText:
					said += p.Content
				case *wire.UserMessage:
					if p.CommandID == "c" {
						said += "message"
					}
				}
				return true
			})
			switch before, _, taken := strings.Cut(said, "message"); {
			case !taken || !endsWell(events):
				return "no"
			case strings.Contains(before, "Two."):
				return "after its turn"
			}
			return "within its turn"
		}},
		{"pauses when it is interrupted", false, func(x *trial) string {
			events := x.run(x.work+"\n"+x.wait, nil, func(s agent.Session, e *wire.Event) bool {
				if e.Type() == wire.TypeToolIntent || e.Type() == wire.TypeExecStart {
					_ = s.Interrupt(x.t.Context()) // how it ends tells
				}
				return true
			})
			_, ok := find[*wire.AgentPaused](events)
			return yes(ok)
		}},
		{"asks for permission", true, func(x *trial) string {
			events := x.run(`ask c1 execute {"command":"make"}`, func(r *agent.Request) {
				r.Options.PermissionMode = "approval"
				r.Options.Decide = func(context.Context, agent.Permission) agent.Verdict { return agent.Verdict{Allow: true, By: "ann"} }
			}, nil)
			_, ok := find[*wire.PermissionRequired](events)
			return yes(ok)
		}},
		{"a refused call is told as refused", true, func(x *trial) string {
			events := x.run(`ask c1 execute {"command":"make"}`, func(r *agent.Request) {
				r.Options.PermissionMode = "approval"
				r.Options.Decide = func(context.Context, agent.Permission) agent.Verdict { return agent.Verdict{By: "ann"} }
			}, nil)
			refused := false
			for _, e := range events {
				p, ok := e.Payload.(*wire.AgentTool)
				refused = refused || ok && p.Denied && p.Error != ""
			}
			return yes(refused)
		}},
		{"lives on when its runner dies", false, func(x *trial) string {
			host := new(processtest.Keeper)
			defer host.Close()
			gate, left := filepath.Join(x.home, "go"), false
			script := "say One.\nawait " + gate + "\nsay Two."
			x.run(script, func(r *agent.Request) { r.Host = host }, func(s agent.Session, e *wire.Event) bool {
				if e.Type() != wire.TypeTurnStart && e.Type() != wire.TypeExecStart {
					return true
				}
				l, ok := s.(agent.Leaver)
				left = ok && l.Leave()
				return false
			})
			x.open(gate)
			return yes(left && endsWell(x.run(script, func(r *agent.Request) { r.Host, r.Resume, r.SessionID = host, true, x.first }, nil)))
		}},
		{"its dead program is a failure", false, func(x *trial) string {
			if x.dies == "" {
				return "–"
			}
			events := x.run(x.dies, nil, nil)
			p, _ := find[*wire.AgentError](events)
			exit, _ := find[*wire.ExecExit](events)
			return yes(p != nil && p.ErrorType == wire.ErrorProcessDied || exit != nil && exit.ExitCode == 3)
		}},
		{"a bound on its turns", true, func(x *trial) string {
			return yes(endsWell(x.run(two, func(r *agent.Request) { r.Options.MaxTurns = 1 }, nil)))
		}},
		{"tells its tokens", true, func(x *trial) string {
			script := "tokens 3 0"
			if strings.Contains(x.name, "codex") {
				script = "tokens 3 0 1"
			}
			return known(x, script, func(p *wire.AgentComplete) bool { return !p.UsageUnknown && p.Usage.InputTokens > 0 })
		}},
		{"tells its cost", true, func(x *trial) string {
			return known(x, "usage 1 2 0.5\nsay Hi.", func(p *wire.AgentComplete) bool { return p.TotalCostUsd != nil })
		}},
		{"what it doesn't tell is unknown in the ledger, not zero", true, func(x *trial) string {
			events := x.run("say Hi.", nil, nil)
			s := x.stateOf(x.runOf(events))
			p, _ := find[*wire.AgentComplete](events)
			return yes(s != nil && p != nil && (p.TotalCostUsd == nil) == (s.Usage.Unpriced > 0) && (p.TotalCostUsd == nil) == (s.Usage.CostUsd == 0))
		}},
		{"its failure raises an alert", true, func(x *trial) string {
			return yes(!isAlarming(x.runOf(x.run("say Hi.", nil, nil))) && isAlarming(x.runOf(x.run(cmp.Or(x.dies, "die 3"), nil, nil))))
		}},
		{"KAHN's lines have its end", true, func(x *trial) string {
			good, bad := x.kahnEnd(x.runOf(x.run("say Hi.", nil, nil))), x.kahnEnd(x.runOf(x.run(cmp.Or(x.dies, "die 3"), nil, nil)))
			return yes(good == kahn.Converged && bad == kahn.Failed)
		}},
	}
}

// pointOf is the last point at which a session can be forked; "": there is none.
func pointOf(events []*wire.Event) (point string) {
	for _, e := range events {
		switch p := e.Payload.(type) {
		case *wire.AgentTool:
			point = cmp.Or(p.Point, point)
		case *wire.UserMessage:
			point = cmp.Or(p.Point, point)
		}
	}
	return point
}

// open lets an agent go on that waits for a file.
func (x *trial) open(gate string) {
	x.t.Helper()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		x.t.Fatal(err)
	}
}

const (
	begin = "<!-- made by test/providers -->\n"
	end   = "<!-- end -->\n"
)

// TestTable compares what agents of each kind do with what the documentation says.
func TestTable(t *testing.T) {
	var table strings.Builder
	table.WriteString("| |")
	for _, k := range kinds() {
		table.WriteString(" " + k.name + " |")
	}
	table.WriteString("\n|---" + strings.Repeat("|---", len(kinds())) + "|\n")
	for _, row := range rows() {
		cells := []string{row.name}
		for _, k := range kinds() {
			if row.agents && k.first == "" {
				cells = append(cells, "–")
				continue
			}
			cells = append(cells, row.try(&trial{t: t, kind: k, home: t.TempDir(), dir: t.TempDir()}))
		}
		table.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	file := filepath.Join("..", "..", "docs", "flows.md")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(b), begin)
	had, after, found := strings.Cut(rest, end)
	switch {
	case !found:
		t.Fatalf("%s has no table", file)
	case *update:
		if err := os.WriteFile(file, []byte(before+begin+table.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case had != table.String():
		t.Errorf("docs/flows.md differs; read the difference, then run go test ./test/providers -update:\n%s", strings.Join(slices.Collect(strings.Lines(table.String())), ""))
	}
}
