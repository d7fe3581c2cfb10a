package sim_test

import "time"

// disturb lets the world run for a while.
func (w *world) disturb() {
	w.submit()
	<-time.After(time.Minute)
}
