// Package mutants switches each rule of the log off in wake's own code, one after
// the other, and shows that a test notices. See mutants_test.go.
package mutants
