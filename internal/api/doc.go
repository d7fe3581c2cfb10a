// Package api serves and calls the verbs of wake.api, on nats.go/micro: requests
// and answers are the structs of pkg/wire/api.go, as JSON or msgpack. An answer
// comes in the form of its request; so do errors, as a [wire.ErrorResponse].
//
// The envelope of seeds/004 is accepted on every verb and answered with its own.
package api
