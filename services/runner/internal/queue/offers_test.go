package queue_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/internal/queue"
)

// TestOffers shows that offers come in the order in which they were made, each once however often it was made while it waited.
func TestOffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		offers := queue.NewOffers()
		go func() {
			for _, node := range []string{"a", "b", "a", "c", "a"} {
				<-time.After(time.Second)
				offers.Put(queue.Offer{NodeOffer: wire.NodeOffer{RunID: "run1", NodeID: node, ExecID: node + "#1"}})
			}
		}()
		if !offers.Await(t.Context()) {
			t.Error("nothing came")
		}
		synctest.Wait()
		<-time.After(10 * time.Second)
		var got []string
		ended, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		for offers.Await(ended) {
			got = append(got, offers.Next().NodeID)
		}
		if !slices.Equal(got, []string{"a", "b", "c"}) || ended.Err() == nil {
			t.Errorf("%q came, the context ended: %v", got, ended.Err())
		}
	})
}
