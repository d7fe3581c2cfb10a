package native

import (
	"strings"
	"testing"

	"code.wake.dev/wake/internal/agent/workdir"
)

// An edit that would make a file too large is refused before the file is made: its content may be more than there is memory for.
func TestEditTooLarge(t *testing.T) {
	w := workspace{workdir.Folder{Dir: t.TempDir()}}
	whole := strings.Repeat("a", workdir.MaxFile)
	if _, err := w.SaveFile("f", []byte(whole)); err != nil {
		t.Fatal(err)
	}
	_, err := w.editFile(t.Context(), "", editInput{Path: "f", Old: "a", New: whole, All: true})
	if err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("it ends with %v", err)
	}
}
