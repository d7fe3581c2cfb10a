package watcher_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/watcher"
)

func TestMain(m *testing.M) { natstest.Main(m) }

const (
	id      = "20bf7da2-0000-4000-8000-000000000001"
	project = "-src-parser"
)

// scene is a folder of settings that is watched.
type scene struct {
	*testing.T
	log    *eventlog.Log
	config string
	idle   time.Duration
	prices agent.Prices
	stop   func()
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{T: t, log: logtest.Start(t), config: t.TempDir(), idle: time.Hour}
	s.start()
	return s
}

func (s *scene) start() {
	w, err := watcher.New(watcher.Config{ID: "w", Folders: []string{s.config}, Idle: s.idle, Prices: s.prices}, s.log, logtest.Logger(s))
	if err != nil {
		s.Fatal(err)
	}
	s.stop = logtest.Go(s, w.Run)
}

func (s *scene) path(name string) string { return filepath.Join(s.config, "projects", project, name) }

func (s *scene) write(name, content string) {
	s.Helper()
	if err := os.MkdirAll(filepath.Dir(s.path(name)), 0o700); err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(s.path(name), []byte(content), 0o600); err != nil {
		s.Fatal(err)
	}
}

func (s *scene) add(name, content string) {
	s.Helper()
	if err := os.MkdirAll(filepath.Dir(s.path(name)), 0o700); err != nil {
		s.Fatal(err)
	}
	f, err := os.OpenFile(s.path(name), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		s.Fatal(err)
	}
	if _, err := f.WriteString(content); err != nil {
		s.Fatal(err)
	}
	if err := f.Close(); err != nil {
		s.Fatal(err)
	}
}

// await waits until a node was read up to an offset, and returns its events.
func (s *scene) await(runID, node string, offset int) []*wire.Event {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 30*time.Second)
	defer cancel()
	var events []*wire.Event
	for e, err := range s.log.Follow(ctx, eventlog.Query{Run: runID, Node: node}) {
		if err != nil {
			s.Fatal(err)
		}
		events = append(events, e.Event)
		if mark, is := e.Event.Payload.(*wire.TranscriptRead); is && mark.Offset == int64(offset) {
			return events
		}
	}
	s.Fatalf("%s/%s was not read up to %d; its events: %v", runID, node, offset, typesOf(events))
	return nil
}

// marks returns the keys of the lines that were told, in order, and of those that were removed.
func marks(events []*wire.Event) (told, removed []string) {
	for _, e := range events {
		if mark, is := e.Payload.(*wire.TranscriptRead); is {
			told, removed = append(told, mark.Lines...), append(removed, mark.Removed...)
		}
	}
	return told, removed
}

func typesOf(events []*wire.Event) (types []wire.Type) {
	for _, e := range events {
		switch e.Payload.(type) {
		case *wire.TranscriptRead, *wire.NodeClaimed, *wire.NodeStart:
		default:
			types = append(types, e.Type())
		}
	}
	return types
}

// wanted are the keys and the events of a file that is read at once.
func wanted(content string) (keys []string, types []wire.Type) {
	x := session.NewIndex(nil)
	n := claude.NewNormalizer(claude.NormalizerOptions{Format: claude.Transcript})
	var events []*wire.Event
	for line := range strings.Lines(content) {
		if l := x.Add([]byte(strings.TrimRight(line, "\n"))); !l.Omitted {
			keys = append(keys, l.Key)
			events = append(events, n.Line(0, []byte(line))...)
		}
	}
	return keys, typesOf(events)
}

