//go:build !unix

package process

import (
	"os"
	"syscall"
)

func startAttributes() *syscall.SysProcAttr { return nil }

func terminateGroup(int) {}

func killGroup(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill()
		_ = p.Release()
	}
}

func signalOf(*os.ProcessState) string { return "" }
