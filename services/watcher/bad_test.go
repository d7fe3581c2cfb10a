package watcher_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/watcher"
)

// stands returns the keys that the log has of a file: those that were told, less those that were removed. It fails for one
// that is told twice.
func (s *scene) stands(runID string) []string {
	s.Helper()
	keys := map[string]bool{}
	for e, err := range s.log.Read(s.Context(), eventlog.Query{Run: runID, Node: session.MainNode}) {
		if err != nil || e.Err != nil {
			s.Fatal(err, e.Err)
		}
		mark, is := e.Event.Payload.(*wire.TranscriptRead)
		if !is {
			continue
		}
		for _, key := range mark.Lines {
			if keys[key] {
				s.Errorf("%s is told twice", key)
			}
			keys[key] = true
		}
		for _, key := range mark.Removed {
			delete(keys, key)
		}
	}
	return slices.Sorted(maps.Keys(keys))
}

// settle waits until the log has what stands in a file, its whole lines.
func (s *scene) settle(what, runID, name string) {
	s.Helper()
	content, err := os.ReadFile(s.path(name))
	if err != nil {
		s.Fatal(err)
	}
	want, _ := wanted(string(content[:bytes.LastIndexByte(content, '\n')+1]))
	slices.Sort(want)
	s.until(what, func() bool { return slices.Equal(want, s.stands(runID)) }, func() string { return cmp.Diff(want, s.stands(runID)) })
}

func (s *scene) until(what string, ok func() bool, why func() string) {
	s.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); {
		if time.Now().After(end) {
			s.Fatalf("%s: %s", what, why())
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // it waits for a file system
	}
}

func line(n int, text string) string {
	return fmt.Sprintf(`{"type":"user","uuid":"00000000-0000-4000-8000-%012d","timestamp":"2026-11-21T01:00:00Z","message":{"role":"user","content":%q}}`+"\n", n, text)
}

func linesOf(from, to int) string {
	var b strings.Builder
	for n := from; n < to; n++ {
		b.WriteString(line(n, "hi"))
		b.WriteString(`{"type":"mode","mode":"default"}` + "\n") // as a third of the lines, it has no uuid
	}
	return b.String()
}

// Whatever is done to a file while it is watched: the log comes to have what stands in it, each line once, and what is gone as removed.
func TestBadTreatment(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	name := id + ".jsonl"
	whole := linesOf(0, 50)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s.write(name, whole)
	s.settle("written", id, name)
	for _, c := range []struct {
		what string
		do   func()
	}{
		{"cut in mid-line", func() { must(os.Truncate(s.path(name), int64(len(whole)/2))) }},
		{"the rest of a line that was cut", func() { s.add(name, "the rest\n"+line(100, "more")) }},
		{"truncated to nothing, and written anew", func() { must(os.Truncate(s.path(name), 0)); s.add(name, linesOf(40, 60)) }},
		{"written over in place", func() {
			f, err := os.OpenFile(s.path(name), os.O_WRONLY, 0)
			must(err)
			_, err = f.WriteAt([]byte(line(200, "ho")), 0)
			must(err)
			must(f.Close())
		}},
		{"replaced by one of the same size", func() {
			s.write(id+".new", strings.ReplaceAll(linesOf(40, 60), "hi", "ha"))
			must(os.Rename(s.path(id+".new"), s.path(name)))
		}},
		{"deleted, and there again", func() { must(os.Remove(s.path(name))); s.write(name, linesOf(55, 70)) }},
		{"moved away and back", func() {
			must(os.Rename(s.path(name), s.path("away")))
			s.add("away", line(300, "moved"))
			must(os.Rename(s.path("away"), s.path(name)))
		}},
		{"a folder in its place, and the file again", func() {
			must(os.Remove(s.path(name)))
			must(os.Mkdir(s.path(name), 0o700))
			must(os.Remove(s.path(name)))
			s.write(name, linesOf(10, 12))
		}},
		{"lines in another order", func() {
			all := strings.SplitAfter(strings.TrimSuffix(linesOf(10, 12), "\n"), "\n")
			all[len(all)-1] += "\n"
			slices.Reverse(all)
			s.write(name, strings.Join(all, ""))
		}},
		{"the project moved", func() {
			must(os.Rename(s.path(""), filepath.Join(filepath.Dir(s.path("")), "elsewhere")))
			must(os.Rename(filepath.Join(filepath.Dir(s.path("")), "elsewhere"), s.path("")))
			s.add(name, line(400, "after"))
		}},
		{"a pipe of another name", func() { must(syscall.Mkfifo(s.path("pipe.jsonl"), 0o600)); s.add(name, line(401, "pipe")) }},
	} {
		c.do()
		s.settle(c.what, id, name)
	}
}

