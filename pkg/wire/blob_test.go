package wire_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"code.wake.dev/wake/pkg/wire"
)

// store is an object store in memory.
type store map[string][]byte

func (s store) get(hash string) ([]byte, error) {
	if b, ok := s[hash]; ok {
		return b, nil
	}
	return nil, errors.New("no such object")
}

// TestExternalize: every field that may be large can be moved and comes back,
// and what is left can be decoded and encoded again.
func TestExternalize(t *testing.T) {
	large := strings.Repeat("large ", 1000)
	for _, typ := range wire.Types() {
		for _, f := range wire.Describe(typ).Fields {
			m := leastEvent(typ)
			switch f.Kind {
			case wire.FieldString:
				if len(f.Enum) > 0 {
					continue
				}
				m[f.Name] = large
			case wire.FieldAny:
				m[f.Name] = []any{large}
			case wire.FieldStrings:
				m[f.Name] = []any{large}
			case wire.FieldStringMap:
				m[f.Name] = map[string]any{"a": large}
			case wire.FieldObject, wire.FieldObjects, wire.FieldObjectMap:
				object := map[string]any{"zFuture": large}
				fillRequired(object, f.Fields)
				m[f.Name] = map[wire.FieldKind]any{
					wire.FieldObject: object, wire.FieldObjects: []any{object}, wire.FieldObjectMap: map[string]any{"a": object},
				}[f.Kind]
			default:
				continue
			}
			testExternalize(t, encode(t, decodeMap(t, m)), f.Name)
		}
	}
}

func testExternalize(t *testing.T, b []byte, field string) {
	t.Helper()
	small, blobs, err := wire.Externalize(b, 1000)
	if err != nil {
		t.Fatalf("%s: %v", field, err)
	}
	e, err := wire.Decode(small)
	if err != nil {
		t.Fatalf("%s: %v", field, err)
	}
	if len(small) > 1000 || len(e.Blobs) != 1 || len(blobs) != 1 {
		t.Fatalf("%s %s: %d bytes, blobs %v", e.Type(), field, len(small), e.Blobs)
	}
	value := blobs[e.Blobs[0].SHA256]
	sum := sha256.Sum256(value)
	want := wire.Blob{Field: field, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(value))}
	if diff := cmp.Diff(want, e.Blobs[0]); diff != "" {
		t.Error(diff)
	}
	if !bytes.Equal(encode(t, e), small) {
		t.Errorf("%s %s: encoded again it differs", e.Type(), field)
	}
	fromJSON, err := wire.DecodeJSON(wantError(t, wire.EncodeJSON, e))
	if err != nil || !bytes.Equal(encode(t, fromJSON), small) {
		t.Errorf("%s %s: by JSON it differs: %v", e.Type(), field, err)
	}
	back, err := wire.Inline(small, store(blobs).get)
	if err != nil || !bytes.Equal(back, b) {
		t.Errorf("%s %s: inlined it differs: %v", e.Type(), field, err)
	}
}

func TestExternalizeProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := anEvent().Draw(t, "event")
		for _, f := range wire.Describe(wire.Type(m["type"].(string))).Fields {
			if f.Kind == wire.FieldAny && rapid.Bool().Draw(t, "large") {
				m[f.Name] = strings.Repeat("x", rapid.IntRange(0, 5000).Draw(t, "size"))
			}
		}
		b, err := wire.Encode(decodeMap(t, m))
		if err != nil {
			t.Fatal(err)
		}
		limit := rapid.IntRange(0, len(b)+10).Draw(t, "limit")
		small, blobs, err := wire.Externalize(b, limit)
		if err != nil {
			return // the limit can't be reached
		}
		if len(small) > limit {
			t.Fatalf("%d bytes, limit %d", len(small), limit)
		}
		again, _, err := wire.Externalize(appendLong(nil, wire.Raw(b).Any(), false), limit)
		if err == nil && len(blobs) > 0 && !bytes.Equal(again, small) {
			t.Fatal("another encoding of the same event yields something else")
		}
		if back, err := wire.Inline(small, store(blobs).get); err != nil || !bytes.Equal(back, b) {
			t.Fatalf("inlined it differs: %v", err)
		}
	})
}

