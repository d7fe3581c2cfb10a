package trial_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/trial"
)

// The test's own program is the service that dies.
func TestMain(m *testing.M) {
	if dir := os.Getenv("TRIAL_DIR"); dir != "" {
		if err := serve(dir, os.Getenv("TRIAL_DIES")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// count is how many events there are; venom ends who handles it.
const (
	count = 10
	venom = 7
)

// serve handles the events behind the last one that is done, in one batch, as a service does that commits with each call.
func serve(dir, dies string) error {
	t, err := trial.Open(dir, "service", "incarnation", new(sync.Mutex))
	if err != nil {
		return err
	}
	done := filepath.Join(dir, "done")
	b, err := os.ReadFile(done)
	if err != nil {
		return err
	}
	var entries []eventlog.Entry
	for pos := uint64(strings.Count(string(b), "\n") + 1); pos <= count; pos++ {
		entries = append(entries, eventlog.Entry{Pos: pos})
	}
	return t.Handle(context.Background(), entries, //nolint:forbidigo // a process begins here
		func(_ context.Context, entries []eventlog.Entry) error {
			for _, e := range entries {
				switch {
				case e.Err != nil:
					b = fmt.Appendf(b, "%d aside: %v\n", e.Pos, e.Err)
					continue
				case e.Pos == venom && dies == "waiting":
					t.Waits()
				}
				if e.Pos == venom && dies == "panic" {
					panic("a defect")
				}
				if e.Pos == venom && dies != "" {
					return errors.Join(syscall.Kill(os.Getpid(), syscall.SIGKILL), errors.New("it lives"))
				}
				b = fmt.Appendf(b, "%d\n", e.Pos)
			}
			return os.WriteFile(done, b, 0o600)
		})
}

// An event that ends each process that handles it is found, whichever others it comes with, and set aside by the one that
// comes after it has ended as many alone as may. No other is. A process that is killed while it waits has no such event.
func TestDies(t *testing.T) {
	t.Parallel()
	for dies, want := range map[string]int{"killed": 1 + trial.Most, "panic": 1 + trial.Most, "waiting": 0} {
		t.Run(dies, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "done"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			deaths := 0
			run := func(dies string) bool {
				c := exec.Command(os.Args[0])
				c.Env = append(os.Environ(), "TRIAL_DIR="+dir, "TRIAL_DIES="+dies)
				out, err := c.CombinedOutput()
				if err != nil && c.ProcessState.ExitCode() == 1 {
					t.Fatalf("%v: %s", err, out)
				}
				return err == nil
			}
			for !run(dies) && deaths < 2*trial.Most+2 {
				deaths++
			}
			if want == 0 { // it never gets over that, and nothing is taken for its cause
				if !run("") {
					t.Fatal("it doesn't go on")
				}
			} else if deaths != want {
				t.Errorf("%d processes ended, want %d", deaths, want)
			}
			b, err := os.ReadFile(filepath.Join(dir, "done"))
			if err != nil {
				t.Fatal(err)
			}
			var all strings.Builder
			for pos := range count {
				if pos+1 == venom && want > 0 {
					fmt.Fprintf(&all, "%d aside: handling it has ended the process %d times in a row\n", venom, trial.Most)
				} else {
					fmt.Fprintln(&all, pos+1)
				}
			}
			if string(b) != all.String() {
				t.Errorf("it has handled\n%swant\n%s", b, all.String())
			}
		})
	}
}
