package lease_test

import (
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
)

// With another time to live runners take what others hold that are well: with a shorter one those that start then, with a longer one
// those that are there. So `wake init` doesn't set it while a session is there.
func TestTTLOfRunnersAtWork(t *testing.T) {
	for _, ttl := range []time.Duration{2 * time.Second, time.Minute} {
		t.Run(ttl.String(), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				js, n := connect(t, natstest.Start(t)), new(node)
				change := func() error {
					_, err := topology.Init(t.Context(), js, topology.Config{LeaseTTL: ttl})
					return err
				}
				first, end := holder(t, js, "first")
				settle(first)
				if err := change(); err == nil || !strings.Contains(err.Error(), "stop all runners") {
					t.Errorf("the time to live was changed to %s beside a runner: %v", ttl, err)
				}
				second, endToo := holder(t, js, "second")
				owner, other := first, second
				if ttl > first.TTL() {
					owner, other = second, first
				}
				l := n.mustTake(t, owner)
				for begun := time.Now(); time.Since(begun) < 2*time.Minute; <-time.After(100 * time.Millisecond) {
					if _, err := n.take(t.Context(), other); err == nil {
						t.Fatalf("after %v another runner has the node of one that is well; its own lease is valid: %v", time.Since(begun), l.Valid())
					}
				}
				end()
				endToo()
				<-time.After(time.Minute)
				if err := change(); err != nil {
					t.Errorf("no runner is there any more: %v", err)
				}
			})
		})
	}
}
