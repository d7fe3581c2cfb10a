package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Disk is a file system of its own on an image: it can be full, and its power can be
// cut.
type Disk struct {
	Dir   string // where it is mounted
	image string // "": it is a plain folder
}

// Mountable reports whether this process may mount.
func Mountable() bool { return os.Geteuid() == 0 }

// NewDisk makes a disk of a size such as 1G, or a plain folder for a user without the right to mount.
func NewDisk(dir, image, size string) (*Disk, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if !Mountable() {
		return &Disk{Dir: dir}, nil
	}
	d := &Disk{dir, image}
	if err := execute("truncate", "-s", size, image); err != nil {
		return nil, err
	}
	if err := execute("mkfs.ext4", "-q", "-F", "-m", "0", image); err != nil {
		return nil, err
	}
	return d, d.mount()
}

func (d *Disk) mount() error { return execute("mount", "-o", "loop", d.image, d.Dir) }

// Unmount takes the file system away. No process may be using it.
func (d *Disk) Unmount() error {
	if d.image == "" {
		return nil
	}
	return execute("umount", d.Dir)
}

// Snapshot copies what the disk has of its image at this moment: what the kernel
// has not written out isn't there.
func (d *Disk) Snapshot() error {
	return execute("cp", "--sparse=always", d.image, d.image+".cut")
}

// Restore goes on with the snapshot. No process may be using the disk.
func (d *Disk) Restore() error {
	if err := d.Unmount(); err != nil {
		return err
	}
	return errors.Join(os.Rename(d.image+".cut", d.image), d.mount())
}

// Fill leaves no room on the disk.
func (d *Disk) Fill() error {
	f, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for size := len(block); size >= 4096; {
		if _, err := f.Write(block[:size]); err != nil {
			size /= 4
		}
	}
	return f.Close()
}

// Free undoes Fill.
func (d *Disk) Free() error { return os.Remove(d.ballast()) }

func (d *Disk) ballast() string { return filepath.Join(d.Dir, "ballast") }

func execute(argv ...string) error {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return nil
}
