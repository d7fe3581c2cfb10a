package claude

import (
	"strings"
	"testing"
)

// The names are those that the program gave to these folders.
func TestFolder(t *testing.T) {
	for dir, want := range map[string]string{
		"/tmp/p3/a b.c_d-é中/z": "-tmp-p3-a-b-c-d----z",
		"/tmp/p3/L/" + strings.Repeat("x", 120) + "/" + strings.Repeat("y", 120): "-tmp-p3-L-" + strings.Repeat("x", 120) + "-" + strings.Repeat("y", 69) + "-81mo5j",
	} {
		if got := folderName(dir); got != want {
			t.Errorf("folder of %s is %s, want %s", dir, got, want)
		}
	}
}
