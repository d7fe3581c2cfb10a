package native

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"wake/internal/agent/shell"
	"wake/pkg/wire"
)

// The limits of a command. What it prints beyond maxOutput is dropped.
const (
	bashTimeout    = 2 * time.Minute
	maxBashTimeout = 30 * time.Minute
	maxOutput      = 8 << 20
)

// bash is the tool that runs commands: in the workspace, with everything they start in
// a session of its own that ends with them.
func bash(dir string, env []string) *tool {
	t := define("bash", "Runs a shell command in the workspace. Processes that it leaves behind are ended. It has no input.",
		`{"type":"object","properties":{"command":{"type":"string"},"timeout_ms":{"type":"integer","description":"120000 by default, at most 1800000"}},"required":["command"]}`,
		false, func(ctx context.Context, _ string, in bashInput) (result, error) { return in.run(ctx, dir, env) })
	t.timeout = 0
	return t
}

type bashInput struct {
	Command   string
	TimeoutMs int64 `json:"timeout_ms"`
}

func (in bashInput) run(ctx context.Context, dir string, env []string) (result, error) {
	if strings.TrimSpace(in.Command) == "" {
		return result{}, errors.New("command is required")
	}
	timeout := bashTimeout
	if in.TimeoutMs > 0 {
		timeout = time.Duration(min(in.TimeoutMs, maxBashTimeout.Milliseconds())) * time.Millisecond
	}
	var output strings.Builder
	var dropped int
	var exit *wire.ExecExit
	c := shell.Command{Argv: shellArgv(in.Command), Cwd: dir, Env: env, Timeout: timeout}
	for e, err := range c.Run(ctx) {
		if err != nil {
			return result{}, err
		}
		switch p := e.Payload.(type) {
		case *wire.ExecOutput:
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
	return bashResult(exit, output.String(), timeout), nil
}

func bashResult(exit *wire.ExecExit, output string, timeout time.Duration) result {
	head := ""
	switch {
	case exit.TimedOut:
		head = fmt.Sprintf("Timed out after %s\n", timeout)
	case exit.Signal != "":
		head = fmt.Sprintf("Ended by signal %s\n", exit.Signal)
	case exit.ExitCode != 0:
		head = fmt.Sprintf("Exit code %d\n", exit.ExitCode)
	case output == "":
		output = "(no output)"
	}
	r := text(head + output)
	r.failed = head != ""
	r.structured = mustMarshal(map[string]any{
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
