// Package codex drives OpenAI's Codex by `codex exec --json`: a program per turn, which is given its prompt on stdin and prints
// a line for each thing that it does.
//
//	line                            events
//	thread.started                  session:bound, agent:init
//	turn.started                    turn:start
//	item …, agent_message           agent:text, whole; a piece if Blocks is never
//	item …, reasoning               agent:thinking
//	item …, command_execution       tool:intent, tool:state, agent:tool with the exit code
//	item …, file_change             the same, and file_changed
//	item …, mcp_tool_call           the same
//	item …, web_search              the same
//	item …, todo_list               todo:changed
//	item …, error; error            agent:error, a warning: the turn's end says whether it failed
//	turn.completed                  usage, turn:end
//	turn.failed                     turn:end; agent:error ends the execution
//	anything else                   raw
//
// A message of the run is the next turn, in a program that goes on with the thread. Codex counts tokens over the thread: a turn's
// are what it adds. It tells no cost. Its ids of items begin anew with each program: those of calls have the time of the program's
// start behind them.
//
// What was asked for isn't stopped by the log: a call has begun when it is told. Codex can't ask for permission here; that is the
// Agent Client Protocol's part (provider acp, agent codex).
package codex

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/parent"
	"code.wake.dev/wake/internal/agent/pipe"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// Provider runs Codex. The zero value runs "codex" with an empty environment.
//
// The lines are those of 0.169.
type Provider struct {
	Binary  string        // name or path; default codex
	User    *process.User // that it runs as; nil: this process's own
	Environ []string      // wake's environment; agents get it less what is withheld, see [agent.Environment]
	Parent  []string      // command of the server by which agents tell their parent something (see [parent.NewServer]); empty: they can't
	Grace   time.Duration // between SIGTERM and SIGKILL; default 5 s
	Linger  time.Duration // for a program to exit once its turn is over; default 10 s
	Logger  *slog.Logger  // default: none

	restEvery time.Duration // default [restEvery]
}

// restEvery is the least time between two resting points of which the host is told.
const restEvery = time.Second

// startTimeout is how long a program may say nothing after its start, unless the request says.
const startTimeout = time.Minute

// Capabilities implements [agent.Provider].
func (p *Provider) Capabilities() agent.Capabilities {
	return agent.Capabilities{TellsLate: true, KeepsLate: true, Recover: p.recoverCalls}
}

// Start checks the request. The first program is started by the session's Events, once its agent:start has been taken care of.
func (p *Provider) Start(ctx context.Context, r agent.Request) (agent.Session, error) {
	prompt, ok := r.Prompt.Text()
	switch {
	case r.SessionID == "":
		return nil, errors.New("codex: a session id is required")
	case r.Options.Cwd == "":
		return nil, errors.New("codex: a folder to work in is required")
	case !ok || strings.TrimSpace(prompt) == "":
		return nil, errors.New("codex: the prompt must be a text")
	}
	if _, err := sandboxOf(r.Options); err != nil {
		return nil, err
	}
	if err := refuseOptions(r); err != nil {
		return nil, err
	}
	if r.Host == nil {
		r.Host = process.Direct{}
	}
	r.StartTimeout = cmp.Or(r.StartTimeout, startTimeout)
	d := *p
	d.Binary, d.Grace, d.Linger = cmp.Or(d.Binary, "codex"), cmp.Or(d.Grace, 5*time.Second), cmp.Or(d.Linger, 10*time.Second)
	d.restEvery = cmp.Or(d.restEvery, restEvery)
	d.Logger = cmp.Or(d.Logger, slog.New(slog.DiscardHandler)).With("run_id", r.RunID, "node_id", r.NodeID)
	return &session{Program: pipe.NewProgram(ctx, r, d.Grace, d.Logger, nil), provider: d, request: r, prompt: prompt, f: newFold(r)}, nil
}

// refuseOptions fails for what Codex has no word for: a caller with a bound counts on it.
func refuseOptions(r agent.Request) error {
	o := r.Options
	name := o.FirstBound()
	switch {
	case name == "" && len(o.MCPServers) > 0:
		name = "mcpServers"
	case name == "" && len(o.Command) > 0:
		name = "command"
	}
	if name != "" {
		return fmt.Errorf("codex: there is no %s for it: leave it out, and set it in Codex's own configuration if it has one", name)
	}
	for _, event := range flow.HookEvents() {
		if r.Hooks.Has(event) {
			return fmt.Errorf("codex: hooks can't be asked about agents of this kind (%s): leave them out", event)
		}
	}
	return nil
}

