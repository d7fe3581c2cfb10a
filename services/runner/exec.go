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
}

// command runs the command of the node and returns the events that end the
// execution.
func (w *worker) command(ctx context.Context, n wire.NodeState) ([]*wire.Event, error) {
	c, err := w.parseCommand(n.Input)
	if err != nil {
		return nil, &failure{message: err.Error(), kind: wire.ErrorStartFailed}
	}
	var outcome shell.Outcome
	var last []*wire.Event
	for e, err := range c.Run(ctx) {
		if err != nil {
			return last, &failure{message: err.Error(), kind: wire.ErrorStartFailed}
		}
		outcome.Observe(e)
		if e.Type() == wire.TypeExecExit {
			last = append(last, e)
			continue
		}
		if err := w.record(ctx, e); err != nil {
			return nil, err
		}
		w.span.End() // the command is at work
	}
	output, err := outcome.Output()
	if err != nil {
		return last, err
	}
	problem := outcome.Problem()
	if problem == "" {
		return append(last, w.completed(output)), nil
	}
	w.output = output
	if ctx.Err() != nil {
		return last, nil // it was ended, whatever it says: nobody knows what it has done
	}
	return append(last, w.failed(problem, "exit")), nil
}

func (w *worker) parseCommand(input wire.Raw) (shell.Command, error) {
	var in commandInput
	if err := wire.Unmarshal(input, &in); err != nil {
		return shell.Command{}, fmt.Errorf("input of the node: %w", err)
	}
	env, err := w.withSecrets(in.Env, w.node.Input.Get("env"))
	if err != nil {
		return shell.Command{}, fmt.Errorf("env: %w", err)
	}
	c := shell.Command{
		ExecID: w.offer.ExecID, Cwd: w.dir(in.Cwd),
		Env: agent.Environment(os.Environ(), env),
	}
	if text, ok := in.Command.Text(); ok {
		c.Command = text
		return c, nil
	}
	return c, wire.Unmarshal(in.Command, &c.Argv)
}

// dir returns the folder to work in: the run's, or one below it.
func (w *worker) dir(cwd string) string {
	if filepath.IsAbs(cwd) {
		return cwd
	}
	return filepath.Join(w.workdir.path, cwd)
}
