// Package runner executes flows.
//
// It has two parts. The owner of a run folds the run's events, asks the pure
// scheduler (package flow) what comes next and records the decisions on the
// node _run. A worker executes one node: it claims the node's subject, drives
// an agent or a command, and records what it does there. Owner and workers meet
// only in the log, also when they live in the same process: so the nodes of a
// run may spread over runners, and the death of one costs what it was doing.
//
//	WAKE_QUEUE ──▶ intake ──▶ owner  ◀── feed ◀── WAKE_EVENTS
//	                  │         │ decisions on _run ──▶ WAKE_EVENTS
//	                  │         └ offers of nodes ──▶ WAKE_QUEUE
//	                  └─────▶ worker ◀── feed
//	                            └ events of the node ──▶ WAKE_EVENTS
//
// # Executions that go on
//
// An execution whose worker has gone is offered again and goes on where the log
// says it was, with no second node:start. What its agent left open is closed
// (tool:sealed and a failed agent:tool, in one commit), and agent_resumed is stored
// in one commit with the agent:start of the continued session. What the agent is to
// be told is read from the log: it counts as told once the agent has done something
// after the agent:start that tells it. So a crash at any point seals nothing twice,
// and at worst says something twice.
//
// A worker ends without an outcome, and the execution stays open, when the run is
// paused, the runner ends (agent:paused), the run is aborted (agent:aborted), or
// somebody else has taken over, and then it writes nothing at all.
package runner
