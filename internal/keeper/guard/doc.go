// Package guard is the parent of all that a node starts: it starts programs for its keeper, freezes and
// thaws their tree, and ends it with the keeper. [Start] gives a keeper hold of one.
//
// A guard is a process of this same binary. It exists on Linux only.
package guard
