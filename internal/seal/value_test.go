package seal_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/seal"
)

// key is the one that the vectors are sealed under.
const vectorKey = "a MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="

func parse(t testing.TB, text string) *seal.Keys {
	t.Helper()
	k, err := seal.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestValue(t *testing.T) {
	t.Parallel()
	all := keys(t, 2)
	old, k := all[0], all[1]
	const place = "$KV.WAKE_SNAPSHOTS.r"
	content := []byte("\xa8the plan")
	stored, err := old.Value(place, content)
	if err != nil || bytes.Contains(stored, []byte("plan")) {
		t.Fatalf("%v, %q", err, stored)
	}
	if id, at := seal.Label(stored); id != old.WriteID() || at != place {
		t.Errorf("it says that it is of %q under %q", at, id)
	}
	for who, k := range map[string]*seal.Keys{"its own key": old, "a newer one": k} {
		if got, err := k.OpenValue(place, stored); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: %v, %q", who, err, got)
		}
		if at, got, err := k.Reveal(stored); err != nil || at != place || !bytes.Equal(got, content) {
			t.Errorf("%s: %v, %q at %q", who, err, got, at)
		}
		if got, err := k.OpenValue(place, content); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s, what isn't sealed: %v, %q", who, err, got)
		}
	}
	for name, f := range map[string]func() ([]byte, error){
		"another place": func() ([]byte, error) { return k.OpenValue("$KV.WAKE_SNAPSHOTS.s", stored) },
		"another label": func() ([]byte, error) {
			return k.OpenValue(place[:len(place)-1]+"s", bytes.Replace(stored, []byte("S.r\n"), []byte("S.s\n"), 1))
		},
		"cut":      func() ([]byte, error) { return k.OpenValue(place, stored[:len(stored)-1]) },
		"no place": func() ([]byte, error) { return k.OpenValue(place, stored[:30]) },
	} {
		if _, err := f(); !errors.Is(err, seal.ErrForged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var none *seal.Keys
	for who, k := range map[string]*seal.Keys{"no keys": none, "other keys": keys(t, 1)[0]} {
		if _, err := k.OpenValue(place, stored); !errors.Is(err, seal.ErrNoKey) || !strings.Contains(err.Error(), old.WriteID()) {
			t.Errorf("%s: %v", who, err)
		}
	}
	if got, err := none.Value(place, content); err != nil || !bytes.Equal(got, content) {
		t.Errorf("without keys: %v, %q", err, got)
	}
	for _, place := range []string{"a\nb", strings.Repeat("x", 5000)} {
		if _, err := k.Value(place, content); err == nil {
			t.Errorf("%.10q is a place", place)
		}
	}
}

// What looks sealed is sealed again: an agent's file may begin with anything.
func TestValueTwice(t *testing.T) {
	t.Parallel()
	k := keys(t, 1)[0]
	once, err := k.Value("a", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	twice, err := k.Value("b", once)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := k.OpenValue("b", twice); err != nil || !bytes.Equal(got, once) {
		t.Errorf("%v, %q", err, got)
	}
}

// Bytes that were written are read for ever. These are of another implementation, by
// docs/wire.md.
func TestVectors(t *testing.T) {
	t.Parallel()
	k := parse(t, vectorKey)
	const name = "f51d8f66fd34ac2c3a270115697f63a4a128c23409c113eabc327006d2f33273"
	for file, open := range map[string]func([]byte) ([]byte, error){
		"value.hex":    func(b []byte) ([]byte, error) { return k.OpenValue("wake.cmd.r", b) },
		"blob-old.hex": func(b []byte) ([]byte, error) { return k.OpenBlob(name, b) },
	} {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		stored, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := open(stored); err != nil || string(got) != "\x81\xa4text\xa8the plan" {
			t.Errorf("%s: %v, %q", file, err, got)
		}
		var none *seal.Keys
		if _, err := none.OpenBlob(name, stored); !errors.Is(err, seal.ErrNoKey) {
			t.Errorf("%s without keys: %v", file, err)
		}
	}
}

// A new key is given to all before the first writes under it.
func TestChange(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys")
	first, err := seal.Add(path, true)
	if err != nil {
		t.Fatal(err)
	}
	next, err := seal.Add(path, true)
	if err != nil {
		t.Fatal(err)
	}
	before, err := seal.Load(path)
	if err != nil || before.WriteID() != first {
		t.Fatalf("%v, writes under %s", err, before.WriteID())
	}
	if err := seal.Use(path, next); err != nil {
		t.Fatal(err)
	}
	after, err := seal.Load(path)
	if err != nil || after.WriteID() != next {
		t.Fatalf("%v, writes under %s", err, after.WriteID())
	}
	stored, err := after.Value("x", []byte("y"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := before.OpenValue("x", stored); err != nil || string(got) != "y" {
		t.Errorf("whoever had the file before: %v, %q", err, got)
	}
	if err := seal.Use(path, "other"); err == nil || !strings.Contains(err.Error(), `"other"`) {
		t.Error(err)
	}
}

// Whatever an operator has made of a file of keys, each change of it keeps the other keys, and what is said about them.
func TestChangeKeepsKeys(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys")
	const a, b, c = "a MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=", "b MTEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=", "c MjEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	if err := os.WriteFile(path, []byte("# of 2026\n\n"+a+"\n"+b+"\n\n# next\n"+c), 0o600); err != nil { // no line feed at its end
		t.Fatal(err)
	}
	var stored [][]byte
	for _, id := range []string{"a", "b", "c", "a"} {
		if err := seal.Use(path, id); err != nil {
			t.Fatal(err)
		}
		k, err := seal.Load(path)
		if err != nil || k.WriteID() != id {
			t.Fatalf("%s: %v", id, err)
		}
		v, err := k.Value("x", []byte(id))
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, v)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := a + "\n" + c + "\n" + b + "\n# of 2026\n\n\n# next\n"; string(text) != want {
		t.Errorf("the file is\n%s\nwant\n%s", text, want)
	}
	if err := os.WriteFile(path, text[:len(text)-len("\n# of 2026\n\n\n# next\n")], 0o600); err != nil { // again none
		t.Fatal(err)
	}
	for _, reading := range []bool{true, false} {
		if _, err := seal.Add(path, reading); err != nil {
			t.Fatal(err)
		}
		k, err := seal.Load(path)
		if err != nil || (k.WriteID() == "a") != reading {
			t.Fatalf("another key, for reading %t: %v", reading, err)
		}
		for _, v := range stored {
			if _, err := k.OpenValue("x", v); err != nil {
				t.Errorf("another key, for reading %t: %v", reading, err)
			}
		}
	}
}

// The longest id of a key and the longest place are read as they were written, and longer ones are refused in both ways.
func TestLongestLabel(t *testing.T) {
	t.Parallel()
	const key = " MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	id, place := strings.Repeat("k", 64), strings.Repeat("p", 4<<10)
	k := parse(t, id+key)
	stored, err := k.Value(place, []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := k.OpenValue(place, stored); err != nil || string(got) != "x" {
		t.Errorf("%v, %q", err, got)
	}
	if gotID, gotPlace := seal.Label(stored); gotID != id || gotPlace != place {
		t.Errorf("it says that it is of %q under %q", gotPlace, gotID)
	}
	if _, err := k.Value(place+"p", []byte("x")); err == nil {
		t.Error("a longer place is one")
	}
	if _, err := seal.Parse([]byte(id + "k" + key)); err == nil {
		t.Error("a longer id is one")
	}
	for name, forged := range map[string][]byte{
		"a longer place": bytes.Replace(stored, []byte("p\n"), []byte("pp\n"), 1),
		"a longer id":    bytes.Replace(stored, []byte("k\n"), []byte("kk\n"), 1),
	} {
		if gotID, gotPlace := seal.Label(forged); gotID != "" || gotPlace != "" {
			t.Errorf("%s is a label: %q, %q", name, gotID, gotPlace)
		}
		if _, _, err := k.Reveal(forged); !errors.Is(err, seal.ErrForged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
