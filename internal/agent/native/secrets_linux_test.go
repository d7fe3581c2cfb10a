package native_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"code.wake.dev/wake/internal/process"
)

// unprivileged runs this program again, without what root may do to other processes.
func unprivileged() {
	runtime.LockOSThread()
	for _, capability := range []uintptr{unix.CAP_SYS_PTRACE, unix.CAP_PERFMON, unix.CAP_SYS_ADMIN} {
		_ = unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0) // only root has them
	}
	_ = os.Setenv("RUNNER", "unprivileged")
	fmt.Println(syscall.Exec(os.Args[0], os.Args, os.Environ()))
}

// TestSecretsOfTheRunner has the agent look for the environment of the process that it
// runs in, which holds the keys of its model.
func TestSecretsOfTheRunner(t *testing.T) {
	switch os.Getenv("RUNNER") {
	case "":
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestSecretsOfTheRunner$")
		c.Env = append(os.Environ(), "RUNNER=start", "SECRET=s3cret")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	case "start":
		unprivileged()
	}
	for _, concealed := range []bool{false, true} {
		if concealed {
			if err := process.Conceal(); err != nil {
				t.Fatal(err)
			}
		}
		b := newBench(t)
		got, _ := b.called("bash", `{"command":"cat /proc/$PPID/environ /proc/$PPID/task/*/environ"}`).ToolOutput.Text()
		if strings.Contains(got, "s3cret") == concealed {
			t.Errorf("concealed: %t, and the agent is told the secret: %t", concealed, !concealed)
		}
	}
}
