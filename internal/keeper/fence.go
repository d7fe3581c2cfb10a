package keeper

import "code.wake.dev/wake/internal/keeper/guard"

// Fence is how the tree of a keeper ends with it; see the package comment.
type Fence = guard.Fence

// Groups are the control groups that this host lets keepers make.
type Groups = guard.Groups

// The fences.
const (
	Namespace     = guard.Namespace
	UserNamespace = guard.UserNamespace
	Watchdogs     = guard.Watchdogs
)

// Fences returns the fences, the strongest first.
func Fences() []Fence { return guard.Fences() }

// ErrUnbounded is returned if the memory of a keeper's tree can't be bounded.
var ErrUnbounded = guard.ErrUnbounded
