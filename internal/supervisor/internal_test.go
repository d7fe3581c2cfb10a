package supervisor

import (
	"testing"
	"time"
)

func TestDelays(t *testing.T) {
	last := time.Duration(0)
	for _, step := range []struct{ ran, want time.Duration }{
		{0, 100 * time.Millisecond},
		{time.Second, 200 * time.Millisecond},
		{longestDelay, 400 * time.Millisecond},
		{longestDelay + 1, 100 * time.Millisecond},
		{0, 200 * time.Millisecond},
	} {
		if last = nextDelay(last, step.ran); last != step.want {
			t.Errorf("ran for %s: %s, want %s", step.ran, last, step.want)
		}
	}
	for range 20 {
		last = nextDelay(last, 0)
	}
	if last != longestDelay {
		t.Errorf("at last %s", last)
	}
}
