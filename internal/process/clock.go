package process

import "time"

// clock replaces the machine's clock, unless it is nil.
var clock func() time.Duration //nolint:gochecknoglobals // a machine has one

// SetClock has [Uptime] tell the time of another clock: that of a simulation, which has a time of its own. It is called
// before anything else is.
func SetClock(c func() time.Duration) { clock = c }
