//go:build unix

package main

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// window returns the size of the terminal that w is, 0 if it is none.
func window(w io.Writer) (columns, rows int) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return int(size.Col), int(size.Row)
}
