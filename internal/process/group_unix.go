//go:build unix && !linux

package process

import (
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func startAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func terminateGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGTERM) }

func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }

func signalOf(state *os.ProcessState) string {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return strings.TrimPrefix(unix.SignalName(ws.Signal()), "SIG")
	}
	return ""
}
