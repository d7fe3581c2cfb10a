//go:build !linux

package process

import (
	"context"
	"fmt"
	"os"
	"time"
)

// startTime isn't known here: a mark then holds for any program with that pid.
func startTime(int) uint64 { return 0 }

type tree struct{ pid int }

func treeOf(pid int, _ string) *tree { return &tree{pid: pid} }

// endAll asks the process group to end and kills it after the grace.
func (t *tree) endAll(grace time.Duration) error {
	terminateGroup(t.pid)
	for until := time.Now().Add(grace); livePrograms.has(t.pid) && time.Now().Before(until); {
		<-time.After(10 * time.Millisecond)
	}
	killGroup(t.pid)
	return nil
}

// EndOrphans does nothing here: the process table doesn't tell which tree a process
// is of.
func EndOrphans(context.Context, string, time.Duration) (int, error) { return 0, nil }

func exitOf(state *os.ProcessState, err error) Exit {
	if state == nil {
		return Exit{Code: -1, Signal: fmt.Sprint(err)}
	}
	return Exit{Code: state.ExitCode(), Signal: signalOf(state)}
}

func pidNamespace() uint64 { return 0 }
