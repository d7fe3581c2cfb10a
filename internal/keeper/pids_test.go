//go:build linux

package keeper_test

import (
	"io"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/internal/process"
)

// TestPidsDiffer starts programs in namespaces of their own: files that they name by their
// process ids in a shared folder aren't the same.
func TestPidsDiffer(t *testing.T) {
	t.Parallel()
	for _, fence := range []keeper.Fence{keeper.Namespace, keeper.UserNamespace} {
		t.Run(string(fence), func(t *testing.T) {
			t.Parallel()
			if err := keeper.Try(t.Context(), fence, keeper.Groups{}); err != nil {
				t.Skip(err)
			}
			seen := map[string]bool{}
			for range 4 {
				b := open(t, fence)
				p := b.start(process.Config{Argv: []string{"sh", "-c", "echo $$"}, KeepStderr: true})
				out, err := io.ReadAll(p.Stdout)
				if err != nil {
					t.Fatal(err)
				}
				seen[strings.TrimSpace(string(out))] = true
			}
			if len(seen) < 3 {
				t.Errorf("pids %v", seen)
			}
		})
	}
}
