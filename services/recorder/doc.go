// Package recorder keeps the log of events beyond the age of its stream, in one
// SQLite file, and answers questions about it.
//
// The file holds every event as it was stored, under its position, and what can
// be derived from the events: runs, nodes, sessions, labels and the lines of the
// log. Events are only added; triggers see to that. Everything derived could be
// built again from them.
//
// # Promises
//
//   - A batch of events, what is derived from it and the position it goes up to
//     are one transaction. That position alone says where to go on; a batch that
//     comes twice, or begins earlier, changes nothing.
//   - An event of a fenced writer, and one whose place is taken, is kept and
//     marked void; what isn't an event is kept, marked bad and dead-lettered;
//     events that the stream lost before they were recorded leave a mark in their
//     place.
//   - The same stream makes the same rows, however it was cut into batches.
package recorder
