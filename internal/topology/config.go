package topology

import (
	"errors"
	"fmt"
	"time"

	"code.wake.dev/wake/pkg/subjects"
)

// DefaultLeaseTTL is how long a lease lives without being renewed.
const DefaultLeaseTTL = 10 * time.Second

// Config are the settings of an installation. A zero value keeps what the server has,
// or is the default of what is created.
type Config struct {
	Names subjects.Names

	// Replicas is the number of servers that keep each stream: 1 to 5, default 1.
	Replicas int

	// MaxAge bounds the age of events; default and negative: none. Alerts don't
	// age, so that reading old events again raises none twice.
	MaxAge time.Duration

	// MaxBytes bounds the size of the stream of events; default and negative:
	// none. A full stream refuses events, it doesn't drop old ones.
	MaxBytes int64

	// LeaseTTL is how long a lease lives without being renewed; default
	// [DefaultLeaseTTL].
	LeaseTTL time.Duration

	alone bool // the server is of no cluster
}

// minMaxAge leaves time for a run that is resumed to anchor its nodes again.
const minMaxAge = time.Minute

func (c Config) checkLimits() error {
	switch {
	case c.Replicas < 0 || c.Replicas > 5:
		return fmt.Errorf("topology: replicas: %d is not between 1 and 5", c.Replicas)
	case c.MaxAge > 0 && c.MaxAge < minMaxAge:
		return fmt.Errorf("topology: max age: %s is less than %s", c.MaxAge, minMaxAge)
	case c.LeaseTTL < 0 || c.LeaseTTL > 0 && c.LeaseTTL < time.Second:
		return errors.New("topology: lease TTL: must be at least 1s")
	default:
		return nil
	}
}
