package session_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/session"
)

// readFile reads a file against what was told of it, and returns the keys of what is new and of what is gone.
func readFile(told map[string]bool, lines []string) (fresh, removed []string) {
	x := session.NewIndex(told)
	for _, line := range lines {
		if l := x.Add([]byte(line)); l.Fresh {
			fresh = append(fresh, l.Key)
		}
	}
	return fresh, x.Removed()
}

func drawLine(t *rapid.T) string {
	n := rapid.IntRange(0, 5).Draw(t, "n")
	switch rapid.IntRange(0, 4).Draw(t, "kind") {
	case 0:
		return fmt.Sprintf(`{"type":"user","uuid":"00000000-0000-4000-8000-00000000000%d"}`, n)
	case 1:
		return fmt.Sprintf(`{"type":"user","uuid":"00000000-0000-4000-8000-00000000000%d","edited":true}`, n)
	case 2:
		return fmt.Sprintf(`{"type":"api-request","id":%d}`, n)
	case 3:
		return fmt.Sprintf(`no JSON %d`, n)
	}
	return fmt.Sprintf(`{"type":"mode","mode":"%d"}`, n)
}

// However a file is rewritten: what is told, less what is removed, is what stands in it, each line once; read again it has
// nothing new; and what is added at its end is all that is new.
func TestRewritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOfN(rapid.Custom(drawLine), 0, 20)
		told := map[string]bool{}
		tell := func(file []string) (fresh, removed []string) {
			fresh, removed = readFile(told, file)
			for _, key := range fresh {
				if told[key] {
					t.Fatalf("%s is told twice", key)
				}
				told[key] = true
			}
			for _, key := range removed {
				if !told[key] {
					t.Fatalf("%s is removed and wasn't there", key)
				}
				delete(told, key)
			}
			return fresh, removed
		}
		first, second := lines.Draw(t, "first"), lines.Draw(t, "second")
		if _, removed := tell(first); len(removed) > 0 {
			t.Fatalf("removed from nothing: %v", removed)
		}
		tell(second)
		all, _ := readFile(nil, second)
		if diff := cmp.Diff(slices.Sorted(slices.Values(all)), slices.Sorted(maps.Keys(told))); diff != "" {
			t.Fatalf("what stands in it, and what was told (-want +got):\n%s", diff)
		}
		if fresh, removed := tell(second); len(fresh)+len(removed) > 0 {
			t.Fatalf("again: %v, %v", fresh, removed)
		}
		added := lines.Draw(t, "added")
		fresh, removed := tell(slices.Concat(second, added))
		want, _ := readFile(nil, slices.Concat(second, added))
		if diff := cmp.Diff(want[len(all):], fresh); len(fresh)+len(want)-len(all) > 0 && diff != "" || len(removed) > 0 {
			t.Fatalf("added at the end (-want +got):\n%s\nremoved: %v", diff, removed)
		}
	})
}

// Lines are read whole, whatever comes in pieces.
func TestReader(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	r := claude.NewLineReader(strings.NewReader("a\n\n"+long+"\n"+long+long+"\ncut"), 150<<10)
	var sizes []int64
	for {
		line, size, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if tooLong, is := errors.AsType[*claude.LineTooLongError](err); is {
			if size != int64(2*len(long)+1) || len(tooLong.Head) == 0 {
				t.Errorf("a line that is too long: %d bytes, %d of them kept", size, len(tooLong.Head))
			}
		} else if err != nil || int64(len(line)) != size {
			t.Errorf("%d bytes of %d, %v", len(line), size, err)
		}
		sizes = append(sizes, size)
	}
	if diff := cmp.Diff([]int64{2, 1, int64(len(long)) + 1, int64(2*len(long)) + 1}, sizes); diff != "" {
		t.Error(diff)
	}
}

func TestAbout(t *testing.T) {
	var a session.About
	for _, line := range []string{
		`{"type":"queue-operation","sessionId":"s1","timestamp":"2026-11-21T00:24:26.659Z"}`,
		`{"type":"user","uuid":"u0","isMeta":true,"message":{"content":"Caveat"}}`,
		`{"type":"user","uuid":"u1","cwd":"/src/parser","gitBranch":"main","message":{"content":[{"type":"text","text":"<command-name>/clear"}]}}`,
		`{"type":"user","uuid":"u2","cwd":"/elsewhere","message":{"content":"  fix\n the parser ` + strings.Repeat("x", 100) + `"}}`,
		`broken`,
	} {
		a.Note([]byte(line))
	}
	want := map[string]string{
		"session": "s1", "project": "parser", "branch": "main", "conversation": "u0", "name": "fix the parser " + strings.Repeat("x", 64) + "…",
	}
	if diff := cmp.Diff(want, a.Labels()); diff != "" || a.At != 1795220666659 {
		t.Errorf("at %d:\n%s", a.At, diff)
	}
	if a.Note([]byte(`{"type":"custom-title","customTitle":"Parser"}`)); a.Labels()["name"] != "Parser" {
		t.Errorf("the title that was given: %v", a.Labels())
	}
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte("{\"type\":\"user\",\"uuid\":\"00000000-0000-4000-8000-000000000001\"}\n{}\nx\n{}"), []byte("{}"))
	f.Fuzz(func(t *testing.T, before, after []byte) {
		told := map[string]bool{}
		fresh, _ := readFile(nil, strings.Split(string(before), "\n"))
		for _, key := range fresh {
			if told[key] {
				t.Fatalf("%s twice", key)
			}
			told[key] = true
		}
		fresh, removed := readFile(told, strings.Split(string(after), "\n"))
		all, _ := readFile(nil, strings.Split(string(after), "\n"))
		if len(told)+len(fresh)-len(removed) != len(all) {
			t.Fatalf("%d told, %d new, %d removed: %d stand there", len(told), len(fresh), len(removed), len(all))
		}
		var a session.About
		a.Note(after)
		a.Labels()
	})
}
