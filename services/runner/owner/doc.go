// Package owner decides what a run does.
//
// The owner of a run follows its events, folds them, asks the pure scheduler (package
// flow) what comes next, and records the decisions on the node _run. It obeys the commands
// to the run, offers its nodes to workers, starts and ends its child runs, and keeps the
// run registered until nothing is left to do about it. It holds no state that the log
// doesn't have.
package owner
