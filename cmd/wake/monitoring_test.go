package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the table of metrics in docs/operations.md and the dashboard")

const (
	operations = "../../docs/operations.md"
	monitoring = "../../deploy/k8s/components/monitoring/"
)

// sample is a metric as /metrics shows it.
type sample struct {
	kind, help string
	labels     []string
}

// everything runs all services, alerts included, and returns the metrics of wake
// that they show.
func everything(t *testing.T) map[string]sample {
	t.Helper()
	dir := t.TempDir()
	rules := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(rules, []byte("sinks:\n  here: {type: terminal}\nrules:\n  - sinks: [here]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := free.Addr().String()
	free.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var said bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		a := &app{in: strings.NewReader(""), out: io.Discard, errOut: &said}
		ended <- a.main(ctx, []string{"up", "--data-dir", dir, "--http-addr", addr, "--rules", rules})
	}()
	defer func() {
		cancel()
		if code := <-ended; code != exitDone || t.Failed() {
			t.Errorf("exit code %d: %s", code, said.String())
		}
	}()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); <-time.After(20 * time.Millisecond) {
		if _, text := get(t, "http://"+addr+"/metrics"); strings.Contains(text, "\nwake_sink_sent_total") && strings.Contains(text, "\nwake_runner_slots ") {
			return metricsOf(text)
		}
	}
	t.Error("not all services show metrics")
	return nil
}

var (
	metricLine   = regexp.MustCompile(`(?m)^# (HELP|TYPE) (wake_\w+) (.*)$`)
	metricSample = regexp.MustCompile(`(?m)^(wake_\w+?)(?:_bucket|_sum|_count)?\{(.*)\}`)
	metricLabel  = regexp.MustCompile(`(\w+)="`)
)

func metricsOf(text string) map[string]sample {
	all := map[string]sample{}
	for _, m := range metricLine.FindAllStringSubmatch(text, -1) {
		s := all[m[2]]
		if m[1] == "HELP" {
			s.help = m[3]
		} else {
			s.kind = m[3]
		}
		all[m[2]] = s
	}
	for _, m := range metricSample.FindAllStringSubmatch(text, -1) {
		s := all[m[1]]
		for _, l := range metricLabel.FindAllStringSubmatch(m[2], -1) {
			if l[1] != "le" && !slices.Contains(s.labels, l[1]) {
				s.labels = append(s.labels, l[1])
			}
		}
		all[m[1]] = s
	}
	return all
}

// What /metrics shows is what the documentation says, and what rules and the
// dashboard ask for; nothing is metricLabel by runs or nodes.
func TestMetrics(t *testing.T) {
	all := everything(t)
	if t.Failed() {
		return
	}
	known := []string{"version", "source", "what", "provider", "sink", "type"}
	for name, m := range all {
		for _, l := range m.labels {
			if !slices.Contains(known, l) {
				t.Errorf("%s has label %s: labels have few values", name, l)
			}
		}
	}
	compareTable(t, metricTable(all))
	compareDashboard(t)
	for _, file := range []string{"rules.yaml", "dashboard.json"} {
		asked := regexp.MustCompile(`\bwake_\w+`).FindAllString(read(t, monitoring+file), -1)
		if len(asked) < 10 {
			t.Errorf("%s asks for %d metrics", file, len(asked))
		}
		for _, name := range asked {
			_, ok := all[name]
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if base, found := strings.CutSuffix(name, suffix); found {
					ok = ok || all[base].kind == "histogram"
				}
			}
			if !ok {
				t.Errorf("%s: there is no metric %s", file, name)
			}
		}
	}
}

func metricTable(all map[string]sample) string {
	var text strings.Builder
	text.WriteString("| metric | kind | by | what |\n|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		m := all[name]
		fmt.Fprintf(&text, "| `%s` | %s | %s | %s |\n", name, m.kind, strings.Join(m.labels, ", "), m.help)
	}
	return text.String()
}

