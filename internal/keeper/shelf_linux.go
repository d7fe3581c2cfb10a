package keeper

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Shelf has the keepers of a runner, in a folder, by the executions that they are for.
type Shelf struct {
	cfg    ShelfConfig
	fence  Fence
	groups Groups
}

// NewShelf opens a runner's keepers. It finds out which fence the host allows, unless
// the configuration asks for one, and then tries that.
func NewShelf(ctx context.Context, c ShelfConfig) (*Shelf, error) {
	var err error
	if c.Dir, err = filepath.Abs(c.Dir); err != nil { // a keeper's working folder is another
		return nil, fmt.Errorf("keeper: %w", err)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	s := &Shelf{cfg: c, fence: c.Fence}
	if c.Client != nil {
		return s, nil
	}
	if c.Fence == "" {
		s.fence, err = Probe(ctx)
	} else if err = Try(ctx, c.Fence, Groups{}); err != nil {
		err = fmt.Errorf("fence %s can't be had here: %w", c.Fence, err)
	}
	if err != nil {
		return nil, err
	}
	s.groups = ProbeGroups(ctx, s.fence)
	return s, nil
}

// Fence returns how the trees of new keepers end with them.
func (s *Shelf) Fence() Fence { return s.fence }

// Means names all that is done against trees that go on: see [Groups.Means].
func (s *Shelf) Means() string { return s.groups.Means(s.fence) }

// Bounds reports whether the memory of a tree can be bounded.
func (s *Shelf) Bounds() bool { return s.groups.Memory != "" }

// keeperFolder returns the folder of an execution's keeper.
func (s *Shelf) keeperFolder(l Label) string {
	sum := sha256.Sum256([]byte(l.Run + "\x00" + l.Node + "\x00" + l.Exec))
	return filepath.Join(s.cfg.Dir, hex.EncodeToString(sum[:12]))
}

// keyName is a file beside a keeper's own folder, like labelName.
const (
	keyName    = "key"
	keeperName = "keeper"

	asideSuffix = ".before" // of the folder of what was set aside
)

// Open starts a keeper for an execution; its programs may use so much memory; 0: all. It fails with [ErrUnbounded]
// if that can't be bounded.
func (s *Shelf) Open(ctx context.Context, l Label, memory int64, freeze, kill time.Duration) (*Keeper, error) {
	if memory != 0 && s.groups.Memory == "" {
		return nil, ErrUnbounded
	}
	dir := s.keeperFolder(l)
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	key, err := s.makeKey(dir, l)
	if err == nil {
		err = s.Mark(l)
	}
	var k *Keeper
	if err == nil {
		k, err = Open(ctx, Config{
			Dir: filepath.Join(dir, keeperName), Home: s.cfg.Home, Key: key, Fence: s.fence, Limit: s.cfg.Limit, Orphan: s.cfg.Orphan,
			Freeze: freeze, Kill: kill, User: s.cfg.User, Groups: s.groups, Memory: memory, Client: s.cfg.Client,
		})
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return k, nil
}

// Mark stores the label of an execution's keeper.
func (s *Shelf) Mark(l Label) error {
	b, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	name := filepath.Join(s.keeperFolder(l), labelName)
	if err := os.WriteFile(name+".new", b, 0o600); err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	return nil
}

// Find returns the label of an execution's keeper, whether that lives or has only left its
// journal.
func (s *Shelf) Find(run, node, exec string) (Label, bool) {
	return readLabel(filepath.Join(s.keeperFolder(Label{Run: run, Node: node, Exec: exec}), labelName))
}

// List returns the labels of all keepers.
func (s *Shelf) List() ([]Label, error) {
	names, err := fs.Glob(os.DirFS(s.cfg.Dir), "*/"+labelName)
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	var labels []Label
	for _, name := range names {
		if l, ok := readLabel(filepath.Join(s.cfg.Dir, name)); ok {
			labels = append(labels, l)
		}
	}
	return labels, nil
}

// keeperConfig says where the keeper of an execution is.
func (s *Shelf) keeperConfig(l Label) Config {
	return Config{Dir: filepath.Join(s.keeperFolder(l), keeperName), Client: s.cfg.Client}
}

// Attach attaches to the keeper of an execution. It fails with [ErrGone] if that is gone.
func (s *Shelf) Attach(ctx context.Context, l Label) (*Keeper, error) {
	return Attach(ctx, s.keeperConfig(l))
}

// Lives reports whether the keeper of an execution isn't gone, as far as this process can tell.
func (s *Shelf) Lives(ctx context.Context, l Label) bool {
	_, err := askState(ctx, s.keeperConfig(l))
	return err == nil || !errors.Is(err, ErrGone) && !errors.Is(err, fs.ErrNotExist)
}

// Tail reads what the keeper of an execution has left. It must be gone.
func (s *Shelf) Tail(l Label) (*Tail, error) {
	s.endLeftovers(l)
	key, err := s.journalKey(s.keeperFolder(l), l)
	if err != nil {
		return nil, err
	}
	return OpenTail(Config{Dir: filepath.Join(s.keeperFolder(l), keeperName), Key: key})
}

// SetAside makes room for the next keeper of an execution, and reads what the last one, now gone, has left.
// That stays until [Shelf.Remove], or until the next one is set aside.
func (s *Shelf) SetAside(l Label) (*Tail, error) {
	s.endLeftovers(l)
	dir := s.keeperFolder(l)
	key, err := s.journalKey(dir, l)
	if err != nil {
		return nil, err
	}
	aside := dir + asideSuffix
	if err := os.RemoveAll(aside); err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	if err := os.Mkdir(aside, 0o700); err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	if err := os.Rename(filepath.Join(dir, keeperName), filepath.Join(aside, keeperName)); err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	return OpenTail(Config{Dir: filepath.Join(aside, keeperName), Key: key})
}

// endLeftovers ends what has outlived the keeper of an execution, if that had a control group.
func (s *Shelf) endLeftovers(l Label) {
	_ = s.groups.GroupOf(filepath.Join(s.keeperFolder(l), keeperName)).EndAll()
}

// Remove removes what an execution's keeper has left. It must be gone.
func (s *Shelf) Remove(l Label) error {
	s.endLeftovers(l)
	if err := errors.Join(os.RemoveAll(s.keeperFolder(l)), os.RemoveAll(s.keeperFolder(l)+asideSuffix)); err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	return nil
}

// sealPurpose names what a key is sealed for.
func sealPurpose(l Label) string { return "keeper/" + l.Run + "/" + l.Node + "/" + l.Exec }

func (s *Shelf) makeKey(dir string, l Label) ([]byte, error) {
	if s.cfg.Seal == nil {
		return nil, nil
	}
	key := newKey()
	sealed, err := s.cfg.Seal(sealPurpose(l), key)
	if err != nil {
		return nil, fmt.Errorf("keeper: key: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, keyName), sealed, 0o600); err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	return key, nil
}

// journalKey returns the key of an execution's journals, nil if they aren't sealed.
func (s *Shelf) journalKey(dir string, l Label) ([]byte, error) {
	sealed, err := os.ReadFile(filepath.Join(dir, keyName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	if s.cfg.Unseal == nil {
		return nil, errors.New("keeper: its journal is sealed, and there is no key")
	}
	return s.cfg.Unseal(sealPurpose(l), sealed)
}
