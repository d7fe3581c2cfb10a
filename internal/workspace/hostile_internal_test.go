package workspace

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
)

func hostileStore(t testing.TB) *Store {
	t.Helper()
	js, name := natstest.JetStream(t), subjects.Default.WorkspacesBucket()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "OBJ_" + name, Subjects: []string{"$O." + name + ".C.>", "$O." + name + ".M.>"}, AllowRollup: true, AllowDirect: true,
	}); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), js, subjects.Default, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// put stores content as a pack, and returns its chunk.
func (s *Store) put(t testing.TB, content []byte) chunk {
	t.Helper()
	name := packName("r", content)
	if _, err := s.putPack(t.Context(), name, content); err != nil {
		t.Fatal(err)
	}
	var c chunk
	if err := c.Sum.UnmarshalText([]byte(strings.TrimPrefix(name, "r."))); err != nil {
		t.Fatal(err)
	}
	c.Pack, c.Size = name, len(content)
	return c
}

func (s *Store) putJSON(t testing.TB, v any) chunk {
	t.Helper()
	content, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return s.put(t, content)
}

// TestHostile: nobody's manifest writes outside of the folder, follows a link, or makes without end.
func TestHostile(t *testing.T) {
	t.Parallel()
	s := hostileStore(t)
	outside := t.TempDir()
	evil := s.put(t, []byte("evil"))
	file := func(name string) entry {
		return entry{Name: []byte(name), Type: typeFile, Mode: 0o644, Size: 4, Chunks: []chunk{evil}}
	}
	link := func(name string) entry { return entry{Name: []byte(name), Type: typeLink, Target: []byte(outside)} }
	folder := func(name string, list ...entry) entry {
		return entry{Name: []byte(name), Type: typeFolder, Mode: 0o755, Chunks: []chunk{s.putJSON(t, list)}}
	}
	many := folder("x", file("a"), file("b"))
	for range 24 { // 2²⁵ files
		a, b := many, many
		a.Name, b.Name = []byte("a"), []byte("b")
		many = folder("x", a, b)
	}
	deep := folder("x", file("a"))
	for range maxDepth + 2 {
		deep.Name = []byte("a")
		deep = folder("x", deep)
	}
	wide := file("a")
	wide.Mode = 0o4755
	short := file("a")
	short.Size = 5
	beside := file("a")
	beside.Chunks = []chunk{{Sum: evil.Sum, Pack: evil.Pack, At: 3, Size: 4}}
	for name, root := range map[string]entry{
		"up": folder("", file("..")), "path": folder("", file("../x")), "absolute": folder("", file("/x")), "dot": folder("", file(".")),
		"nul": folder("", file("a\x00")), "empty": folder("", file("")),
		"link and folder of a name": folder("", link("a"), folder("a", file("x"))),
		"out of order":              folder("", file("b"), file("a")),
		"folder, then link":         folder("", folder("a", file("x")), link("a")),
		"explodes":                  folder("", many), "too deep": folder("", deep), "setuid": folder("", wide),
		"size": folder("", short), "outside of the pack": folder("", beside),
		"no type": folder("", entry{Name: []byte("a"), Type: "x"}), "root": file(""),
		"device": folder("", entry{Name: []byte("a"), Type: "c", Mode: 0o644}),
	} {
		text, err := manifest{V: 1, Root: root, Files: 1000, Bytes: 1000}.encodePack()
		if err != nil {
			t.Fatal(err)
		}
		id := s.put(t, text).Pack
		dir := filepath.Join(t.TempDir(), "restored")
		_, err = s.Restore(t.Context(), id, dir)
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		if left, _ := os.ReadDir(filepath.Dir(dir)); len(left) > 0 {
			t.Errorf("%s: left behind: %v", name, left)
		}
	}
	if found, _ := os.ReadDir(outside); len(found) > 0 {
		t.Errorf("written outside: %v", found)
	}
}

