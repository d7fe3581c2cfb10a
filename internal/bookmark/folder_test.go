package bookmark_test

import (
	"strings"
	"testing"

	"code.wake.dev/wake/internal/bookmark"
	"code.wake.dev/wake/pkg/wire"
)

// Only a folder that couldn't be kept is in the way of a fork; a run without one, and one that was kept, aren't.
func TestCheckFolder(t *testing.T) {
	t.Parallel()
	for name, folder := range map[string]*wire.FolderSnapshot{"none": nil, "kept": {}} {
		if err := bookmark.CheckFolder(&wire.State{RunID: "r", Folder: folder}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	err := bookmark.CheckFolder(&wire.State{RunID: "r", Folder: &wire.FolderSnapshot{Refused: "it is too large"}})
	if !wire.HasCode(err, wire.CodeNotResumable) || !strings.Contains(err.Error(), "it is too large") {
		t.Errorf("refused: %v", err)
	}
}
