// Command state prints the state of a run, and again whenever it has changed.
//
//	go run ./examples/go/state RUN
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/examples/go/server"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: state RUN")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := watch(ctx, os.Args[1]); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "state:", err)
		os.Exit(1)
	}
}

func watch(ctx context.Context, run string) error {
	js, err := server.Connect()
	if err != nil {
		return err
	}
	defer js.Conn().Close()
	bucket, err := js.KeyValue(ctx, subjects.Default.SnapshotsBucket())
	if err != nil {
		return err
	}
	watcher, err := bucket.Watch(ctx, subjects.Default.SnapshotKey(run))
	if err != nil {
		return err
	}
	for entry := range watcher.Updates() {
		if entry != nil && entry.Operation() == jetstream.KeyValuePut { // nil: what follows is new
			show(entry.Value())
		}
	}
	return nil
}

// show prints a state. Like every snapshot it is one of a position: what has happened
// since is in the stream behind it.
func show(value []byte) {
	if blob := wire.Raw(value).Get("$blob"); !blob.IsZero() {
		name, _ := blob.Get("sha256").Text()
		fmt.Printf("large: object %q of %s\n", name, subjects.Default.BlobsBucket())
		return
	}
	var s wire.State
	if err := wire.Unmarshal(value, &s); err != nil {
		fmt.Printf("can't be read: %q\n", err)
		return
	}
	fmt.Printf("%d %s $%.4f %q\n", s.Position.Seq, s.Status, s.Usage.CostUsd, s.NodeStatus)
}
