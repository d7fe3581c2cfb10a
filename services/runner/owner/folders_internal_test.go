package owner

import "testing"

// A link of a copy leads into the copy where it led into the folder itself, by whichever of its names.
func TestMovedTarget(t *testing.T) {
	origins := []string{"/w/run1", "/mnt/volume/run1"}
	for target, want := range map[string]string{
		"/w/run1":                "/w/fork1",
		"/w/run1/":               "/w/fork1/",
		"/w/run1/sub/x":          "/w/fork1/sub/x",
		"/mnt/volume/run1/x":     "/w/fork1/x",
		"/w/run10/x":             "",
		"/w/run1/../shared":      "",
		"/w/run1/sub/../../run2": "",
		"/w":                     "",
		"sub/x":                  "",
		"../run1/x":              "",
	} {
		if got, inside := movedTarget(target, origins, "/w/fork1"); got != want || inside != (want != "") {
			t.Errorf("%s leads to %q (%t), want %q", target, got, inside, want)
		}
	}
}
