package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"wake/internal/agent"
	"wake/internal/agent/shell"
	"wake/pkg/wire"
)

// commandInput is the input of an exec node.
type commandInput struct {
	Command wire.Raw          `json:"command"`
	Cwd     string            `json:"cwd"`
	Env     map[string]string `json:"env"`
	Stdin   string            `json:"stdin"`
}

// command runs the command of the node and returns the events that end the
// execution.
func (w *worker) command(ctx context.Context, n wire.NodeState) ([]*wire.Event, error) {
	var in commandInput
	if err := wire.Unmarshal(n.Input, &in); err != nil {
		return nil, &failure{message: fmt.Sprintf("input of the node: %v", err), kind: wire.ErrorStartFailed}
	}
	argv, err := shell.Parse(in.Command)
	if err != nil {
		return nil, &failure{message: err.Error(), kind: wire.ErrorStartFailed}
	}
	c := shell.Command{Argv: argv, Dir: w.dir(in.Cwd), Env: agent.Environment(os.Environ(), in.Env), Stdin: in.Stdin}
	var last *wire.Event
	res, err := shell.Run(ctx, c, func(e *wire.Event) error {
		if e.Type() == wire.TypeExecExit {
			last = e
			return nil
		}
		return w.record(ctx, e)
	})
	var events []*wire.Event
	if last != nil {
		events = append(events, last)
	}
	if err != nil {
		if last == nil && ctx.Err() == nil {
			err = &failure{message: err.Error(), kind: wire.ErrorStartFailed}
		}
		return events, err
	}
	output, err := wire.Marshal(res)
	if err != nil {
		return events, err
	}
	if res.ExitCode != 0 {
		failed := w.failed(exitMessage(res), "exit")
		failed.Payload.(*wire.NodeError).Output = output
		return append(events, failed), nil
	}
	return append(events, w.completed(output)), nil
}

func exitMessage(r shell.Result) string {
	if r.Signal != "" {
		return "the command was ended by signal " + r.Signal
	}
	return fmt.Sprintf("the command exited with %d", r.ExitCode)
}

// dir returns the folder to work in: the run's, or one below it.
func (w *worker) dir(cwd string) string {
	if filepath.IsAbs(cwd) {
		return cwd
	}
	return filepath.Join(w.workspace, cwd)
}
