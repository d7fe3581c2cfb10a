// Package wire is the contract of wake in bytes: every event of the log, the
// alerts and the snapshots, and the one codec that writes and reads them.
//
// An event is one msgpack map with string keys, flat and in camelCase. The
// envelope comes first, then the fields of the payload, then whatever this
// version doesn't know; the same names are used in JSON:
//
//	{"v":1,"type":"agent:text","runId":"r1","nodeId":"coder","seq":17,"epoch":2,
//	 "timestamp":1767400000000,"execId":"coder#1","content":"Done."}
//
// # Promises
//
//   - Bytes that were written are read for ever. Types and fields are added,
//     never renamed and never reused; testdata holds a vector of each.
//   - The encoding is canonical: one value has one encoding. Keys come in a fixed
//     order, numbers in their shortest form, no byte may follow the map.
//   - Fields that this version doesn't know are kept and written again. An event
//     of an unknown type is an [Opaque] with all its fields.
//   - An event that violates its type is refused with a [FieldError] that names
//     the field.
//
// Values of a shape that wake doesn't decide (a tool's input, a flow's output) are
// [Raw]: canonical msgpack that is only taken apart where a reader looks inside.
package wire
