package acp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// presetCommands are the commands of agents that are known by name.
func presetCommands() map[string][]string {
	return map[string][]string{
		"gemini":     {"gemini", "--acp"},
		"codex":      {"codex-acp"},
		"opencode":   {"opencode", "acp"},
		"claude-acp": {"claude-agent-acp"},
	}
}

// Start checks the request. The program is started by the session's Events, once its agent:start has
// been taken care of.
func (p *Provider) Start(ctx context.Context, r agent.Request) (agent.Session, error) {
	argv, err := commandLine(r.Options)
	if err != nil {
		return nil, err
	}
	if err := refuseOptions(r); err != nil {
		return nil, err
	}
	prompt, err := promptBlocks(r.Prompt)
	if err != nil {
		return nil, err
	}
	switch {
	case r.SessionID == "":
		return nil, errors.New("acp: a session id is required")
	case r.Options.Cwd == "":
		return nil, errors.New("acp: a folder to work in is required")
	}
	if r.Options.Cwd, err = filepath.Abs(r.Options.Cwd); err != nil {
		return nil, fmt.Errorf("acp: folder to work in: %w", err)
	}
	if r.Host == nil {
		r.Host = process.Direct{}
	}
	r.StartTimeout = cmp.Or(r.StartTimeout, startTimeout)
	d := *p
	d.Grace, d.Linger = cmp.Or(d.Grace, 5*time.Second), cmp.Or(d.Linger, 2*time.Second)
	d.restEvery = cmp.Or(d.restEvery, restEvery)
	d.Logger = cmp.Or(d.Logger, slog.New(slog.DiscardHandler)).With("run_id", r.RunID, "node_id", r.NodeID)
	return newSession(ctx, d, r, argv, prompt), nil
}

// commandLine returns the command of the agent: that of the options, or that of a preset.
func commandLine(o agent.Options) ([]string, error) {
	known := strings.Join(slices.Sorted(maps.Keys(presetCommands())), ", ")
	switch argv, isPreset := presetCommands()[o.Agent]; {
	case len(o.Command) > 0 && o.Agent != "":
		return nil, errors.New("acp: the input has both command and agent: give one")
	case len(o.Command) > 0 && o.Command[0] == "":
		return nil, errors.New("acp: the command has no program")
	case len(o.Command) > 0:
		return o.Command, nil
	case isPreset:
		return argv, nil
	case o.Agent != "":
		return nil, fmt.Errorf("acp: agent %q is unknown; it is one of %s, or give its command, such as command: [%s, acp]", o.Agent, known, o.Agent)
	}
	return nil, fmt.Errorf("acp: the input names no agent: give agent (%s) or command: [program, argument, …]", known)
}

// refuseOptions fails for what the protocol has no word for: a caller with a bound counts on it.
func refuseOptions(r agent.Request) error {
	o := r.Options
	if name := o.FirstBound(); name != "" {
		return fmt.Errorf("acp: the protocol has no %s: leave it out, and set it in the agent's own configuration if it has one", name)
	}
	for _, event := range flow.HookEvents() {
		if r.Hooks.Has(event) {
			return fmt.Errorf("acp: hooks can't be asked about agents of this kind (%s): leave them out, or use permissionMode: approval", event)
		}
	}
	return nil
}

// Events runs the program and yields what it does; see [agent.Session].
func (s *session) Events() iter.Seq2[*wire.Event, error] {
	return func(yield func(*wire.Event, error) bool) {
		defer s.Close() //nolint:errcheck // survivors were reported
		attaches := s.request.Host.Has(programName)
		if !attaches && !s.Yield(yield, s.startEvent()) {
			return
		}
		p, err := s.launchProgram()
		switch {
		case err != nil && attaches:
			yield(nil, err)
			return
		case errors.Is(err, process.ErrGone):
			yield(nil, agent.ErrLost)
			return
		case err != nil:
			s.Yield(yield, s.startFailed(err))
			return
		case p == nil: // it has been closed
			return
		case attaches && !p.Attached:
			yield(nil, errors.New("acp: the agent's program isn't there any more"))
			return
		}
		if attaches {
			s.restoreRest(p.Last)
		} else if data, err := wire.Marshal(&s.f.state); err == nil { // a runner that attaches doesn't know what the log had at the start
			p.Rested(process.Rest{State: data})
		}
		s.driveProgram(p, yield)
	}
}

func (s *session) startEvent() *wire.Event {
	r := s.request
	return &wire.Event{Timestamp: nowMillis(), SessionID: r.SessionID, Payload: &wire.AgentStart{
		Model: r.Options.Model, Prompt: r.Prompt, Provider: "acp", Cwd: r.Options.Cwd, Resumed: r.Resume || r.ForkOf != "",
	}}
}

func (s *session) startFailed(err error) *wire.Event {
	text := err.Error()
	if errors.Is(err, exec.ErrNotFound) {
		text = fmt.Sprintf("%s isn't in the PATH of the runner: install it, or give its path in command", s.argv[0])
	}
	return &wire.Event{Timestamp: nowMillis(), SessionID: s.request.SessionID, Payload: &wire.AgentError{
		ErrorType: wire.ErrorStartFailed, Message: "the agent didn't start: " + toValidUTF8(text), Severity: wire.SeverityError, Phase: "lifecycle",
	}}
}

// programName is that of the program among those of its host.
const programName = "agent"

// launchProgram starts the program, or attaches to the one that is there. It returns nil if the session has been closed.
func (s *session) launchProgram() (*process.Process, error) {
	path := s.argv[0]
	if strings.ContainsRune(path, filepath.Separator) {
		if !filepath.IsAbs(path) {
			path = filepath.Join(s.request.Options.Cwd, path)
		}
	}
	path, err := exec.LookPath(path)
	if err != nil && !s.request.Host.Has(programName) {
		return nil, err
	}
	return s.Launch(s.request.Host, process.Config{
		Name: programName, Argv: append([]string{path}, s.argv[1:]...), Dir: s.request.Options.Cwd, Journal: true, KeepStderr: true, Env: s.environ(),
	})
}

// Provider runs agents that speak the Agent Client Protocol. The zero value gives them an empty
// environment.
type Provider struct {
	User    *process.User // that they run as; nil: this process's own
	Environ []string      // wake's environment; agents get it less what is withheld, see [agent.Environment]
	Grace   time.Duration // between SIGTERM and SIGKILL; default 5 s
	Parent  []string      // command of the server by which agents tell their parent something (see [parent.NewServer]); empty: they can't
	Linger  time.Duration // for the program to exit once all is done; default 2 s
	Logger  *slog.Logger  // default: none

	restEvery time.Duration // default [restEvery]
}

// startTimeout is how long the program may take for each answer before its first prompt, unless the request says.
const startTimeout = time.Minute

// restEvery is the least time between two resting points of which the host is told.
const restEvery = time.Second

// bypass is the permission mode in which all that an agent asks for is allowed.
const bypass = "bypassPermissions"

// Capabilities implements [agent.Provider].
func (*Provider) Capabilities() agent.Capabilities {
	return agent.Capabilities{TellsLate: true, KeepsLate: true}
}
