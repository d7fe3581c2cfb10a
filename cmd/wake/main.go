// Command wake runs AI agents durably: it records every step in a log on NATS
// JetStream, and can wake any run again.
package main

import (
	"context"
	"os"

	"wake/internal/service"
)

func main() { os.Exit(mainCode()) }

// mainCode is main without the exit, so that deferred calls run.
func mainCode() int {
	ctx, stop := service.WithSignals(context.Background())
	defer stop()
	a := &app{in: os.Stdin, out: os.Stdout, errOut: os.Stderr}
	return a.main(ctx, os.Args[1:])
}
