package queries

import "testing"

// What was cut short isn't going on.
func TestLastActivity(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ state, activity, want string }{
		{"active", "running sleep 9", "running sleep 9"},
		{statePaused, "running sleep 9", "was running sleep 9"},
		{stateAborted, "waiting until noon", "was waiting until noon"},
		{stateFailed, "waiting until noon", "was waiting until noon"},
		{stateFailed, "failed: no luck", "failed: no luck"},
		{stateFailed, "done", "done"},
		{stateComplete, "done", "done"},
		{stateFailed, "", ""},
	} {
		if got := lastActivity(test.state, test.activity); got != test.want {
			t.Errorf("%s, %q: %q, want %q", test.state, test.activity, got, test.want)
		}
	}
}
