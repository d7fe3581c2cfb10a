// Package recorder keeps the log of events beyond the age of its stream, in one
// database, and answers questions about it.
//
// The store holds every event as it was stored, under its position, and what can
// be derived from the events: runs, nodes, sessions, labels and the lines of the
// log. Everything derived could be built again from them.
//
// The events of a run are in segments, packed, and in a tail, where the newest
// wait until there are enough for a segment. Segments are only added and a tail's
// events only removed when they are in a segment; triggers see to that. Each
// run's events form a hash chain: see package archive.
//
// # Promises
//
//   - A batch of events and the position it goes up to are one transaction. That
//     position alone says where to go on; a batch that comes twice, or begins
//     earlier, changes nothing.
//   - What is derived from events has a position of its own, which moves in the
//     transaction of its rows. It is that of the events, in the same transaction,
//     unless there is much to catch up with: then the events come first, and the
//     rest is derived from them as they are in the store. Answers are as of what is
//     derived, except for the events themselves and states at a position.
//   - An event of a fenced writer, and one in a place that is taken, is kept and
//     marked void; what isn't an event is kept, marked bad and dead-lettered;
//     events that the stream lost before they were recorded leave a mark in their
//     place. What is of no run is in the run "_".
//   - The same stream makes the same rows and the same hashes, however it was cut
//     into batches; only where segments begin and end depends on that.
package recorder