func recording(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("../../internal/agent/claude/testdata/transcript", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func same(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// A session that is written in pieces, cut anywhere, while watchers come and go, is told as one that is read at once:
// each line once, each event once, in a run that folds.
func TestPieces(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	content := recording(t, "todowrite.jsonl")
	random := rand.New(rand.NewPCG(1, 2))
	for rest := content; rest != ""; {
		n := min(len(rest), 1+random.IntN(len(content)/8))
		s.add(id+".jsonl", rest[:n])
		rest = rest[n:]
		if random.IntN(2) == 0 {
			if whole := strings.LastIndexByte(content[:len(content)-len(rest)], '\n') + 1; whole > 0 && random.IntN(2) == 0 {
				s.await(id, "agent", whole)
			}
			s.stop()
			s.start()
		}
	}
	events := s.await(id, "agent", len(content))
	keys, types := wanted(content)
	told, removed := marks(events)
	same(t, "lines", keys, told)
	same(t, "events", types, typesOf(events))
	same(t, "removed", []string(nil), removed)
	state := run.New(id)
	for e, err := range s.log.Read(t.Context(), eventlog.Query{Run: id}) {
		if err != nil {
			t.Fatal(err)
		}
		if err := run.Apply(state, wire.Position{Incarnation: s.log.Incarnation(), Seq: e.Pos}, e.Event); err != nil {
			t.Error(err)
		}
	}
	if state.Status != wire.RunRunning || state.Labels["session"] != id || state.Labels["name"] == "" {
		t.Errorf("the run is %s, %v", state.Status, state.Labels)
	}
}

// What the last message used is told, too, at the prices that are given: at once if its line says that it is over, else when nothing more comes.
func TestLastUsage(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]string{"over": `"end_turn"`, "of an older version": "null"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &scene{T: t, log: logtest.Start(t), config: t.TempDir(), idle: time.Millisecond, prices: agent.Prices{"m": {Input: 2, Output: 10}}}
			s.write(id+".jsonl", `{"type":"assistant","uuid":"00000000-0000-4000-8000-000000000001","sessionId":"`+id+`","timestamp":"2026-01-01T00:00:00Z","message":{"id":"m1","model":"m","stop_reason":`+stop+`,"content":[{"type":"text","text":"Done."}],"usage":{"input_tokens":7,"output_tokens":5}}}`+"\n")
			s.start()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			for e, err := range s.log.Follow(ctx, eventlog.Query{Run: id, Node: "agent"}) {
				if err != nil {
					t.Fatal(err)
				}
				if p, is := e.Event.Payload.(*wire.Usage); is {
					if p.InputTokens != 7 || p.OutputTokens != 5 || p.CostUsd == nil || math.Abs(*p.CostUsd-64e-6) > 1e-12 || p.CostSource != wire.PricesOptions {
						t.Errorf("%+v", p)
					}
					break
				}
			}
			s.stop()
		})
	}
}

// What was told of a message when nothing more came isn't told again when the session goes on.
func TestLastUsageOnce(t *testing.T) {
	t.Parallel()
	s := &scene{T: t, log: logtest.Start(t), config: t.TempDir(), idle: time.Millisecond}
	said := func(n int) string {
		return fmt.Sprintf(`{"type":"assistant","uuid":"00000000-0000-4000-8000-00000000000%d","sessionId":"%s","timestamp":"2026-01-01T00:00:0%dZ","message":{"id":"m%d","model":"m","stop_reason":null,"content":[{"type":"text","text":"Done."}],"usage":{"input_tokens":7,"output_tokens":5}}}`+"\n", n, id, n, n)
	}
	until := func(message string) (told []string) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		for e, err := range s.log.Follow(ctx, eventlog.Query{Run: id, Node: "agent"}) {
			if err != nil {
				t.Fatal(err)
			}
			if p, is := e.Event.Payload.(*wire.Usage); is {
				if told = append(told, p.MessageID); p.MessageID == message {
					return told
				}
			}
		}
		return told
	}
	s.write(id+".jsonl", said(1))
	s.start()
	until("m1")
	s.add(id+".jsonl", said(2))
	same(t, "while the watcher goes on", []string{"m1", "m2"}, until("m2"))
	s.stop()
	s.add(id+".jsonl", said(3))
	s.start()
	same(t, "by another one", []string{"m1", "m2", "m3"}, until("m3"))
	s.stop()
	s.add(id+".jsonl", said(4))
	s.idle = time.Hour
	s.start()
	s.await(id, "agent", 4*len(said(1)))
	s.stop() // before it is told
	s.idle = time.Millisecond
	s.start()
	same(t, "by the one behind that", []string{"m1", "m2", "m3", "m4"}, until("m4"))
	s.stop()
}

// A file that is written anew is matched by its lines: what is new is told, what is gone is recorded as removed, whether a
// watcher looked on or comes later.
func TestRewritten(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]bool{"seen": false, "away": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			content := recording(t, "todowrite.jsonl")
			lines := strings.SplitAfter(strings.TrimSuffix(content, "\n"), "\n")
			s.write(id+".jsonl", content)
			s.await(id, "agent", len(content))
			if away {
				s.stop()
			}
			gone := lines[4]
			last := `{"type":"user","uuid":"00000000-0000-4000-8000-00000000abcd","sessionId":"` + id + `","timestamp":"2026-11-21T01:00:00Z","message":{"role":"user","content":"more"}}` + "\n"
			anew := strings.Join(slices.Concat(lines[:4], lines[5:]), "") + "\n" + last
			s.write(id+".new", anew)
			if err := os.Rename(s.path(id+".new"), s.path(id+".jsonl")); err != nil {
				t.Fatal(err)
			}
			if away {
				s.start()
			}
			events := s.await(id, "agent", len(anew))
			told, removed := marks(events)
			keys, _ := wanted(content)
			same(t, "told", append(keys, "00000000-0000-4000-8000-00000000abcd"), told)
			x := session.NewIndex(nil)
			for _, line := range lines[:4] {
				x.Add([]byte(strings.TrimSuffix(line, "\n")))
			}
			same(t, "removed", []string{x.Add([]byte(strings.TrimSuffix(gone, "\n"))).Key}, removed)
		})
	}
}

