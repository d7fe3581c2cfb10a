package view

import "code.wake.dev/wake/pkg/wire"

// Over reports whether a run needs no owner any more.
func Over(s *wire.State) bool { return Ended(s.Status) || s.Imported != "" }

// Ended reports whether a run has come to its end.
func Ended(s wire.RunStatus) bool { return s == wire.RunComplete || s == wire.RunAborted }

// Interrupts returns why agents at work are to be interrupted, "" if they may go
// on: the run isn't paused, or for something that they needn't wait for.
func Interrupts(s *wire.State) string {
	if s.Status != wire.RunPaused {
		return ""
	}
	switch s.Reason {
	case wire.PauseRequiresAction, wire.PauseWorkspaceLost:
		return ""
	case "":
		return wire.PauseOperator
	}
	return s.Reason
}
