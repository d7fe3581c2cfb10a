package seal_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/wire"
)

// keys makes n keys one after the other and returns the file after each.
func keys(t testing.TB, n int) []*seal.Keys {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	var all []*seal.Keys
	for range n {
		if _, err := seal.Add(path, false); err != nil {
			t.Fatal(err)
		}
		k, err := seal.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, k)
	}
	return all
}

func original(t testing.TB) (*wire.Event, []byte) {
	t.Helper()
	e := &wire.Event{
		RunID: "r", NodeID: "n", Seq: 3, Epoch: 2, Timestamp: 5, ExecID: "n#1", Redactions: 1,
		Payload: &wire.AgentText{Content: "the plan", Block: 1},
	}
	return e, encode(t, e)
}

func encode(t testing.TB, e *wire.Event) []byte {
	t.Helper()
	data, err := wire.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func decode(t testing.TB, data []byte) *wire.Event {
	t.Helper()
	e, err := wire.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func sealed(t testing.TB, k *seal.Keys, data []byte) *wire.Event {
	t.Helper()
	out, err := k.Event(data)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, out)
}

// A sealed event has the envelope of the original, and nothing of its payload; a reader
// with the key has the original, byte for byte.
func TestEvent(t *testing.T) {
	t.Parallel()
	k := keys(t, 1)[0]
	e, data := original(t)
	s := sealed(t, k, data)
	if bytes.Contains(encode(t, s), []byte("plan")) || s.Type() != seal.Type {
		t.Errorf("%s: %s", s.Type(), encode(t, s))
	}
	if s.RunID != e.RunID || s.NodeID != e.NodeID || s.Seq != e.Seq || s.Epoch != e.Epoch || s.ExecID != e.ExecID || s.Redactions != 1 {
		t.Errorf("the envelope is %+v", s)
	}
	got, err := k.OpenEncoded(encode(t, s))
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%v, %q", err, got)
	}
	if again := sealed(t, k, encode(t, s)); cmp.Diff(s, again) != "" {
		t.Error("it was sealed twice")
	}
	claim := &wire.Event{RunID: "r", NodeID: "n", Seq: 1, Epoch: 1, Payload: &wire.NodeClaimed{Runner: "a", Nonce: "b"}}
	if got := sealed(t, k, encode(t, claim)); got.Type() != wire.TypeNodeClaimed {
		t.Errorf("a claim became %s", got.Type())
	}
	if other := sealed(t, k, data); cmp.Equal(s.Unknown, other.Unknown) {
		t.Error("two boxes are equal: the nonce is")
	}
}

// What isn't sealed is read by who has keys, and by who has none, as it is.
func TestOpenUnsealed(t *testing.T) {
	t.Parallel()
	e, data := original(t)
	var none *seal.Keys
	for who, k := range map[string]*seal.Keys{"keys": keys(t, 1)[0], "no keys": none} {
		if got, err := k.Open(e); err != nil || got != e {
			t.Errorf("%s: %v, %+v", who, err, got)
		}
		if got, err := k.OpenEncoded(data); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %v, %q", who, err, got)
		}
	}
}

