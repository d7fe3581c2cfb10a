package journal_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"code.wake.dev/wake/internal/keeper/journal"
)

func create(t testing.TB, o journal.Options) (*journal.Journal, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "agent")
	j, err := journal.Create(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j, dir
}

func write(t testing.TB, j *journal.Journal, k journal.Kind, data string) {
	t.Helper()
	if _, err := j.Append(k, 1, []byte(data)); err != nil {
		t.Fatal(err)
	}
}

// text returns what a cursor reads up to the end.
func text(t testing.TB, c *journal.Cursor) string {
	t.Helper()
	defer func() { _ = c.Close() }()
	var b bytes.Buffer
	for {
		r, _, err := c.Next()
		if errors.Is(err, io.EOF) || err == nil && r == nil {
			return b.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		b.Write(r.Data)
	}
}

func TestSealed(t *testing.T) {
	key := bytes.Repeat([]byte{7}, 32)
	j, dir := create(t, journal.Options{Key: key})
	write(t, j, journal.In, "prompt: secret words")
	write(t, j, journal.Out, "answer")
	if err := j.GiveUp(journal.Rest{Offset: 6, State: []byte("state with secret words")}); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || bytes.Contains(b, []byte("secret")) {
			t.Errorf("%s: %q, %v", f, b, err)
		}
	}
	c, rest, err := journal.Open(dir, journal.Options{Key: key})
	if err != nil || string(rest.State) != "state with secret words" || text(t, c) != ": secret wordsanswer" {
		t.Errorf("rest %+v, %v", rest, err)
	}
	if _, _, err := journal.Open(dir, journal.Options{Key: bytes.Repeat([]byte{8}, 32)}); err == nil {
		t.Error("opened with another key")
	}
}

func TestFull(t *testing.T) {
	j, _ := create(t, journal.Options{Limit: 3 << 20})
	piece := string(bytes.Repeat([]byte("x"), 512<<10))
	var err error
	for n := 0; err == nil; n++ {
		if n > 100 {
			t.Fatal("it has no limit")
		}
		_, err = j.Append(journal.Out, 1, []byte(piece))
	}
	if !errors.Is(err, journal.ErrFull) {
		t.Fatal(err)
	}
	if err := j.GiveUp(journal.Rest{Offset: j.Offset()}); err != nil {
		t.Fatal(err)
	}
	write(t, j, journal.Out, piece) // there is room again
}

