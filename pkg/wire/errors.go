package wire

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ErrVersion is returned for an event of a wire version that this package
// doesn't know.
var ErrVersion = errors.New("wire: newer version")

// ErrTrailing is returned when bytes follow a value.
var ErrTrailing = errors.New("wire: bytes after the value")

// ErrSyntax is returned for bytes that aren't well-formed.
var ErrSyntax = errors.New("wire: malformed")

// ErrDepth is returned for a value that is nested deeper than [MaxDepth].
var ErrDepth = errors.New("wire: nested too deep")

var (
	errEnd    = fmt.Errorf("%w: it ends early", ErrSyntax)
	errExt    = fmt.Errorf("%w: extension types are not supported", ErrSyntax)
	errUTF8   = fmt.Errorf("%w: a string is not UTF-8", ErrSyntax)
	errKey    = fmt.Errorf("%w: a key is not a string", ErrSyntax)
	errFinite = fmt.Errorf("%w: a number is not finite", ErrSyntax)
)

// errKind is returned for a value of another kind than the one asked for.
var errKind = errors.New("wire: wrong kind of value")

// FieldError says which field violates its type.
type FieldError struct {
	Type    Type   // of the event; "" where it isn't known, or where it is no event
	Field   string // name in the wire form; dotted inside objects
	Problem string // such as "must be a string"
	Err     error  // [ErrSyntax], [ErrDepth] …, where the bytes were the problem
}

// Unwrap returns Err.
func (e *FieldError) Unwrap() error { return e.Err }

// Error returns "wire: <type>: <field> <problem>". A name that isn't plain
// text is quoted: it may come from any sender.
func (e *FieldError) Error() string {
	if e.Type == "" {
		return "wire: " + quoteName(e.Field) + " " + e.Problem
	}
	return "wire: " + quoteName(string(e.Type)) + ": " + quoteName(e.Field) + " " + e.Problem
}

// maxName bounds what an error repeats of a name.
const maxName = 100

func quoteName(name string) string {
	long := len(name) > maxName
	if long {
		name = name[:maxName]
	}
	for i := range len(name) {
		if c := name[i]; long || c <= ' ' || c >= 0x7f || c == '"' {
			return strconv.QuoteToASCII(name)
		}
	}
	return name
}

// fault is the first problem of an event.
type fault struct {
	err   error
	event *Event   // nil if there is none around the fields
	path  []string // names of the fields that hold what is visited
}

// failField records a problem. Like [fault.failValue], it returns nil, since nothing follows what is refused.
func (e *fault) failField(name, problem string) []byte { return e.refuseField(name, problem, nil) }

// failValue records that the value of a field could not be taken.
func (e *fault) failValue(name, want string, err error) []byte {
	switch {
	case errors.Is(err, errKind):
		return e.failField(name, "must be "+want)
	case errors.Is(err, ErrTrailing):
		return e.refuseField(name, "must be one value", err)
	case errors.Is(err, ErrDepth):
		return e.refuseField(name, "is nested too deep", err)
	default:
		return e.refuseField(name, "is malformed", err)
	}
}

func (e *fault) refuseField(name, problem string, cause error) []byte {
	if e.err != nil {
		return nil
	}
	refused := &FieldError{Field: strings.Join(append(slices.Clone(e.path), name), "."), Problem: problem, Err: cause}
	if e.event != nil {
		refused.Type = e.event.Type()
	}
	e.err = refused
	return nil
}

const moved = "is both present and moved to a blob"

// isMoved reports whether a field was moved to the object store.
func isMoved(blobs []Blob, name string) bool {
	return slices.ContainsFunc(blobs, func(b Blob) bool { return b.Field == name })
}
