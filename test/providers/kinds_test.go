package providers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/acp"
	"code.wake.dev/wake/internal/agent/acp/acptest"
	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/agent/codex"
	"code.wake.dev/wake/internal/agent/codex/codextest"
	"code.wake.dev/wake/internal/agent/fixture"
	"code.wake.dev/wake/internal/agent/native"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/agent/shell"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

func kinds() []kind {
	return []kind{
		{
			name: "`claude`", first: "ours", work: "call toolu_1 execute {}", wait: "cancelled", dies: "call toolu_1 execute {}\ndie 3",
			provider: func(x *trial) agent.Provider {
				return &claude.Provider{Binary: x.program(), Environ: os.Environ(), Grace: time.Second}
			},
			script: func(x *trial, r *agent.Request, script string) {
				r.Options.Env = map[string]string{claudeScript: script, "CLAUDE_CONFIG_DIR": x.home}
			},
		},
		{
			name: "`native`", first: "ours", work: "call", wait: "",
			provider: func(x *trial) agent.Provider {
				return &native.Provider{Environ: []string{"ANTHROPIC_API_KEY=k", "PATH=" + os.Getenv("PATH")}, Client: x.model.Client()}
			},
			script: scriptModel,
		},
		acpKind("`acp`, an agent that keeps sessions and forks", "!load\n!fork\n"), acpKind("`acp`, one that keeps nothing", ""),
		{
			name: "`codex`", first: "thread-1", work: "begin item_1 make", wait: "hang", dies: "begin item_1 make\ndie 3",
			provider: func(x *trial) agent.Provider {
				return &codex.Provider{Binary: x.program(), Environ: os.Environ(), Grace: time.Second}
			},
			script: func(x *trial, r *agent.Request, script string) {
				r.Options.Env = map[string]string{codextest.Script: script, codextest.Home: x.home}
			},
		},
		{
			name: "recorded", first: "ours", work: "call", wait: "wait",
			provider: func(x *trial) agent.Provider { return &fixture.Provider{Dir: x.home} },
			script:   recordCall,
		},
		{
			name: "a command (`exec`)", work: "sleep 1000", dies: "die 3",
			provider: func(x *trial) agent.Provider { return &commands{script: x.command} },
			script:   func(x *trial, _ *agent.Request, script string) { x.command = commandOf(script) },
		},
	}
}

func acpKind(name, about string) kind {
	return kind{
		name: name, about: about, first: "sess-1", work: `call c1 execute {"command":"make"}`, wait: "cancelled", dies: "call c1 execute {\"command\":\"make\"}\ndie 3",
		provider: func(*trial) agent.Provider { return &acp.Provider{Environ: os.Environ(), Grace: time.Second} },
		script: func(x *trial, r *agent.Request, script string) {
			r.Options.Command, r.Options.Env = []string{x.program()}, map[string]string{acptest.Script: script, acptest.Home: x.home}
		},
	}
}

// scriptModel makes the script one of a model: what it says, one reply for each line.
func scriptModel(x *trial, r *agent.Request, script string) {
	x.model = &apitest.Script{}
	r.Options.Model = "claude-sonnet-4-5"
	for part := range strings.SplitSeq(script, "\n--\n") {
		for line := range strings.Lines(part) {
			reply := apitest.Message(apitest.Text("Hi."))
			switch verb, rest, _ := strings.Cut(strings.TrimSpace(line), " "); verb {
			case "say":
				reply = apitest.Message(apitest.Text(rest))
			case "call":
				reply = apitest.Message(apitest.Call("c1", "bash", `{"command":"sleep 1000"}`))
			case "ask":
				reply = apitest.Message(apitest.Call("c1", "bash", `{"command":"true"}`))
			case "await":
				reply = apitest.Message(apitest.Call("c1", "bash", fmt.Sprintf(`{"command":"until [ -e %s ]; do sleep 0.01; done"}`, rest)))
			case "die":
				reply = apitest.Failure(400, "invalid_request_error")
			}
			x.model.Replies = append(x.model.Replies, reply)
		}
	}
	x.model.Replies = append(x.model.Replies, apitest.Message(apitest.Text("Hi.")))
}

// recordCall makes the script a recording.
func recordCall(x *trial, _ *agent.Request, script string) {
	var events []any
	result := object{"type": "agent:complete", "result": "Done.", "numTurns": 1}
	for line := range strings.Lines(script) {
		words := strings.Fields(line)
		switch words[0] {
		case "say":
			events = append(events, object{"type": "turn:start"}, object{"type": "agent:text:delta", "content": words[1]},
				object{"type": "usage", "messageId": "m1", "model": "m", "inputTokens": 1, "outputTokens": 1})
		case "call", "ask":
			events = append(events, object{"type": "tool:intent", "callId": "c1", "toolName": "bash", "toolInput": object{"command": "make"}})
		case "wait":
			for range 1000 {
				events = append(events, object{"type": "agent:text:delta", "content": "."})
			}
		case "tokens":
			result["usage"] = object{"inputTokens": 3, "outputTokens": 0}
		case "usage":
			result["totalCostUsd"] = 0.5
		case "die":
			result = object{"type": "agent:error", "errorType": wire.ErrorProcessDied, "message": "It died.", "severity": "error"}
		}
	}
	b, err := json.Marshal(object{"calls": []object{{"events": append(events, result), "delayMs": 1}}})
	if err == nil {
		err = os.WriteFile(filepath.Join(x.home, "n.json"), b, 0o600)
	}
	if err != nil {
		x.t.Fatal(err)
	}
}

// commandOf makes the script a command.
func commandOf(script string) string {
	var lines []string
	for line := range strings.Lines(script) {
		switch verb, rest, _ := strings.Cut(strings.TrimSpace(line), " "); verb {
		case "await":
			lines = append(lines, fmt.Sprintf("until [ -e %s ]; do sleep 0.01; done", rest))
		case "say":
			lines = append(lines, "echo "+rest)
		case "sleep":
			lines = append(lines, line)
		case "die":
			lines = []string{"exit " + rest}
		}
	}
	return strings.Join(lines, "\n")
}

// commands has commands run as agents are.
type commands struct{ script string }

func (*commands) Capabilities() agent.Capabilities { return agent.Capabilities{} }

func (p *commands) Start(ctx context.Context, r agent.Request) (agent.Session, error) {
	if r.Resume && r.Host == nil || r.ForkOf != "" {
		return nil, errors.New("a command has no session")
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &commandSession{ctx: ctx, cancel: cancel}
	if c.Host = r.Host; r.Host == nil {
		c.Host = process.Direct{}
	}
	c.command = shell.Command{Command: p.script, Cwd: r.Options.Cwd, Env: os.Environ(), Grace: time.Second, Host: c, Name: "command"}
	return c, nil
}

// commandSession is a command that runs, on a host of its own: it sees the process.
type commandSession struct {
	process.Host

	command shell.Command
	process *process.Process
	ctx     context.Context //nolint:containedctx // of one command
	cancel  context.CancelFunc
}

func (c *commandSession) Start(config process.Config) (p *process.Process, err error) {
	c.process, err = c.Host.Start(config)
	return c.process, err
}

func (c *commandSession) Events() iter.Seq2[*wire.Event, error]     { return c.command.Run(c.ctx) }
func (c *commandSession) Send(context.Context, agent.Message) error { return agent.ErrEnded }
func (c *commandSession) Interrupt(context.Context) error           { c.cancel(); return nil }
func (c *commandSession) Leave() bool                               { return c.process.Leave() }
func (c *commandSession) Close() error                              { c.cancel(); return nil }
