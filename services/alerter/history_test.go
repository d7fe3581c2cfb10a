package alerter_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/alerter"
)

// A history is a file of testdata/histories: the events of a run, one JSON object
// a line, and the alerts that they raise. What an event leaves out follows from
// its place: runId r1, nodeId coder, execId <node>#1, the next seq of its node, and
// the position, which is the number of the event. "at" is the time since the
// beginning; without it a second has passed since the line before.
func parseHistory(t testing.TB, src []byte) []eventlog.Entry {
	t.Helper()
	var entries []eventlog.Entry
	seq := map[string]uint64{}
	at := time.Duration(0)
	for i, line := range strings.Split(string(src), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		m := map[string]any{}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("events.jsonl:%d: %v", i+1, err)
		}
		at += time.Second
		if s, ok := m["at"].(string); ok {
			d, err := time.ParseDuration(s)
			if err != nil {
				t.Fatalf("events.jsonl:%d: %v", i+1, err)
			}
			at = d
		}
		delete(m, "at")
		e := complete(t, m, begin0.Add(at).UnixMilli(), seq)
		entries = append(entries, eventlog.Entry{
			Pos: uint64(len(entries) + 1), Time: begin0.Add(at), RunID: e.RunID, NodeID: e.NodeID, Kind: e.Type().Kind(), Event: e,
		})
	}
	return entries
}

// begin0 is when histories begin.
var begin0 = time.Date(2026, 1, 1, 23, 0, 0, 0, time.UTC)

func complete(t testing.TB, m map[string]any, at int64, seq map[string]uint64) *wire.Event {
	t.Helper()
	for key, v := range map[string]any{"v": 1, "runId": "r1", "nodeId": "coder", "epoch": 1, "timestamp": at} {
		if _, ok := m[key]; !ok {
			m[key] = v
		}
	}
	node := fmt.Sprint(m["nodeId"])
	if _, ok := m["execId"]; !ok && node != wire.RunNode {
		m["execId"] = node + "#1"
	}
	if output, ok := m["toolOutput"]; m["type"] == "agent:tool" && !ok {
		m["toolOutput"] = output // null must be said
	}
	seq[node]++
	if _, ok := m["seq"]; !ok {
		m["seq"] = seq[node]
	}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	e, err := wire.DecodeJSON(b)
	if err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return e
}

// archive is the file of a history.
type archive = txtar.Archive

func histories(t *testing.T, check func(t *testing.T, file string, a *archive, entries []eventlog.Entry)) {
	t.Helper()
	files, err := filepath.Glob("testdata/histories/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no histories: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			check(t, file, a, parseHistory(t, a.Files[0].Data))
		})
	}
}

// Each history raises the alerts that are written beside it.
func TestHistories(t *testing.T) {
	t.Parallel()
	histories(t, func(t *testing.T, file string, a *archive, entries []eventlog.Entry) {
		got := render(t, alerter.Backtest(alerter.Defaults(), entries))
		if *update {
			a.Files = append(a.Files[:1], txtar.File{Name: "alerts", Data: []byte(got)})
			if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if len(a.Files) < 2 {
			t.Fatal("no alerts are expected: -update writes them")
		}
		if d := cmp.Diff(string(a.Files[1].Data), got); d != "" {
			t.Errorf("alerts (-update rewrites them):\n%s", d)
		}
	})
}

// render writes an alert as two lines: when, what, how bad and about whom; then
// what the supervisor gets.
func render(t testing.TB, list []wire.Alert) string {
	t.Helper()
	var b strings.Builder
	for _, a := range list {
		if !slices.Contains(alerter.Defaults().Kinds(), a.Kind) {
			t.Errorf("an alert is of kind %q, which rules don't know", a.Kind)
		}
		data, err := wire.AppendJSON(nil, a.Data)
		if err != nil {
			t.Fatal(err)
		}
		at := time.UnixMilli(a.Timestamp).Sub(begin0)
		fmt.Fprintf(&b, "%s\n\t%s %s %s %s\n\t%s\n", a.Text, at, a.Severity, a.NodeID, a.Key, data)
	}
	return b.String()
}

// What happens live is what the back-test says, also if the alerter is stopped
// and killed all the time: every alert once. The race detector, to which all are alike, has every eighth history.
func TestHistoriesLive(t *testing.T) {
	played := 0
	histories(t, func(t *testing.T, _ string, _ *archive, entries []eventlog.Entry) {
		if played++; testing.Short() && played%8 != 1 {
			return
		}
		natstest.Bubble(t, func(t *testing.T) {
			s, log := logtest.StartServer(t)
			var out printed
			settings := alerter.Defaults()
			settings.System.Lag = 0 // there is no recorder
			cfg := alerter.Config{Out: &out, Delay: 10 * time.Second, Settings: &settings}
			rng := rand.New(rand.NewPCG(1, uint64(len(entries))))
			conn := s.Conn(t)
			stop := start(t, logtest.Open(t, conn), cfg)
			runs := map[string]*history{wire.NoRun: nil}
			begin := time.Now()
			for _, e := range entries {
				<-time.After(time.Until(begin.Add(e.Time.Sub(begin0))))
				switch rng.IntN(6) {
				case 0:
					stop()
					stop = start(t, logtest.Open(t, conn), cfg)
				case 1:
					conn.Close()
					stop()
					conn = s.Conn(t)
					stop = start(t, logtest.Open(t, conn), cfg)
				}
				if runs[e.RunID] == nil {
					runs[e.RunID] = &history{t: t, log: log, run: e.RunID, writers: map[string]*eventlog.Writer{}}
				}
				runs[e.RunID].add(e.Event)
			}
			<-time.After(20 * time.Second)
			stop()
			want := alerter.Backtest(alerter.Defaults(), stored0(t, log))
			var got []wire.Alert
			for run := range runs {
				got = append(got, alerts(t, log, run)...)
			}
			if d := cmp.Diff(keys(want), keys(got)); d != "" {
				t.Errorf("back-test against life:\n%s", d)
			}
			if out.lines() != len(want) {
				t.Errorf("%d lines for %d alerts:\n%s", out.lines(), len(want), out.String())
			}
		})
	})
}

// stored0 returns all that the log has.
func stored0(t testing.TB, log *eventlog.Log) []eventlog.Entry {
	t.Helper()
	var all []eventlog.Entry
	for e, err := range log.Read(t.Context(), eventlog.Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

func keys(list []wire.Alert) []string {
	var all []string
	for _, a := range list {
		all = append(all, a.Key+" "+a.Text)
	}
	slices.Sort(all)
	return all
}
