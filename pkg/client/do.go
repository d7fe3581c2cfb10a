package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Do sends a command to a run and waits until it is on record. While no runner
// is up, the answer says Recorded: false, without an error: the command is stored
// and will be judged. A command that was rejected is an error too, with the code of
// the reason; COMMAND_REJECTED if that has none of its own.
//
// It fails if what runs write is encrypted and the client lacks the key: it couldn't read
// what becomes of the command.
//
// A command without a run is stored, so that it is on record, and refused.
func (c *Client) Do(ctx context.Context, cmd wire.Command) (wire.CommandResponse, error) {
	cmd.ID = cmp.Or(cmd.ID, NewID())
	to := cmp.Or(cmd.RunID, subjects.NoRun)
	answer := wire.CommandResponse{CommandID: cmd.ID, RunID: cmd.RunID}
	if err := c.reader.CheckKeys(ctx); err != nil {
		return answer, err
	}
	_, last, err := c.reader.Bounds(ctx)
	if err != nil {
		return answer, err
	}
	request := wire.CommandRequest{Command: cmd, Stored: true}
	_, err = api.Call[wire.CommandResponse](ctx, c.reader.Conn(), c.names, wire.VerbCommand, request)
	if e, ok := errors.AsType[*wire.APIError](err); ok && e.Code == wire.CodeTooLarge {
		return answer, &wire.APIError{Code: e.Code, Message: e.Message, Hint: "put what is long into a file of the agent's folder and name it"}
	}
	if err != nil {
		return answer, err
	}
	if to == subjects.NoRun {
		return answer, &wire.APIError{Code: wire.CodeBadRequest, Message: "a command needs a run", Hint: "set runId"}
	}
	record, err := c.awaitRecord(ctx, to, cmd.ID, last+1)
	if err != nil || record == nil {
		return answer, err
	}
	answer.Recorded, answer.Position = true, record.Pos
	p := record.Event.Payload.(*wire.CommandReceived) // awaitRecord looked
	answer.Accepted, answer.Reason = p.Accepted, p.Reason
	if !p.Accepted {
		return answer, rejectionError(cmd, p.Reason)
	}
	return answer, nil
}

// awaitRecord returns the record of a command, or nil if there is none in time.
// One that its run has no owner for is recorded under run `_`.
func (c *Client) awaitRecord(ctx context.Context, runID, id string, from uint64) (*eventlog.Entry, error) {
	wait, stop := context.WithTimeout(ctx, c.wait)
	defer stop()
	found := make(chan eventlog.Entry, 2)
	var readers sync.WaitGroup
	for _, r := range []string{runID, subjects.NoRun} {
		readers.Go(func() {
			q := eventlog.Query{Run: r, Node: wire.RunNode, Kinds: []wire.Kind{wire.KindFlow}, From: from}
			for e, err := range c.reader.Follow(wait, q) {
				if err != nil {
					return // time is over, or the log is another one
				}
				if p, ok := eventlog.PayloadOf[*wire.CommandReceived](e); ok && p.CommandID == id {
					found <- e
					stop()
					return
				}
			}
		})
	}
	readers.Wait()
	select {
	case e := <-found:
		return &e, nil
	default:
		return nil, ctx.Err()
	}
}

// rejectionError is the error of a reason "CODE: text".
func rejectionError(cmd wire.Command, reason string) *wire.APIError {
	e := &wire.APIError{Code: wire.CodeCommandRejected, Message: reason}
	code, text, ok := strings.Cut(reason, ": ")
	if !ok {
		return e
	}
	switch c := wire.ErrorCode(code); c {
	case wire.CodeBadRequest, wire.CodeRunNotFound, wire.CodeNodeNotFound, wire.CodeAmbiguousID, wire.CodeNotFound,
		wire.CodeLeaseHeld, wire.CodeNotResumable, wire.CodeCommandRejected, wire.CodeWorkspaceLost, wire.CodeSessionNotFound:
		e.Code, e.Message = c, text
	default: // a code of its own stays in the text
	}
	switch e.Code {
	case wire.CodeAmbiguousID:
		e.Hint = fmt.Sprintf("name one of the agents of `wake status %s` with --node or --exec", ask.ShellWord(cmd.RunID))
	case wire.CodeNotResumable:
		e.Hint = fmt.Sprintf("fork it at an earlier point: wake bookmarks %s", ask.ShellWord(cmd.RunID))
		if strings.Contains(e.Message, "--rerun") { // the run has failed
			e.Hint = fmt.Sprintf("wake resume %s --rerun tries again what failed", ask.ShellWord(cmd.RunID))
		}
	case wire.CodeRunNotFound:
		e.Hint = "see `wake runs` for the runs there are"
	case wire.CodeLeaseHeld, wire.CodeCommandRejected:
		e.Hint = "wake status " + cmd.RunID
	default:
	}
	return e
}
