//go:build browser

package browser_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// fill starts runs: one that is complete, its fork, one that waits, a hostile one.
func (w *world) fill() {
	w.Helper()
	w.wake("run", "demo.yaml", "--fixtures", "demo.fixtures", "--id", "demo")
	w.wake("run", "deploy.yaml", "--fixtures", "fixtures", "--id", "deploy", "--detach", "--label", "team=core")
	w.wake("run", "evil.yaml", "--fixtures", "evil", "--id", "evil", "--detach")
	w.wake("fork", "demo", "--at", "sfp-18", "--id", "fork")
	w.until("deploy and evil wait", func() bool {
		out := w.wake("approvals")
		return strings.Contains(out, "make deploy") && strings.Contains(out, "evil")
	})
	w.until("the demo is recorded", func() bool { return strings.Contains(w.wake("status", "demo"), "complete") })
}

// Every page, as people look at it.
func TestPages(t *testing.T) {
	axe := read(t, wanted(t, "WAKE_AXE"))
	w := newWorld(t)
	page := w.openTab()
	for _, l := range looks { // nothing has happened yet
		for name, path := range map[string]string{"empty": "/", "empty-search": "/search?q=nothing", "empty-spend": "/spend"} {
			page.see(path, l)
			page.checkPage(name+" "+l.name(), axe)
			page.shoot(name + "-" + l.name())
		}
	}
	w.fill()
	link, _, _ := strings.Cut(w.wake("share", "demo"), "\n")
	for _, l := range looks {
		for name, path := range map[string]string{
			"fleet": "/", "run": "/runs/demo", "run-waits": "/runs/deploy", "time": "/runs/demo?at=100#time", "run-spend": "/runs/demo#spend", "run-alerts": "/runs/demo#alerts",
			"steer": "/runs/deploy#steer", "compare-with": "/runs/demo/compare", "compare": "/runs/demo/compare?with=fork", "compare-others": "/runs/demo/compare?with=deploy",
			"search": "/search?q=words", "spend": "/spend", "system": "/system", "evil": "/runs/evil", "evil-compare": "/runs/evil/compare?with=deploy", "problem": "/runs/nobody",
			"shared": strings.TrimPrefix(link, w.origin()),
		} {
			page.see(path, l)
			if name == "run" || name == "evil" {
				page.run(chromedp.Click("#log [data-pos]", chromedp.ByQuery))
				page.settle()
			}
			if name == "compare" {
				page.run(chromedp.Evaluate(`(d => { if (d) d.open = true })(document.querySelector('.cell details'))`, nil))
				page.settle()
			}
			page.checkPage(name+" "+l.name(), axe)
			page.shoot(name + "-" + l.name())
			if title := eval[string](page, `document.title`); strings.Contains(title, "owned") {
				t.Errorf("%s: the title is %q", name, title)
			}
			if n := eval[int](page, `document.querySelectorAll('main img, main iframe, main svg[onload], script:not([src])').length`); n > 0 {
				t.Errorf("%s: %d elements that an agent has made", name, n)
			}
		}
	}
	// On a phone one sees who spoke.
	page.see("/runs/demo", looks[2])
	if n := eval[int](page, `[...document.querySelectorAll('#log .n')].filter(e => e.textContent.trim() && (!e.offsetWidth || !e.offsetHeight)).length`); n > 0 {
		t.Errorf("%d lines don't say who spoke", n)
	}
}

// Many wait, and a run that was shared has many calls.
func TestBusyPages(t *testing.T) {
	axe := read(t, wanted(t, "WAKE_AXE"))
	w := newWorld(t)
	for i := range 12 {
		w.wake("run", "deploy.yaml", "--fixtures", "fixtures", "--id", fmt.Sprint("deploy-", i), "--detach")
	}
	w.write("busy.yaml", "name: busy\nnodes:\n  - {id: coder, type: agent, input: {prompt: \"Go on.\"}}\n")
	w.write("busy/coder.json", busyAgent(t, 700))
	w.wake("run", "busy.yaml", "--fixtures", "busy", "--id", "busy")
	w.until("twelve wait", func() bool { return strings.Count(w.wake("approvals"), "make deploy") == 12 })
	link, _, _ := strings.Cut(w.wake("share", "busy"), "\n")
	page := w.openTab()
	for _, l := range looks {
		for name, path := range map[string]string{"fleet-waits": "/", "shared-busy": strings.TrimPrefix(link, w.origin()), "busy-spend": "/runs/busy#spend"} {
			page.see(path, l)
			page.checkPage(name+" "+l.name(), axe)
			page.shoot(name + "-" + l.name())
		}
	}
}