// TestCutBack shows that what a file says is told once, though it is cut back and restored, twice, while a watcher looks on, and while none
// does: neither its calls nor what they cost come again.
func TestCutBack(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	content := recording(t, "todowrite.jsonl")
	said := func(events []*wire.Event) (said []string) {
		for _, e := range events {
			switch e.Payload.(type) {
			case *wire.TranscriptRead, *wire.NodeClaimed, *wire.SessionBound:
			default:
				said = append(said, string(e.Type())+" "+e.CallID)
			}
		}
		return said
	}
	s.write(id+".jsonl", content)
	want := said(s.await(id, "agent", len(content)))
	keys, _ := wanted(content)
	slices.Sort(keys)
	short := content[:strings.IndexByte(content[len(content)/2:], '\n')+len(content)/2+1]
	for range 2 {
		for _, now := range []string{short, content} {
			s.write(id+".jsonl", now)
			s.settle("the file", id, id+".jsonl")
		}
		s.stop()
		s.start()
	}
	same(t, "stands", keys, s.stands(id))
	content += `{"type":"user","uuid":"00000000-0000-4000-8000-00000000abcd","sessionId":"` + id + `","timestamp":"2026-11-21T01:00:00Z","message":{"role":"user","content":"more"}}` + "\n"
	s.write(id+".jsonl", content)
	same(t, "told", append(want, "user:message "), said(s.await(id, "agent", len(content))))
}

// A file that is longer than what is told at once isn't taken for one that was written anew.
func TestLongFile(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	content := linesOf(0, 1000)
	s.write(id+".jsonl", content)
	before := int64(0)
	for _, e := range s.await(id, "agent", len(content)) {
		if mark, is := e.Payload.(*wire.TranscriptRead); is {
			if mark.Offset <= before {
				t.Fatalf("it was read up to %d, and then to %d", before, mark.Offset)
			}
			before = mark.Offset
		}
	}
}

// Files that aren't as expected harm nobody: the others are told.
func TestStrangeFiles(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	line := `{"type":"user","uuid":"00000000-0000-4000-8000-00000000000%","sessionId":"x","cwd":"/src/parser","timestamp":"2026-11-21T01:00:00Z","message":{"role":"user","content":"hi"}}` + "\n"
	s.write("../stray.jsonl", line)                     // beside the projects
	s.write("name with spaces.jsonl", line)             // no session
	s.write("empty.jsonl", "")                          //
	s.write("zeros.jsonl", string(make([]byte, 1<<12))) // no line end
	if err := os.Symlink(s.path(""), s.path("loop")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", s.path("endless.jsonl")); err != nil {
		t.Fatal(err)
	}
	huge := strings.Repeat("y", 3<<20)
	content := "no JSON\n" + "\x00\xff\n" + strings.ReplaceAll(line, "hi", huge) + line + strings.ReplaceAll(line, "%", "1")
	s.write(id+".jsonl", content)
	events := s.await(id, "agent", len(content))
	if told, _ := marks(events); len(told) != 5 {
		t.Errorf("told: %v", told)
	}
	// Another one of the same session elsewhere, and a sub-agent.
	s.write("../-src-other/"+id+".jsonl", line)
	s.await(id+"-"+twinOf(t, s, id), "agent", len(line))
	s.write(id+"/subagents/agent-a1.jsonl", line)
	s.await(id, "agent-a1", len(line))
	for _, other := range []string{"stray", "empty", "zeros", "endless", "name with spaces", "agent-a1"} {
		if _, found, err := s.log.Last(t.Context(), strings.ReplaceAll(other, " ", "-"), wire.RunNode); err != nil || found {
			t.Errorf("%s: %v, %v", other, found, err)
		}
	}
}

// twinOf waits for the run of another file of a session, and returns what its id has more.
func twinOf(t *testing.T, s *scene, id string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for e, err := range s.log.Follow(ctx, eventlog.Query{Kinds: []wire.Kind{wire.KindFlow}}) {
		if err != nil {
			t.Fatal(err)
		}
		if more, is := strings.CutPrefix(e.Event.RunID, id+"-"); is {
			return more
		}
	}
	t.Fatal("the other file isn't told")
	return ""
}

