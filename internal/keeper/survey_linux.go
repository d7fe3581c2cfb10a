package keeper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// Survey tells of all keepers on the shelf in a folder, which may be another process's. None are there if
// the folder isn't.
func Survey(ctx context.Context, dir string) ([]Finding, error) {
	return (&Shelf{cfg: ShelfConfig{Dir: dir}}).Survey(ctx)
}

// Survey tells of all keepers on the shelf.
func (s *Shelf) Survey(ctx context.Context) ([]Finding, error) {
	labels, err := s.List()
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, l := range labels {
		f := Finding{Label: l}
		state, err := askState(ctx, Config{Dir: filepath.Join(s.keeperFolder(l), keeperName)})
		switch {
		case err == nil, errors.Is(err, errProtocol):
			f.Lives, f.State = true, state
		case !errors.Is(err, ErrGone) && !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("%s of run %s: %w", l.Node, l.Run, err)
		}
		f.Bytes = folderSize(s.keeperFolder(l))
		found = append(found, f)
	}
	return found, nil
}

// Bytes returns what the keepers on the shelf take on disk: journals, and what is kept beside them.
func (s *Shelf) Bytes() int64 { return folderSize(s.cfg.Dir) }

// folderSize returns how many bytes there are below a folder. What goes meanwhile doesn't count.
func folderSize(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				bytes += info.Size()
			}
		}
		return nil
	})
	return bytes
}
