package backup_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"code.wake.dev/wake/internal/backup"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
)

// While leaders step down one after the other a backup is taken all the same, and holds what was there; it is also restored while they do.
func TestLeadersStepDown(t *testing.T) {
	ctx, n, dir := t.Context(), subjects.Default, filepath.Join(t.TempDir(), "copy")
	c := natstest.NewCluster(t, 3)
	js := c.JetStream(t)
	if _, err := topology.Init(ctx, js, topology.Config{Names: n, Replicas: 3}); err != nil {
		t.Fatal(err)
	}
	c.WaitReady(t, topology.Streams(n)...)
	objects, err := js.ObjectStore(ctx, n.BlobsBucket())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := objects.PutBytes(ctx, "large", make([]byte, 3<<20)); err != nil {
		t.Fatal(err)
	}
	var m backup.Manifest
	whileLeadersMove(t, c, topology.Streams(n), func() {
		if m, err = backup.Take(ctx, js.Conn(), n, dir, nil, quiet); err != nil {
			t.Fatal(err)
		}
	})
	if m, err = backup.Open(ctx, dir, quiet); err != nil {
		t.Fatal(err)
	}
	whileLeadersMove(t, c, topology.Streams(n), func() {
		if err := backup.Restore(ctx, js.Conn(), n, dir, m, backup.Options{Force: true}, quiet); err != nil {
			t.Fatal(err)
		}
	})
	c.WaitReady(t, topology.Streams(n)...)
	if objects, err = js.ObjectStore(ctx, n.BlobsBucket()); err != nil {
		t.Fatal(err)
	}
	if got, err := objects.GetBytes(ctx, "large"); err != nil || len(got) != 3<<20 {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
}

// whileLeadersMove has the leaders of streams step down, one after the other and again and again, while f does its work.
func whileLeadersMove(t *testing.T, c *natstest.Cluster, streams []string, f func()) {
	t.Helper()
	nc := c.Conn(t)
	ctx, cancel := context.WithCancel(t.Context())
	var moving sync.WaitGroup
	moving.Go(func() {
		for moved := 0; ctx.Err() == nil; moved++ {
			wait, stop := context.WithTimeout(ctx, 100*time.Millisecond) // nobody answers for a stream without a leader
			_ = c.StepDown(wait, nc, streams[moved%len(streams)])
			stop()
		}
	})
	defer moving.Wait()
	defer cancel()
	f()
}