// sandboxOf returns the arguments that say what the agent may do.
func sandboxOf(o agent.Options) ([]string, error) {
	switch mode := o.PermissionMode; mode {
	case "", "bypassPermissions", "danger-full-access":
		return []string{"--dangerously-bypass-approvals-and-sandbox"}, nil
	case "plan", "readonly", "read-only":
		return []string{"-c", `sandbox_mode="read-only"`, "-c", `approval_policy="never"`}, nil
	case "acceptEdits", "workspace-write":
		return []string{"-c", `sandbox_mode="workspace-write"`, "-c", `approval_policy="never"`}, nil
	case "approval", "default":
		return nil, fmt.Errorf("codex: permissionMode %q needs an approver, which codex exec can't do: use provider acp with agent codex", mode)
	default:
		return nil, fmt.Errorf("codex: permissionMode %q is unknown; it is one of bypassPermissions, workspace-write, read-only", mode)
	}
}

// commandLine returns the command line of a turn; the prompt comes on stdin. thread is the one to go on with, or, with fork, to
// copy; "": it begins one.
func (p *Provider) commandLine(o agent.Options, thread string, fork bool) []string {
	argv := []string{p.Binary, "exec"}
	switch {
	case thread != "" && fork:
		argv = append(argv, "fork")
	case thread != "":
		argv = append(argv, "resume")
	}
	argv = append(argv, "--json", "--skip-git-repo-check")
	sandbox, _ := sandboxOf(o) // it was checked
	argv = append(argv, sandbox...)
	if o.Model != "" {
		argv = append(argv, "--model="+o.Model)
	}
	if o.Effort != "" {
		argv = append(argv, "-c", "model_reasoning_effort="+quoteTOML(o.Effort))
	}
	if len(o.AddDirs) > 0 {
		argv = append(argv, "-c", "sandbox_workspace_write.writable_roots="+quoteList(o.AddDirs))
	}
	if len(p.Parent) > 0 {
		server := "mcp_servers." + parent.Server
		argv = append(argv, "-c", server+".command="+quoteTOML(p.Parent[0]), "-c", server+".args="+quoteList(p.Parent[1:]))
	}
	if thread != "" {
		return append(argv, "--", thread, "-")
	}
	return append(argv, "-")
}

// quoteList makes texts a list of TOML.
func quoteList(texts []string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = quoteTOML(text)
	}
	return "[" + strings.Join(quoted, ",") + "]"
}

// quoteTOML makes a text one of TOML.
func quoteTOML(s string) string {
	b, _ := wire.AppendJSON(nil, wire.RawString(s)) // TOML's basic strings are written as those of JSON
	return string(b)
}

// Stream turns what `codex exec --json` has printed outside wake into events: of one program, or of several of a
// thread, one after the other. It is pure.
type Stream struct {
	f     *sessionFold
	begun bool
}

// NewStream returns one that has read nothing.
func NewStream(blocks agent.Blocks) *Stream {
	return &Stream{f: newFold(agent.Request{Options: agent.Options{Blocks: blocks, PermissionMode: modeUnknown}})}
}

// modeUnknown is the mode of an agent that wake hasn't started.
const modeUnknown = "unknown"

// Line takes a line.
func (s *Stream) Line(at int64, line []byte) []*wire.Event {
	s.f.at = at
	m, err := wire.RawFromJSON(line)
	if err == nil && m.TextAt("type") == threadStarted {
		if id := m.TextAt("thread_id"); len(id) <= maxID && s.f.Thread == "" {
			s.f.session = id
		}
		s.f.beginProgram()
		s.f.Failed = nil
		at = max(at, s.f.Begun+1) // by which what it does is told apart from what others of the thread do
		s.f.at = at
	}
	s.beginAgent()
	s.f.takeLine(at, line)
	return s.f.takeEvents()
}

// TooLong takes a line that was too long to be read, of which the head is known.
func (s *Stream) TooLong(at int64, head []byte, reason string) []*wire.Event {
	s.f.at = at
	s.f.Line++
	s.beginAgent()
	s.f.emitEvent("", &wire.RawMessage{Source: source, Name: "malformed", Data: wire.RawString(toValidUTF8(string(head))), Reason: reason, Line: s.f.Line})
	return s.f.takeEvents()
}

// Finish ends the agent as its last program has.
func (s *Stream) Finish(at int64) []*wire.Event {
	s.f.at = at
	s.beginAgent()
	if s.f.Ended && s.f.Failed == nil {
		s.f.completeTurn(at)
	} else {
		s.f.fail(at, wire.ErrorProcessDied, "what Codex has printed ends before its turn does", nil)
	}
	return s.f.takeEvents()
}

func (s *Stream) beginAgent() {
	if !s.begun {
		s.begun = true
		s.f.emitEvent("", &wire.AgentStart{Prompt: wire.RawString(""), Provider: source})
	}
}