// TestCut reads journals that end anywhere, and have any byte changed: what comes is
// the beginning of what was written.
func TestCut(t *testing.T) {
	j, dir := create(t, journal.Options{})
	var b strings.Builder
	for n := range 50 {
		s := strings.Repeat(string(rune('a'+n%26)), 1+n%7)
		write(t, j, journal.Out, s)
		b.WriteString(s)
	}
	whole := b.String()
	name := filepath.Join(dir, "00000000000000000000")
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for n := range content {
		cut := filepath.Join(t.TempDir(), "cut")
		if err := os.Mkdir(cut, 0o700); err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(content)
		bad[n] ^= 1 << rand.IntN(8)
		for _, b := range [][]byte{content[:n], bad} {
			if err := os.WriteFile(filepath.Join(cut, filepath.Base(name)), b, 0o600); err != nil {
				t.Fatal(err)
			}
			c, _, err := journal.Open(cut, journal.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if got := text(t, c); !bytes.HasPrefix([]byte(whole), []byte(got)) || got == whole {
				t.Fatalf("cut at %d: %q", n, got)
			}
		}
	}
}

// TestCursor writes and gives up in any order; a cursor reads from any offset behind the last resting
// point what was written behind it.
func TestCursor(t *testing.T) {
	key := bytes.Repeat([]byte{1}, 32)
	dirs, number := t.TempDir(), 0
	rapid.Check(t, func(t *rapid.T) {
		number++
		dir := filepath.Join(dirs, strconv.Itoa(number))
		defer func() { _ = os.RemoveAll(dir) }()
		o := journal.Options{}
		if rapid.Bool().Draw(t, "sealed") {
			o.Key = key
		}
		j, err := journal.Create(filepath.Join(dir, "p"), o)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = j.Close() }()
		var whole []byte
		rest := 0
		read := func(c *journal.Cursor) []byte {
			defer func() { _ = c.Close() }()
			var got []byte
			for {
				r, _, err := c.Next()
				if r == nil || err != nil {
					return got
				}
				if c.Offset() != r.Offset+uint64(len(r.Data)) {
					t.Fatalf("offset %d of a record of %d bytes at %d", c.Offset(), len(r.Data), r.Offset)
				}
				got = append(got, r.Data...)
			}
		}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				data := bytes.Repeat([]byte{byte(len(whole))}, rapid.SampledFrom([]int{1, 10, 300_000, journal.MaxData}).Draw(t, "size"))
				if _, err := j.Append(journal.Out, 1, data); err != nil {
					t.Fatal(err)
				}
				whole = append(whole, data...)
			case 2:
				rest = rapid.IntRange(rest, len(whole)).Draw(t, "rest")
				if err := j.GiveUp(journal.Rest{Offset: uint64(rest)}); err != nil {
					t.Fatal(err)
				}
			case 3:
				from := rapid.IntRange(rest, len(whole)).Draw(t, "from")
				if got := read(j.Cursor(uint64(from))); !bytes.Equal(got, whole[from:]) {
					t.Fatalf("from %d: %d bytes of %d", from, len(got), len(whole)-from)
				}
			}
		}
		c, r, err := journal.Open(filepath.Join(dir, "p"), o)
		if err != nil || r.Offset != uint64(rest) {
			t.Fatalf("rest %d, want %d: %v", r.Offset, rest, err)
		}
		if got := read(c); !bytes.Equal(got, whole[rest:]) {
			t.Fatalf("%d bytes of %d", len(got), len(whole)-rest)
		}
	})
}

// TestFollow reads while another goroutine writes.
func TestFollow(t *testing.T) {
	j, _ := create(t, journal.Options{})
	const records = 3000
	go func() {
		for n := range records {
			_, _ = j.Append(journal.Out, 1, bytes.Repeat([]byte{byte(n)}, 1000))
		}
		_, _ = j.Append(journal.Exit, 1, []byte("0"))
		_ = j.Close()
	}()
	c := j.Cursor(0)
	defer func() { _ = c.Close() }()
	for n := 0; ; {
		r, more, err := c.Next()
		switch {
		case errors.Is(err, io.EOF):
			if n != records+1 {
				t.Fatalf("%d records", n)
			}
			return
		case err != nil:
			t.Fatal(err)
		case r == nil:
			<-more
		default:
			if r.Kind == journal.Out && (r.Offset != uint64(n)*1000 || r.Data[0] != byte(n)) {
				t.Fatalf("record %d: %d at %d", n, r.Data[0], r.Offset)
			}
			n++
		}
	}
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, segment, rest []byte) {
		dir := t.TempDir()
		_ = os.WriteFile(filepath.Join(dir, "00000000000000000000"), segment, 0o600)
		if len(rest) > 0 {
			_ = os.WriteFile(filepath.Join(dir, "rest"), rest, 0o600)
		}
		c, _, err := journal.Open(dir, journal.Options{})
		if err != nil {
			return
		}
		_ = text(t, c)
	})
}

// A journal that is full has room when a resting point behind all of it is stored, however small it is.
func TestRoomAgain(t *testing.T) {
	j, err := journal.Create(t.TempDir(), journal.Options{Limit: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	data := make([]byte, 4<<10)
	for range 3 {
		offset := uint64(0)
		for {
			next, err := j.Append(journal.Out, 1, data)
			if errors.Is(err, journal.ErrFull) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			offset = next
		}
		if offset == 0 {
			t.Fatal("it has no room")
		}
		if err := j.GiveUp(journal.Rest{Offset: offset}); err != nil {
			t.Fatal(err)
		}
	}
}
