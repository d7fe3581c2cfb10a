package workspace

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"strings"
)

// digest is a SHA-256.
type digest [sha256.Size]byte

// MarshalText implements [encoding.TextMarshaler].
func (d digest) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(d[:])), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *digest) UnmarshalText(b []byte) error {
	if len(b) != 2*len(d) {
		return fmt.Errorf("%.80q is no SHA-256", b)
	}
	_, err := hex.Decode(d[:], b)
	return err
}

func (d digest) String() string { return hex.EncodeToString(d[:]) }

// chunk is a part of a file or of a list of entries, and where it is.
type chunk struct {
	Sum  digest `json:"s"`
	Pack string `json:"p,omitempty"` // empty in a list or a manifest: the pack that this is in
	At   int    `json:"a"`           // in the unpacked pack
	Size int    `json:"n"`
}

// The types of entries.
const (
	typeFile   = "f"
	typeFolder = "d"
	typeLink   = "l"
)

// entry is a file, a folder or a link.
type entry struct {
	Name   []byte  `json:"n"` // bytes: names needn't be text
	Type   string  `json:"t"`
	Mode   uint32  `json:"m,omitempty"` // permissions
	Size   int64   `json:"z,omitempty"` // of a file
	Sum    *digest `json:"h,omitempty"` // of a file of more than one chunk
	Chunks []chunk `json:"c,omitempty"`
	Target []byte  `json:"l,omitempty"` // of a link
}

// manifest is what a snapshot's name stands for.
type manifest struct {
	V        int       `json:"v"`
	Root     entry     `json:"root"`
	Files    int       `json:"files"`
	Bytes    int64     `json:"bytes"`
	LeftOut  []LeftOut `json:"leftOut,omitempty"`
	Omitted  int       `json:"omitted,omitempty"`
	Unstable bool      `json:"unstable,omitempty"`
}

const manifestVersion = 1

// encodePack returns what a manifest is in a pack: the end of it, with its length.
func (m manifest) encodePack() ([]byte, error) {
	text, err := json.Marshal(m)
	return binary.BigEndian.AppendUint32(text, uint32(len(text))), err // no pack is as large
}

// Bounds of what is read: nothing that this package writes comes near them but by intent.
const (
	maxUnpacked = 1 << 20 // bytes of a pack
	maxList     = 256 << 20
	maxEntries  = 1_000_000
	maxDepth    = 256
	maxName     = 255
	maxTarget   = 4096
)

func parseManifest(pack []byte, name string) (m manifest, err error) {
	if len(pack) < 4 || int64(binary.BigEndian.Uint32(pack[len(pack)-4:])) > int64(len(pack)-4) {
		return m, fmt.Errorf("%w: it has no manifest", ErrDamaged)
	}
	text := pack[:len(pack)-4]
	text = text[len(text)-int(binary.BigEndian.Uint32(pack[len(text):])):]
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%w: its manifest: %w", ErrDamaged, err)
	}
	switch {
	case m.V != manifestVersion:
		return m, fmt.Errorf("%w: its manifest has version %d", ErrDamaged, m.V)
	case m.Files < 0 || m.Files > maxEntries || m.Bytes < 0 || m.Omitted < 0:
		return m, fmt.Errorf("%w: its manifest counts wrong", ErrDamaged)
	case m.Root.Type != typeFolder || len(m.Root.Name) != 0:
		return m, fmt.Errorf("%w: its root is no folder", ErrDamaged)
	}
	for n := range m.Root.Chunks {
		m.Root.Chunks[n].Pack = cmp.Or(m.Root.Chunks[n].Pack, name)
	}
	return m, m.Root.check()
}

