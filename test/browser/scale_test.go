//go:build browser

package browser_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"
	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/bench"
	"code.wake.dev/wake/internal/console"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
	"code.wake.dev/wake/services/snapshotter"
)

var (
	scaleRuns   = flag.Int("runs", 5000, "how many runs go on in TestManyRuns")
	scaleEvents = flag.Int("events", 200_000, "how many events the run of TestLongRun has")
	scaleTime   = flag.Duration("changing", time.Minute, "how long runs change in TestManyRuns")
	scaleCPU    = flag.String("profile", "", "where TestManyRuns and TestLongRun write a profile of what they measure")
)

// host is a server with a recorder, a snapshotter and a console in this process, and nobody who would go on with runs.
type host struct {
	*world

	log     *eventlog.Log
	console *console.Console
}

func newHost(t *testing.T) *host {
	t.Helper()
	s := natstest.New(t) // which doesn't wait for the disk: so many runs are there sooner
	nc := s.Conn(t)
	logtest.Init(t, nc, topology.Config{})
	h := &host{world: &world{T: t, dir: t.TempDir()}, log: logtest.Open(t, nc)}
	r, err := recorder.New(recorder.Config{Path: filepath.Join(h.dir, "recorder.db")}, h.log, logtest.Logger(t))
	if err != nil {
		t.Fatal(err)
	}
	logtest.Go(t, r.Run)
	shots, err := snapshotter.New(snapshotter.Config{}, h.log, logtest.Logger(t))
	if err != nil {
		t.Fatal(err)
	}
	logtest.Go(t, shots.Run)
	logtest.Serve(t, h.log)
	h.console, err = console.New(console.Config{
		Addr: "127.0.0.1:0", Public: "https://ops.example/", Names: subjects.Default, By: "tester", Logger: slog.New(slog.DiscardHandler),
		Connect: func(context.Context) (*nats.Conn, error) { return nats.Connect("", nats.InProcessServer(s)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	logtest.Go(t, h.console.Run)
	h.url = h.console.URL()
	return h
}

// fetch asks the console as a program does.
func (h *host) fetch(path string) (int, string) {
	h.Helper()
	_, token, _ := strings.Cut(h.url, "#token=")
	r, err := http.NewRequestWithContext(h.Context(), http.MethodGet, h.origin()+path, nil)
	if err != nil {
		h.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		h.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		h.Fatal(err)
	}
	return answer.StatusCode, string(b)
}

// paint loads a page n times and tells after how many ms something was to be seen, the fastest first, and, in the same order as
// loaded, after how many the answer had come.
func (t *tab) paint(path string, n int) (ms, answered []float64) {
	t.Helper()
	t.see(path, looks[0])
	for range n {
		t.run(chromedp.Navigate("about:blank"), chromedp.Navigate(t.origin()+path), chromedp.WaitReady("main", chromedp.ByQuery))
		ms = append(ms, eval[float64](t, `new Promise(done => new PerformanceObserver(l => { for (const e of l.getEntriesByName('first-contentful-paint')) done(e.startTime) }).observe({type: 'paint', buffered: true}))`))
		answered = append(answered, eval[float64](t, `performance.getEntriesByType('navigation')[0].responseEnd`))
	}
	slices.Sort(ms)
	return ms, answered
}

// heap is what the page keeps, in bytes, and the number of its nodes.
func (t *tab) heap() (bytes, nodes float64) {
	t.Helper()
	t.run(performance.Enable(), heapprofiler.CollectGarbage(), heapprofiler.CollectGarbage(), chromedp.ActionFunc(func(ctx context.Context) error {
		all, err := performance.GetMetrics().Do(ctx)
		for _, m := range all {
			switch m.Name {
			case "JSHeapUsedSize":
				bytes = m.Value
			case "Nodes":
				nodes = m.Value
			}
		}
		return err
	}))
	return bytes, nodes
}

// profile writes a profile of what is done, if it is wanted.
func profile(t *testing.T, do func()) {
	t.Helper()
	if *scaleCPU != "" {
		f, err := os.Create(*scaleCPU + "-" + t.Name())
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		defer pprof.StopCPUProfile()
	}
	do()
}

func percent(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(p*float64(len(sorted))))]
}

// The page of a link that answers a question: it shows all of what is asked, to each holder of the link.
func TestAnswerPage(t *testing.T) {
	axe := read(t, wanted(t, "WAKE_AXE"))
	h := newHost(t)
	_, agent, err := bench.Begin(t.Context(), h.log, "r")
	if err != nil {
		t.Fatal(err)
	}
	input, err := wire.Marshal(map[string]any{"command": "make deploy ENV=production && " + strings.Repeat("curl -fsS https://example.com/healthz && ", 5) + "echo done"})
	if err != nil {
		t.Fatal(err)
	}
	asked := time.Now().UnixMilli()
	pos, err := agent.Append(t.Context(), &wire.Event{ExecID: "coder#1", CallID: "c1", Timestamp: asked, Payload: &wire.ToolIntent{ToolName: "Bash", ToolInput: input}},
		&wire.Event{ExecID: "coder#1", CallID: "c1", Timestamp: asked, Payload: &wire.PermissionRequired{ToolName: "Bash", ToolInput: input}})
	if err != nil {
		t.Fatal(err)
	}
	data, err := wire.Marshal(map[string]any{"callId": "c1"})
	if err != nil {
		t.Fatal(err)
	}
	link := h.console.AnswerLink(&wire.Alert{Kind: "waiting", RunID: "r", NodeID: "coder", Timestamp: asked, Position: wire.Position{Incarnation: h.log.Incarnation(), Seq: pos}, Data: data})
	path := strings.TrimPrefix(link, "https://ops.example")
	page := h.openTab()
	for _, l := range looks {
		page.see(path, l)
		if !strings.Contains(eval[string](page, `document.body.innerText`), "ENV=production") {
			t.Fatalf("the page of %q doesn't ask: %s", link, eval[string](page, `document.body.innerText`))
		}
		page.checkPage("answer "+l.name(), axe)
		page.shoot("answer-" + l.name())
		page.see("/answer/nothing", l)
		page.shoot("answer-gone-" + l.name())
	}
}

// Thousands of runs, of which 50 change every second: a page is there within a second, shows a change within a second, has few
// rows, and doesn't grow.
func TestManyRuns(t *testing.T) {
	h := newHost(t)
	agents := make([]*eventlog.Writer, *scaleRuns)
	var working sync.WaitGroup
	for part := range 64 {
		working.Go(func() {
			for i := part; i < len(agents); i += 64 {
				_, node, err := bench.Begin(t.Context(), h.log, fmt.Sprintf("r%05d", i))
				if err != nil {
					t.Error(err)
					return
				}
				agents[i] = node
			}
		})
	}
	working.Wait()
	if t.Failed() {
		return
	}
	h.until("the runs are recorded", func() bool {
		_, text := h.fetch("/")
		return strings.Contains(text, fmt.Sprintf("of %d<", len(agents)))
	})
	page := h.openTab()
	paints, answered := page.paint("/", 5)
	t.Logf("before anything changes: first paint after %.0f ms, answers after %.0f", paints, answered)

	// Each change says when it was made. One change in five is of a run that is on the page.
	shown := eval[[]int](page, `[...document.querySelectorAll('.fleet [data-row]')].map(e => +e.id.slice('run-r'.length))`)
	ctx, stop := context.WithCancel(t.Context())
	changes, open := 0, map[int]string{} // the open call of a run
	working.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for ; ctx.Err() == nil; changes++ {
			i := rand.IntN(len(agents))
			if changes%5 == 0 {
				i = shown[rand.IntN(len(shown))]
			}
			input, err := wire.Marshal(map[string]any{"command": fmt.Sprintf("tick %d at %d", changes, time.Now().UnixMilli())})
			if err != nil {
				t.Error(err)
				return
			}
			call := fmt.Sprint("c", changes)
			events := []*wire.Event{{ExecID: "coder#1", CallID: call, Payload: &wire.ToolIntent{ToolName: "Bash", ToolInput: input}}}
			if before := open[i]; before != "" {
				events = append([]*wire.Event{{ExecID: "coder#1", CallID: before, Payload: &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null}}}, events...)
			}
			open[i] = call
			if _, err := agents[i].Append(ctx, events...); err != nil {
				if ctx.Err() == nil {
					t.Error(err)
				}
				return
			}
			<-tick.C
		}
	})
	defer working.Wait()
	defer stop()
	profile(t, func() {
		paints, answered := page.paint("/", 10)
		t.Logf("while they change: first paint after %.0f ms, answers after %.0f", paints, answered)
		if worst := paints[len(paints)-1]; worst > 1000 {
			t.Errorf("the first paint takes %.0f ms", worst)
		}
		page.run(chromedp.Evaluate(`window.seen = new Map(); window.look = () => { for (const e of document.querySelectorAll('.fleet .does')) { const m = /tick (\d+) at (\d+)/.exec(e.textContent); if (m && !seen.has(m[1])) seen.set(m[1], Date.now() - m[2]) } }; look(); seen.clear(); window.known = new Set([...document.querySelectorAll('.fleet .does')].map(e => (/tick (\d+)/.exec(e.textContent) || [])[1])); new MutationObserver(look).observe(document.querySelector('#fleet'), {childList: true, subtree: true, characterData: true}); window.stalls = 0; new PerformanceObserver(l => stalls += l.getEntries().length).observe({type: 'longtask'})`, nil))
		begun := time.Now()
		first, firstNodes := page.heap()
		var heaps []string
		for time.Since(begun) < *scaleTime {
			time.Sleep(*scaleTime / 6)
			b, nodes := page.heap()
			heaps = append(heaps, fmt.Sprintf("%.1f MB, %.0f nodes", b/1e6, nodes))
		}
		last, lastNodes := page.heap()
		late := eval[[]float64](page, `[...seen].filter(([k]) => !known.has(k)).map(([, v]) => v)`)
		slices.Sort(late)
		t.Logf("a row says %q", eval[string](page, `document.querySelector('.fleet [data-row]').innerText`))
		t.Logf("%d changes were seen in %v, after p50 %.0f, p95 %.0f, p99 %.0f ms; %d long tasks", len(late), *scaleTime, percent(late, 0.5), percent(late, 0.95), percent(late, 0.99), eval[int](page, `stalls`))
		if len(late) < int(scaleTime.Seconds()) || percent(late, 0.95) > 1000 {
			t.Errorf("%d changes were seen, 95 %% of them within %.0f ms", len(late), percent(late, 0.95))
		}
		t.Logf("memory: %.1f MB, %.0f nodes; then %s", first/1e6, firstNodes, strings.Join(heaps, "; "))
		if last > first*1.5+2e6 || lastNodes > firstNodes*1.5+1000 {
			t.Errorf("the page grew from %.1f MB and %.0f nodes to %.1f MB and %.0f nodes", first/1e6, firstNodes, last/1e6, lastNodes)
		}
	})
	if rows, all := eval[int](page, `document.querySelectorAll('[data-row]').length`), eval[int](page, `document.querySelectorAll('*').length`); rows >= 200 {
		t.Errorf("the page has %d rows, %d elements", rows, all)
	} else {
		t.Logf("%d rows, %d elements", rows, all)
	}
	page.checkQuiet("many runs")
}