func TestExternalizeLeaves(t *testing.T) {
	b := encode(t, anEventOf(&wire.AgentText{Content: "short"}))
	small, blobs, err := wire.Externalize(b, len(b))
	if err != nil || !bytes.Equal(small, b) || blobs != nil {
		t.Errorf("%x, %v, %v", small, blobs, err)
	}
	if _, _, err := wire.Externalize(b, 20); err == nil {
		t.Error("an event of short fields fits into 20 bytes")
	}
	e := anEventOf(&wire.AgentText{Content: "short"})
	e.RunID = strings.Repeat("r", 5000)
	if _, _, err := wire.Externalize(encode(t, e), 1000); err == nil {
		t.Error("the envelope was moved")
	}
	if out, err := wire.Inline(b, store{}.get); err != nil || !bytes.Equal(out, b) {
		t.Errorf("an event without blobs: %v", err)
	}
}

// TestExternalizeTwice: a second, lower limit moves more, and all of it comes
// back at once.
func TestExternalizeTwice(t *testing.T) {
	e := anEventOf(&wire.AgentTool{
		ToolName: "Read", ToolInput: wire.RawString(strings.Repeat("i", 3000)), ToolOutput: wire.RawString(strings.Repeat("o", 5000)),
	})
	b := encode(t, e)
	first, blobs, err := wire.Externalize(b, 4000)
	if err != nil {
		t.Fatal(err)
	}
	second, more, err := wire.Externalize(first, 1500)
	if err != nil || len(more) != 1 {
		t.Fatal(err, len(more))
	}
	maps.Copy(blobs, more)
	if back, err := wire.Inline(second, store(blobs).get); err != nil || !bytes.Equal(back, b) {
		t.Errorf("inlined it differs: %v", err)
	}
}

func TestInlineRefuses(t *testing.T) {
	b := encode(t, anEventOf(&wire.AgentText{Content: strings.Repeat("x", 5000)}))
	small, blobs, err := wire.Externalize(b, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wire.Inline(small, store{}.get); err == nil {
		t.Error("a missing blob is taken")
	}
	for hash := range blobs {
		if _, err := wire.Inline(small, store{hash: []byte("\xa5other")}.get); err == nil {
			t.Error("another content is taken")
		}
	}
	// Two blobs, one empty and one of three values, that together would put a
	// runId into the event.
	hostile := func(parts map[string]string) []byte {
		e := anEventOf(&wire.Opaque{Name: "future"})
		objects := store{}
		for _, field := range []string{"aaa", "zzz"} {
			sum := sha256.Sum256([]byte(parts[field]))
			hash := hex.EncodeToString(sum[:])
			objects[hash] = []byte(parts[field])
			e.Blobs = append(e.Blobs, wire.Blob{Field: field, SHA256: hash, Size: int64(len(parts[field]))})
		}
		out, err := wire.Inline(encode(t, e), objects.get)
		if err == nil {
			t.Errorf("%q makes %x", parts, out)
		}
		return out
	}
	hostile(map[string]string{"aaa": "", "zzz": "\x01\xa1x"})
	hostile(map[string]string{"aaa": "\x01\x02", "zzz": "\x01"})
	hostile(map[string]string{"aaa": "\xd4\x01\x01", "zzz": "\x01"})
}

// TestExternalizeKeepsEnvelope: no field of the envelope is ever moved.
func TestExternalizeKeepsEnvelope(t *testing.T) {
	for _, f := range wire.DescribeEnvelope() {
		e := decodeMap(t, leastEvent(wire.TypeAgentTool))
		e.Blobs = []wire.Blob{{Field: f.Name, SHA256: strings.Repeat("ab", 32), Size: 1}}
		if _, err := wire.Encode(e); err == nil {
			t.Errorf("%s may be moved", f.Name)
		}
	}
}
