// Package backup copies an installation into a folder, and back.
//
//	recorder's store ─▶ buckets, queues, alerts ─▶ events ─▶ objects ─▶ manifest
//
// The order is what makes the copy of an installation at work one that can go on:
// whatever is copied before the events refers to none that isn't there, and whatever
// the events refer to is copied after them. Streams are copied by the server's own
// snapshots, as `nats stream backup` does. The manifest is written last, so a folder
// without one is no backup.
//
// The stream keeps its incarnation: the record's hash chains and all positions are of
// that. So nothing that was read or written later than the backup may be left: other
// recorders' stores and runners' spools.
package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/durable"
	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// version is that of the manifest.
const version = 1

// manifestFile is the manifest's name in the folder.
const manifestFile = "manifest.json"

// sumFile has the manifest's checksum, as sha256sum writes and checks it.
const sumFile = manifestFile + ".sha256"

// Manifest says what a backup holds.
type Manifest struct {
	Version     int       `json:"version"`
	Created     time.Time `json:"created"`
	Prefix      string    `json:"prefix"`
	Incarnation string    `json:"incarnation"` // of the stream of events
	Server      string    `json:"server"`      // version of the NATS server
	Streams     []Stream  `json:"streams"`     // in the order in which they were copied
	Late        []Key     `json:"late"`        // runs that were registered while streams were copied
	Store       *Store    `json:"store"`       // nil: it isn't here
}

// File is a file of the backup.
type File struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // hex
}

// Stream is the copy of a stream, with its consumers.
type Stream struct {
	File

	Stream string          `json:"stream"`
	Config json.RawMessage `json:"config"` // as the server says it
	State  json.RawMessage `json:"state"`
}

// Messages returns how many messages the copy has, and the last one's sequence.
func (s Stream) Messages() (count, last uint64, err error) {
	var state struct {
		Messages uint64 `json:"messages"`
		LastSeq  uint64 `json:"last_seq"`
	}
	if err := json.Unmarshal(s.State, &state); err != nil {
		return 0, 0, fmt.Errorf("backup: state of %s: %w", s.Stream, err)
	}
	return state.Messages, state.LastSeq, nil
}

// Store is the copy of the recorder's store.
type Store struct {
	File

	Position wire.Position `json:"position"` // up to here everything is recorded
}

// Key is a key of WAKE_STATE.
type Key struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

// Progress is told which file or stream is being checked or copied, how many bytes of it are, and of how many; 0: that isn't known.
type Progress func(name string, done, of int64)

// CopyStore copies the recorder's store into a new file and returns the position up
// to which it is recorded.
type CopyStore func(ctx context.Context, path string) (wire.Position, error)

// Take copies an installation into a folder, which is created and has to be empty.
// Without store, the recorder's isn't copied. What a failed attempt leaves is no
// backup.
func Take(ctx context.Context, nc *nats.Conn, n subjects.Names, dir string, store CopyStore, progress Progress) (Manifest, error) {
	m, err := takeAll(ctx, nc, n, dir, store, progress)
	if err != nil {
		return Manifest{}, fmt.Errorf("backup: %w", err)
	}
	return m, nil
}

func takeAll(ctx context.Context, nc *nats.Conn, n subjects.Names, dir string, store CopyStore, progress Progress) (Manifest, error) {
	m := Manifest{Version: version, Created: time.Now().UTC().Truncate(time.Second), Prefix: n.Prefix(), Server: nc.ConnectedServerVersion()}
	js, err := jetstream.New(nc)
	if err != nil {
		return m, err
	}
	if err := topology.AwaitLeader(ctx, nc, func() (err error) {
		if err = topology.CheckRestored(ctx, js, n); err == nil {
			m.Incarnation, err = topology.Incarnation(ctx, js, n)
		}
		return err
	}); err != nil {
		return m, err
	}
	if err := emptyDir(dir); err != nil {
		return m, err
	}
	if store != nil {
		if m.Store, err = takeStore(ctx, dir, store, progress); err != nil {
			return m, err
		}
		if p := m.Store.Position; p.Seq > 0 && p.Incarnation != m.Incarnation {
			return m, fmt.Errorf("the recorder's store is of another stream (incarnation %s, this one is %s)", p.Incarnation, m.Incarnation)
		}
	}
	for _, name := range inOrder(n) {
		var s Stream
		if err := topology.AwaitLeader(ctx, nc, func() (err error) {
			s, err = takeStream(ctx, js, dir, name, progress)
			return err
		}); err != nil {
			return m, fmt.Errorf("%s: %w", name, err)
		}
		m.Streams = append(m.Streams, s)
		if name == n.EventsStream() {
			if err := topology.AwaitLeader(ctx, nc, func() (err error) {
				m.Late, err = registeredSince(ctx, js, n, m)
				return err
			}); err != nil {
				return m, err
			}
		}
	}
	return m, writeManifest(dir, m)
}

// inOrder returns the streams in the order of copying: what refers to events, the
// events, what they refer to.
func inOrder(n subjects.Names) []string {
	rank := func(name string) int {
		switch {
		case strings.HasPrefix(name, "OBJ_"):
			return 2
		case name == n.EventsStream():
			return 1
		default:
			return 0
		}
	}
	names := topology.Streams(n)
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	return names
}

func emptyDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("%s isn't empty: name another one (a folder that an interrupted backup has left has no %s)", dir, manifestFile)
	}
	return err
}

