// Package eventlog writes and reads the log of events. It is the only publisher
// of events.
//
// A [Log] is shared by a whole process; its Run owns what works in the
// background. [Log.Claim] makes its caller the one writer of a node:
//
//	w, err := log.Claim(ctx, "r1", "coder", eventlog.Claim{Runner: "host-7"})
//	pos, err := w.Append(ctx, &wire.Event{Payload: &wire.AgentStart{…}}) // stored
//	err = w.Enqueue(ctx, &wire.Event{Payload: &wire.AgentTextDelta{…}})  // in order, later
//
// Readers use [Log.Read] for stored events, [Log.Follow] for what comes, and
// [Log.Consume] for a service that keeps its own position.
//
// DESIGN.md beside this file states the invariants and why they hold.
package eventlog

// DeadService is the sender of this package's dead letters.
const DeadService = "eventlog"
