package runner

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"wake/internal/api"
	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// verdictWait is how long wake.api.command waits for a command's record.
const verdictWait = 4500 * time.Millisecond

// serve answers wake.api.command until ctx ends.
func (r *Runner) serve(ctx context.Context) error {
	s := api.Service{
		Names: r.names, Name: "runner", Logger: r.logger, Tracer: r.log.Tracer(),
		Endpoints: []api.Endpoint{api.Handle(wire.VerbCommand, "", r.command)},
	}
	return s.Run(ctx, r.log.Conn())
}

// command passes a command on and says what has become of it.
func (r *Runner) command(ctx context.Context, cmd wire.Command, _ api.Form) (wire.CommandResponse, error) {
	if cmd.ID == "" {
		cmd.ID = rand.Text()
	}
	run := cmd.RunID
	if run == "" {
		run = subjects.NoRun // where it is rejected on record
	}
	answer := wire.CommandResponse{CommandID: cmd.ID, RunID: cmd.RunID}
	more := make(chan struct{}, 1)
	own := r.events.subscribeInto(run, more)
	defer own.close()
	nobodys := r.events.subscribeInto(subjects.NoRun, more)
	defer nobodys.close()
	data, err := wire.Marshal(cmd)
	if err != nil {
		return answer, &wire.APIError{Code: wire.CodeBadRequest, Message: fmt.Sprintf("the command can't be encoded: %v", err)}
	}
	ack, err := r.log.Send(ctx, r.names.Command(run), data)
	if err != nil {
		return answer, fmt.Errorf("publish the command: %w", err)
	}
	wait, cancel := context.WithTimeout(ctx, verdictWait)
	defer cancel()
	for {
		for _, e := range append(own.take(), nobodys.take()...) {
			if p, ok := recordOf(e); ok && p.AtPos == ack.Sequence {
				answer.Recorded, answer.Accepted, answer.Reason, answer.Position = true, p.Accepted, p.Reason, e.Pos
				return answer, nil
			}
		}
		select {
		case <-more:
		case <-wait.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return answer, ctx.Err()
			}
			return answer, nil
		}
	}
}
