//go:build !linux

package main

// unprivileged is for scripts on Linux.
func unprivileged() {}