// A run with very many events: its page is there within a second, and has few nodes.
func TestLongRun(t *testing.T) {
	h := newHost(t)
	begun := time.Now()
	last, err := bench.Fill(t.Context(), h.log, []string{"long"}, *scaleEvents)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("stored in %v", time.Since(begun).Round(time.Second))
	for limit := time.Now().Add(20 * time.Minute); ; time.Sleep(time.Second) {
		if h.isDerived(last) {
			break
		}
		if time.Now().After(limit) {
			t.Fatal("it isn't recorded in time")
		}
	}
	t.Logf("recorded after %v", time.Since(begun).Round(time.Second))
	page := h.openTab()
	profile(t, func() {
		paints, answered := page.paint("/runs/long", 6)
		t.Logf("first paint after %.0f ms, answers after %.0f", paints, answered)
		if worst := paints[len(paints)-1]; worst > 1000 {
			t.Errorf("the first paint takes %.0f ms", worst)
		}
		for _, part := range []string{"/runs/long", "/runs/long/parts/head", "/runs/long/parts/nodes", "/runs/long/parts/log", "/runs/long/timeline?px=1200", fmt.Sprintf("/runs/long/parts/moment?at=%d", last/2), "/runs/long/parts/spend", "/runs/long/parts/alerts"} {
			var took []time.Duration
			for range 3 {
				begun := time.Now()
				if status, text := h.fetch(part); status != http.StatusOK {
					t.Errorf("%s: %d %.200s", part, status, text)
				}
				took = append(took, time.Since(begun).Round(time.Millisecond))
			}
			t.Logf("%s: %v", part, took)
		}
	})
	page.run(chromedp.Navigate("about:blank"), chromedp.Navigate(page.origin()+"/runs/long"), chromedp.WaitReady("main", chromedp.ByQuery))
	h.until("the timeline is drawn", func() bool { return eval[bool](page, `document.querySelector('#timeline').style.height !== ''`) })
	t.Logf("the timeline is drawn after %.0f ms", eval[float64](page, `performance.now()`))
	page.settle()
	for _, l := range looks {
		for _, pane := range []string{"log", "time", "spend", "alerts", "steer"} {
			page.see("/runs/long?at="+fmt.Sprint(last/2)+"#"+pane, l)
			page.shoot("long-" + pane + "-" + l.name())
			if n := eval[int](page, `document.querySelectorAll('*').length`); n >= 5000 {
				t.Errorf("%s has %d elements", pane, n)
			}
		}
	}
	page.see("/runs/long", looks[0])
	if n := eval[int](page, `document.querySelectorAll('*').length`); n >= 5000 {
		t.Errorf("the page has %d elements", n)
	} else {
		t.Logf("%d elements", n)
	}
	page.checkQuiet("long run")
}

// isDerived reports whether answers know of all up to a position.
func (h *host) isDerived(pos uint64) bool {
	f, err := api.Call[wire.FleetResponse](h.Context(), h.log.Conn(), h.log.Names(), wire.VerbFleet, wire.FleetRequest{Limit: 1})
	return err == nil && f.Position >= pos
}
