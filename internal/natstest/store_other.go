//go:build !linux

package natstest

import "testing"

// StoreDir returns a folder for what servers store.
func StoreDir(t testing.TB) string {
	t.Helper()
	return t.TempDir()
}
