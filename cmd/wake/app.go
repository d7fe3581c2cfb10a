package main

import (
	"context"
	"io"
	"log/slog"

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

	parsed bool // flags and arguments are right: from here on errors are failures
	log    *slog.Logger
	names  subjects.Names
	denied context.CancelCauseFunc
	traces *service.Traces // nil: none are sent
	tracer trace.Tracer    // nil without traces
	span   trace.Span      // of the verb, if it runs no service; nil without traces
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

// annotationService marks verbs that run a service.
const annotationService = "service"

// connectServer connects a verb to the server. Where the credentials don't cover a
// subject, the verb ends with that error instead of a timeout.
func (a *app) connectServer(ctx context.Context) (*nats.Conn, error) {
	server := a.server
	server.Denied = a.denied
	return server.Connect(ctx, a.log)
}
