package run

import (
	"errors"
	"fmt"

	"code.wake.dev/wake/pkg/wire"
)

// ErrIncarnation is returned for an event of another incarnation of the stream
// than the state's: the state has to be rebuilt from that stream.
var ErrIncarnation = errors.New("run: event of another incarnation of the stream")

// ErrBlob is returned for an event that can't be folded before its blobs have
// been put back; see [NeedsInline].
var ErrBlob = errors.New("run: event lacks a field that is in the object store")

// HistoryError says which event a history doesn't allow, and why.
type HistoryError struct {
	RunID    string
	NodeID   string // the node it is written on
	Seq      uint64
	Type     wire.Type
	Position wire.Position
	Problem  string // such as "coder#2 was never scheduled"
	Err      error  // [ErrIncarnation], [ErrBlob] or nil
}

// Error returns "run: <run>/<node> seq <n> (<type>) at position <p>: <problem>".
func (e *HistoryError) Error() string {
	return fmt.Sprintf("run: %s/%s seq %d (%s) at position %d: %s",
		e.RunID, e.NodeID, e.Seq, e.Type, e.Position.Seq, e.Problem)
}

// Unwrap returns the sentinel, if there is one.
func (e *HistoryError) Unwrap() error { return e.Err }

func (f *fold) illegalEvent(format string, args ...any) error {
	return f.historyError(nil, format, args...)
}

// historyError is illegal with a sentinel.
func (f *fold) historyError(err error, format string, args ...any) error {
	return &HistoryError{
		RunID: f.e.RunID, NodeID: f.e.NodeID, Seq: f.e.Seq, Type: f.e.Type(), Position: f.pos,
		Problem: fmt.Sprintf(format, args...), Err: err,
	}
}
