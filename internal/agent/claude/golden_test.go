package claude_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/pkg/wire"
)

var update = flag.Bool("update", false, "rewrite golden files")

// TestStreams compares the events of recorded streams with the golden lists
// beside them, which were read against the recordings by eye.
func TestStreams(t *testing.T) { golden(t, "stream", claude.Stream) }

// TestTranscripts is [TestStreams] for session files.
func TestTranscripts(t *testing.T) { golden(t, "transcript", claude.Transcript) }

func golden(t *testing.T, folder string, format claude.Format) {
	files, err := filepath.Glob(filepath.Join("testdata", folder, "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings in testdata/%s: %v", folder, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl"), func(t *testing.T) {
			rec := load(t, file)
			events := rec.normalize(claude.NormalizerOptions{Format: format})
			check(t, events)
			compare(t, strings.TrimSuffix(file, ".jsonl")+".golden", render(t, events))
		})
	}
}

func compare(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("events of %s (-want +got):\n%s", file, diff)
	}
}

// recording is what an agent printed, and when.
type recording struct {
	lines [][]byte
	at    []int64 // Unix ms by line
	exit  claude.Exit
}

// epoch is when recordings begin: their times are relative.
const epoch = 1_700_000_000_000

func load(t testing.TB, file string) recording {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r := recording{exit: claude.Exit{Unknown: true}}
	for line, err := range claude.Lines(bytes.NewReader(data), claude.MaxLine) {
		if err != nil {
			t.Fatal(err)
		}
		r.lines = append(r.lines, bytes.Clone(line))
	}
	r.at = make([]int64, len(r.lines))
	for i := range r.at {
		r.at[i] = epoch + int64(i)
	}
	r.times(strings.TrimSuffix(file, ".jsonl"))
	return r
}

// times reads the times of arrival and the exit code, if they were recorded.
func (r *recording) times(base string) {
	data, err := os.ReadFile(base + ".times")
	if err != nil {
		return
	}
	r.exit = claude.Exit{}
	if words, err := os.ReadFile(base + ".stderr"); err == nil {
		r.exit.Stderr = string(words)
	}
	for row := range strings.Lines(string(data)) {
		f := strings.Fields(row)
		seconds, err := strconv.ParseFloat(f[0], 64)
		if err != nil || len(f) < 2 {
			continue
		}
		at := epoch + int64(seconds*1000)
		switch n, err := strconv.Atoi(f[1]); {
		case err == nil && n >= 1 && n <= len(r.at):
			r.at[n-1] = at
		case f[1] == "!":
			r.exit.Signal = strings.TrimPrefix(f[2], "sig:")
		case f[1] == "exit":
			r.exited(f[2])
		}
	}
}

func (r *recording) exited(code string) {
	n, err := strconv.Atoi(code)
	switch {
	case err != nil:
	case n < 0:
		r.exit.Code = -1
	default:
		r.exit.Code, r.exit.Signal = n, ""
	}
}

func (r recording) normalize(o claude.NormalizerOptions) []*wire.Event {
	n := claude.NewNormalizer(o)
	var events []*wire.Event
	last := int64(epoch)
	for i, line := range r.lines {
		last = r.at[i]
		events = append(events, n.Line(last, line)...)
	}
	return append(events, n.Finish(last, r.exit)...)
}

// check requires that every event is valid and survives the codec.
func check(t testing.TB, events []*wire.Event) {
	t.Helper()
	for i, e := range events {
		e.RunID, e.NodeID, e.Seq, e.Epoch = "run", "coder", uint64(i+1), 1
		b, err := wire.Encode(e)
		if err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
		again, err := wire.Decode(b)
		if err != nil {
			t.Fatalf("event %d: decode: %v", i, err)
		}
		if b2, err := wire.Encode(again); err != nil || !bytes.Equal(b, b2) {
			t.Fatalf("event %d (%s) changed by the codec: %v", i, e.Type(), err)
		}
	}
}

// render writes events as compact JSON, one per line: without the fields that
// the writer stamps, times relative, long strings cut and hashed.
func render(t testing.TB, events []*wire.Event) []byte {
	t.Helper()
	var b bytes.Buffer
	session := ""
	for _, e := range events {
		line, err := wire.EncodeJSON(e)
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		dec := json.NewDecoder(bytes.NewReader(line))
		dec.UseNumber()
		if err := dec.Decode(&m); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"v", "runId", "nodeId", "seq", "epoch", "type", "inputHash"} {
			delete(m, key)
		}
		if e.SessionID == session {
			delete(m, "sessionId")
		}
		session = e.SessionID
		m["timestamp"] = e.Timestamp - events[0].Timestamp
		fmt.Fprintf(&b, "%-20s %s\n", e.Type(), ordered(m))
	}
	return b.Bytes()
}

// ordered is JSON with short and telling fields first.
func ordered(m map[string]any) string {
	first := []string{"timestamp", "turn", "parent", "agentId", "callId", "block", "name", "toolName"}
	var keys []string
	for key := range m {
		if !slices.Contains(first, key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	var b strings.Builder
	for _, key := range slices.Concat(first, keys) {
		v, ok := m[key]
		if !ok {
			continue
		}
		fmt.Fprintf(&b, " %s=%s", key, plainJSON(short(v)))
	}
	return strings.TrimSpace(b.String())
}

func plainJSON(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return []byte(err.Error())
	}
	return bytes.TrimSpace(b.Bytes())
}

// short cuts long strings and lists; a hash keeps them comparable.
func short(v any) any {
	switch v := v.(type) {
	case string:
		return shortString(v)
	case map[string]any:
		if j, _ := json.Marshal(v); len(j) > 700 {
			return fmt.Sprintf("{%d fields, %d bytes, %x}", len(v), len(j), hash(j))
		}
		for key := range v {
			v[key] = short(v[key])
		}
	case []any:
		if j, _ := json.Marshal(v); len(j) > 700 {
			return fmt.Sprintf("[%d items, %d bytes, %x]", len(v), len(j), hash(j))
		}
		for i := range v {
			v[i] = short(v[i])
		}
	}
	return v
}

func shortString(s string) string {
	if len(s) <= 160 {
		return s
	}
	cut := 60
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return fmt.Sprintf("%s… (%d bytes, %x)", s[:cut], len(s), hash([]byte(s)))
}

func hash(b []byte) []byte {
	sum := sha256.Sum256(b)
	return sum[:4]
}

// BenchmarkNormalizer measures a stream with partial messages, per line.
func BenchmarkNormalizer(b *testing.B) {
	rec := load(b, "testdata/stream/tools.jsonl")
	events := 0
	for b.Loop() {
		events = len(rec.normalize(claude.NormalizerOptions{}))
	}
	lines := float64(len(rec.lines) * b.N)
	b.ReportMetric(lines/b.Elapsed().Seconds(), "lines/s")
	b.ReportMetric(float64(events), "events")
}
