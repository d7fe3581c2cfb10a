package deliver_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/deliver"
	"code.wake.dev/wake/pkg/wire"
)

var update = flag.Bool("update", false, "rewrite testdata/*.golden")

const whole = `
# All that a file may say.
detectors:
  stuck: {after: 10m}
sinks:
  screen: {type: terminal}
  ops:
    type: webhook
    url: https://ops.example/wake
    secret: ${SECRET}
    headers: {Authorization: "Bearer ${TOKEN}"}
    timeout: 5s
    attempts: 3
    expire: 1h
    rate: {count: 10, per: 1m}
  team: {type: chat, url: "ntfy://:${TOKEN}@ntfy.example/wake"}
  am: {type: alertmanager, url: http://alertmanager:9093}
  page: {type: exec, command: [/bin/page, --json], env: {KEY: "${TOKEN}"}}
rules:
  - match:
      kind: [error, "failure_*"]
      severity: warning
      flow: [review]
      run: ["nightly-*"]
      label: {team: core}
    sinks: [ops, page]
    quiet: {from: "22:00", to: "07:00", days: [mon, fri], zone: Europe/Berlin, pass: critical, drop: warning}
  - sinks: [screen, team, am]
    digest: 15m
`

func TestParse(t *testing.T) {
	t.Parallel()
	var s settings
	r, err := deliver.Parse("rules.yaml", []byte(whole), lookup, &s)
	if err != nil {
		t.Fatal(err)
	}
	if s.Stuck.After != 10*time.Minute || len(r.Sinks) != 5 || r.Sinks["ops"].Rate.Per != time.Minute || r.Sinks["ops"].Headers["Authorization"] != "Bearer t0psecret" {
		t.Errorf("%+v, %+v", s, r)
	}
	if d := cmp.Diff(deliver.Match{
		Kind: []string{"error", "failure_*"}, Severity: wire.SeverityWarning, Flow: []string{"review"}, Run: []string{"nightly-*"},
		Label: map[string]string{"team": "core"},
	}, r.Rules[0].Match); d != "" {
		t.Error(d)
	}
	for _, empty := range []string{"", "# nothing\n", "---\n", "detectors: {}\n", "detectors:\n", "sinks: {}\nrules: []\n"} {
		if r, err := deliver.Parse("rules.yaml", []byte(empty), lookup, &settings{}); err != nil || len(r.Sinks) > 0 {
			t.Errorf("%q: %v, %v", empty, r, err)
		}
	}
}

// What is wrong with a file is said with the line, and without its secrets.
func TestParseErrors(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = deliver.Parse(filepath.Base(file), src, lookup, &settings{})
			if err == nil {
				t.Fatal("it is accepted")
			}
			got := err.Error() + "\n"
			golden := strings.TrimSuffix(file, ".yaml") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Error(d)
			}
			if strings.Contains(got, "t0psecret") {
				t.Error("it shows a secret")
			}
		})
	}
}

// FuzzParse: whatever a file says, it is read or refused with lines of the file.
func FuzzParse(f *testing.F) {
	f.Add(whole)
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(src))
	}
	f.Fuzz(func(t *testing.T, src string) {
		r, err := deliver.Parse("f", []byte(src), lookup, &settings{})
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("%q", err)
			}
			return
		}
		at := time.Date(2026, 3, 29, 1, 30, 0, 0, time.UTC).UnixMilli()
		deliver.Simulate(r, []wire.Alert{{Kind: "error", Severity: wire.SeverityError, Timestamp: at}, {Kind: "x", Timestamp: at + 1}})
	})
}
