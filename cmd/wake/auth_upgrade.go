package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/pkg/subjects"
)

func (a hostVerbs) authUpgradeCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "upgrade",
		Short: "Give users the rights that they have in this version",
		Long: `Give users the rights that they have in this version, and make the accounts and keys
that an older one didn't have, in a folder of wake auth generate. What is stored stays: it belongs to
the key of its account, which is signed again.

Credentials of the folder whose user is in another account now are made again in
place; those that are good for nothing any more are named. Give them to their users,
and the servers the new auth.conf, one after the other.`,
		Example: `wake auth upgrade --dir secrets`,
		RunE:    func(*cobra.Command, []string) error { return a.authUpgrade(dir) },
	}
	cmd.Flags().StringVar(&dir, "dir", "wake-auth", "`folder` of the keys")
	return cmd
}

func (a hostVerbs) authUpgrade(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, authConf)); errors.Is(err, fs.ErrNotExist) {
		return usageError("name the folder with --dir, or make one with wake auth generate", "%s has no %s", dir, authConf)
	}
	r, err := renewUsers(dir, a.names, access.Up)
	if err != nil {
		return err
	}
	return a.printUpgraded(r)
}

// renewed is what has become of the credentials of a folder.
type renewed struct {
	Dir   string   `json:"dir"`
	Made  []string `json:"made"`  // of roles that had none
	Moved []string `json:"moved"` // of users that are in another account now
	Void  []string `json:"void"`  // that the server refuses from now on
	files int      // that were written
}

// renewUsers makes the keys, the accounts and the credentials of an installation in a
// folder, or brings them up to date; of each role but some. The configuration is
// written as the last: what is half made can be made again.
func renewUsers(dir string, names subjects.Names, but ...access.Role) (renewed, error) {
	r := renewed{Dir: dir, Made: []string{}, Moved: []string{}, Void: []string{}}
	conf, err := os.ReadFile(filepath.Join(dir, authConf))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("users: %w", err)
	}
	keys, err := readKeys(dir)
	if err != nil {
		return r, err
	}
	keys.Conf = string(conf)
	if keys, err = keys.Renew(names); err != nil {
		return r, usageError("it has to be that of wake auth generate, with all of its keys", "%w", err)
	}
	files := map[string][]byte{}
	for _, role := range access.Roles() {
		path := credsFile(string(role))
		if _, err := os.Stat(filepath.Join(dir, path)); err == nil || role == access.Guest || slices.Contains(but, role) {
			continue
		}
		if files[path], err = keys.Credentials(access.User{Name: string(role), Role: role}); err != nil {
			return r, err
		}
		r.Made = append(r.Made, path)
	}
	if err := r.remakeCredentials(keys, files); err != nil {
		return r, err
	}
	seeds := map[string][]byte{}
	for name, seed := range keys.Seeds {
		seeds[seedFile(name)] = append(slices.Clone(seed), '\n')
	}
	// What signs is written before what it has signed: if this ends in between, the next one goes on with the same seeds.
	for _, written := range []map[string][]byte{seeds, files, {authConf: []byte(keys.Conf)}} {
		for name, content := range written {
			if err := writeSecret(filepath.Join(dir, name), content); err != nil {
				return r, err
			}
		}
		r.files += len(written)
	}
	return r, nil
}

// remakeCredentials makes those credentials of the folder again that need it.
func (r *renewed) remakeCredentials(keys access.Keys, files map[string][]byte) error {
	paths, err := fs.Glob(os.DirFS(r.Dir), filepath.ToSlash(credsFile("*")))
	if err != nil {
		return fmt.Errorf("users: %w", err)
	}
	for _, path := range paths {
		name := filepath.FromSlash(path)
		creds, err := os.ReadFile(filepath.Join(r.Dir, name))
		if err != nil {
			return fmt.Errorf("users: %w", err)
		}
		again, moved, err := keys.Resign(creds)
		switch {
		case err != nil:
			r.Void = append(r.Void, name)
		case moved:
			files[name] = again
			r.Moved = append(r.Moved, name)
		}
	}
	return nil
}

func (a hostVerbs) printUpgraded(r renewed) error {
	if a.json {
		return a.printJSON(r)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s is up to date: start the servers again with its %s, one after the other\n", r.Dir, authConf)
	for _, part := range []struct {
		what  string
		names []string
	}{
		{"new", r.Made}, {"made again, for their users", r.Moved}, {"refused from now on, make others with wake auth user", r.Void},
	} {
		if slices.Sort(part.names); len(part.names) > 0 {
			fmt.Fprintf(&b, "%s: %s\n", part.what, strings.Join(part.names, ", "))
		}
	}
	fmt.Fprintf(&b, "%s signs the accounts: keep it where keys are kept\n", filepath.Join(r.Dir, seedFile("nats-operator")))
	_, err := a.out.Write([]byte(b.String()))
	return err
}
