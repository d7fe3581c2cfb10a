package run

import (
	"crypto/sha256"
	"encoding/hex"

	"code.wake.dev/wake/pkg/subjects"
)

// hashedID is the beginning of an id that is a hash.
const hashedID = "child-"

// ChildID names the run of an execution of a flow node. All owners and workers compute the same, so
// that a child isn't started twice. One that would be too long for an id is a hash.
func ChildID(run, exec string) string {
	id := run + "." + exec
	if len(id) <= subjects.MaxID {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return hashedID + hex.EncodeToString(sum[:])
}