func takeStore(ctx context.Context, dir string, store CopyStore, progress Progress) (*Store, error) {
	const name = "recorder.db"
	path := filepath.Join(dir, name)
	if err := durable.Write(path, nil, 0o600); err != nil { // SQLite would let others read it
		return nil, err
	}
	pos, err := store(ctx, path)
	if err == nil {
		err = durable.Sync(path)
	}
	if err != nil {
		return nil, err
	}
	f, err := measureFile(path, name, progress)
	if err != nil {
		return nil, err
	}
	return &Store{File: f, Position: pos}, nil
}

// takeStream copies a stream. What an earlier attempt has left of it is written anew.
func takeStream(ctx context.Context, js jetstream.JetStream, dir, name string, progress Progress) (s Stream, err error) {
	s = Stream{Stream: name, File: File{Name: name + ".snapshot"}}
	out, err := os.OpenFile(filepath.Join(dir, s.Name), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return s, err
	}
	sum := sha256.New()
	s.Config, s.State, err = snapshotStream(ctx, js, name, func(chunk []byte) error {
		s.Bytes += int64(len(chunk))
		sum.Write(chunk)
		progress(name, s.Bytes, 0)
		_, err := out.Write(chunk)
		return err
	})
	if err := errors.Join(err, out.Sync(), out.Close()); err != nil {
		return s, err
	}
	s.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return s, nil
}

// registeredSince returns the runs that were registered after the states were
// copied: some of their events may have been. A run that isn't registered is found
// by no runner.
func registeredSince(ctx context.Context, js jetstream.JetStream, n subjects.Names, m Manifest) ([]Key, error) {
	i := slices.IndexFunc(m.Streams, func(s Stream) bool { return s.Stream == "KV_"+n.StateBucket() })
	_, last, err := m.Streams[i].Messages()
	if err != nil {
		return nil, err
	}
	now, err := keys.All(ctx, js, n.StateBucket(), n.ServiceStates(registry))
	if err != nil {
		return nil, fmt.Errorf("registered runs: %w", err)
	}
	late := []Key{}
	for _, e := range now {
		if e.Revision > last {
			late = append(late, Key{Key: e.Key, Value: e.Value})
		}
	}
	return late, nil
}

// registry is the service that keeps the keys of registered runs.
const registry = "runner"

func writeManifest(dir string, m Manifest) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if err := durable.Write(filepath.Join(dir, sumFile), []byte(manifestSum(text)), 0o600); err != nil {
		return err
	}
	return durable.Write(filepath.Join(dir, manifestFile), text, 0o600)
}

func manifestSum(text []byte) string {
	return fmt.Sprintf("%x  %s\n", sha256.Sum256(text), manifestFile)
}

// measureFile returns what is to be known of a file that is complete.
func measureFile(path, name string, progress Progress) (File, error) {
	in, err := os.Open(path)
	if err != nil {
		return File{}, err
	}
	defer in.Close() //nolint:errcheck // it is only read
	info, err := in.Stat()
	if err != nil {
		return File{}, err
	}
	sum, done := sha256.New(), int64(0)
	n, err := io.Copy(sum, readCounter{in, func(n int) {
		done += int64(n)
		progress(name, done, info.Size())
	}})
	return File{Name: name, Bytes: n, SHA256: hex.EncodeToString(sum.Sum(nil))}, err
}

// ErrDamaged is returned for a backup that isn't as it was written.
var ErrDamaged = errors.New("the backup is damaged")

// Open reads the manifest of a backup and checks each of its files. It fails with
// [fs.ErrNotExist] if there is no manifest, and with [ErrDamaged].
func Open(ctx context.Context, dir string, progress Progress) (Manifest, error) {
	m, err := openChecked(ctx, dir, progress)
	if err != nil {
		return Manifest{}, fmt.Errorf("backup: %s: %w", dir, err)
	}
	return m, nil
}

func openChecked(ctx context.Context, dir string, progress Progress) (m Manifest, err error) {
	text, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if err != nil {
		return m, err
	}
	sum, err := os.ReadFile(filepath.Join(dir, sumFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return m, fmt.Errorf("%w: %s is missing", ErrDamaged, sumFile)
	case err != nil:
		return m, err
	case string(sum) != manifestSum(text):
		return m, fmt.Errorf("%w: %s isn't what %s says", ErrDamaged, manifestFile, sumFile)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%w: manifest: %w", ErrDamaged, err)
	}
	if m.Version != version {
		return m, fmt.Errorf("it has version %d, this wake knows %d", m.Version, version)
	}
	files := make([]File, 0, len(m.Streams)+1)
	for _, s := range m.Streams {
		files = append(files, s.File)
	}
	if m.Store != nil {
		files = append(files, m.Store.File)
	}
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return m, err
		}
		if err := checkFile(dir, f, progress); err != nil {
			return m, err
		}
	}
	return m, nil
}

func checkFile(dir string, want File, progress Progress) error {
	if !filepath.IsLocal(want.Name) {
		return fmt.Errorf("%w: %q is no name of a file in it", ErrDamaged, want.Name)
	}
	got, err := measureFile(filepath.Join(dir, want.Name), want.Name, progress)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s is missing", ErrDamaged, want.Name)
	case err != nil:
		return err
	case got.Bytes != want.Bytes:
		return fmt.Errorf("%w: %s has %d bytes, it had %d", ErrDamaged, want.Name, got.Bytes, want.Bytes)
	case got.SHA256 != want.SHA256:
		return fmt.Errorf("%w: %s isn't what was written", ErrDamaged, want.Name)
	}
	return nil
}
