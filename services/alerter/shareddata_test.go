//go:build shareddata

package alerter_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/alerter"
)

// TestSharedData gives the detectors every recording of a real agent and compares
// what they find with lists that were read against the recordings by eye. Of
// recordings by others only the kinds are listed: their words are theirs.
func TestSharedData(t *testing.T) {
	root := os.Getenv("WAKE_SHARED_DATA")
	if root == "" {
		root = "../../../shared/data"
	}
	for _, folder := range []string{"claude-stream", "claude-transcripts", "third-party"} {
		t.Run(folder, func(t *testing.T) {
			var got bytes.Buffer
			files := 0
			err := filepath.WalkDir(filepath.Join(root, folder), func(file string, _ fs.DirEntry, err error) error {
				if ext := filepath.Ext(file); err != nil || ext != ".jsonl" && ext != ".ndjson" || strings.HasSuffix(file, ".stdin.jsonl") {
					return err
				}
				name, _ := filepath.Rel(filepath.Join(root, folder), file)
				files++
				fmt.Fprintf(&got, "# %s\n", name)
				list := alerter.Backtest(alerter.Defaults(), recording(t, file, folder))
				cheap(t, list)
				for _, a := range list {
					text := a.Text
					if folder == "third-party" {
						text = a.Kind
					}
					fmt.Fprintf(&got, "%s %s %s\n", a.Severity, a.Key, text)
				}
				return nil
			})
			if err != nil || files < 10 {
				t.Fatalf("%d recordings, %v", files, err)
			}
			golden(t, "testdata/shared/"+folder+".golden", got.String())
		})
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("%s (-update rewrites it):\n%s", file, d)
	}
}

// recording returns the events of a recording as a log has them: each stored when
// it happened.
func recording(t *testing.T, file, folder string) []eventlog.Entry {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	o := claude.NormalizerOptions{Format: claude.Transcript}
	if folder == "claude-stream" || filepath.Ext(file) == ".ndjson" {
		o.Format = claude.Stream
	}
	at, exit := arrivals(strings.TrimSuffix(file, filepath.Ext(file)) + ".times")
	n := claude.NewNormalizer(o)
	var entries []eventlog.Entry
	now, number := begin0.UnixMilli(), 0
	add := func(events []*wire.Event) {
		for _, e := range events {
			e.RunID, e.NodeID, e.ExecID, e.Epoch, e.Seq = "r1", "agent", "agent#1", 1, uint64(len(entries)+1)
			entries = append(entries, eventlog.Entry{Pos: e.Seq, Time: time.UnixMilli(e.Timestamp), RunID: "r1", NodeID: "agent", Kind: e.Type().Kind(), Event: e})
		}
	}
	for line, err := range claude.Lines(bytes.NewReader(data), claude.MaxLine) {
		if err != nil {
			t.Fatal(err)
		}
		number++
		if ms, ok := at[number]; ok {
			now = begin0.UnixMilli() + ms
		}
		add(n.Line(now, line))
	}
	add(n.Finish(now, exit))
	return entries
}

// arrivals reads when the lines of a recording arrived, in ms from its beginning,
// and how its process ended.
func arrivals(file string) (map[int]int64, claude.Exit) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, claude.Exit{Unknown: true}
	}
	at := map[int]int64{}
	var exit claude.Exit
	for row := range strings.Lines(string(data)) {
		f := strings.Fields(row)
		if len(f) < 2 {
			continue
		}
		seconds, err := strconv.ParseFloat(f[0], 64)
		if err != nil {
			continue
		}
		n, err := strconv.Atoi(f[1])
		switch {
		case err == nil:
			at[n] = int64(seconds * 1000)
		case f[1] == "exit" && len(f) > 2:
			if exit.Code, err = strconv.Atoi(f[2]); err != nil || exit.Code < 0 {
				exit.Code, exit.Signal = -1, "KILL"
			}
		}
	}
	return at, exit
}

// D-DET A8: the three lists of a recording.
func TestTodoExamples(t *testing.T) {
	root := os.Getenv("WAKE_SHARED_DATA")
	if root == "" {
		root = "../../../shared/data"
	}
	list := alerter.Backtest(alerter.Defaults(), recording(t, filepath.Join(root, "third-party/claude-code-log/todowrite_examples.jsonl"), "third-party"))
	var got []string
	for _, a := range list {
		if a.Kind == "task_milestone" {
			_, text, _ := strings.Cut(a.Text, "] ")
			got = append(got, text)
		}
	}
	want := []string{
		"📋 [0/5] Created 5 tasks: Design the feature architecture, Implement core functionality, Add comprehensive tests, …",
		"📋 [1/5] Design the feature architecture ✅",
		"📋 [2/5] Implement core functionality",
		"📋 [2/6] Created: Conduct security review and penetration testing",
		"📋 [2/6] Implement core functionality ✅",
		"📋 [3/6] Add comprehensive tests",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
