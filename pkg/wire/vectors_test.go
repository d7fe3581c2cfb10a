package wire_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"

	"code.wake.dev/wake/pkg/wire"
)

var update = flag.Bool("update", false, "add vectors that are missing from testdata; those that exist stay")

// vectorDir holds the vectors: <type>.<name>.hex and <type>.<name>.json are the
// same event, with '-' for the ':' of the type. They are never rewritten.
const vectorDir = "testdata/v1"

func vectorName(t wire.Type) string { return strings.ReplaceAll(string(t), ":", "-") }

type vector struct {
	name    string
	msgpack []byte
	json    []byte
}

// vectorsOf returns the vectors of a type.
func vectorsOf(t testing.TB, typ wire.Type) []vector {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(vectorDir, vectorName(typ)+".*.hex"))
	if err != nil {
		t.Fatal(err)
	}
	var list []vector
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		j, err := os.ReadFile(strings.TrimSuffix(file, "hex") + "json")
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, vector{strings.TrimSuffix(filepath.Base(file), ".hex"), b, bytes.TrimSpace(j)})
	}
	return list
}

// TestVectorsAreComplete fails if a type, or a field of one, has no vector. With
// -update it adds what is missing.
func TestVectorsAreComplete(t *testing.T) {
	for _, typ := range wire.Types() {
		if *update {
			addVectors(t, typ)
		}
		least := false
		seen := map[string]bool{}
		for _, v := range vectorsOf(t, typ) {
			least = least || strings.HasSuffix(v.name, ".least")
			note(seen, "", decodeJSON(t, v.json))
		}
		if !least {
			t.Errorf("%s has no least vector; add it with -update", typ)
		}
		if missing := missingFields(seen, typ); len(missing) > 0 {
			t.Errorf("no vector of %s has %v; add one with -update", typ, missing)
		}
	}
}

// note records the fields of a value, dotted.
func note(seen map[string]bool, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for name, inner := range v {
			seen[path+name] = true
			note(seen, path+name+".", inner)
			note(seen, path, inner) // through the keys of a map of objects
		}
	case []any:
		for _, item := range v {
			note(seen, path, item)
		}
	}
}

func missingFields(seen map[string]bool, typ wire.Type) (missing []string) {
	var walk func(path string, list []wire.FieldInfo)
	walk = func(path string, list []wire.FieldInfo) {
		for _, f := range list {
			if !seen[path+f.Name] {
				missing = append(missing, path+f.Name)
			}
			walk(path+f.Name+".", f.Fields)
		}
	}
	walk("", wire.Describe(typ).Fields)
	for _, f := range wire.DescribeEnvelope() {
		if f.Name != "blobs" && !seen[f.Name] {
			missing = append(missing, f.Name)
		}
	}
	return missing
}

// addVectors adds the least vector, and a full one if some field has none yet.
func addVectors(t *testing.T, typ wire.Type) {
	t.Helper()
	if err := os.MkdirAll(vectorDir, 0o755); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, v := range vectorsOf(t, typ) {
		note(seen, "", decodeJSON(t, v.json))
	}
	base := filepath.Join(vectorDir, vectorName(typ))
	if _, err := os.Stat(base + ".least.hex"); errors.Is(err, fs.ErrNotExist) {
		addVector(t, base+".least", leastEvent(typ))
	}
	for name, m := range specialEvents(typ) {
		if _, err := os.Stat(base + name + ".hex"); errors.Is(err, fs.ErrNotExist) {
			addVector(t, base+name, m)
		}
	}
	if len(missingFields(seen, typ)) == 0 {
		return
	}
	name := base + ".full"
	for n := 2; ; n++ {
		if _, err := os.Stat(name + ".hex"); errors.Is(err, fs.ErrNotExist) {
			break
		}
		name = fmt.Sprintf("%s.full%d", base, n)
	}
	addVector(t, name, fullEvent(typ))
}

// specialEvents are events that show more than their type: a field that was
// moved to the object store, fields of a later version, values of all sorts.
func specialEvents(typ wire.Type) map[string]map[string]any {
	m := leastEvent(typ)
	switch typ {
	case wire.TypeAgentTool:
		delete(m, "toolOutput")
		m["blobs"] = []any{map[string]any{"field": "toolOutput", "sha256": strings.Repeat("0123456789abcdef", 4), "size": 300_000}}
		return map[string]map[string]any{".moved": m}
	case wire.TypeAgentComplete:
		m["usage"] = map[string]any{"inputTokens": 1, "outputTokens": 2, "zFuture": []any{nil}}
		m["zFuture"], m["aFuture"] = map[string]any{"b": 1, "a": 2}, "é"
		return map[string]map[string]any{".future": m}
	case wire.TypeRaw:
		m["data"] = []any{
			0, 127, 128, 255, 256, 65535, 65536, 1<<32 - 1, 1 << 32, 1<<53 + 1, uint64(1<<64 - 1),
			-1, -32, -33, -128, -129, -32768, -32769, -1 << 31, -1<<31 - 1, -1 << 63,
			0.5, -0.5, 1e-7, 1e21, 1e300, strings.Repeat("x", 31), strings.Repeat("x", 32), strings.Repeat("x", 256),
		}
		return map[string]map[string]any{".numbers": m}
	default:
		return nil
	}
}

