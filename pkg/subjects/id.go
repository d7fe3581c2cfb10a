package subjects

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Ids that begin with an underscore are wake's own.
const (
	// NoRun is the run of what belongs to no run.
	NoRun = "_"
	// RunNode is the node of what belongs to the run itself.
	RunNode = "_run"
)

// DefaultPool is the queue of node executions that name no pool.
const DefaultPool = "default"

// MaxID is the length in bytes that an id chosen by a user may have.
const MaxID = 512

// ErrID is returned for an id that a user may not choose.
var ErrID = errors.New("subjects: invalid id")

// CheckID fails with [ErrID] if id can't be chosen for a run, a node, a pool or
// a label: it is empty, longer than [MaxID], not UTF-8 or reserved.
func CheckID(id string) error {
	switch {
	case id == "":
		return fmt.Errorf("%w: it is empty", ErrID)
	case len(id) > MaxID:
		return fmt.Errorf("%w: it has %d bytes, at most %d are allowed", ErrID, len(id), MaxID)
	case strings.HasPrefix(id, "_"):
		return fmt.Errorf("%w %q: a leading underscore is reserved", ErrID, id)
	case !utf8.ValidString(id):
		return fmt.Errorf("%w %q: it is not UTF-8", ErrID, id)
	default:
		return nil
	}
}
