package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/rebuild"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
)

// rebuildEnd is what wake rebuild says in the end.
type rebuildEnd struct {
	Service string `json:"service"`
	rebuild.Progress
	Waiting bool `json:"waiting,omitempty"` // no process of the service is at it
}

func (a fileVerbs) rebuildCommand() *cobra.Command {
	services := []string{subjects.RecorderConsumer, subjects.SnapshotterConsumer, subjects.AlerterConsumer}
	var detach bool
	cmd := &cobra.Command{
		Use:   "rebuild SERVICE",
		Short: "Let a service derive everything again",
		Long: `Let a service derive everything again: the recorder its tables from the events that
it has recorded, of which it has more than the stream; the snapshotter the states
of all runs, and the alerter what it knows of them, from the stream. Nothing is
lost meanwhile, and no alert is raised twice. A service that isn't running does it
when it is started. SERVICE is recorder, snapshotter or alerter.`,
		ValidArgs: services,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(services, args[0]) {
				return usageError("these can be: "+strings.Join(services, ", "), "%q is no service that can be rebuilt", args[0])
			}
			return a.runRebuild(cmd.Context(), args[0], detach)
		},
	}
	cmd.Flags().BoolVar(&detach, "detach", false, "don't wait for it")
	return cmd
}

// rebuildBegins is how long a service that runs takes at most to notice an order.
const rebuildBegins = 5 * rebuild.Every

func (a fileVerbs) runRebuild(ctx context.Context, service string, detach bool) error {
	nc, err := a.connectServer(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	var desk *rebuild.Desk
	var order rebuild.Order
	if err := topology.AwaitLeader(ctx, nc, func() (err error) {
		if desk, err = rebuild.Open(ctx, js, a.names, service); err != nil {
			return err
		}
		order, err = desk.Place(ctx) // one that was placed without our hearing of it is replaced
		return err
	}); err != nil {
		return err
	}
	end := rebuildEnd{Service: service, Progress: rebuild.Progress{ID: order.ID}, Waiting: true}
	if !detach {
		if end, err = a.watchRebuild(ctx, nc, desk, end); err != nil {
			return err
		}
	}
	text := fmt.Sprintf("%s: rebuilt, %d %s", service, end.Of, end.Unit)
	if end.Waiting {
		text = fmt.Sprintf("%s: ordered; it is rebuilt by the one that runs, or when one is started", service)
	}
	return a.printAnswer(end, text)
}

// watchRebuild shows how far a service is until it is done.
func (a fileVerbs) watchRebuild(ctx context.Context, nc *nats.Conn, desk *rebuild.Desk, end rebuildEnd) (rebuildEnd, error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	begun, last := time.Now(), uint64(0)
	m := a.newMeter("rebuild", "").start()
	defer m.eraseLine()
	for {
		var p rebuild.Progress
		if err := topology.AwaitLeader(ctx, nc, func() (err error) {
			p, err = desk.Progress(ctx)
			return err
		}); err != nil {
			return end, err
		}
		switch {
		case p.ID != end.ID && time.Since(begun) > rebuildBegins:
			return end, nil
		case p.ID == end.ID && p.Error != "":
			return end, serviceError(codeFailed, "", "%s", timeline.Line(p.Error, maxMessage))
		case p.ID == end.ID && p.Done:
			end.Progress, end.Waiting = p, false
			return end, nil
		case p.ID == end.ID && p.Part != last:
			last = p.Part
			m.unit = p.Unit
			m.notePart(end.Service, int64(p.Part), int64(p.Of))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return end, ctx.Err()
		}
	}
}
