package access_test

import (
	"testing"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/pkg/subjects"
)

// A guest whose account is another one now is still a guest of one run.
func TestResignGuest(t *testing.T) {
	keys, err := access.Keys{}.Renew(subjects.Default)
	if err != nil {
		t.Fatal(err)
	}
	creds, err := keys.Credentials(access.User{Name: "guest", Role: access.Guest, Run: "r"})
	if err != nil {
		t.Fatal(err)
	}
	delete(keys.Seeds, access.Guests.SeedName())
	if keys, err = keys.Renew(subjects.Default); err != nil {
		t.Fatal(err)
	}
	again, moved, err := keys.Resign(creds)
	if err != nil {
		t.Fatal(err)
	}
	if before, now := userOf(t, creds), userOf(t, again); len(now.Tags) != len(before.Tags) {
		t.Errorf("moved %t: tags %v became %v", moved, before.Tags, now.Tags)
	}
}
