// Command tail prints the events of a run, each with its position in the stream: those
// that are stored, then each new one. With -live it prints what is published from now
// on, which costs the server least and misses what came before, or while it was away.
//
//	go run ./examples/go/tail [-live] RUN
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/examples/go/server"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

func main() {
	live := flag.Bool("live", false, "only what is published from now on")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: tail [-live] RUN")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := tail(ctx, flag.Arg(0), *live); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "tail:", err)
		os.Exit(1)
	}
}

func tail(ctx context.Context, run string, live bool) error {
	js, err := server.Connect()
	if err != nil {
		return err
	}
	defer js.Conn().Close()
	if live {
		return published(ctx, js.Conn(), run)
	}
	return stored(ctx, js, run)
}

// stored reads the stream by an ordered consumer: everything, in order, once. The
// server forgets the consumer when no client reads by it any more.
func stored(ctx context.Context, js jetstream.JetStream, run string) error {
	consumer, err := js.OrderedConsumer(ctx, subjects.Default.EventsStream(), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{subjects.Default.RunEvents(run)},
	})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	for {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		at, err := msg.Metadata()
		if err != nil {
			return err
		}
		show(fmt.Sprint(at.Sequence.Stream), msg.Data())
	}
}

// published subscribes to the subjects themselves: it also sees what the stream then
// refuses, and no position.
func published(ctx context.Context, nc *nats.Conn, run string) error {
	sub, err := nc.SubscribeSync(subjects.Default.RunEvents(run))
	if err != nil {
		return err
	}
	for {
		msg, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return err
		}
		show("-", msg.Data)
	}
}

// show prints an event. One of a type that this program doesn't know has all its
// fields, too; what can't be read is no reason to stop.
func show(position string, data []byte) {
	event, err := wire.Decode(data)
	if err != nil {
		fmt.Printf("%s can't be read: %q\n", position, err)
		return
	}
	line, err := wire.EncodeJSON(event) // what agents write is safe on a terminal in it
	if err != nil {
		fmt.Printf("%s can't be shown: %q\n", position, err)
		return
	}
	fmt.Printf("%s %s\n", position, line)
}
