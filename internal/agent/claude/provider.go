package claude

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/parent"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// Provider runs the Claude Code CLI: one long-lived process per session that
// is talked to over its pipes. The zero value runs "claude" with an empty
// environment.
//
// Versions 2.1.197 and 2.1.329 were run; older ones lack parts of the protocol.
type Provider struct {
	Binary  string        // name or path; default claude
	User    *process.User // that it runs as; nil: this process's own
	Environ []string      // wake's environment; agents get it less what is withheld, see [agent.Environment]
	Grace   time.Duration // between SIGTERM and SIGKILL; default 5 s
	Settle  time.Duration // without a sign of what is still due after a result; default 10 s
	Linger  time.Duration // for the program to exit once all is done; default 30 s
	Logger  *slog.Logger  // default: none

	restEvery time.Duration // default [restEvery]
}

func (p *Provider) withDefaults(r agent.Request) Provider {
	d := *p
	d.Binary, d.Grace, d.Settle = cmp.Or(d.Binary, "claude"), cmp.Or(d.Grace, 5*time.Second), cmp.Or(d.Settle, 10*time.Second)
	d.Linger, d.restEvery = cmp.Or(d.Linger, 30*time.Second), cmp.Or(d.restEvery, restEvery)
	d.Logger = cmp.Or(d.Logger, slog.New(slog.DiscardHandler)).With("run_id", r.RunID, "node_id", r.NodeID)
	return d
}

// startTimeout is how long the program may say nothing after its start, unless the request says.
const startTimeout = time.Minute

// restEvery is the least time between two resting points of which the host is told.
const restEvery = time.Second

// bypass is the permission mode that asks for nothing.
const bypass = "bypassPermissions"

// commandLine returns the command line. Values are joined to their flags: one that
// begins with a dash is no flag.
func (p *Provider) commandLine(r agent.Request) []string {
	o := r.Options
	argv := []string{
		p.Binary, "-p", "--input-format=stream-json", "--output-format=stream-json", "--verbose",
		"--include-partial-messages", "--replay-user-messages", "--permission-prompt-tool=stdio",
		"--permission-mode=" + cmp.Or(o.PermissionMode, bypass),
		`--mcp-config={"mcpServers":{"` + parent.Server + `":{"type":"sdk","name":"` + parent.Server + `"}}}`,
	}
	switch {
	case baseSession(r) == "":
		argv = append(argv, "--session-id="+r.SessionID)
	case baseSession(r) == r.SessionID:
		argv = append(argv, "--resume="+r.SessionID)
	default:
		argv = append(argv, "--resume="+r.ForkOf, "--fork-session", "--session-id="+r.SessionID)
	}
	if baseSession(r) != "" && r.ForkAt != "" {
		argv = append(argv, "--resume-session-at="+r.ForkAt)
	}
	for _, f := range []struct{ flag, value string }{
		{"--model", o.Model},
		{"--fallback-model", o.FallbackModel},
		{"--system-prompt", o.SystemPrompt},
		{"--append-system-prompt", o.AppendSystemPrompt},
		{"--allowedTools", strings.Join(o.AllowedTools, ",")},
		{"--disallowedTools", strings.Join(o.DisallowedTools, ",")},
		{"--max-turns", positiveInt(o.MaxTurns)},
		{"--max-budget-usd", positiveFloat(o.MaxBudgetUsd)},
		{"--json-schema", schemaJSON(o.OutputSchema)},
	} {
		if f.value != "" {
			argv = append(argv, f.flag+"="+f.value)
		}
	}
	for _, dir := range o.AddDirs {
		argv = append(argv, "--add-dir="+dir)
	}
	return argv
}

// baseSession returns the session that a request goes on with, "" for a new one.
func baseSession(r agent.Request) string {
	if r.Resume {
		return r.SessionID
	}
	return r.ForkOf
}

