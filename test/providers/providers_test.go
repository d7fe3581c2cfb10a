// Package providers_test asks scripted agents of several kinds for the same things, and makes the table of docs/flows.md of what they did.
package providers_test

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/acp"
	"code.wake.dev/wake/internal/agent/acp/acptest"
	"code.wake.dev/wake/internal/agent/codex"
	"code.wake.dev/wake/internal/agent/codex/codextest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/process/processtest"
	"code.wake.dev/wake/pkg/wire"
)

var update = flag.Bool("update", false, "rewrite the table of docs/flows.md")

func TestMain(m *testing.M) {
	if acptest.Main() || codextest.Main() {
		return
	}
	natstest.Main(m)
}

// kind is a kind of agent, and how its scripts say the same things.
type kind struct {
	name     string
	provider func(program string) agent.Provider
	options  func(program, home, script string) agent.Options
	about    string // before the script
	first    string // the session that it begins
	work     string // a line of a call that doesn't end
	wait     string // waits for its interruption
}

func kinds() []kind {
	speaks := func(name, about string) kind {
		return kind{
			name: name, about: about, first: "sess-1", work: `call c1 execute {"command":"make"}`, wait: "cancelled",
			provider: func(string) agent.Provider { return &acp.Provider{Environ: os.Environ(), Grace: time.Second} },
			options: func(program, home, script string) agent.Options {
				return agent.Options{Command: []string{program}, Env: map[string]string{acptest.Script: script, acptest.Home: home}}
			},
		}
	}
	return []kind{
		speaks("`acp`, an agent that keeps sessions and forks", "!load\n!fork\n"), speaks("`acp`, one that keeps nothing", ""),
		{
			name: "`codex`", first: "thread-1", work: "begin item_1 make", wait: "hang",
			provider: func(program string) agent.Provider {
				return &codex.Provider{Binary: program, Environ: os.Environ(), Grace: time.Second}
			},
			options: func(_, home, script string) agent.Options {
				return agent.Options{Env: map[string]string{codextest.Script: script, codextest.Home: home}}
			},
		},
	}
}

// trial is an agent of a kind in a folder.
type trial struct {
	t *testing.T
	kind

	home, dir string
}

// run has the agent play a script and returns what it tells. see is asked before each next event; change may be nil.
func (x trial) run(script string, change func(*agent.Request), see func(agent.Session, *wire.Event) bool) (events []*wire.Event) {
	x.t.Helper()
	program, err := os.Executable()
	if err != nil {
		x.t.Fatal(err)
	}
	r := agent.Request{RunID: "r", NodeID: "n", ExecID: "n#1", SessionID: "ours", Prompt: wire.RawString("Do it."), Options: x.options(program, x.home, x.about+script)}
	if r.Options.Cwd = x.dir; change != nil {
		change(&r)
	}
	s, err := x.provider(program).Start(x.t.Context(), r)
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
	if err := s.Close(); err != nil {
		x.t.Error(err)
	}
	return events
}

func (x trial) prompted() bool {
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
	_, ok := find[*wire.AgentComplete](events)
	return ok
}

const two = "say One.\n--\nsay Two."

