package main

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/natstest"
	"wake/internal/service"
	"wake/internal/topology"
	"wake/pkg/subjects"
)

// A service that starts while a cluster has no leader waits for one, if it may.
func TestVerifyWaitsForLeaders(t *testing.T) {
	c := natstest.NewCluster(t, 3)
	nc := c.NodeConn(t, 0)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := initialize(t.Context(), nc, topology.Config{Names: subjects.Default, Replicas: 3}); err != nil {
		t.Fatal(err)
	}
	c.Kill(1)
	c.Kill(2)
	a := &app{names: subjects.Default, log: slog.New(slog.DiscardHandler), server: service.Server{Timeout: 100 * time.Millisecond}}
	soon, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := a.verify(soon, js); err == nil {
		t.Fatal("a stream without a leader is verified")
	}
	a.server.Wait = time.Minute
	verified := make(chan error, 1)
	go func() { verified <- a.verify(t.Context(), js) }()
	<-time.After(500 * time.Millisecond)
	c.Restart(t, 1)
	c.Restart(t, 2)
	if err := <-verified; err != nil {
		t.Error(err)
	}
}
