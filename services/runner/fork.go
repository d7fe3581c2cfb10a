package runner

import (
	"context"
	"fmt"

	"wake/pkg/wire"
)

func pointName(n int) string { return fmt.Sprintf("sfp-%d", n) }

func (j *judge) fork(ctx context.Context) error { return reject(wire.CodeCommandRejected, "fork") }

func (r *Runner) forkEnded(ctx context.Context, s *wire.State, cmd wire.Command, record *wire.CommandReceived) error {
	return reject(wire.CodeCommandRejected, "fork")
}

func (o *owner) startFork(ctx context.Context) error { return errNothing }