// parseEntries reads a list of entries that lies in a pack, "" if in several: in order, each name once, none that leads
// elsewhere.
func parseEntries(b []byte, pack string) (list []entry, err error) {
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("%w: a list: %w", ErrDamaged, err)
	}
	var before []byte
	for i, e := range list {
		if !isName(e.Name) || i > 0 && bytes.Compare(before, e.Name) >= 0 {
			return nil, fmt.Errorf("%w: %.80q is no name, or out of order", ErrDamaged, e.Name)
		}
		before = e.Name
		for n := range e.Chunks {
			e.Chunks[n].Pack = cmp.Or(e.Chunks[n].Pack, pack)
		}
		if err := e.check(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func isName(b []byte) bool {
	s := string(b)
	return s != "" && len(s) <= maxName && s != "." && s != ".." && !strings.ContainsAny(s, "/\\\x00")
}

func (e *entry) check() error {
	var size int64
	for _, c := range e.Chunks {
		if !isPackName(c.Pack) || c.At < 0 || c.Size <= 0 || c.At > maxUnpacked || c.Size > maxUnpacked-c.At {
			return fmt.Errorf("%w: %.80q: chunk %s lies nowhere", ErrDamaged, e.Name, c.Sum)
		}
		size += int64(c.Size)
	}
	ok := e.Mode <= 0o777
	switch e.Type {
	case typeFile:
		ok = ok && size == e.Size && len(e.Target) == 0 && (e.Sum != nil) == (len(e.Chunks) > 1)
	case typeFolder:
		ok = ok && e.Size == 0 && e.Sum == nil && len(e.Target) == 0 && size <= maxList
	case typeLink:
		ok = ok && e.Size == 0 && e.Sum == nil && len(e.Chunks) == 0 && len(e.Target) > 0 && len(e.Target) <= maxTarget &&
			!bytes.ContainsRune(e.Target, 0)
	default:
		ok = false
	}
	if !ok {
		return fmt.Errorf("%w: entry %.80q", ErrDamaged, e.Name)
	}
	return nil
}

// parts is how many chunks the content of a file has; how a list is cut means nothing.
func (e entry) parts() int {
	if e.Type == typeFolder {
		return 0
	}
	return len(e.Chunks)
}

// writeMeaning writes what an entry means, wherever its content is; below is what is in it, of a folder.
func (e entry) writeMeaning(to hash.Hash, below digest) {
	_, _ = fmt.Fprintf(to, "%d:%s%s %o %d %d:%s %d\n", len(e.Name), e.Name, e.Type, e.Mode, e.Size, len(e.Target), e.Target, e.parts())
	if e.Type == typeFolder {
		_, _ = to.Write(below[:])
		return
	}
	for _, c := range e.Chunks {
		_, _ = to.Write(c.Sum[:])
	}
}

// isPackName reports whether s is "<run>.<SHA-256>", the run as a token of a subject.
func isPackName(s string) bool {
	run, sum, ok := strings.Cut(s, ".")
	if !ok || run == "" || len(run) > 512 || strings.ContainsAny(run, "*> \t\r\n\x00") {
		return false
	}
	var d digest
	return d.UnmarshalText([]byte(sum)) == nil && sum == d.String()
}

// describeMeaning returns what a manifest says, wherever the content is that it refers to.
func (m manifest) describeMeaning(of digest) (string, error) {
	m.Root.Chunks, m.Root.Sum = nil, &of
	text, err := json.Marshal(m)
	return string(text), err
}

func (m manifest) toSnapshot(id string) Snapshot {
	return Snapshot{ID: id, Files: m.Files, Bytes: m.Bytes, LeftOut: m.LeftOut, Omitted: m.Omitted, Unstable: m.Unstable}
}

// cutFrom returns the chunk of a pack, checked by its hash.
func (c chunk) cutFrom(pack []byte) ([]byte, error) {
	if c.At+c.Size > len(pack) || c.Size < 0 || c.At < 0 {
		return nil, fmt.Errorf("%w: chunk %s lies outside of pack %s", ErrDamaged, c.Sum, c.Pack)
	}
	part := pack[c.At : c.At+c.Size]
	if digest(sha256.Sum256(part)) != c.Sum {
		return nil, fmt.Errorf("%w: chunk %s", ErrDamaged, c.Sum)
	}
	return part, nil
}
