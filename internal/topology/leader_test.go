package topology_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
)

// A stream whose only server is down has no leader, which the others say.
func TestLeaderless(t *testing.T) {
	c := natstest.NewCluster(t, 3)
	js, err := jetstream.New(c.Conn(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topology.Init(t.Context(), js, topology.Config{Replicas: 1}); err != nil {
		t.Fatal(err)
	}
	orphans, err := topology.Leaderless(t.Context(), js, subjects.Default)
	if err != nil || len(orphans) > 0 {
		t.Fatalf("%v, %v", orphans, err)
	}
	s, err := js.Stream(t.Context(), subjects.Default.QueueStream())
	if err != nil {
		t.Fatal(err)
	}
	leader := s.CachedInfo().Cluster.Leader
	node := slices.Index([]string{"n0", "n1", "n2"}, leader)
	c.Kill(node)
	c.WaitReady(t)
	if js, err = jetstream.New(c.NodeConn(t, (node+1)%3)); err != nil {
		t.Fatal(err)
	}
	orphans, err = topology.Leaderless(t.Context(), js, subjects.Default)
	if err != nil || !slices.Contains(orphans, subjects.Default.QueueStream()) {
		t.Errorf("without %s: %v, %v", leader, orphans, err)
	}
}

// A step that was at work for long when its leader stepped down is tried again. What never works is given up.
func TestAwaitLeader(t *testing.T) {
	for name, c := range map[string]struct {
		lasts   time.Duration // each attempt
		works   int           // the attempt that works; 0: none does
		tries   int
		atMost  time.Duration
		failure error
	}{
		"at once":             {works: 1, tries: 1},
		"a short one":         {works: 3, tries: 3, atMost: time.Second},
		"a long one":          {lasts: 10 * time.Minute, works: 2, tries: 2, atMost: 21 * time.Minute},
		"long ones again":     {lasts: 10 * time.Minute, works: 5, tries: 5, atMost: 51 * time.Minute},
		"long ones only":      {lasts: 10 * time.Minute, tries: 5, atMost: 51 * time.Minute, failure: topology.ErrLeaderMoved},
		"short ones for ever": {lasts: 10 * time.Second, tries: 10, atMost: 3 * time.Minute, failure: topology.ErrLeaderMoved},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun, tries := time.Now(), 0
				err := topology.AwaitLeader(t.Context(), &nats.Conn{}, func() error { // which isn't connected
					time.Sleep(c.lasts) //nolint:forbidigo // the time of a bubble
					if tries++; tries == c.works {
						return nil
					}
					return topology.ErrLeaderMoved
				})
				if took := time.Since(begun); err != c.failure || tries != c.tries || took > c.atMost { //nolint:errorlint // the error itself
					t.Errorf("%d attempts in %v: %v", tries, took, err)
				}
			})
		})
	}
}
