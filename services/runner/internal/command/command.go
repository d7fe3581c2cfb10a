package command

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Strategies of a resumption.
const (
	StrategyCrash  = "crash"  // open tool calls are sealed
	StrategyManual = "manual" // they stay as they are
)

// CodeDuplicate is the reason of a command that was recorded before.
const CodeDuplicate wire.ErrorCode = "DUPLICATE"

// Record returns the record of a command, which is neither accepted nor rejected yet, and
// the command. It fails with a [rejection]; the record is one all the same.
//
// By is the user that the server names. What the sender says counts where the server says
// nothing, and of services, in the command itself.
func Record(e eventlog.Entry) (*wire.CommandReceived, wire.Command, error) {
	raw, cmd, err := parseCommand(e)
	p := &wire.CommandReceived{Command: raw, CommandID: cmp.Or(cmd.ID, fmt.Sprintf("cmd-%d", e.Pos)), By: e.User, AtPos: e.Pos}
	if err == nil && e.User != "" {
		cmd.By = e.User
		p.Command, err = With(raw, map[string]any{"by": e.User})
	}
	return p, cmd, err
}

// With returns a command with other values of fields. It fails with a [rejection].
func With(raw wire.Raw, values map[string]any) (wire.Raw, error) {
	var fields map[string]wire.Raw
	if err := wire.Unmarshal(raw, &fields); err != nil {
		return raw, Reject(wire.CodeBadRequest, "not a command: %v", err)
	}
	for name, v := range values {
		value, err := wire.Marshal(v)
		if err != nil {
			return raw, Reject(wire.CodeBadRequest, "not a command: %v", err)
		}
		fields[name] = value
	}
	return wire.Marshal(fields)
}

// parseCommand returns a command and, as it is recorded, its value. It fails with a [rejection].
func parseCommand(e eventlog.Entry) (wire.Raw, wire.Command, error) {
	var cmd wire.Command
	if e.Err != nil {
		return wire.RawString(""), cmd, Reject(wire.CodeBadRequest, "not a command: %v", e.Err)
	}
	raw, _, err := wire.ParseAny(e.Data)
	if err != nil {
		return wire.RawString(string(e.Data)), cmd, Reject(wire.CodeBadRequest, "not a command: %v", err)
	}
	if err := wire.Unmarshal(raw, &cmd); err != nil {
		return raw, cmd, Reject(wire.CodeBadRequest, "not a command: %v", err)
	}
	for _, id := range []*string{&cmd.ID, &cmd.ExecID} { // they stand in the record, and in the state
		if n := len(*id); n > MaxID {
			*id = ""
			return raw, cmd, Reject(wire.CodeBadRequest, "an id has %d bytes, at most %d are allowed", n, MaxID)
		}
	}
	return raw, cmd, nil
}

// MaxID is the length in bytes that ids may have in a command: no execution
// has a longer one.
const MaxID = 2 * subjects.MaxID

// rejection is the reason why a command isn't obeyed: "CODE: text".
type rejection struct {
	code wire.ErrorCode
	text string
}

func (r *rejection) Error() string { return string(r.code) + ": " + r.text }

// Reject returns why a command isn't obeyed.
func Reject(code wire.ErrorCode, format string, args ...any) error {
	return &rejection{code, fmt.Sprintf(format, args...)}
}

// RejectAnswered returns why a decision isn't obeyed about a call that has one.
func RejectAnswered(call, by string, at time.Time) error {
	return Reject(wire.CodeCommandRejected, "call %q was already answered by %s at %s", call, cmp.Or(by, "another user"), at.UTC().Format(time.DateTime+" UTC"))
}

// Rejected reports whether err is the fault of a command, not of the runner.
func Rejected(err error) bool {
	_, ok := errors.AsType[*rejection](err)
	return ok
}

// RecordOf returns the record of a command that an entry of the log is.
func RecordOf(e eventlog.Entry) (*wire.CommandReceived, bool) {
	if e.Event == nil || e.NodeID != wire.RunNode {
		return nil, false
	}
	p, ok := e.Event.Payload.(*wire.CommandReceived)
	return p, ok
}
