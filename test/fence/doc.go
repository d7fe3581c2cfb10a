// Package fence runs wake on two machines that are namespaces of this one, takes one
// of them away in three ways, and shows by clocks of the agents' own processes that
// none of them was still at work when the other machine had begun.
//
// The tests have the build tag fence and run as root in namespaces of their own:
// `make fence`.
package fence
