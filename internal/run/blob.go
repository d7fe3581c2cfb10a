package run

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"

	"code.wake.dev/wake/pkg/wire"
)

// NeedsInline reports whether the fold has to look into a field of e that is in
// the object store: then the folder puts the blobs back by [wire.Inline] before
// [Apply]. Every other event is folded as it is in the log, blobs absent, so
// that all folders come to the same bytes.
func NeedsInline(e *wire.Event) bool {
	if len(e.Blobs) == 0 {
		return false
	}
	switch e.Type() {
	case wire.TypeFlowStart, wire.TypeFlowResumed, wire.TypeRunForked, wire.TypeStatePatch, wire.TypeCommandReceived:
		return true
	}
	return false
}

// refKey marks a value that is in the object store:
// {"$blob":{"sha256":…,"size":…}}.
const refKey = "$blob"

// payloadValue returns a field of the payload, or a reference if it is a blob.
func (f *fold) payloadValue(name string, v wire.Raw) wire.Raw {
	if v != nil {
		return v
	}
	for _, b := range f.e.Blobs {
		if b.Field == name {
			return mustMarshal(map[string]any{refKey: map[string]any{"sha256": b.SHA256, "size": b.Size}})
		}
	}
	return nil
}

// errorText returns the payload's error, or what names it if it is a blob.
func (f *fold) errorText(v string) string {
	if v != "" {
		return v
	}
	for _, b := range f.e.Blobs {
		if b.Field == "error" {
			return refKey + " " + b.SHA256
		}
	}
	return ""
}

// mustMarshal encodes maps of strings, numbers and booleans.
func mustMarshal(v any) wire.Raw {
	b, err := wire.Marshal(v)
	if err != nil {
		panic(err) // unreachable: the callers pass literals
	}
	return b
}

// Ref returns the SHA-256 that v refers to, or "" if it is a value itself.
func Ref(v wire.Raw) string {
	var m map[string]wire.Raw
	ref := v.Get(refKey)
	if ref == nil || wire.Unmarshal(v, &m) != nil || len(m) != 1 {
		return ""
	}
	sum := ref.TextAt("sha256")
	if b, err := hex.DecodeString(sum); err != nil || len(b) != sha256.Size {
		return ""
	}
	return sum
}

// Inline returns a copy of s with the values that references stand for, for
// readers that have to look into them; s itself if there are none. Such a copy must
// not be folded further. A reference to a missing blob (fetch returns
// [fs.ErrNotExist]) stays.
func Inline(s *wire.State, fetch func(sha256 string) ([]byte, error)) (*wire.State, error) {
	in := inliner{fetch: fetch}
	input, limits, outputs, nodes := s.Input, s.Limits, map[string]wire.Raw{}, map[string]wire.NodeState{}
	in.inlineRef(&input)
	in.inlineRef(&limits)
	for id, v := range s.Outputs {
		if in.inlineRef(&v) {
			outputs[id] = v
		}
	}
	for id, n := range s.Nodes {
		item, input, answer := in.inlineRef(&n.Item), in.inlineRef(&n.Input), in.inlineRef(&n.Answer)
		if item || input || answer {
			nodes[id] = n
		}
	}
	if in.err != nil || in.count == 0 {
		return s, in.err // as at most looks of owners: a copy would cost more than the look
	}
	c := Clone(s)
	c.Input, c.Limits = input, limits
	maps.Copy(c.Outputs, outputs)
	for id, n := range nodes {
		whole := c.Nodes[id]
		whole.Item, whole.Input, whole.Answer = n.Item, n.Input, n.Answer
		c.Nodes[id] = whole
	}
	return c, nil
}

type inliner struct {
	fetch func(string) ([]byte, error)
	count int
	err   error
}

// inlineRef replaces a reference and reports whether it did.
func (in *inliner) inlineRef(v *wire.Raw) bool {
	if in.err != nil || len(*v) == 0 {
		return false
	}
	sum := Ref(*v)
	if sum == "" {
		return false
	}
	b, err := in.fetch(sum)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		in.err = fmt.Errorf("run: blob %s: %w", sum, err)
		return false
	}
	got := sha256.Sum256(b)
	if hex.EncodeToString(got[:]) != sum {
		in.err = fmt.Errorf("run: blob %s: its content has another hash", sum)
		return false
	}
	value, err := wire.Canonical(b)
	if err != nil {
		in.err = fmt.Errorf("run: blob %s: %w", sum, err)
		return false
	}
	*v = value
	in.count++
	return true
}
