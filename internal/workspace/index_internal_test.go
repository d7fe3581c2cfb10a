package workspace

import (
	"bytes"
	"encoding/binary"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// indexOf makes an index of git in version 4: each name begins with the whole name before it.
func indexOf(names ...string) []byte {
	var b bytes.Buffer
	b.WriteString("DIRC")
	b.Write(binary.BigEndian.AppendUint32(nil, 4))
	b.Write(binary.BigEndian.AppendUint32(nil, uint32(len(names))))
	for _, name := range names {
		b.Write(make([]byte, 60))
		b.Write(binary.BigEndian.AppendUint16(nil, 0xfff))
		b.WriteByte(0) // it strips nothing
		b.WriteString(name + "\x00")
	}
	return b.Bytes()
}

// An index that an agent has written takes neither gigabytes nor hours, however little there is of it.
func TestHostileIndex(t *testing.T) {
	many := []string{strings.Repeat("a", 256<<10)}
	for range 4000 {
		many = append(many, "b")
	}
	long := []string{strings.Repeat("a/", 1000)}
	for i := range 100_000 {
		long = append(long, "/"+strconv.Itoa(i%10))
	}
	for name, content := range map[string][]byte{
		"long names": indexOf(many...), "one long path": indexOf(strings.Repeat("a/", 200_000) + "a"), "deep folders": indexOf(long...),
		"no end": indexOf("a")[:70], "many": append([]byte("DIRC\x00\x00\x00\x02\xff\xff\xff\xff"), make([]byte, 100)...),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := parseIndex(content)
		runtime.ReadMemStats(&after)
		if made := (after.TotalAlloc - before.TotalAlloc) >> 20; got != nil || made > 100 {
			t.Errorf("%s: %d names, %d MiB", name, len(got), made)
		}
	}
}

// What git 2.39 has written is read, in each of its versions.
func TestIndexOfGit(t *testing.T) {
	names := []string{"a", "ab", "ab.txt", "dir", "dir/sub", "dir/sub/one", "dir/sub/two", "dir/ä", strings.Repeat("long", 50)}
	for version, more := range map[string][]string{"v2": nil, "v3": {"later"}, "v4": nil} { // one that is only to be added has flags that version 2 doesn't know
		content, err := os.ReadFile(filepath.Join("testdata", "index", version))
		if err != nil {
			t.Fatal(err)
		}
		want := tracked{}
		for _, name := range append(more, names...) {
			want[name] = true
		}
		if got := parseIndex(content); !maps.Equal(got, want) {
			t.Errorf("%s: %v", version, got)
		}
	}
}
