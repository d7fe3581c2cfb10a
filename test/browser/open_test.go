//go:build browser

package browser_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

var openTime = flag.Duration("open", 30*time.Second, "how long pages are open in TestOpenPages")

// busyAgent is a recorded agent that does something n times, 50 times a second: it says, thinks, reads, fails.
func busyAgent(t *testing.T, n int) string {
	t.Helper()
	events := make([]map[string]any, 0, n)
	for i := range n {
		id := fmt.Sprint("toolu_", i)
		switch {
		case i%7 == 0:
			events = append(events, map[string]any{"type": "agent:text", "content": fmt.Sprintf("Step %d: %s", i, strings.Repeat("looks at it once more, ", i%11))})
		case i%7 == 1:
			events = append(events, map[string]any{"type": "agent:thinking", "content": fmt.Sprintf("Thought %d: it may be the other file", i)})
		case i%70 == 4:
			events = append(events, map[string]any{"type": "agent:tool", "callId": id, "toolName": "Bash", "toolInput": map[string]any{"command": fmt.Sprint("go test ./", i)}, "toolOutput": strings.Repeat("FAIL line\n", i%40), "error": "exit status 1"})
		default:
			events = append(events, map[string]any{"type": "agent:tool", "callId": id, "toolName": "Read", "toolInput": map[string]any{"file_path": fmt.Sprintf("/src/%d.go", i)}, "toolOutput": strings.Repeat("package main\n", i%12)})
		}
	}
	b, err := json.Marshal(map[string]any{"calls": []any{map[string]any{"delayMs": 12, "output": map[string]any{"text": "done"}, "events": events}}})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// residentMB is how much memory a process has, in MB.
func residentMB(t *testing.T, pid int) float64 {
	t.Helper()
	for line := range strings.Lines(read(t, fmt.Sprintf("/proc/%d/status", pid))) {
		if kb, is := strings.CutPrefix(line, "VmRSS:"); is {
			n, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(kb), " kB"), 64)
			if err != nil {
				t.Fatal(err)
			}
			return n / 1e3
		}
	}
	t.Fatalf("process %d tells no memory", pid)
	return 0
}

// Pages that are open while a run does 50 things a second, and the console, keep no more the longer it takes.
func TestOpenPages(t *testing.T) {
	w := newWorld(t)
	w.write("busy.yaml", "name: busy\nnodes:\n  - {id: coder, type: agent, input: {prompt: \"Go on.\"}}\n")
	w.write("busy/coder.json", busyAgent(t, int(1.2*openTime.Seconds()+120)*80))

	// A console of its own, so that its memory is known.
	server := strings.TrimSpace(read(t, filepath.Join(w.dir, ".wake", "nats-url")))
	alone := w.command("console", "--nats-url", server, "--data-dir", "console", "--log-level", "warn")
	alone.Stderr = os.Stderr
	if err := alone.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = alone.Process.Signal(syscall.SIGINT); _ = alone.Wait() })
	file := filepath.Join(w.dir, "console", "console-url")
	w.until("the console is up", func() bool {
		_, err := os.Stat(file)
		return err == nil
	})
	w.url = strings.TrimSpace(read(t, file))
	if _, err := url.Parse(w.url); err != nil {
		t.Fatal(err)
	}

	tabs := map[string]*tab{"fleet": w.openTab(), "run": w.openTab()}
	tabs["fleet"].see("/", looks[0]) // which settles as long as nothing runs
	w.wake("run", "busy.yaml", "--fixtures", "busy", "--id", "busy", "--detach")
	w.until("the run has begun", func() bool { return strings.Contains(w.wake("status", "busy"), "active") })
	tabs["run"].run(emulation.SetDeviceMetricsOverride(1440, 900, 1, false), chromedp.Navigate(w.origin()+"/runs/busy"), chromedp.WaitReady("main", chromedp.ByQuery)) // it never settles
	type size struct{ heap, nodes float64 }
	measure := func(after time.Duration) (map[string]size, float64) {
		sizes, text := map[string]size{}, ""
		for _, name := range []string{"fleet", "run"} {
			heap, nodes := tabs[name].heap()
			sizes[name] = size{heap, nodes}
			text += fmt.Sprintf("%s %.2f MB %.0f nodes; ", name, heap/1e6, nodes)
		}
		mb := residentMB(t, alone.Process.Pid)
		t.Logf("after %v: %sconsole %.1f MB; wake up %.1f MB", after.Round(time.Second), text, mb, residentMB(t, w.server.Process.Pid))
		return sizes, mb
	}
	step := max(*openTime/60, 5*time.Second)
	begun := time.Now()
	var first map[string]size
	var firstMB float64
	for after := range 1000 {
		time.Sleep(step)
		sizes, mb := measure(time.Since(begun))
		if after == 2 {
			first, firstMB = sizes, mb
		}
		if time.Since(begun) < *openTime {
			continue
		}
		for name, s := range sizes {
			if f := first[name]; s.heap > 1.5*f.heap+1e6 || s.nodes > 1.5*f.nodes+500 {
				t.Errorf("%s grew from %.2f MB and %.0f nodes to %.2f MB and %.0f nodes", name, f.heap/1e6, f.nodes, s.heap/1e6, s.nodes)
			}
		}
		if mb > 1.5*firstMB+20 {
			t.Errorf("the console grew from %.1f to %.1f MB", firstMB, mb)
		}
		break
	}
	t.Log(w.wake("status", "busy"))
	for name, page := range tabs {
		page.checkQuiet(name)
	}
	w.wake("abort", "busy")
}
