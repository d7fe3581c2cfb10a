// Command results prints how the nodes of all runs end, and acknowledges each event when it
// is done with it: started again it goes on where it was. The server keeps its place under
// the name of a durable consumer, "example" unless another is given.
//
//	go run ./examples/go/results [NAME]
package main

import (
	"cmp"
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
	name := "example"
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := results(ctx, name); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "results:", err)
		os.Exit(1)
	}
}

func results(ctx context.Context, name string) error {
	js, err := server.Connect()
	if err != nil {
		return err
	}
	defer js.Conn().Close()
	consumer, err := js.CreateOrUpdateConsumer(ctx, subjects.Default.EventsStream(), jetstream.ConsumerConfig{
		Durable:       name,
		FilterSubject: subjects.Default.KindEvents(string(wire.KindFlow)),
		AckPolicy:     jetstream.AckExplicitPolicy,
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
		if err := handle(msg); err != nil {
			return err
		}
	}
}

// handle may get an event again: after a crash before its acknowledgement, and after a
// reset of the consumer. What must not be done twice is kept by runId, nodeId and seq.
func handle(msg jetstream.Msg) error {
	at, err := msg.Metadata()
	if err != nil {
		return err
	}
	event, err := wire.Decode(msg.Data())
	if err != nil {
		fmt.Printf("%d can't be read: %q\n", at.Sequence.Stream, err)
		return msg.TermWithReason("can't be read") // and never comes again
	}
	switch p := event.Payload.(type) {
	case *wire.NodeComplete:
		fmt.Printf("%d %q %q done\n", at.Sequence.Stream, event.RunID, event.Node())
	case *wire.NodeError:
		fmt.Printf("%d %q %q failed: %q\n", at.Sequence.Stream, event.RunID, event.Node(), cmp.Or(p.ErrorType, p.Error))
	}
	return msg.Ack()
}
