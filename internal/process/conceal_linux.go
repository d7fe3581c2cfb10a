package process

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Conceal keeps what this program knows from the programs that it starts, and from all
// others of its user: they can't read its memory, its environment or its open files from
// /proc, nor attach to it. What may trace any process can, such as a root that has
// CAP_SYS_PTRACE, CAP_PERFMON or CAP_SYS_ADMIN; that of a container usually hasn't. There
// are no core dumps of this program then. Elsewhere than on Linux it does nothing.
func Conceal() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("process: conceal: %w", err)
	}
	return nil
}
