package main

import (
	"os"
	"path/filepath"
	"testing"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/pkg/subjects"
)

// If the making of users ends before their credentials are written, the next one goes on with the same seeds: no credentials are signed
// by a seed that is gone.
func TestUsersMadeByHalf(t *testing.T) {
	dir := t.TempDir()
	creds := filepath.Join(dir, filepath.Dir(credsFile("up")))
	if err := os.WriteFile(creds, nil, 0o600); err != nil { // no file can be written there
		t.Fatal(err)
	}
	if _, err := renewUsers(dir, subjects.Default); err == nil {
		t.Fatal("credentials were written where none can be")
	}
	before, err := readKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(creds); err != nil {
		t.Fatal(err)
	}
	made, err := renewUsers(dir, subjects.Default)
	if err != nil || len(made.Void) > 0 || len(made.Made) != len(access.Roles())-1 { // guests' are each for a run
		t.Errorf("%+v, %v", made, err)
	}
	after, err := readKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, seed := range after.Seeds {
		if string(before.Seeds[name]) != string(seed) {
			t.Errorf("%s has another seed", name)
		}
	}
}
