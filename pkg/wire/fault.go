package wire

import (
	"errors"
	"slices"
	"strings"
)

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
