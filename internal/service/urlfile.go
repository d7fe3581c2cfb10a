package service

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"code.wake.dev/wake/internal/access"
)

// DefaultDataDir is where `wake up` keeps its data and the other verbs look for
// its URL: in the working directory, as a repository's agents run from there.
const DefaultDataDir = ".wake"

// URLFile is the file of a data directory that holds the URL of the server that
// runs on it, for as long as it runs.
func URLFile(dataDir string) string { return filepath.Join(dataDir, "nats-url") }

// UsersDir is the folder of a data directory that has the keys and credentials of the
// server that runs on it, if that has users.
func UsersDir(dataDir string) string { return filepath.Join(dataDir, "nats", "auth") }

// HasUsers reports whether the server of a data directory has users.
func HasUsers(dataDir string) bool {
	_, err := os.Stat(UsersDir(dataDir))
	return err == nil
}

// UserCreds is the file with the credentials of a role in that folder.
func UserCreds(dataDir string, role access.Role) string {
	return filepath.Join(UsersDir(dataDir), "creds", string(role)+".creds")
}

// WriteURL writes the URL file of a data directory.
func WriteURL(dataDir, url string) error {
	path := URLFile(dataDir)
	next := path + ".new"
	if err := os.WriteFile(next, []byte(url+"\n"), 0o600); err != nil {
		return fmt.Errorf("service: write URL file: %w", err)
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("service: write URL file: %w", err)
	}
	return nil
}

// readURL fails with [os.ErrNotExist] if no server runs on the directory.
func readURL(dataDir string) (string, error) {
	b, err := os.ReadFile(URLFile(dataDir))
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}
