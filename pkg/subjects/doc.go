// Package subjects is the contract of wake in names: it builds, parses and
// validates every subject, stream, bucket, key and consumer, and nothing else
// does.
//
//	wake.events.<run>.<node>.<kind>        stream WAKE_EVENTS
//	wake.cmd.<run>                         stream WAKE_COMMANDS
//	wake.queue.run                         stream WAKE_QUEUE
//	wake.queue.node.<pool>                 stream WAKE_QUEUE
//	wake.alerts.<run>.<node>.<kind>.<key>  stream WAKE_ALERTS
//	wake.deadletter.<service>              stream WAKE_DEADLETTER
//	wake.api.<verb>                        requests
//
//	<run>                                  bucket WAKE_SNAPSHOTS
//	<run>.<label>                          bucket WAKE_BOOKMARKS
//	<run>.<node>                           bucket WAKE_LEASES
//	<service>.<run>                        bucket WAKE_STATE
//
// # Tokens
//
// What stands between two dots is a token. Ids come from outside and may hold
// anything; [Escape] turns each into a token that is legal in subjects, in keys
// and in file names, and that no other id has. [Unescape] is its reverse.
package subjects
