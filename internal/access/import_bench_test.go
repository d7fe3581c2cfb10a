package access_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/pull"
)

// accounts are two of a server: log has the stream, service imports what its durable consumer takes.
const accounts = `
listen: 127.0.0.1:-1
jetstream { store_dir: %q }
accounts {
  log {
    jetstream: enabled
    users: [{user: log, password: x}]
    exports: [
      {service: "$JS.API.CONSUMER.MSG.NEXT.WAKE_EVENTS.recorder", response_type: stream}
    ]
  }
  service {
    users: [{user: service, password: x}]
    imports: [
      {service: {account: log, subject: "$JS.API.CONSUMER.MSG.NEXT.WAKE_EVENTS.recorder"}}
    ]
  }
}
`

// BenchmarkCatchUp is what it costs a service to read the log from an account of its own: an op is 50 000 events of 400 bytes.
// See ADR 26.
func BenchmarkCatchUp(b *testing.B) {
	dir := b.TempDir()
	conf := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, accounts, dir), 0o600); err != nil {
		b.Fatal(err)
	}
	o, err := server.ProcessConfigFile(conf)
	if err != nil {
		b.Fatal(err)
	}
	s := natstest.Serve(b, o)
	connect := func(user string) jetstream.JetStream {
		nc, err := nats.Connect(s.ClientURL(), nats.UserInfo(user, "x"))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(nc.Close)
		js, err := jetstream.New(nc)
		if err != nil {
			b.Fatal(err)
		}
		return js
	}
	log := connect("log")
	stream, err := log.CreateStream(b.Context(), jetstream.StreamConfig{Name: "WAKE_EVENTS", Subjects: []string{"wake.events.>"}, Storage: jetstream.FileStorage})
	if err != nil {
		b.Fatal(err)
	}
	const stored = 50_000
	data := bytes.Repeat([]byte("x"), 400)
	for i := range stored {
		if _, err := log.PublishAsync(fmt.Sprintf("wake.events.r%d.a.agent", i%100), data); err != nil {
			b.Fatal(err)
		}
	}
	<-log.PublishAsyncComplete()
	for _, user := range []string{"log", "service"} {
		b.Run(user, func(b *testing.B) {
			nc := connect(user).Conn()
			for b.Loop() {
				catchUp(b, stream, nc, stored)
			}
			b.ReportMetric(float64(stored*b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// catchUp reads a stream to its end as a service does.
func catchUp(b *testing.B, stream jetstream.Stream, nc *nats.Conn, stored int) {
	b.Helper()
	c, err := stream.CreateConsumer(b.Context(), jetstream.ConsumerConfig{Name: "recorder", AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true})
	if err != nil {
		b.Fatal(err)
	}
	p, err := pull.New(nc, "WAKE_EVENTS", "recorder", 2048)
	if err != nil {
		b.Fatal(err)
	}
	for range stored {
		if _, err := p.Next(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	p.Stop()
	if err := stream.DeleteConsumer(b.Context(), c.CachedInfo().Name); err != nil {
		b.Fatal(err)
	}
}
