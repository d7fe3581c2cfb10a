// Command wake runs AI agents durably: it records every step in a log on NATS
// JetStream, and can wake any run again.
package main

import (
	"context"
	"os"

	"code.wake.dev/wake/internal/service"
)

func main() {
	os.Exit(mainCode())
}

// mainCode is main without the exit, so that deferred calls run.
func mainCode() int {
	// Verbs that stay beside a runner, and have to be small, begin before anything is set up.
	if len(os.Args) > 1 {
		switch verb, args := os.Args[1], os.Args[2:]; verb {
		case "supervise":
			if code, ok := superviseArgs(args); ok {
				return code
			}
		case "hooks": // a session waits for it to begin
			if len(args) == 2 && args[0] == "report" {
				return reportHook(args[1])
			}
		}
	}
	ctx, stop := service.WithSignals(context.Background())
	defer stop()
	a := &app{in: os.Stdin, out: os.Stdout, errOut: os.Stderr}
	return a.main(ctx, os.Args[1:])
}
