//go:build !unix

package main

import "time"

// processorTime isn't known here.
func processorTime() time.Duration { return 0 }