// The pages of what a real agent has printed, and of its compaction: all that such an agent does is to be seen.
func TestRecordedPages(t *testing.T) {
	axe := read(t, wanted(t, "WAKE_AXE"))
	w := newWorld(t)
	for i, file := range strings.Split(*recorded, ",") {
		file, err := filepath.Abs(file)
		if err != nil {
			t.Fatal(err)
		}
		run := fmt.Sprint("real-", i)
		w.wake("ingest", file, "--run", run)
		w.until(run+" is recorded", func() bool { _, err := w.try("status", run); return err == nil })
		page := w.openTab()
		for _, l := range looks {
			for name, path := range map[string]string{"log": "/runs/" + run, "time": "/runs/" + run + "#time", "spend": "/runs/" + run + "#spend", "alerts": "/runs/" + run + "#alerts"} {
				page.see(path, l)
				if name == "log" {
					page.run(chromedp.Evaluate(`(rows => { if (rows.length) rows[rows.length - 1].click() })(document.querySelectorAll('#log .tool[data-pos]'))`, nil))
					page.settle()
				}
				page.checkPage(run+" "+name+" "+l.name(), axe)
				page.shoot(run + "-" + name + "-" + l.name())
			}
		}
	}
	page := w.openTab()
	for _, l := range looks {
		for name, path := range map[string]string{"recorded-fleet": "/", "recorded-spend": "/spend", "recorded-search": "/search?q=the"} {
			page.see(path, l)
			page.checkPage(name, axe)
			page.shoot(name + "-" + l.name())
		}
	}
	// What the page counts on is told as the server told it.
	page.see("/", looks[0])
	told := eval[string](page, `fetch('parts/fleet').then(r => r.text()).then(t => new DOMParser().parseFromString(t, 'text/html').querySelector('time').textContent)`)
	if now := eval[string](page, `new Promise(done => setTimeout(done, 1100)).then(() => document.querySelector('#fleet time').textContent)`); now != told {
		t.Errorf("the server says %q, the page %q", told, now)
	}
}

var recorded = flag.String("recorded", "../../internal/agent/claude/testdata/stream/gitbuild.jsonl,../../internal/agent/claude/testdata/stream/compact-manual.jsonl", "what real agents printed, or their session files, for TestRecordedPages")

// What the slider stands at is what wake state --at tells.
func TestSlider(t *testing.T) {
	w := newWorld(t)
	w.fill()
	page := w.openTab()
	page.see("/runs/demo#time", looks[0])
	first, last := eval[int](page, `+document.querySelector('#slider').elements.at.min`), eval[int](page, `+document.querySelector('#slider').elements.at.max`)
	if first >= last {
		t.Fatalf("from %d to %d", first, last)
	}
	for range 20 {
		at := first + rand.IntN(last-first+1)
		page.run(chromedp.Evaluate(fmt.Sprintf(`(a => { a.value = %d; a.dispatchEvent(new Event('input', {bubbles: true})) })(document.querySelector('#slider').elements.at)`, at), nil))
		w.until("the page is there", func() bool {
			return strings.Contains(eval[string](page, `document.querySelector('#moment').textContent`), fmt.Sprintf("position %d,", at))
		})
		href := eval[string](page, `document.querySelector('#moment a[href*="/state"]').getAttribute('href')`)
		got := eval[string](page, fmt.Sprintf(`fetch(%q).then(r => r.text())`, href))
		if want := w.wake("state", "demo", "--at", fmt.Sprint(at), "--json"); got != want {
			t.Errorf("at %d:\n got %s\nwant %s", at, got, want)
		}
	}
	page.checkQuiet("time")
}

