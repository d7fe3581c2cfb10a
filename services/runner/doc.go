// Package runner executes flows.
//
// It composes three rooms. The owner of a run (package owner) folds the run's events, asks
// the pure scheduler (package flow) what comes next and records the decisions on the node
// _run. A worker (package work) executes one node: it claims the node's subject, drives
// an agent or a command, and records what it does there. The intake (package intake) brings
// them their work. Owner and workers meet only in the log, also when they live in the same
// process: so the nodes of a run may spread over runners, and the death of one costs what
// it was doing.
//
//	WAKE_QUEUE ──▶ intake ──▶ owner  ◀── view ◀── WAKE_EVENTS
//	                  │         │ decisions on _run ──▶ WAKE_EVENTS
//	                  │         └ offers of nodes ──▶ WAKE_QUEUE
//	                  └─────▶ worker ◀── view
//	                            └ events of the node ──▶ WAKE_EVENTS
package runner
