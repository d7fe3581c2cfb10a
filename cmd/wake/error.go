package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// The exit codes. They are part of the command line and don't change.
const (
	exitDone = iota
	exitFailed
	exitUsage
	exitUnreachable
	exitRunFailed

	exitInterrupted = 128 + 2 // as a shell says of a program that SIGINT ended
)

// Codes of errors beside those of internal/service.
const (
	codeFailed    = "FAILED"     // any other error
	codeRunFailed = "RUN_FAILED" // the run ended, not well
	codeRunExists = "RUN_EXISTS" // the id is taken
	codeDetached  = "DETACHED"   // the user went away from a run that goes on
	codeInterrupt = "INTERRUPT"  // the user ended what would have gone on

	codeRulesInvalid = "RULES_INVALID" // the file of the alerter's rules isn't as needed
	codeSinkFailed   = "SINK_FAILED"   // a sink of alerts doesn't take what it was sent

	codeNotInitialized = "NOT_INITIALIZED" // the server's streams aren't as needed
)

func usageError(hint, format string, args ...any) error {
	return serviceError(service.CodeUsage, hint, format, args...)
}

func serviceError(code, hint, format string, args ...any) error {
	return &service.Error{Code: code, Err: fmt.Errorf(format, args...), Hint: hint}
}

// apiError is err as programs see it.
func apiError(err error) *wire.APIError {
	if e, ok := errors.AsType[*wire.APIError](err); ok {
		return e
	}
	if e, ok := errors.AsType[*service.Error](err); ok {
		return &wire.APIError{Code: wire.ErrorCode(e.Code), Message: err.Error(), Hint: e.Hint}
	}
	return &wire.APIError{Code: codeFailed, Message: err.Error()}
}

// wrongUse is the error of a command line that can't be parsed, those of the verb's flags among them.
func wrongUse(err error, verb string) *wire.APIError {
	e := &wire.APIError{Code: service.CodeUsage, Message: err.Error(), Hint: "wake help"}
	if verb != "" {
		e.Hint = verb + " --help"
	}
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		f := bad.GetFlag()
		e.Message = fmt.Sprintf("--%s=%q: %s", f.Name, bad.GetValue(), service.BadValue(f, err))
	}
	return e
}

// exitCode is the exit code that goes with the code of an error.
func exitCode(code wire.ErrorCode) int {
	switch code {
	case service.CodeUsage, wire.CodeBadRequest, wire.CodeBadRegex:
		return exitUsage
	case wire.CodeUnreachable, wire.CodeTimeout, service.CodeUnauthorized:
		return exitUnreachable
	case codeRunFailed:
		return exitRunFailed
	case codeDetached, codeInterrupt:
		return exitInterrupted
	default:
		return exitFailed
	}
}

// printError writes an error for people, a line per problem and the hint, or for
// programs.
func (a *app) printError(e *wire.APIError, asJSON bool) {
	lines := []string{e.Error()}
	if e.Code == wire.CodeFlowInvalid || e.Code == codeRulesInvalid {
		lines = strings.Split(e.Error(), "\n")
	}
	for i, line := range lines {
		lines[i] = timeline.Line(line, maxMessage)
	}
	if asJSON {
		told := *e
		if len(e.Matches) == 0 {
			told.Message = strings.Join(lines, "\n")
		}
		_ = writeJSON(a.errOut, wire.ErrorResponse{Error: &told}) // if stderr is gone, nothing can tell the user
		return
	}
	if e.Code == codeInterrupt {
		return // the user pressed Ctrl-C and knows
	}
	for _, line := range lines {
		a.printNote("wake: %s\n", line)
	}
	if e.Hint != "" {
		a.printNote("hint: %s\n", timeline.Sanitize(e.Hint))
	}
}

// printNote tells the user something beside the result, made safe for terminals. Nothing depends on it, so that a closed
// stderr is no error.
func (a *app) printNote(format string, args ...any) {
	_, _ = io.WriteString(a.errOut, timeline.Sanitize(fmt.Sprintf(format, args...)))
}

// noteLag notes that an answer of the recorder doesn't have everything yet.
func (a *app) noteLag(events uint64) {
	if events > 0 {
		a.printNote("%s\n", timeline.Behind(events))
	}
}

// maxMessage bounds an error in characters.
const maxMessage = 2000

// printJSON writes a value for programs: one line.
func (a *app) printJSON(v any) error { return writeJSON(a.out, v) }

// printAnswer prints what a verb has come to: as one line, or for programs as JSON.
func (a *app) printAnswer(answer any, line string) error {
	if a.json {
		return a.printJSON(answer)
	}
	_, err := fmt.Fprintln(a.out, timeline.Line(line, maxMessage))
	return err
}

// writeJSON writes v, a value with json tags, as one line that is safe on a
// terminal.
func writeJSON(w io.Writer, v any) error {
	raw, err := wire.Marshal(v)
	if err != nil {
		return err
	}
	line, err := wire.AppendJSON(nil, raw)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}
