package process_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"code.wake.dev/wake/internal/process"
)

// snoop is what a program does that looks for the secrets of the one that started it.
const snoop = `for f in environ maps mem fd/0 auxv; do cat /proc/$PPID/$f; done 2>/dev/null; ls -l /proc/$PPID/fd /proc/$PPID/task/*/fd 2>/dev/null; ` +
	`cat /proc/$PPID/task/*/environ 2>/dev/null; grep -c . /proc/$PPID/status`

// become makes this program another run of itself, which may not trace other processes
// than its own.
func become(args ...string) {
	runtime.LockOSThread()
	for _, capability := range []uintptr{unix.CAP_SYS_PTRACE, unix.CAP_PERFMON, unix.CAP_SYS_ADMIN} {
		_ = unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0) // only root has them
	}
	fmt.Println(syscall.Exec(os.Args[0], append(os.Args[:1:1], args...), os.Environ()))
}

// keep starts a snoop, and then what it has to be able to end.
func keep() {
	if os.Getenv("CONCEAL") != "" {
		if err := process.Conceal(); err != nil {
			fmt.Println(err)
		}
	}
	p, err := process.Start(process.Config{Argv: []string{"/bin/sh", "-c", snoop}, Env: []string{"PATH=" + os.Getenv("PATH")}, KeepStderr: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = p.Stdin.Close()
	_, _ = io.Copy(os.Stdout, p.Stdout)
	_ = p.End(time.Second)
	_ = p.Close()
	p, err = process.Start(process.Config{Argv: []string{os.Args[0], "role:launcher"}, Env: os.Environ(), KeepStderr: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = p.Stdout.Read(make([]byte, 1)) // the daemon is there
	<-p.Exited()                          // its launcher isn't any more
	fmt.Println("\nended:", p.End(50*time.Millisecond))
	_ = p.Close()
}

// TestConceal has a program look for the secrets of the process that started it: its environment, which
// stays readable whatever the program does to its variables, its memory and files. Who is
// concealed still knows by their mark, and ends, the programs that it has started.
func TestConceal(t *testing.T) {
	for conceal, found := range map[string]bool{"": true, "yes": false} {
		c := exec.CommandContext(t.Context(), os.Args[0], "role:unprivileged", "role:keeper")
		c.Env = append(os.Environ(), "CONCEAL="+conceal, "SECRET=s3cret")
		out, err := c.Output()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(out), "s3cret") != found || strings.Contains(string(out), "pipe:[") != found {
			t.Errorf("concealed %q: it found the secret: %t, files: %t", conceal, strings.Contains(string(out), "s3cret"), strings.Contains(string(out), "pipe:["))
		}
		if !strings.Contains(string(out), "\nended: <nil>\n") {
			t.Errorf("concealed %q: its program was not ended", conceal)
		}
	}
}
