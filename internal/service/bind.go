package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"code.wake.dev/wake/internal/durable"
)

// boundName is the file in a data directory that says which log the work in it is of.
const boundName = "installation"

// BindDir ties a data directory, which the caller has locked, to the log of an installation: its incarnation and its
// prefix. One that was another log's changes over if nothing of that one's work is left, which is any file in the folders,
// locks aside. Else the error is an [*Error] with [CodeUsage], and everything stays as it is: agents of one installation
// aren't another one's to end, nor are its events.
func BindDir(dir, incarnation, prefix string, work ...string) error {
	path := filepath.Join(dir, boundName)
	bound := incarnation + " " + prefix + "\n"
	b, err := os.ReadFile(path)
	switch {
	case err == nil && string(b) == bound:
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("service: which log %s is of: %w", dir, err)
	}
	if owner := strings.Fields(string(b)); len(owner) == 2 && owner[0] != incarnation {
		for _, folder := range work {
			switch left, err := hasFiles(folder); {
			case err != nil:
				return fmt.Errorf("service: work of another log: %w", err)
			case left:
				return &Error{
					Code: CodeUsage,
					Err:  fmt.Errorf("%s has work of another log, with the prefix %s: %s", dir, owner[1], folder),
					Hint: "start it on the server and the prefix that it was on, or give this one another --data-dir; if that log is gone for good, move what is named there away",
				}
			}
		}
	}
	if err := durable.Write(path, []byte(bound), 0o600); err != nil {
		return fmt.Errorf("service: %w", err)
	}
	return nil
}

// hasFiles reports whether there is a file in a folder, or in those in it, that is no lock.
func hasFiles(folder string) (found bool, err error) {
	err = filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && d.Name() != lockName {
			found = true
			return fs.SkipAll
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) { // it was never made, or what it had has just ended
		err = nil
	}
	return found, err
}
