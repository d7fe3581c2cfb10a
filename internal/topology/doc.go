// Package topology holds the configuration of every stream, bucket, object
// store and durable consumer of wake. [Init] creates and updates them and is the
// only one that does; services call [Verify] when they start and refuse to run
// on anything else.
//
// Everything that Init creates carries the prefix of the installation in its
// metadata; what lacks it is another's and is never touched. What a
// setting leaves open, Init keeps as it is, so that running it again changes
// nothing.
package topology
