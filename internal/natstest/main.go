package natstest

import (
	"runtime/debug"
	"slices"
	"testing"

	"go.uber.org/goleak"
)

// Leaks excuses what servers and clients of NATS leave behind: it isn't the
// tests' fault and depends on the moment.
//   - nats-server 2.15.2: the loops of a store that the server makes while it is
//     being shut down (of a stream, or of the messages of a batch), and its ticker.
//   - nats.go 1.55.0: a write to an object store has ended before its goroutine
//     that watches the connection began, which then reads from the channel that
//     the write has taken away, a nil one.
func Leaks() []goleak.Option {
	const (
		server = "github.com/nats-io/nats-server/v2/server"
		client = "github.com/nats-io/nats.go/jetstream"
	)
	return []goleak.Option{
		goleak.IgnoreAnyFunction(server + ".(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction(server + ".(*msgBlock).flushLoop"),
		goleak.IgnoreAnyFunction(server + "/ats.Register.func1"),
		goleak.IgnoreAnyFunction(server + "/ats.init.0.func1"),
		goleak.IgnoreAnyFunction(client + ".(*jetStream).resetPendingAcksOnReconnect"),
	}
}

// Main is a package's TestMain: it runs the tests and fails if they leave
// goroutines behind, but for [Leaks]. Servers that live for seconds make much
// garbage: collecting it four times as late is a third less to do.
func Main(m *testing.M, options ...goleak.Option) {
	if set := debug.SetGCPercent(400); set != 100 { // by GOGC
		debug.SetGCPercent(set)
	}
	goleak.VerifyTestMain(m, slices.Concat(options, Leaks())...)
}
