package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// User is the user that programs run as, where that isn't the one of this process: what
// this process keeps to itself, they can't read. A nil User is this process's own.
type User struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups"`
	Name   string   `json:"name"`
	Home   string   `json:"home"`
}

// FindUser finds a user by its name or number. Only root may have programs run as
// another user.
func FindUser(name string) (*User, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("only root may start programs as another user")
	}
	found, err := user.Lookup(name)
	if _, e := strconv.ParseUint(name, 10, 32); e == nil {
		found, err = user.LookupId(name)
	}
	if err != nil {
		return nil, fmt.Errorf("find the user: %w", err)
	}
	u := &User{Name: found.Username, Home: found.HomeDir}
	ids, err := found.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("groups of %s: %w", name, err)
	}
	for _, id := range append([]string{found.Uid, found.Gid}, ids...) {
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("ids of %s: %w", name, err)
		}
		u.Groups = append(u.Groups, uint32(n))
	}
	u.UID, u.GID, u.Groups = u.Groups[0], u.Groups[1], u.Groups[2:]
	if u.UID == 0 {
		return nil, fmt.Errorf("%s is root, too", name)
	}
	return u, nil
}

// Environ returns the environment of the user's programs: the one that is given, with
// the user's own names and home.
func (u *User) Environ(env []string) []string {
	if u == nil {
		return env
	}
	env = slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == "HOME" || name == "USER" || name == "LOGNAME"
	})
	return append(env, "HOME="+u.Home, "USER="+u.Name, "LOGNAME="+u.Name)
}

// Own gives the user what this process has made for it: a file, or a folder with all
// that is in it. Links are given, never what they lead to.
func (u *User) Own(path string) error {
	if u == nil {
		return nil
	}
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return fs.WalkDir(root.FS(), filepath.Base(path), func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return root.Lchown(name, int(u.UID), int(u.GID))
	})
}

// MakeDir makes a folder that the user owns, and those that lead to it, which it doesn't. One that is there stays as it is: a process that
// dies meanwhile leaves none that isn't the user's.
func (u *User) MakeDir(dir string) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	fresh, err := os.MkdirTemp(filepath.Dir(dir), ".new-")
	if err != nil {
		return err
	}
	if err = u.Own(fresh); err == nil {
		err = os.Rename(fresh, dir)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	return nil
}

// OwnWay gives the user a file that this process has written, and the folders that
// lead to it from a root.
func (u *User) OwnWay(root *os.Root, file string) error {
	if u == nil {
		return nil
	}
	for name := file; name != "."; name = filepath.Dir(name) {
		if err := root.Lchown(name, int(u.UID), int(u.GID)); err != nil {
			return err
		}
	}
	return nil
}
