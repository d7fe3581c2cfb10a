package guard

import "errors"

// Fence is how the tree of a keeper ends with it; see package keeper.
type Fence string

// The fences.
const (
	Namespace     Fence = "namespace"      // a PID namespace
	UserNamespace Fence = "user-namespace" // one of a user namespace: no privilege is needed, and none can be gained (sudo)
	Watchdogs     Fence = "watchdogs"
)

// Fences returns the fences, the strongest first.
func Fences() []Fence { return []Fence{Namespace, UserNamespace, Watchdogs} }

// Groups are the control groups that this host lets keepers make; the zero value: none. A tree is frozen and
// ended as one there, and its memory can be bounded.
type Groups struct {
	Tree   string `json:"tree,omitempty"`   // the folder of cgroup v2 in which they are made
	Memory string `json:"memory,omitempty"` // the folder in which those with bounded memory are made: the same, or one of cgroup v1
}

// Means names the means against a tree that goes on: a fence, and what groups add to it.
func (g Groups) Means(f Fence) string {
	means := string(f)
	if g.Tree != "" {
		means += "+cgroup"
	}
	if g.Memory != "" {
		means += "+memory"
	}
	return means
}

// ErrUnbounded is returned if the memory of a keeper's tree can't be bounded.
var ErrUnbounded = errors.New("guard: memory can't be bounded here")