// rows are what is asked for, and what it came to.
func rows() []struct {
	name string
	try  func(trial) string
} {
	yes := map[bool]string{true: "yes", false: "no"}
	return []struct {
		name string
		try  func(trial) string
	}{
		{"session on record before the prompt", func(x trial) string {
			before := true
			x.run("say Hi.", nil, func(_ agent.Session, e *wire.Event) bool {
				if e.Type() == wire.TypeSessionBound {
					before = !x.prompted()
				}
				return true
			})
			return yes[before]
		}},
		{"goes on in its session", func(x trial) string {
			x.run(two, nil, nil)
			return yes[endsWell(x.run(two, func(r *agent.Request) { r.Resume, r.SessionID = true, x.first }, nil))]
		}},
		{"says so if it doesn't know its session", func(x trial) string {
			p, _ := find[*wire.AgentError](x.run(two, func(r *agent.Request) { r.Resume = true }, nil))
			return yes[p != nil && p.ErrorType == wire.ErrorSessionNotFound]
		}},
		{"forks its whole session", func(x trial) string {
			x.run(two, nil, nil)
			return yes[endsWell(x.run(two, func(r *agent.Request) { r.ForkOf = x.first }, nil))]
		}},
		{"forks at a point", func(x trial) string {
			x.run(two, nil, nil)
			return yes[endsWell(x.run(two, func(r *agent.Request) { r.ForkOf, r.ForkAt = x.first, "p" }, nil))]
		}},
		{"takes a message", func(x trial) string {
			sent := false
			events := x.run(two, nil, func(s agent.Session, e *wire.Event) bool {
				if e.Type() == wire.TypeTurnStart && !sent {
					sent = s.Send(x.t.Context(), agent.Message{CommandID: "c", Content: "And?"}) == nil
				}
				return true
			})
			p, ok := find[*wire.UserMessage](events)
			return map[bool]string{true: "after its turn", false: "no"}[ok && p.CommandID == "c" && endsWell(events)]
		}},
		{"pauses when it is interrupted", func(x trial) string {
			events := x.run(x.work+"\n"+x.wait, nil, func(s agent.Session, e *wire.Event) bool {
				if e.Type() == wire.TypeToolIntent {
					_ = s.Interrupt(x.t.Context()) // how it ends tells
				}
				return true
			})
			_, ok := find[*wire.AgentPaused](events)
			return yes[ok]
		}},
		{"asks for permission", func(x trial) string {
			events := x.run(`ask c1 execute {"command":"make"}`, func(r *agent.Request) {
				r.Options.PermissionMode = "approval"
				r.Options.Decide = func(context.Context, agent.Permission) agent.Verdict { return agent.Verdict{Allow: true, By: "ann"} }
			}, nil)
			_, ok := find[*wire.PermissionRequired](events)
			return yes[ok]
		}},
		{"lives on when its runner dies", func(x trial) string {
			host := new(processtest.Keeper)
			defer host.Close()
			gate := filepath.Join(x.home, "go")
			script := "say One.\nawait " + gate + "\nsay Two."
			held := func(r *agent.Request) { r.Host = host }
			x.run(script, held, func(s agent.Session, e *wire.Event) bool {
				l, ok := s.(agent.Leaver)
				return e.Type() != wire.TypeTurnStart || !ok || !l.Leave()
			})
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				x.t.Fatal(err)
			}
			events := x.run(script, func(r *agent.Request) { r.Host, r.Resume, r.SessionID = host, true, x.first }, nil)
			return yes[endsWell(events)]
		}},
		{"its dead program is a failure", func(x trial) string {
			p, _ := find[*wire.AgentError](x.run(x.work+"\ndie 3", nil, nil))
			return yes[p != nil && p.ErrorType == wire.ErrorProcessDied]
		}},
		{"a bound on its turns", func(x trial) string {
			return yes[endsWell(x.run(two, func(r *agent.Request) { r.Options.MaxTurns = 1 }, nil))]
		}},
		{"tells its tokens", func(x trial) string {
			p, ok := find[*wire.AgentComplete](x.run("tokens 3 0", nil, nil))
			if !ok {
				p, ok = find[*wire.AgentComplete](x.run("tokens 3 0 1", nil, nil))
			}
			return map[bool]string{true: "if the agent does", false: "no"}[ok && !p.UsageUnknown && p.Usage.InputTokens == 3]
		}},
		{"tells its cost", func(x trial) string {
			p, ok := find[*wire.AgentComplete](x.run("usage 1 2 0.5\nsay Hi.", nil, nil))
			return map[bool]string{true: "if the agent does", false: "no"}[ok && p.TotalCostUsd != nil]
		}},
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
			cells = append(cells, row.try(trial{t, k, t.TempDir(), t.TempDir()}))
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