// A file that is deleted, truncated and written again all the time while it is read ends as it stands.
func TestDeletedWhileRead(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	name := id + ".jsonl"
	for n := range 60 {
		switch n % 4 {
		case 0:
			s.write(name, linesOf(0, 2000))
		case 1:
			s.add(name, linesOf(2000, 2000+n))
		case 2:
			_ = os.Truncate(s.path(name), int64(n*1000))
		case 3:
			_ = os.Remove(s.path(name))
		}
	}
	s.write(name, linesOf(0, 500))
	s.settle("in the end", id, name)
}

// A line of 50 MB is told, and what is behind it; one that is too long is named, and what is behind it is told.
func TestLongLines(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	name := id + ".jsonl"
	s.write(name, line(1, strings.Repeat("long ", 10<<20))+line(2, "behind"))
	s.settle("50 MB", id, name)
	s.add(name, line(3, strings.Repeat("long ", 14<<20))+line(4, "behind it"))
	want := "00000000-0000-4000-8000-000000000004"
	s.until("70 MB", func() bool { return slices.Contains(s.stands(id), want) }, func() string { return strings.Join(s.stands(id), " ") })
	if n := len(s.stands(id)); n != 4 {
		t.Errorf("%d lines are told", n)
	}
}

// Times that jump harm nobody: files from the future and from 1970, lines whose times go back and forth. The run rests.
func TestClocksJump(t *testing.T) {
	t.Parallel()
	s := &scene{T: t, log: newScene(t).log, config: t.TempDir()}
	name := id + ".jsonl"
	var content strings.Builder
	for n, at := range []string{"2099-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "2026-11-21T01:00:00Z", "9999-12-31T23:59:59Z", "0000-01-01T00:00:00Z", "yesterday"} {
		content.WriteString(strings.ReplaceAll(line(n, "hi"), "2026-11-21T01:00:00Z", at))
	}
	s.write(name, content.String())
	for _, at := range []time.Time{time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(1, 0)} {
		if err := os.Chtimes(s.path(name), at, at); err != nil {
			t.Fatal(err)
		}
		if at.Year() == 2099 {
			s.startIdle(time.Millisecond)
			s.settle("the future", id, name)
		}
	}
	s.add(name, line(20, "now"))
	s.settle("now", id, name)
	paused := func() (n int) {
		for e, err := range s.log.Read(t.Context(), eventlog.Query{Run: id, Node: wire.RunNode}) {
			if err != nil {
				t.Fatal(err)
			}
			if _, is := e.Event.Payload.(*wire.FlowPaused); is {
				n++
			}
		}
		return n
	}
	s.until("it rests", func() bool { return paused() > 0 }, func() string { return "it runs on" })
}

func (s *scene) startIdle(idle time.Duration) {
	w, err := watcher.New(watcher.Config{ID: "w", Folders: []string{s.config}, Idle: idle}, s.log, logtest.Logger(s))
	if err != nil {
		s.Fatal(err)
	}
	s.stop = logtest.Go(s, w.Run)
}
