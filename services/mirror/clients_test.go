//go:build clients

package mirror_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The adapters keep the contract, and what they couldn't append is told. `make test-clients` says what is missing.
func TestClients(t *testing.T) {
	for name, command := range map[string][]string{
		"js": {"node", "--test", "../../clients/typescript/session-store.test.js"},
		"py": {"python3", "../../clients/python/test_session_store.py"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			url, err := os.ReadFile(s.file)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
			cmd.Env = append(os.Environ(), "WAKE_SESSIONS_URL="+strings.TrimSpace(string(url)), "PYTHONDONTWRITEBYTECODE=1")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			want := "start \nraw system/mirror_error\nstream short: entry 1, which the program couldn't append\nraw system/mirror_error\nstream short: \n"
			if got := s.story("dropped-" + name); got != want {
				t.Errorf("what was dropped is told as\n%swant\n%s", got, want)
			}
		})
	}
}
