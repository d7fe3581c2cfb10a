// Package supervisor is process 1 of a container: it runs one program, starts it again when it
// was killed or failed, and reaps what others leave to it. So what the program has started
// outlives it: in a container with the program itself as process 1, all end with it.
//
// It starts processes without os/exec and waits for all children that there are, so the program
// that calls [Run] can do nothing else with processes.
package supervisor

import (
	"log/slog"
	"time"
)

// Config says what to run.
type Config struct {
	Path string   // of the program
	Argv []string // its own name and its arguments
	Env  []string // the whole environment, as key=value
	Log  *slog.Logger
}

// The exit codes after which a program isn't started again unless it was told to end: it
// has done its work, or it would be wrong in the same way again.
const (
	codeDone  = 0
	codeUsage = 2
)

// The delay before a program that has just ended is started again doubles with every start, and
// begins anew for one that has run for longer than the longest delay.
const (
	shortestDelay = 100 * time.Millisecond
	longestDelay  = 10 * time.Second
)

// nextDelay returns the delay after a program that was started after the last one and has run for so long.
func nextDelay(last, ran time.Duration) time.Duration {
	if last == 0 || ran > longestDelay {
		return shortestDelay
	}
	return min(2*last, longestDelay)
}
