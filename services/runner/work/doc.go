// Package work executes nodes.
//
// A worker takes one execution that is offered: it takes the lease of the node, claims it
// in the log, drives the agent or runs the command, and puts on record what that does.
// While the agent is at work, a watch follows the run: it passes on messages, notices and
// decisions, and ends the work when it is withdrawn or another worker has taken over. An
// execution that has begun before goes on where the log says it was: what its agent left
// open is sealed, and the agent goes on in its session.
//
// # Executions that go on
//
// An execution without its worker is offered again and goes on where the log
// says it was, with no second node:start. What its agent left open is closed
// (tool:sealed and a failed agent:tool, in one commit), and agent_resumed is stored
// in one commit with the agent:start of the continued session. What the agent is to
// be told is read from the log: it counts as told once the agent has done something
// after the agent:start that tells it. So a crash at any point seals nothing twice,
// and at worst says something twice.
//
// A worker ends without an outcome, and the execution stays open, when the run is
// paused, the runner ends (agent:paused), the run is aborted (agent:aborted), or
// another worker has taken over, and then it writes nothing at all.
package work
