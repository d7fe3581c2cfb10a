// Package rooms_test holds ARCHITECTURE.md to the code.
package rooms_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	root   = "../.."
	module = "code.wake.dev/wake/"
)

// forTests are the rooms that only tests import.
var forTests = []string{"internal/natstest", "internal/logtest", "internal/agent/native/apitest", "internal/tracing/otlptest"}

// TestRooms compares the imports of each room with those of its row.
func TestRooms(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rowsOf(string(text)), importsOf(t)); diff != "" {
		t.Errorf("rooms and what they import (-ARCHITECTURE.md +code):\n%s", diff)
	}
}

var (
	row  = regexp.MustCompile("(?m)^\\| `((?:pkg|internal|services|cmd)/[^`]+)` \\| .* \\| ([^|]*) \\|$")
	name = regexp.MustCompile("`([^`]+)`")
)

// rowsOf returns what each room imports, as the tables say. A room that may import all has no list.
func rowsOf(text string) map[string][]string {
	rooms := map[string][]string{}
	for _, m := range row.FindAllStringSubmatch(text, -1) {
		rooms[m[1]] = []string{}
		for _, n := range name.FindAllStringSubmatch(m[2], -1) {
			room := n[1]
			if !strings.HasPrefix(room, "pkg/") && !strings.HasPrefix(room, "services/") && room != "flows" && room != "schemas" {
				room = "internal/" + room
			}
			rooms[m[1]] = append(rooms[m[1]], room)
		}
		slices.Sort(rooms[m[1]])
	}
	return rooms
}

// importsOf returns what each room imports in the code, on any system.
func importsOf(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string]map[string]bool{}
	for _, top := range []string{"pkg", "internal", "services", "cmd"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(file string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return filepath.SkipDir
			case d.IsDir(), !strings.HasSuffix(file, ".go"), strings.HasSuffix(file, "_test.go"):
				return nil
			}
			rel, err := filepath.Rel(root, file)
			if err != nil {
				return err
			}
			room := path.Dir(filepath.ToSlash(rel))
			if slices.Contains(forTests, room) {
				return nil
			}
			if found[room] == nil {
				found[room] = map[string]bool{}
			}
			return addImports(found[room], file)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	found["cmd/wake"] = nil // it composes: anything goes
	rooms := map[string][]string{}
	for room, imports := range found {
		rooms[room] = append([]string{}, slices.Sorted(maps.Keys(imports))...)
	}
	return rooms
}

func addImports(imports map[string]bool, file string) error {
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	if err != nil {
		return err
	}
	for _, spec := range tree.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return err
		}
		room, ours := strings.CutPrefix(imported, module)
		if ours && room != "pkg/wire" && room != "pkg/subjects" {
			imports[room] = true
		}
	}
	return nil
}
