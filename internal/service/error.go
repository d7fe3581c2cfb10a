package service

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
