package work

import (
	"testing"
	"testing/synctest"
	"time"

	"code.wake.dev/wake/pkg/wire"
)

// What is spent on a folder that can't be kept is bounded: it is tried again when twenty times as long has passed.
func TestFolderRests(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{0: 0, time.Second: 20 * time.Second, time.Hour: time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			k := keptFolder{} // one that has no folder to look at
			k.restAfter(took)
			if want > 0 {
				<-time.After(want - time.Millisecond)
				x := execution{kept: &k, state: &wire.State{}}
				if taken, err := x.takeSnapshot(t.Context(), false); taken.snapshot != nil || err != nil || !k.isResting() {
					t.Errorf("after %s it doesn't rest for %s: %v, %v", took, want, taken, err)
				}
				<-time.After(time.Millisecond)
			}
			if k.isResting() {
				t.Errorf("after %s it rests for more than %s", took, want)
			}
		})
	}
}
