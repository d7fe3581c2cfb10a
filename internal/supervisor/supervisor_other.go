//go:build !linux

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// Run runs the program once, passes SIGINT and SIGTERM on to it and returns its exit code, -1 if
// a signal ended it: containers are Linux.
func Run(c Config) (int, error) {
	orders := make(chan os.Signal, 16)
	signal.Notify(orders, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(orders)
	p := &exec.Cmd{Path: c.Path, Args: c.Argv, Env: c.Env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	if err := p.Start(); err != nil {
		return 0, fmt.Errorf("supervisor: start %s: %w", c.Path, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	for {
		select {
		case sig := <-orders:
			_ = p.Process.Signal(sig) // it may be gone
		case err := <-ended:
			if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
				return 0, fmt.Errorf("supervisor: wait for %s: %w", c.Path, err)
			}
			return p.ProcessState.ExitCode(), nil
		}
	}
}
