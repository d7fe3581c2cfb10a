//go:build torture

package torture_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// disk is a file system of its own on an image: it can be full, and its power can be
// cut.
type disk struct {
	dir   string // where it is mounted
	image string // "": it is a plain folder
}

// mountable reports whether this process may mount.
func mountable() bool { return os.Geteuid() == 0 }

// newDisk makes a disk of a size such as 1G, or a plain folder for one who may not
// mount.
func newDisk(dir, image, size string) (*disk, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if !mountable() {
		return &disk{dir: dir}, nil
	}
	d := &disk{dir, image}
	if err := execute("truncate", "-s", size, image); err != nil {
		return nil, err
	}
	if err := execute("mkfs.ext4", "-q", "-F", "-m", "0", image); err != nil {
		return nil, err
	}
	return d, d.mount()
}

func (d *disk) mount() error { return execute("mount", "-o", "loop", d.image, d.dir) }

func (d *disk) unmount() error {
	if d.image == "" {
		return nil
	}
	return execute("umount", d.dir)
}

// snapshot copies what the disk has of its image at this moment: what the kernel
// has not written out isn't there.
func (d *disk) snapshot() error {
	return execute("cp", "--sparse=always", d.image, d.image+".cut")
}

// restore goes on with the snapshot. Nobody may be using the disk.
func (d *disk) restore() error {
	if err := d.unmount(); err != nil {
		return err
	}
	return errors.Join(os.Rename(d.image+".cut", d.image), d.mount())
}

// fill leaves no room on the disk.
func (d *disk) fill() error {
	f, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for size := len(block); size >= 4096; {
		if _, err := f.Write(block[:size]); err != nil {
			size /= 4
		}
	}
	return nil
}

// free undoes fill.
func (d *disk) free() error { return os.Remove(d.ballast()) }

func (d *disk) ballast() string { return filepath.Join(d.dir, "ballast") }

func execute(argv ...string) error {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return nil
}
