//go:build !unix

package main

import "io"

// window returns the size of the terminal that w is: it isn't known.
func window(io.Writer) (columns, rows int) { return 0, 0 }
