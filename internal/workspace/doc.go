// Package workspace keeps what is in the folders of runs, so that a fork or a runner elsewhere finds the folder as it was at a
// position of the log.
//
// A snapshot is a tree of folders, each a list of entries; files and lists are cut into chunks, named by their SHA-256, and
// collected in packs, compressed and sealed, each one message of an object store of its own. A pack belongs to the run that
// wrote it and is named by its content; what a snapshot doesn't change it refers to where it is, also in packs of ancestors.
// A snapshot is named by the pack that ends in its manifest, which is written last: one of few changes is one message.
//
// Folders are hostile: agents write them. A folder is read through descriptors, link by link, so that nothing outside of it is
// ever read; it is restored into a new folder beside the place, with exclusive creation, and renamed when it is whole.
package workspace

import (
	"cmp"
	"errors"
	"fmt"
)

// Limits bound a snapshot.
type Limits struct {
	File  int64 // bytes of a file; larger ones are left out. Default 64 MiB
	Bytes int64 // bytes of all files. Default 1 GiB
	Files int   // entries. Default 200 000
}

func (l Limits) withDefaults() Limits {
	return Limits{File: cmp.Or(l.File, 64<<20), Bytes: cmp.Or(l.Bytes, 1<<30), Files: cmp.Or(l.Files, 200_000)}
}

// Snapshot says what a snapshot holds.
type Snapshot struct {
	ID       string // empty: there is nothing in the folder
	Files    int    // files and links
	Bytes    int64  // of the files
	LeftOut  []LeftOut
	Omitted  int   // left out beyond those that are listed
	Unstable bool  // files changed whenever they were read
	Stored   int64 // bytes that the taking of it has stored, compressed
}

// LeftOut is something of a folder that a snapshot doesn't hold.
type LeftOut struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// RefusedError says why a folder has no snapshot.
type RefusedError struct{ Reason string }

// Error implements error.
func (e *RefusedError) Error() string { return "workspace: " + e.Reason }

func newRefusal(format string, args ...any) error { return &RefusedError{fmt.Sprintf(format, args...)} }

// ErrDamaged is what a snapshot fails with if it isn't as it was written.
var ErrDamaged = errors.New("workspace: the snapshot is damaged")

// ErrMissing is what a snapshot fails with if a part of it isn't kept any more.
var ErrMissing = errors.New("workspace: not kept")