// What a runner keeps is its own to record.
func TestDriven(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	kept, err := s.log.JetStream().ObjectStore(t.Context(), s.log.Names().SessionsBucket())
	if err != nil {
		t.Fatal(err)
	}
	driven := "20bf7da2-0000-4000-8000-000000000002"
	if _, err := kept.Put(t.Context(), jetstream.ObjectMeta{Name: driven}, bytes.NewReader([]byte("x"))); err != nil {
		t.Fatal(err)
	}
	content := recording(t, "todowrite.jsonl")
	s.write(driven+".jsonl", content)
	s.write(id+".jsonl", content)
	s.await(id, "agent", len(content))
	s.add(driven+".jsonl", "{}\n")
	s.add(id+".jsonl", "{}\n")
	s.await(id, "agent", len(content)+3)
	if _, found, err := s.log.Last(t.Context(), driven, wire.RunNode); err != nil || found {
		t.Errorf("%v, %v", found, err)
	}
}

// The line that names the folder of a session comes some time behind its first one, as where a hook is slow: the run is labelled by it.
func TestLateFolder(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	first := `{"type":"queue-operation","operation":"enqueue","timestamp":"2026-05-05T09:00:00.000Z","sessionId":"` + id + `"}` + "\n"
	then := `{"type":"user","uuid":"u1","timestamp":"2026-05-05T09:00:01.000Z","cwd":"/home/dev/src/parser","gitBranch":"fix","sessionId":"` + id + `","message":{"role":"user","content":"hello"}}` + "\n"
	s.write(id+".jsonl", first)
	<-time.After(800 * time.Millisecond) // twice what a session takes to settle
	s.add(id+".jsonl", then)
	s.await(id, "agent", len(first)+len(then))
	for e, err := range s.log.Read(t.Context(), eventlog.Query{Run: id, Node: wire.RunNode}) {
		if err != nil {
			t.Fatal(err)
		}
		if start, ok := eventlog.PayloadOf[*wire.FlowStart](e); ok {
			if start.Labels["project"] != "parser" || start.Labels["branch"] != "fix" {
				t.Errorf("labels %v", start.Labels)
			}
			return
		}
	}
	t.Error("the run hasn't begun")
}

// Another process may write on the run itself, such as the listener of the session's hooks: the watcher goes on from there.
func TestRunOfOthers(t *testing.T) {
	s := &scene{T: t, log: logtest.Start(t), config: t.TempDir()}
	content := recording(t, "todowrite.jsonl")
	s.write(id+".jsonl", content)
	w, err := watcher.New(watcher.Config{ID: "w", Folders: []string{s.config}, Since: 100 * 365 * 24 * time.Hour, Idle: time.Millisecond}, s.log, logtest.Logger(s))
	if err != nil {
		t.Fatal(err)
	}
	s.stop = logtest.Go(s, w.Run)
	s.await(id, "agent", len(content))
	logtest.Append(t, logtest.Claim(t, s.log, id, wire.RunNode), &wire.Event{Payload: &wire.RawMessage{Source: "test", Data: wire.RawString("x")}})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for e, err := range s.log.Follow(ctx, eventlog.Query{Run: id, Node: wire.RunNode}) {
		if err != nil {
			t.Fatal(err)
		}
		if _, paused := e.Event.Payload.(*wire.FlowPaused); paused {
			return
		}
	}
	t.Error("the run is never paused")
}

// A session that its program keeps at the server is told by that, and not from its file once more.
func TestKeptByItsProgram(t *testing.T) {
	s := newScene(t)
	start, err := (&session.About{}).Start("")
	if err != nil {
		t.Fatal(err)
	}
	logtest.Append(t, logtest.Claim(t, s.log, id, wire.RunNode), &wire.Event{Payload: start})
	logtest.Append(t, logtest.Claim(t, s.log, id, session.MainNode), &wire.Event{Payload: &wire.TranscriptRead{File: session.StoreFile + project + "/" + id, Digest: "x"}})
	line := `{"type":"user","uuid":"00000000-0000-4000-8000-000000000001","message":{"content":"x"}}` + "\n"
	s.write(id+".jsonl", line)
	other := "20bf7da2-0000-4000-8000-000000000002"
	s.write(other+".jsonl", line)
	s.await(other, session.MainNode, len(line))
	last, _, err := s.log.Last(t.Context(), id, session.MainNode)
	if err != nil {
		t.Fatal(err)
	}
	if mark, is := last.Event.Payload.(*wire.TranscriptRead); !is || len(mark.Lines) > 0 {
		t.Errorf("the last event is %v", last.Event)
	}
}