// A box opens nowhere else, and not when a bit of it is another.
func TestForged(t *testing.T) {
	t.Parallel()
	k := keys(t, 1)[0]
	_, data := original(t)
	for name, forge := range map[string]func(*wire.Event){
		"run":   func(e *wire.Event) { e.RunID = "s" },
		"node":  func(e *wire.Event) { e.NodeID = "m" },
		"seq":   func(e *wire.Event) { e.Seq++ },
		"epoch": func(e *wire.Event) { e.Epoch++ },
		"type":  func(e *wire.Event) { e.Unknown[2].Value = wire.RawString("agent:thinking") },
		"box": func(e *wire.Event) {
			box, _ := e.Unknown[0].Value.Text()
			e.Unknown[0].Value = wire.RawString("A" + box[1:] + "")
			if strings.HasPrefix(box, "A") {
				e.Unknown[0].Value = wire.RawString("B" + box[1:])
			}
		},
		"no box":    func(e *wire.Event) { e.Unknown = e.Unknown[1:] },
		"no base64": func(e *wire.Event) { e.Unknown[0].Value = wire.RawString("*") },
	} {
		s := sealed(t, k, data)
		forge(s)
		if _, err := k.Open(s); !errors.Is(err, seal.ErrForged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A new key writes, and what the former ones wrote is still read; a reader that lacks a
// key is told which.
func TestRotation(t *testing.T) {
	t.Parallel()
	all := keys(t, 3)
	_, data := original(t)
	old := sealed(t, all[0], data)
	for i, k := range all {
		if _, err := k.Open(old); err != nil {
			t.Errorf("file %d: %v", i, err)
		}
		if s := sealed(t, k, data); i > 0 {
			if id, _ := s.Unknown[1].Value.Text(); id == all[0].WriteID() || id != k.WriteID() {
				t.Errorf("file %d writes under %s", i, id)
			}
			if _, err := all[i-1].Open(s); !errors.Is(err, seal.ErrNoKey) || !strings.Contains(err.Error(), k.WriteID()) {
				t.Errorf("file %d: %v", i, err)
			}
		}
	}
	var none *seal.Keys
	if _, err := none.Open(old); !errors.Is(err, seal.ErrNoKey) {
		t.Error(err)
	}
	if got, err := none.Event(data); err != nil || !bytes.Equal(got, data) {
		t.Errorf("without keys: %v, %q", err, got)
	}
}

func TestBlob(t *testing.T) {
	t.Parallel()
	k, other := keys(t, 1)[0], keys(t, 1)[0]
	content := []byte("\xa8the plan")
	stored, err := k.Blob("name", content)
	if err != nil || bytes.Contains(stored, []byte("plan")) {
		t.Fatalf("%v, %q", err, stored)
	}
	if got, err := k.OpenBlob("name", stored); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%v, %q", err, got)
	}
	if got, err := other.OpenBlob("name", content); err != nil || !bytes.Equal(got, content) {
		t.Errorf("an open one: %v, %q", err, got)
	}
	for name, f := range map[string]func() ([]byte, error){
		"another name": func() ([]byte, error) { return k.OpenBlob("eman", stored) },
		"cut":          func() ([]byte, error) { return k.OpenBlob("name", stored[:len(stored)-1]) },
		"no id":        func() ([]byte, error) { return k.OpenBlob("name", stored[:16]) },
	} {
		if _, err := f(); !errors.Is(err, seal.ErrForged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := other.OpenBlob("name", stored); !errors.Is(err, seal.ErrNoKey) {
		t.Error(err)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	const key = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	if k, err := seal.Parse([]byte("# new\n\nb " + key + "\na " + key + "\n")); err != nil || k.WriteID() != "b" {
		t.Error(err)
	}
	for _, text := range []string{"", "# none", "a", "a b c", "a " + key[:20], "a " + key + "\na " + key, "a.b " + key} {
		_, err := seal.Parse([]byte(text))
		if err == nil || strings.Contains(err.Error(), key[:20]) {
			t.Errorf("%q: %v", text, err)
		}
	}
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte("a "+key), 0o640); err != nil { // that is what is refused
		t.Fatal(err)
	}
	if _, err := seal.Load(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Error(err)
	}
	if _, err := seal.Add(path, false); err == nil {
		t.Error("a key was added to a file that others may read")
	}
}

// A line that is wrong is told by its number.
func TestWrongLine(t *testing.T) {
	t.Parallel()
	const good = "# keys\na MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n\n"
	for _, line := range []string{"b", "b MDEy", "a MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="} {
		if _, err := seal.Parse([]byte(good + line)); err == nil || !strings.HasPrefix(err.Error(), "line 4") {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// Whatever is in a log: opening doesn't fail otherwise than it says, and what opens
// is what was sealed.
func FuzzOpen(f *testing.F) {
	k, err := seal.Parse([]byte("a MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="))
	if err != nil {
		f.Fatal(err)
	}
	_, data := original(f)
	f.Add(encode(f, sealed(f, k, data)))
	f.Add(data)
	blob, _ := k.Blob("name", data)
	f.Add(blob)
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = k.OpenBlob("name", b)
		e, err := wire.Decode(b)
		if err != nil {
			return
		}
		in, err := k.Open(e)
		switch {
		case err != nil && !errors.Is(err, seal.ErrForged) && !errors.Is(err, seal.ErrNoKey):
			t.Fatal(err)
		case err == nil && seal.Sealed(e) && (in.RunID != e.RunID || in.Seq != e.Seq):
			t.Fatalf("%+v opened as %+v", e, in)
		}
	})
}
