// Package keeper keeps the processes of one execution of a node apart from the runner
// that drives it: an agent outlives its runner for as long as no other can act for
// the node, and not longer.
//
//	runner ──socket──▶ keeper ──▶ guard ──▶ agent, commands, and all that they start
//	                     │ journal, deadline
//
// The keeper is a process of this same binary, in a session of its own. It owns the
// pipes of the programs and journals both directions before it passes them on
// (package journal). It holds a deadline that only an attached runner extends, inside the time of
// the runner's lease. At the deadline it freezes the tree; a kernel timer, which fires though the
// keeper be stopped, ends what isn't frozen by then. A runner of the same home that comes back
// attaches, is given what was said since the last resting point, and extends the
// deadline again, which thaws the tree. When none comes for the orphan timeout, the
// tree is ended; its journal stays.
//
// The guard is the parent of the tree. How the tree ends with its keeper is the
// [Fence]:
//
//   - namespace: the guard is process 1 of a PID namespace and dies with the keeper
//     (PR_SET_PDEATHSIG), and the kernel ends the namespace with it. Without privilege
//     the namespace is one of a user namespace.
//   - watchdogs: keeper and guard are subreapers that watch each other; whichever is
//     left ends the tree. A tree survives only if both watchdogs were killed or
//     stopped at once.
//
// Where the host lets it ([Groups]), the tree has a control group, and each program one below it: the whole is frozen by it
// instead of by signals, what has escaped from a program's tree ends with the program, and what has outlived
// a keeper ends before another one begins. Its memory can be bounded there.
//
// The keeper knows neither NATS nor the wire. There is one on Linux only; elsewhere
// programs run as [process.Direct].
package keeper
