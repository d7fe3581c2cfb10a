// Package server connects the examples.
package server

import (
	"cmp"
	"os"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Connect connects to NATS_URL, by default to a server on this machine. NATS_CREDS,
// NATS_CA and NATS_INBOX are needed where the server asks for them; an empty one is
// none. Close the connection in the end.
func Connect() (jetstream.JetStream, error) {
	var options []nats.Option
	if creds := os.Getenv("NATS_CREDS"); creds != "" {
		options = append(options, nats.UserCredentials(creds))
	}
	if ca := os.Getenv("NATS_CA"); ca != "" {
		options = append(options, nats.RootCAs(ca))
	}
	if inbox := os.Getenv("NATS_INBOX"); inbox != "" {
		options = append(options, nats.CustomInboxPrefix(inbox))
	}
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), options...)
	if err != nil {
		return nil, err
	}
	return jetstream.New(nc)
}
