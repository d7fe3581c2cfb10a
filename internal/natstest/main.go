package natstest

import (
	"slices"
	"testing"

	"go.uber.org/goleak"
)

// Main is a package's TestMain: it runs the tests and fails if they leave
// goroutines behind. What a server of NATS itself leaves (as of 2.15.2, of a store
// that it makes while it is being shut down: of a stream, or of the messages of
// a batch) isn't the tests' fault and depends on the moment: it is not counted.
func Main(m *testing.M, options ...goleak.Option) {
	const server = "github.com/nats-io/nats-server/v2/server"
	goleak.VerifyTestMain(m, slices.Concat(options, []goleak.Option{
		goleak.IgnoreAnyFunction(server + ".(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction(server + ".(*msgBlock).flushLoop"),
		goleak.IgnoreAnyFunction(server + "/ats.Register.func1"),
	})...)
}
