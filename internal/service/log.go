package service

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/mattn/go-isatty"
)

// NewLogger writes text to terminals and JSON to everything else.
func NewLogger(w io.Writer, level slog.Leveler) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if IsTerminal(w) {
		return slog.New(slog.NewTextHandler(w, options))
	}
	options.ReplaceAttr = func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.StringValue(a.Value.Duration().String()) // else it is a number of nanoseconds
		}
		return a
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// WithSignals returns a context that ends with the first SIGINT, SIGTERM or SIGHUP: a
// terminal that goes away ends the process as orderly as an operator does. A second one
// has its usual effect: it ends the process at once. A SIGHUP that is ignored at the start,
// as below nohup, stays so.
func WithSignals(parent context.Context) (context.Context, context.CancelFunc) {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(parent, signals...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// Error is an error that a program can decide on and a person can do something
// about. Code is one of the Code constants or a code of the service that
// refused; codes are stable.
type Error struct {
	Code string
	Hint string // what to do; may be empty
	Err  error
}

// Codes of errors that any command may end with.
const (
	CodeUnreachable  = "UNREACHABLE"       // no server, or it doesn't answer
	CodeUnauthorized = "UNAUTHORIZED"      // the server refuses the credentials
	CodeDenied       = "PERMISSION_DENIED" // the credentials don't cover the subject
	CodeUsage        = "BAD_USAGE"         // wrong flags, arguments or settings
	CodeInUse        = "IN_USE"            // another process holds what is needed
)

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }
