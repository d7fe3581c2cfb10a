package service

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// privateDir creates a folder that only its owner may look into, or makes one that is
// there such a folder: events, keys and sockets are in it. A folder that has other things in it,
// or that all users share (/tmp), stays as it is: what wake makes in it is private by itself. It fails, as ssh does with
// keys, if the folder is another user's, since that user could put anything there.
// A volume that root has mounted for this user may be as it is, and root takes all.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &fs.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
	}
	switch owner := int(info.Sys().(*syscall.Stat_t).Uid); { //nolint:forcetypeassert // on all systems that wake is built for
	case owner == os.Geteuid() && info.Mode().Perm()&0o077 != 0 && info.Mode()&fs.ModeSticky == 0 && isOwn(dir):
		return os.Chmod(dir, info.Mode()&^0o077)
	case owner != os.Geteuid() && owner != 0 && os.Geteuid() != 0:
		return fmt.Errorf("%s belongs to another user (uid %d)", dir, owner)
	}
	return nil
}

// isOwn reports whether a folder is empty, or has been a data directory before.
func isOwn(dir string) bool {
	if _, err := os.Stat(filepath.Join(dir, lockName)); err == nil {
		return true
	}
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) == 0
}