// The files of a run are on the same slider: what wake workspace --at tells, with what has changed in them.
func TestFiles(t *testing.T) {
	w := newWorld(t)
	w.wake("run", "steps.yaml", "--id", "steps")
	w.until("it is recorded", func() bool { return strings.Contains(w.wake("status", "steps"), "complete") })
	page := w.openTab()
	page.see("/runs/steps#time", looks[0])
	first, last := eval[int](page, `+document.querySelector('#slider').elements.at.min`), eval[int](page, `+document.querySelector('#slider').elements.at.max`)
	for at := first; at <= last; at++ {
		got := eval[string](page, fmt.Sprintf(`fetch('/runs/steps/workspace?at=%d').then(r => r.text())`, at))
		if want := w.wake("workspace", "steps", "--at", fmt.Sprint(at), "--json"); got != want {
			t.Errorf("at %d:\n got %s\nwant %s", at, got, want)
		}
	}
	got := eval[string](page, fmt.Sprintf(`fetch('/runs/steps/workspace?at=%d&diff=%d').then(r => r.text())`, first, last))
	if want := w.wake("workspace", "steps", "--at", fmt.Sprint(first), "--diff", fmt.Sprint(last), "--json"); got != want {
		t.Errorf("from %d to %d:\n got %s\nwant %s", first, last, got, want)
	}
	has := func(text string) {
		t.Helper()
		w.until("the page has "+text, func() bool {
			return strings.Contains(eval[string](page, `document.querySelector('#moment').innerText`), text)
		})
	}
	page.run(chromedp.Click(`#moment .files summary`, chromedp.ByQuery))
	has("All files")
	has("added d/b")
	page.run(chromedp.Evaluate(`[...document.querySelectorAll('#files details')].find(e => e.textContent.includes('added a')).open = true`, nil))
	has("+ three")
	page.run(chromedp.Evaluate(`[...document.querySelectorAll('#files details')].find(e => e.textContent.startsWith('d/')).open = true`, nil))
	page.settle()
	page.shoot("files")
	page.run(chromedp.Click(`#files .chip:last-child`, chromedp.ByQuery))
	has("removed <b>evil.html")
	page.run(chromedp.Evaluate(`[...document.querySelectorAll('#files details')].filter(e => e.textContent.includes('changed') || e.textContent.includes('evil')).forEach(e => e.open = true)`, nil))
	has("− two")
	has("<img src=x")
	// The slider moves on, and the files with it.
	whole := eval[string](page, `document.querySelector('#moment .files summary').innerText`)
	for range 40 {
		page.run(chromedp.KeyEvent(","))
		page.settle()
		if eval[string](page, `document.querySelector('#moment .files summary').innerText`) != whole {
			break
		}
	}
	has("added <b>evil.html")
	page.checkQuiet("files")
}

// A fork from the slider leaves the parent as it was.
func TestForkFromSlider(t *testing.T) {
	w := newWorld(t)
	w.fill()
	whole := w.wake("export", "demo", "--format", "jsonl")
	page := w.openTab()
	page.see("/runs/demo#time", looks[0])
	page.run(chromedp.SetValue(`#fork [name=at]`, "sfp-18", chromedp.ByQuery), chromedp.Click(`#fork button`, chromedp.ByQuery), chromedp.WaitVisible(`#told a[href^="runs/"]`, chromedp.ByQuery))
	if now := w.wake("export", "demo", "--format", "jsonl"); now != whole {
		t.Errorf("the parent was %s, now %s", whole, now)
	}
}

// A denial arrives within a second, by the keyboard alone; a person that comes too late is told.
func TestDeny(t *testing.T) {
	w := newWorld(t)
	w.fill()
	page, other := w.openTab(), w.openTab()
	page.see("/runs/deploy", looks[0])
	other.see("/runs/deploy", looks[0])
	other.run(chromedp.Evaluate(`window.kept = document.querySelector('[data-ask] form').cloneNode(true); kept.hidden = true; document.body.append(kept)`, nil))
	page.run(chromedp.Evaluate(`window.told = new Promise(done => new MutationObserver(() => { const t = document.querySelector('#told').textContent; if (t) done(performance.now() + '|' + t) }).observe(document.querySelector('#told'), {childList: true}))`, nil))
	page.run(chromedp.KeyEvent("i"))
	begun := eval[float64](page, `performance.now()`)
	page.run(chromedp.KeyEvent("d"))
	var at float64
	said := eval[string](page, `window.told`)
	if _, err := fmt.Sscanf(said, "%f|", &at); err != nil || !strings.Contains(said, "deny received") || at-begun > 1000 {
		t.Errorf("after %.0f ms: %s", at-begun, said)
	}
	t.Logf("received after %.0f ms", at-begun)
	other.run(chromedp.Evaluate(`kept.requestSubmit(kept.querySelector('[value=approve]'))`, nil), chromedp.WaitVisible(`#told .no`, chromedp.ByQuery))
	if said := eval[string](other, `document.querySelector('#told').textContent`); !strings.Contains(said, "Refused") {
		t.Errorf("the other one is told %q", said)
	}
	page.checkQuiet("deny")
}