func positiveInt(n int) string {
	if n <= 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func positiveFloat(x float64) string {
	if x <= 0 {
		return ""
	}
	return strconv.FormatFloat(x, 'f', -1, 64)
}

func schemaJSON(r wire.Raw) string {
	if len(r) == 0 {
		return ""
	}
	b, err := wire.AppendJSON(nil, r)
	if err != nil {
		return ""
	}
	return string(b)
}

// promptContents returns the contents of the messages that a prompt stands for: one
// for a string or a list of content blocks, else one for each item.
func promptContents(prompt wire.Raw) ([]wire.Raw, error) {
	if s, ok := prompt.Text(); ok {
		return []wire.Raw{textBlocks(s)}, nil
	}
	var contents []wire.Raw
	var blocks int
	for i, item := range prompt.Items() {
		content, isBlock := item.Get("content"), hasValue(item, "type") && !hasValue(item, "role")
		switch s, ok := item.Text(); {
		case ok:
			contents = append(contents, textBlocks(s))
		case isBlock:
			blocks++
		case len(content) > 0:
			contents = append(contents, content)
		default:
			return nil, fmt.Errorf("claude: message %d of the prompt has no content", i)
		}
	}
	switch {
	case blocks > 0 && len(contents) > 0:
		return nil, errors.New("claude: the prompt mixes messages and content blocks")
	case blocks > 0:
		return []wire.Raw{prompt}, nil
	case len(contents) == 0:
		return nil, errors.New("claude: the prompt must be a string or a list of messages")
	}
	return contents, nil
}

// textBlocks is the content of a message that is a text.
func textBlocks(s string) wire.Raw {
	r, err := wire.Marshal([]wire.Raw{textBlock(s)})
	if err != nil {
		return wire.RawString(s)
	}
	return r
}

// notFound says what to do if the program isn't there.
func notFound(binary string, err error) string {
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Sprintf("%s isn't in the PATH: install Claude Code (npm install -g @anthropic-ai/claude-code) or name the program", binary)
	}
	return err.Error()
}

// Start checks the request. The program is started by the session's Events,
// once its agent:start has been taken care of.
func (p *Provider) Start(ctx context.Context, r agent.Request) (agent.Session, error) {
	switch {
	case r.SessionID == "":
		return nil, errors.New("claude: a session id is required")
	case r.Resume && r.ForkOf != "" && r.ForkOf != r.SessionID:
		return nil, errors.New("claude: a session is either resumed or a fork of another one")
	case r.ForkAt != "" && baseSession(r) == "":
		return nil, errors.New("claude: a new session has no message to go back to")
	}
	var prompts []wire.Raw
	var err error
	if !r.Resume || !bytes.Equal(r.Prompt, wire.Null) {
		if prompts, err = promptContents(r.Prompt); err != nil {
			return nil, err
		}
	}
	if r.Host == nil {
		r.Host = process.Direct{}
	}
	d := p.withDefaults(r)
	r.StartTimeout = cmp.Or(r.StartTimeout, startTimeout)
	if r.Options.Model, err = modelOf(r); err != nil {
		d.Logger.Warn("model of the session not known: the program chooses it", "error", err)
	}
	return newSession(ctx, d, r, prompts), nil
}

// Capabilities implements [agent.Provider].
func (p *Provider) Capabilities() agent.Capabilities {
	return agent.Capabilities{Recover: p.recoverCalls, SubAgents: p.subAgents, Lingers: true}
}

// modelOf returns the model that a session is to have: what the request names, else what
// the agent said at first that it had. The program itself takes the model of a session that
// goes on from the session's file, where models are named as the API names them: without a
// suffix such as [1m].
func modelOf(r agent.Request) (string, error) {
	if r.Options.Model != "" || baseSession(r) == "" || r.History == nil {
		return r.Options.Model, nil
	}
	for e, err := range r.History {
		if err != nil {
			return "", err
		}
		if p, ok := e.Payload.(*wire.AgentInit); ok && e.Parent == "" {
			return p.Model, nil
		}
	}
	return "", nil
}
