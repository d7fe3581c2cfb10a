package topology_test

import (
	"slices"
	"testing"

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