func addVector(t *testing.T, name string, m map[string]any) {
	t.Helper()
	e := decodeMap(t, m)
	j, err := wire.EncodeJSON(e)
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{name + ".hex": hex.EncodeToString(encode(t, e)), name + ".json": string(j)} {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644) // never an existing one
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text + "\n"); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestVectors proves that what was once written is read, and written, in the
// same way.
func TestVectors(t *testing.T) {
	count := 0
	for _, typ := range wire.Types() {
		for _, v := range vectorsOf(t, typ) {
			count++
			t.Run(v.name, func(t *testing.T) { testVector(t, typ, v) })
		}
	}
	files, err := filepath.Glob(vectorDir + "/*.hex")
	if err != nil || len(files) != count {
		t.Errorf("%d files, %d vectors of known types, %v", len(files), count, err)
	}
}

func testVector(t *testing.T, typ wire.Type, v vector) {
	e, err := wire.Decode(v.msgpack)
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	if e.Type() != typ {
		t.Errorf("type %s", e.Type())
	}
	if got := encode(t, e); !bytes.Equal(got, v.msgpack) {
		t.Errorf("encode\n got %x\nwant %x", got, v.msgpack)
	}
	got, err := wire.EncodeJSON(e)
	if err != nil || string(got) != string(v.json) {
		t.Errorf("JSON %v\n got %s\nwant %s", err, got, v.json)
	}
	fromJSON, err := wire.DecodeJSON(v.json)
	if err != nil {
		t.Fatalf("decode JSON: %v", err)
	}
	if diff := cmp.Diff(e, fromJSON); diff != "" {
		t.Errorf("the event differs by JSON (-msgpack +json):\n%s", diff)
	}
	want := decodeJSON(t, v.json).(map[string]any)
	if diff := cmp.Diff(want, foreign(t, v.msgpack)); diff != "" {
		t.Errorf("another decoder reads something else (-json +msgpack):\n%s", diff)
	}
	checkStruct(t, reflect.ValueOf(e).Elem(), want, "payload", "blobs", "unknown")
	checkStruct(t, reflect.ValueOf(e.Payload).Elem(), want)
}

// foreign decodes msgpack with a library that isn't ours, to what encoding/json
// yields for the JSON form.
func foreign(t *testing.T, b []byte) any {
	t.Helper()
	var v map[string]any
	if err := msgpack.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	j, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return decodeJSON(t, j)
}

func decodeJSON(t testing.TB, b []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return v
}

// checkStruct compares the fields of a struct with those of the wire that have
// their names.
func checkStruct(t *testing.T, v reflect.Value, wire map[string]any, skip ...string) {
	t.Helper()
	byName := map[string]any{}
	for name, value := range wire {
		byName[strings.ToLower(name)] = value
	}
	for i := range v.NumField() {
		name := strings.ToLower(v.Type().Field(i).Name)
		if slices.Contains(skip, name) || v.Type().Field(i).Anonymous {
			continue
		}
		checkValue(t, name, v.Field(i), byName[name])
	}
}

func checkValue(t *testing.T, name string, v reflect.Value, want any) {
	t.Helper()
	isRaw := v.Type() == reflect.TypeFor[wire.Raw]()
	switch {
	case want == nil && !isRaw:
		if !v.IsZero() {
			t.Errorf("%s = %v; the wire has none", name, v)
		}
	case v.Kind() == reflect.Pointer:
		checkValue(t, name, v.Elem(), want)
	case v.Kind() == reflect.Struct:
		checkStruct(t, v, want.(map[string]any))
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		if v.Len() != len(want.([]any)) {
			t.Fatalf("%s has %d items; the wire has %v", name, v.Len(), want)
		}
		for i, item := range want.([]any) {
			checkValue(t, name, v.Index(i), item)
		}
	case v.Kind() == reflect.Map && v.Type().Elem().Kind() == reflect.Struct:
		for key, item := range want.(map[string]any) {
			checkValue(t, name, v.MapIndex(reflect.ValueOf(key)), item)
		}
	default:
		j, err := json.Marshal(v.Interface())
		if err != nil {
			t.Fatal(err)
		}
		got := decodeJSON(t, j)
		if isEmptyList(want) && got == nil {
			return
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-wire +struct):\n%s", name, diff)
		}
	}
}

func isEmptyList(v any) bool {
	list, ok := v.([]any)
	return ok && len(list) == 0
}