// A page that is open while the server is killed and started again shows what happened, once.
func TestServerKilled(t *testing.T) {
	w := newWorld(t)
	w.fill()
	page := w.openTab()
	page.see("/runs/deploy", looks[0])
	page.run(chromedp.Evaluate(`window.ids = []; new EventSource('/runs/deploy/events').onmessage = e => ids.push(e.lastEventId)`, nil))
	w.until("the stream has come", func() bool { return eval[int](page, `ids.length`) > 5 })
	for i := range 3 {
		w.stop(syscall.SIGKILL)
		w.until("the page says so", func() bool { return eval[string](page, `document.querySelector('#away').textContent`) != "" })
		w.serve()
		w.wake("bookmark", "deploy", "--label", fmt.Sprint("kept-", i))
		w.until("the page has it", func() bool {
			return strings.Contains(eval[string](page, `document.querySelector('#log').textContent`), fmt.Sprint("kept-", i))
		})
	}
	w.wake("abort", "deploy", "--reason", "enough")
	w.until("the page has the end", func() bool {
		return strings.Contains(eval[string](page, `document.querySelector('#log').textContent`), "enough")
	})
	got := eval[[]string](page, `new Promise(done => setTimeout(done, 1500)).then(() => [...document.querySelectorAll('#log [data-row]')].map(e => e.id + e.textContent))`)
	ids := eval[[]string](page, `ids`)
	page.see("/runs/deploy", looks[0])
	want := eval[[]string](page, `[...document.querySelectorAll('#log [data-row]')].map(e => e.id + e.textContent)`)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the page has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	fresh := eval[[]string](page, `new Promise(done => { const all = [], s = new EventSource('/runs/deploy/events'); s.onmessage = e => all.push(e.lastEventId); setTimeout(() => done(all), 3000) })`)
	if strings.Join(ids, " ") != strings.Join(fresh, " ") {
		t.Errorf("the stream had %d events, %d are there:\n%v\n%v", len(ids), len(fresh), ids, fresh)
	}
}

// Pages of others can't give orders.
func TestCrossOrigin(t *testing.T) {
	w := newWorld(t)
	w.fill()
	page := w.openTab()
	evil := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprint(rw, "<!doctype html><main>evil</main>")
	}))
	defer evil.Close()
	sent, answered := map[network.RequestID]bool{}, map[network.RequestID]int64{} // either may be told first
	status := make(chan int64, 1)
	chromedp.ListenTarget(page.Context, func(event any) {
		switch e := event.(type) {
		case *network.EventRequestWillBeSent:
			if !strings.Contains(e.Request.URL, "/command") {
				return
			}
			sent[e.RequestID] = true
			if code, is := answered[e.RequestID]; is {
				status <- code
			}
		case *network.EventResponseReceivedExtraInfo: // the browser keeps the answer from the page, not from us
			answered[e.RequestID] = e.StatusCode
			if sent[e.RequestID] {
				status <- e.StatusCode
			}
		}
	})
	page.run(chromedp.Navigate(evil.URL))
	_ = eval[string](page, fmt.Sprintf(`fetch(%q, {method: 'POST', mode: 'no-cors', credentials: 'include', headers: {'Content-Type': 'application/x-www-form-urlencoded'}, body: 'type=abort'}).then(r => r.type, e => String(e))`, w.origin()+"/runs/deploy/command"))
	select {
	case got := <-status:
		if got != http.StatusForbidden {
			t.Errorf("it is answered by %d", got)
		}
	case <-time.After(20 * time.Second):
		t.Error("it isn't answered")
	}
	if s := w.wake("status", "deploy"); strings.Contains(s, "aborted") {
		t.Errorf("the run was aborted: %s", s)
	}
}

