package main

import (
	"context"
	"io"
	"log/slog"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/trace"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/pkg/subjects"
)

// app is one invocation of wake: where it reads and writes, and the settings
// that all verbs have.
type app struct {
	in          io.Reader
	out, errOut io.Writer

	server service.Server
	prefix string
	level  string
	redact string   // level
	given  []string // secrets that flows may refer to, NAME or NAME=FILE
	keys   string   // file of the keys that encrypt events
	json   bool

	wrongVerb string // the verb whose flags aren't right
	parsed    bool   // flags and arguments are right: from here on errors are failures
	log       *slog.Logger
	names     subjects.Names
	denied    context.CancelCauseFunc
	serves    bool            // see [annotationServer]
	traces    *service.Traces // nil: none are sent
	tracer    trace.Tracer    // nil without traces
	span      trace.Span      // of the verb, if it runs no service; nil without traces
}

// roleOf returns the role of a verb: it uses the credentials that the data directory holds for it.
func roleOf(cmd *cobra.Command) access.Role {
	switch s := cmd.Annotations[annotationService]; s {
	case "":
	case "watcher": // it writes events, as runners do
		return access.Runner
	default:
		return access.Role(s)
	}
	if p := cmd.Parent(); p != nil && (p.Name() == "schedule" || p.Name() == "budget" && cmd.Name() != "list") { // what begins and stops runs by itself is the installation's
		return access.Init
	}
	switch cmd.Name() {
	case "init", "backup", "restore", "rebuild", "verify", "doctor":
		return access.Init
	case "ingest", "import":
		return access.Ingest
	default:
		return access.Operator
	}
}

const (
	// annotationService marks verbs that run a service.
	annotationService = "service"
	// annotationServer marks those that serve others besides: they log as services do.
	annotationServer = "server"
)

// connectServer connects a verb to the server. Where the credentials don't cover a
// subject, the verb ends with that error instead of a timeout, unless others are served by it.
func (a *app) connectServer(ctx context.Context) (*nats.Conn, error) {
	server := a.server
	if !a.serves {
		server.Denied = a.denied
	}
	return server.Connect(ctx, a.log)
}

// The verbs, by what they do. A group has nothing of its own: what verbs share is the app's.
type (
	viewVerbs  struct{ *app } // show runs and what they have left
	orderVerbs struct{ *app } // steer runs, and answer them
	runVerbs   struct{ *app } // begin runs
	fileVerbs  struct{ *app } // bring runs in and out, and check what is stored
	alertVerbs struct{ *app } // show alerts, and try their rules
	hostVerbs  struct{ *app } // run servers and services, and look after them
)

// runHelp is in the help of each verb that takes a run as its first argument.
const runHelp = "RUN is an id, the beginning of one, the value of a label, a session id, or @last."

// completeVerb gives a verb, and those below it, what follows from its Use: how its arguments are checked, and what is
// said and completed of a run.
func (a *app) completeVerb(cmd *cobra.Command) {
	for _, below := range cmd.Commands() {
		a.completeVerb(below)
	}
	if cmd.Args == nil && cmd.Runnable() {
		cmd.Args = checkArguments
	}
	if names := strings.Fields(cmd.Use)[1:]; len(names) > 0 && strings.HasPrefix(strings.Trim(names[0], "[{"), "RUN") {
		cmd.Long += "\n\n" + runHelp
		if run := cmd.RunE; run != nil {
			cmd.RunE = func(cmd *cobra.Command, args []string) error { return a.hintPrefix(cmd, args, run(cmd, args)) }
		}
		if cmd.ValidArgsFunction == nil {
			cmd.ValidArgsFunction = a.completeRun
		}
	}
}

// checkArguments checks the arguments of a verb by its Use, such as "send RUN MSG" or
// "tail [RUN]": those in brackets may be left out.
func checkArguments(cmd *cobra.Command, args []string) error {
	names := strings.Fields(cmd.Use)[1:]
	switch {
	case len(args) > len(names):
		return usageError(cmd.Parent().CommandPath()+" "+cmd.Use, "%q is too much", args[len(names)])
	case len(args) < len(names) && !strings.HasPrefix(names[len(args)], "["):
		return usageError(cmd.Parent().CommandPath()+" "+cmd.Use, "%s is missing", names[len(args)])
	}
	return nil
}
