package keeper

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"code.wake.dev/wake/internal/keeper/guard"
	"code.wake.dev/wake/internal/process"
)

// Label says which execution a keeper is for.
type Label struct {
	Run  string `json:"run"`
	Node string `json:"node"`
	Exec string `json:"exec"`
	// Position is that of the runner's last claim in the log when it opened the keeper or
	// attached to it.
	Position uint64 `json:"position"`
	// Offset and Index say how far the log had the agent's journal then; see wire.Event.
	Offset uint64 `json:"offset"`
	Index  int    `json:"index"`
	// Ends are the places of pieces of texts up to there whose ends, held at first since a secret might begin with them,
	// the log has as events of their own.
	Ends []Place `json:"ends,omitempty"`
	// Since is when the time of the execution began that its policy limits, on the clock of [process.Uptime]; that for which the tree
	// was frozen isn't part of it. 0: the runner doesn't say.
	Since time.Duration `json:"since,omitempty"`
}

// labelName is the file of the label, beside the keeper's own folder.
const labelName = "label"

func readLabel(name string) (l Label, ok bool) {
	b, err := os.ReadFile(name)
	return l, err == nil && json.Unmarshal(b, &l) == nil && l.Run != ""
}

// Place is where the events of a line are in a journal; see wire.Event.
type Place struct {
	Offset uint64 `json:"offset"`
	Index  int    `json:"index,omitempty"`
}

// State is how a keeper is.
type State struct {
	Frozen bool
	Full   string // why its programs wait for room in their journals; "": they don't
}

// ErrGone is returned by [Attach] if the keeper of a folder is gone, and by [Keeper.Start] if it is by now.
var ErrGone = fmt.Errorf("keeper: %w", process.ErrGone)

// Finding is what [Survey] has found of an execution's keeper.
type Finding struct {
	Label
	State

	Lives bool  // else it has left its journals
	Bytes int64 // of the journals
}

// ShelfConfig are the settings of a [Shelf].
type ShelfConfig struct {
	Dir   string // made if it isn't there; only one process at a time may have it
	Home  string // that of the programs, see [process.Config]
	Fence Fence  // "": the strongest that the host allows
	// Limit bounds each journal in bytes, and Orphan is how long a frozen tree waits for its runner; 0: the defaults.
	Limit  int64
	Orphan time.Duration
	User   *process.User // that programs run as; nil: this process's own
	// Client is the process of a simulated machine that has these keepers. Nil: this one, of the real machine.
	Client *Client
	// Seal and Unseal keep the keys of journals, each for a place; nil: journals aren't sealed.
	Seal   func(place string, key []byte) ([]byte, error)
	Unseal func(place string, stored []byte) ([]byte, error)
}

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