// A proxy may serve the console below a path, and take that off: pages, what they ask for and where they lead are below it.
func TestBehindProxy(t *testing.T) {
	var console atomic.Pointer[httputil.ReverseProxy]
	strayed := make(chan string, 100)
	proxy := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/ops/wake/") {
			if r.URL.Path != "/favicon.ico" {
				strayed <- r.URL.Path
			}
			http.NotFound(rw, r)
			return
		}
		http.StripPrefix("/ops/wake", console.Load()).ServeHTTP(rw, r)
	}))
	t.Cleanup(proxy.Close) // after the browser, which has streams open
	w := newWorld(t, "--public-url", proxy.URL+"/ops/wake/")
	w.fill()
	behind, err := url.Parse(w.origin())
	if err != nil {
		t.Fatal(err)
	}
	console.Store(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(behind) }, FlushInterval: -1})
	_, token, _ := strings.Cut(w.url, "#")
	w.url = proxy.URL + "/ops/wake/#" + token
	page := w.openTab()
	at := func(has string) {
		t.Helper()
		w.until("the page is at "+has, func() bool {
			return eval[bool](page, fmt.Sprintf(`location.pathname.endsWith(%q) && document.readyState === 'complete'`, has))
		})
		page.settle()
	}
	page.run(chromedp.WaitVisible(`.fleet a[href="runs/demo"]`, chromedp.ByQuery), chromedp.Click(`.fleet a[href="runs/demo"]`, chromedp.ByQuery))
	at("/ops/wake/runs/demo")
	page.run(chromedp.Click("#log [data-pos]", chromedp.ByQuery), chromedp.WaitVisible("#details h3", chromedp.ByQuery))
	w.until("the timeline is drawn", func() bool { return eval[bool](page, `document.querySelector('#timeline').style.height !== ''`) })
	page.run(chromedp.KeyEvent("2"), chromedp.WaitVisible("#moment .log", chromedp.ByQuery))
	page.run(chromedp.SetValue(`#fork [name=at]`, "sfp-18", chromedp.ByQuery), chromedp.Click(`#fork button`, chromedp.ByQuery), chromedp.WaitVisible(`#told a[href^="runs/"]`, chromedp.ByQuery), chromedp.Click(`#told a`, chromedp.ByQuery))
	w.until("the fork is shown", func() bool {
		return eval[bool](page, `!location.pathname.endsWith('/demo') && document.readyState === 'complete'`)
	})
	page.settle()
	for keys, path := range map[string]string{"gs": "spend", "gy": "system", "gf": "search", "gh": ""} {
		page.run(chromedp.KeyEvent(keys))
		at("/ops/wake/" + path)
	}
	page.see("/runs/@last", looks[0]) // leads to the run
	if path := eval[string](page, `location.pathname`); !strings.HasPrefix(path, "/ops/wake/runs/") || strings.Contains(path, "@") {
		t.Errorf("@last is at %s", path)
	}
	page.see("/runs/deploy", looks[0])
	page.run(chromedp.Click(`[data-do=d]`, chromedp.ByQuery), chromedp.WaitVisible(`#told div`, chromedp.ByQuery))
	if told := eval[string](page, `document.querySelector('#told').textContent`); !strings.Contains(told, "deny received") {
		t.Errorf("the page is told %q", told)
	}
	link, _, _ := strings.Cut(w.wake("share", "demo"), "\n")
	page.run(chromedp.Navigate(link), chromedp.WaitVisible("main", chromedp.ByQuery))
	select {
	case path := <-strayed:
		t.Errorf("%s was asked for", path)
	default:
	}
	page.see("/", looks[0])
	page.run(chromedp.Submit(`form[action="signout"]`, chromedp.ByQuery), chromedp.WaitVisible("#signin", chromedp.ByQuery))
	at("/ops/wake/")
}

// Everything is done by the keyboard.
func TestKeyboard(t *testing.T) {
	w := newWorld(t)
	w.fill()
	page := w.openTab()
	page.see("/", looks[0])
	press := func(keys string) { page.run(chromedp.KeyEvent(keys)); time.Sleep(50 * time.Millisecond) }
	at := func(has string) {
		t.Helper()
		w.until("the page is at "+has, func() bool { return strings.Contains(eval[string](page, `location.href`), has) })
		page.settle()
	}
	press("?")
	if !eval[bool](page, `document.querySelector('#keys').open`) {
		t.Error("? lists no keys")
	}
	press("\u001b")
	press("/")
	page.run(chromedp.KeyEvent("evil"))
	w.until("the filter filters", func() bool { return eval[int](page, `document.querySelectorAll('.fleet [data-row]').length`) == 1 })
	press("\u001b")
	page.run(chromedp.Evaluate(`document.querySelectorAll('[data-ask]').forEach(e => e.remove())`, nil))
	press("j")
	press("\r")
	at("/runs/evil")
	for key, pane := range map[string]string{"2": "time", "3": "spend", "4": "alerts", "5": "steer", "1": "log"} {
		press(key)
		if !eval[bool](page, fmt.Sprintf(`!document.querySelector('#pane-%s').hidden`, pane)) {
			t.Errorf("%s doesn't show %s", key, pane)
		}
	}
	press("2")
	page.settle()
	before := eval[string](page, `document.querySelector('#slider').elements.at.value`)
	press(",")
	if now := eval[string](page, `document.querySelector('#slider').elements.at.value`); now == before {
		t.Error(", doesn't go back")
	}
	for keys, path := range map[string]string{"gs": "/spend", "gy": "/system", "gf": "/search"} {
		press(keys)
		at(path)
	}
	page.checkQuiet("keyboard")
}

func TestMain(m *testing.M) {
	if dir := os.Getenv("WAKE_PICTURES"); dir != "" {
		if err := os.MkdirAll(filepath.Clean(dir), 0o755); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
