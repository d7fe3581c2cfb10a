//go:build !unix

package process

import (
	"os"
	"syscall"
)

func attributes() *syscall.SysProcAttr { return nil }

func terminate(int) {}

func kill(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill()
		_ = p.Release()
	}
}

func signalOf(*os.ProcessState) string { return "" }