// FuzzManifest: what is read of a manifest or a list names no place outside, and nothing makes it panic.
func FuzzManifest(f *testing.F) {
	sum := strings.Repeat("0", 64)
	text := `{"v":1,"root":{"n":"","t":"d","m":493,"c":[{"s":"` + sum + `","a":0,"n":5}]},"files":1,"bytes":2}`
	f.Add(binary.BigEndian.AppendUint32([]byte("12345"+text), uint32(len(text))))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add([]byte(`[{"n":"YQ==","t":"f","m":420,"z":4,"c":[{"s":"` + sum + `","a":1,"n":4}]},{"n":"Yg==","t":"l","l":"Li4="}]`))
	f.Add([]byte(`[{"n":"Li4=","t":"d"}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := parseManifest(b, "r."+sum); err == nil && (m.Root.Type != typeFolder || m.Files < 0) {
			t.Errorf("%+v", m)
		}
		list, err := parseEntries(b, "r."+sum)
		if err != nil {
			return
		}
		for _, e := range list {
			if name := string(e.Name); !filepath.IsLocal(name) || strings.ContainsRune(name, filepath.Separator) || e.Mode > 0o777 {
				t.Errorf("%+v", e)
			}
			for _, c := range e.Chunks {
				if !isPackName(c.Pack) {
					t.Errorf("%+v", c)
				}
			}
		}
	})
}

// FuzzConfig: whatever a repository's configuration is, what travels of it names no command.
func FuzzConfig(f *testing.F) {
	f.Add("[core]\n\tfsmonitor = x\n\tbare = false\n[alias]\n\tx = !y\n")
	f.Add("[core] fsmonitor = x\n[remote \"a\"]\nurl = ext::sh\n[core]\nbare = \\\nfsmonitor = x\n")
	f.Fuzz(func(t *testing.T, text string) {
		kept, _, _ := filterConfig([]byte(text))
		again, dropped, problem := filterConfig(kept)
		if string(again) != string(kept) || len(dropped) > 0 || problem != "" {
			t.Errorf("%q, of which %q is dropped (%s)", kept, dropped, problem)
		}
	})
}

// spend reports the processor time of a benchmark's loop: the wall clock says little on a machine that is shared.
func spend(b *testing.B, loop func()) {
	b.Helper()
	used := func() int64 {
		var r unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
			b.Fatal(err)
		}
		return r.Utime.Nano() + r.Stime.Nano()
	}
	before := used()
	loop()
	b.ReportMetric(float64(used()-before)/float64(b.N)/1e6, "cpu-ms/op")
}

func BenchmarkSnapshot(b *testing.B) {
	s := hostileStore(b)
	dir := b.TempDir()
	for i := range 50_000 {
		path := filepath.Join(dir, fmt.Sprintf("d%d/e%d", i%50, i%1000))
		if i < 1000 {
			if err := os.MkdirAll(path, 0o755); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(path, fmt.Sprint(i)), []byte(strings.Repeat(fmt.Sprintf("line %d\n", i), 200)), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	ctx := context.WithoutCancel(b.Context())
	var base Snapshot
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			var err error
			if base, err = s.Folder(fmt.Sprint("r", b.N), dir, Limits{}).Take(ctx, ""); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(base.Bytes)/1e6, "MB")
	})
	f := s.Folder("r", dir, Limits{})
	for range 2 { // it is watched from the second time on
		if _, err := f.Take(ctx, ""); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("unchanged", func(b *testing.B) {
		spend(b, func() {
			for b.Loop() {
				if _, err := f.Take(ctx, ""); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
	b.Run("statPass", func(b *testing.B) {
		spend(b, func() {
			for b.Loop() {
				f.full = time.Time{}
				if _, err := f.Take(ctx, ""); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
	n := 0
	b.Run("changed100", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			n++
			for i := range 100 {
				i *= 499
				path := filepath.Join(dir, fmt.Sprintf("d%d/e%d/%d", i%50, i%1000, i))
				if err := os.WriteFile(path, []byte(fmt.Sprint("changed ", n, i)), 0o644); err != nil {
					b.Fatal(err)
				}
			}
			b.StartTimer()
			if _, err := f.Take(ctx, ""); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("otherProcess", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Folder("r", dir, Limits{}).Take(ctx, f.last.ID); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("restore", func(b *testing.B) {
		spend(b, func() {
			for b.Loop() {
				if _, err := s.Restore(ctx, f.last.ID, filepath.Join(b.TempDir(), "r")); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}