func compareTable(t *testing.T, want string) {
	t.Helper()
	const begin, end = "<!-- metrics: go test ./cmd/wake -run TestMetrics -update -->\n", "<!-- end of metrics -->"
	text := read(t, operations)
	before, rest, ok := strings.Cut(text, begin)
	got, after, ended := strings.Cut(rest, end)
	if !ok || !ended {
		t.Fatalf("%s has no table of metrics", operations)
	}
	if *update {
		write(t, operations, before+begin+want+end+after)
	} else if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-update rewrites it):\n%s", operations, d)
	}
}

// Each alert says how bad it is, what is the matter and which runbook says what to do, and each
// runbook is that of an alert.
func TestRunbooks(t *testing.T) {
	var file struct {
		Spec struct {
			Groups []struct {
				Rules []struct {
					Alert, Expr         string
					Labels, Annotations map[string]string
				}
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, monitoring+"rules.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	_, runbooks, _ := strings.Cut(read(t, operations), "\n## Runbooks\n")
	runbooks, _, _ = strings.Cut(runbooks, "\n## ")
	alerts := map[string]int{} // of each runbook
	for _, m := range regexp.MustCompile(`(?m)^### (.*)$`).FindAllStringSubmatch(runbooks, -1) {
		alerts[anchor(m[1])] = 0
	}
	for _, g := range file.Spec.Groups {
		for _, r := range g.Rules {
			section, _ := strings.CutPrefix(r.Annotations["runbook"], "docs/operations.md#")
			if _, ok := alerts[section]; !ok {
				t.Errorf("%s: %q is no runbook", r.Alert, r.Annotations["runbook"])
			}
			alerts[section]++
			if r.Expr == "" || r.Annotations["summary"] == "" || !slices.Contains([]string{"info", "warning", "critical"}, r.Labels["severity"]) {
				t.Errorf("%s: %+v", r.Alert, r)
			}
		}
	}
	if len(alerts) < 10 {
		t.Errorf("%d runbooks", len(alerts))
	}
	for section, rules := range alerts {
		if rules == 0 {
			t.Errorf("docs/operations.md#%s is the runbook of no alert", section)
		}
	}
}

// anchor is how a heading is linked to.
func anchor(heading string) string {
	return strings.ReplaceAll(regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

// panel is a graph of the dashboard.
type panel struct {
	title, unit string
	lines       []line
}

// line is what a graph shows, and what it is called there.
type line struct{ expr, legend string }

// panels are the dashboard: this table is what to change.
func boardPanels() []panel {
	rate := func(metric, by, legend string) line {
		return line{fmt.Sprintf("sum by (%s) (rate(%s[$__rate_interval]))", by, metric), legend}
	}
	p99 := func(metric, legend string) line {
		return line{fmt.Sprintf("histogram_quantile(0.99, sum by (le) (rate(%s_bucket[$__rate_interval])))", metric), legend}
	}
	return []panel{
		{"Runs and nodes at work", "short", []line{{"sum(wake_runner_runs_owned)", "runs"}, {"sum(wake_runner_nodes_working)", "nodes"}, {"max(wake_runner_runs_parked)", "parked runs"}, {"sum(wake_runner_keepers_frozen)", "frozen agents and commands"}}},
		{"Slots", "short", []line{{"sum(wake_runner_slots)", "all"}, {"sum(wake_runner_slots_used)", "taken"}}},
		{"Wait in the queue, 99th percentile", "s", []line{{`histogram_quantile(0.99, sum by (le, what) (rate(wake_runner_queue_wait_seconds_bucket[$__rate_interval])))`, "{{what}}"}}},
		{"Agents started", "ops", []line{rate("wake_runner_agent_starts_total", "provider", "{{provider}}")}},
		{"Agents failed", "ops", []line{rate("wake_runner_agent_errors_total", "provider", "{{provider}}")}},
		{"Takeovers, and work lost to others", "ops", []line{rate("wake_runner_takeovers_total", "what", "{{what}} taken over"), rate("wake_runner_lost_total", "what", "{{what}} lost"), rate("wake_runner_set_aside_total", "", "runs set aside")}},
		{"Parked runs", "ops", []line{rate("wake_runner_parked_total", "", "parked"), rate("wake_runner_woken_total", "", "woken")}},
		{"The most overdue parked run", "s", []line{{"max(wake_runner_parked_late_seconds)", "late"}}},
		{"Events stored", "ops", []line{rate("wake_log_events_total", "pod", "{{pod}}")}},
		{"Time to store a batch, 99th percentile", "s", []line{p99("wake_log_store_seconds", "p99")}},
		{"Events that wait", "bytes", []line{{"sum(wake_log_waiting_bytes)", "all"}, {"sum(wake_log_spool_bytes)", "on disk"}}},
		{"Refusals, further attempts, fenced writers", "ops", []line{rate("wake_log_refused_total", "", "refused"), rate("wake_log_resends_total", "", "further attempts"), rate("wake_log_fenced_total", "", "fenced")}},
		{"Dead letters", "short", []line{{"sum by (source) (increase(wake_log_dead_letters_total[1h]))", "{{source}}, in an hour"}}},
		{"Fill of the stream of events", "percentunit", []line{{"max(wake_runner_stream_fill_ratio)", "fill"}, {"max(wake_recorder_expiry_ratio)", "age of what isn't recorded"}}},
		{"Recorder behind", "s", []line{{"max(wake_recorder_lag_seconds)", "lag"}}},
		{"Events recorded", "ops", []line{rate("wake_recorder_events_total", "", "recorded"), rate("wake_recorder_void_total", "", "void"), rate("wake_recorder_bad_total", "", "bad")}},
		{"Time to record a batch, 99th percentile", "s", []line{p99("wake_recorder_batch_seconds", "p99")}},
		{"Size of what is kept", "bytes", []line{{"max(wake_recorder_store_bytes)", "store"}, {"max(wake_recorder_folder_bytes)", "snapshots of folders"}, {"sum(wake_runner_journal_bytes)", "journals of agents"}}},
		{"Events missing", "short", []line{{"sum(wake_recorder_gaps_total)", "gaps"}, {"sum(wake_recorder_lost_total)", "dropped unrecorded"}}},
		{"Time to fold a batch, 99th percentile", "s", []line{p99("wake_snapshotter_fold_seconds", "snapshotter"), p99("wake_alerter_fold_seconds", "alerter")}},
		{"Alerts raised and sent", "ops", []line{rate("wake_alerter_alerts_total", "", "raised"), rate("wake_sink_sent_total", "sink", "{{sink}}")}},
		{"Alerts not taken", "ops", []line{rate("wake_sink_failures_total", "sink", "{{sink}}"), rate("wake_sink_dead_letters_total", "sink", "{{sink}} given up")}},
		{"Connections to NATS", "short", []line{{"sum(wake_nats_connected)", "processes connected"}, {"sum(increase(wake_nats_reconnects_total[5m]))", "made again, in 5 min"}}},
	}
}

// dashboard is the panels as Grafana reads them, three in a row.
func dashboard(t *testing.T) string {
	t.Helper()
	type object = map[string]any
	source := object{"type": "prometheus", "uid": "${source}"}
	var all []object
	for i, p := range boardPanels() {
		var targets []object
		for j, l := range p.lines {
			targets = append(targets, object{"refId": string(rune('A' + j)), "expr": strings.Replace(l.expr, " by ()", "", 1), "legendFormat": l.legend})
		}
		all = append(all, object{
			"id": i + 1, "type": "timeseries", "title": p.title, "datasource": source, "targets": targets,
			"gridPos":     object{"x": i % 3 * 8, "y": i / 3 * 8, "w": 8, "h": 8},
			"fieldConfig": object{"defaults": object{"unit": p.unit, "min": 0}, "overrides": []object{}},
		})
	}
	text, err := json.MarshalIndent(object{
		"uid": "wake", "title": "wake", "schemaVersion": 39, "editable": false, "refresh": "30s",
		"time":       object{"from": "now-6h", "to": "now"},
		"templating": object{"list": []object{{"name": "source", "type": "datasource", "query": "prometheus"}}},
		"panels":     all,
	}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}

func compareDashboard(t *testing.T) {
	t.Helper()
	want := dashboard(t)
	if *update {
		write(t, monitoring+"dashboard.json", want)
	} else if d := cmp.Diff(want, read(t, monitoring+"dashboard.json")); d != "" {
		t.Errorf("dashboard.json (-update rewrites it):\n%s", d)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
