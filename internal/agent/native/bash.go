package native

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/shell"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// The limits of a command. What it prints beyond maxOutput is dropped.
const (
	bashTimeout    = 2 * time.Minute
	maxBashTimeout = 30 * time.Minute
	maxOutput      = 8 << 20
)

// bashTool is the tool that runs commands: in the workspace, with everything they start in
// a session of its own that ends with them.
func (s *session) bashTool(env []string) *tool {
	t := defineTool("bash", "Runs a shell command in the workspace. Processes that it leaves behind are ended. It has no input.",
		`{"type":"object","properties":{"command":{"type":"string"},"timeout_ms":{"type":"integer","description":"120000 by default, at most 1800000"}},"required":["command"]}`,
		false, func(ctx context.Context, call string, in bashInput) (result, error) {
			return in.runCommand(ctx, shell.Command{Host: s.request.Host, Name: s.programOf(call), Begin: s.atWork[call], Cwd: s.request.Options.Cwd, Env: env})
		})
	t.timeout = 0
	return t
}

// programOf names the command of a call, so that whichever session goes on hears it to its end. An earlier call
// that was rolled back may have had the name.
func (s *session) programOf(call string) string {
	name := agent.CallProgram(call)
	if s.atWork[call].IsZero() && s.request.Host != nil && s.request.Host.Has(name) {
		return ""
	}
	return name
}

// findWork notes the calls that an earlier session has begun, and that are at work or have a result by now.
func (s *session) findWork() {
	for _, k := range s.conv.openCalls() {
		if k.state == wire.ToolExecuting && s.request.Host != nil && s.request.Host.Has(agent.CallProgram(k.id)) {
			s.atWork[k.id] = time.UnixMilli(k.begun)
		}
	}
}

type bashInput struct {
	Command   string
	TimeoutMs int64 `json:"timeout_ms"`
}

func (in bashInput) runCommand(ctx context.Context, c shell.Command) (result, error) {
	if strings.TrimSpace(in.Command) == "" {
		return result{}, errors.New("command is required")
	}
	timeout := bashTimeout
	if in.TimeoutMs > 0 {
		timeout = time.Duration(min(in.TimeoutMs, maxBashTimeout.Milliseconds())) * time.Millisecond
	}
	var output strings.Builder
	var dropped, missing int
	var exit *wire.ExecExit
	c.Argv, c.Timeout = shellArgv(in.Command), timeout
	c.Stored = func() bool { return dropped > 0 } // until then all of it is needed, if this program ends
	for e, err := range c.Run(ctx) {
		if err != nil {
			return result{}, err
		}
		switch p := e.Payload.(type) {
		case *wire.ExecOutput:
			if before := int(e.JournalOffset) - len(p.Content); output.Len() == 0 && before > maxOutput/2 { // bounded by what a command prints
				missing = before
			}
			if output.Len()+len(p.Content) > maxOutput {
				dropped += len(p.Content)
				continue
			}
			output.WriteString(p.Content)
		case *wire.ExecExit:
			exit = p
		}
	}
	if exit == nil {
		return result{}, errors.New("the command did not end")
	}
	if dropped > 0 {
		fmt.Fprintf(&output, "\n[%d more bytes of output were dropped]", dropped)
	}
	text := output.String()
	if missing > 0 {
		text = fmt.Sprintf("[about %d bytes of output before this were lost when the agent was interrupted]\n%s", missing, text)
	}
	return bashResult(exit, text, timeout), nil
}

func bashResult(exit *wire.ExecExit, output string, timeout time.Duration) result {
	head := ""
	switch {
	case exit.TimedOut:
		head = fmt.Sprintf("Timed out after %s\n", timeout)
	case exit.MemoryBytes != 0:
		head = fmt.Sprintf("Killed: %s\n", process.BoundText(exit.MemoryBytes))
	case exit.Signal != "":
		head = fmt.Sprintf("Ended by signal %s\n", exit.Signal)
	case exit.ExitCode != 0:
		head = fmt.Sprintf("Exit code %d\n", exit.ExitCode)
	case output == "":
		output = "(no output)"
	}
	r := textResult(head + output)
	r.failed = head != ""
	r.structured = wire.RawOf(map[string]any{
		"exitCode": exit.ExitCode, "signal": exit.Signal, "timedOut": exit.TimedOut, "durationMs": exit.DurationMs,
	})
	return r
}

func shellArgv(command string) []string {
	if path, err := exec.LookPath("bash"); err == nil {
		return []string{path, "-c", command}
	}
	return []string{"/bin/sh", "-c", command}
}
