//go:build browser

package browser_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// world is a `wake up` with a browser.
type world struct {
	*testing.T

	dir    string   // of the test: flows, fixtures, data
	flags  []string // of wake up
	server *exec.Cmd
	url    string // of the console, with its token
}

// wanted is a variable of the environment that has to be there.
func wanted(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s isn't set: make test-console does", name)
	}
	return value
}

func newWorld(t *testing.T, flags ...string) *world {
	t.Helper()
	w := &world{T: t, dir: t.TempDir(), flags: flags}
	if err := os.CopyFS(w.dir, os.DirFS("../../flows")); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		w.write(name, text)
	}
	w.serve()
	t.Cleanup(func() { w.stop(syscall.SIGINT) })
	return w
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func (w *world) write(name, text string) {
	w.Helper()
	path := filepath.Join(w.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		w.Fatal(err)
	}
}

// serve starts the server, and waits until its console answers.
func (w *world) serve() {
	w.Helper()
	_ = os.Remove(filepath.Join(w.dir, ".wake", "nats-url"))
	w.server = w.command(append([]string{"up", "--log-level", "warn"}, w.flags...)...)
	w.server.Stderr, w.server.Stdout = os.Stderr, nil
	if err := w.server.Start(); err != nil {
		w.Fatal(err)
	}
	w.until("the server is up", func() bool {
		_, err := os.Stat(filepath.Join(w.dir, ".wake", "nats-url"))
		if err != nil {
			return false
		}
		b, err := os.ReadFile(filepath.Join(w.dir, ".wake", "console-url"))
		w.url = strings.TrimSpace(string(b))
		_, runsErr := w.try("runs")
		return err == nil && runsErr == nil
	})
}

// stop ends the server.
func (w *world) stop(how os.Signal) {
	if w.server == nil {
		return
	}
	_ = w.server.Process.Signal(how)
	_ = w.server.Wait()
	w.server = nil
}

func (w *world) command(args ...string) *exec.Cmd {
	cmd := exec.Command(wanted(w.T, "WAKE_BINARY"), args...)
	cmd.Dir = w.dir
	return cmd
}

func (w *world) try(args ...string) (string, error) {
	var stderr bytes.Buffer
	cmd := w.command(args...)
	cmd.Stderr = &stderr
	b, err := cmd.Output()
	if err != nil {
		err = errors.Join(err, errors.New(stderr.String()))
	}
	return string(b), err
}

// wake runs a verb.
func (w *world) wake(args ...string) string {
	w.Helper()
	out, err := w.try(args...)
	if err != nil {
		w.Fatalf("wake %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// until waits for a condition.
func (w *world) until(what string, holds func() bool) {
	w.Helper()
	for begun := time.Now(); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Since(begun) > 60*time.Second {
			w.Fatalf("in a minute not: %s", what)
		}
	}
}

// origin is what all addresses of the console begin with.
func (w *world) origin() string {
	u, err := url.Parse(w.url)
	if err != nil {
		w.Fatal(err)
	}
	return u.Scheme + "://" + u.Host + strings.TrimSuffix(u.Path, "/")
}

// tab is a page of the browser.
type tab struct {
	*world

	context.Context

	mu       sync.Mutex
	requests []string
	open     map[network.RequestID]string // what the page itself has asked for and not got yet
	problems []string                     // errors of scripts, what policies refused, dialogs
}

// look is how a reader looks at a page.
type look struct {
	width, height int64
	dark          bool
}

func (l look) name() string {
	name := "wide"
	if l.width < 600 {
		name = "phone"
	}
	if l.dark {
		return name + "-dark"
	}
	return name + "-light"
}

var looks = []look{{1440, 900, false}, {1440, 900, true}, {390, 844, false}, {390, 844, true}}

// openTab opens a browser that is signed in.
func (w *world) openTab() *tab {
	w.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(wanted(w.T, "WAKE_CHROMIUM")), chromedp.NoSandbox, chromedp.Flag("disable-dev-shm-usage", true))
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	w.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(allocator)
	w.Cleanup(cancel)
	t := &tab{world: w, Context: ctx, open: map[network.RequestID]string{}}
	chromedp.ListenTarget(ctx, t.hear)
	if err := chromedp.Run(ctx); err != nil { // the browser lives as long as the context of the first one
		w.Fatal(err)
	}
	t.run(network.Enable(), runtime.Enable(), chromedp.Navigate(w.url), chromedp.WaitVisible("nav", chromedp.ByQuery))
	return t
}

// hear notes what the page does.
func (t *tab) hear(event any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		t.requests = append(t.requests, e.Request.URL)
		switch e.Type {
		case network.ResourceTypeDocument:
			clear(t.open) // of the page before: of what was given up there is no end
		case network.ResourceTypeFetch:
			t.open[e.RequestID] = e.Request.URL
		}
	case *network.EventLoadingFinished:
		delete(t.open, e.RequestID)
	case *network.EventLoadingFailed:
		delete(t.open, e.RequestID)
	case *runtime.EventExceptionThrown:
		t.problems = append(t.problems, e.ExceptionDetails.Error())
	case *page.EventJavascriptDialogOpening:
		t.problems = append(t.problems, "a dialog: "+e.Message)
		go func() { _ = chromedp.Run(t.Context, page.HandleJavaScriptDialog(true)) }()
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError {
			t.problems = append(t.problems, "the page logs an error")
		}
	}
}

// run does something in the page, within half a minute.
func (t *tab) run(actions ...chromedp.Action) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context, 30*time.Second)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// eval evaluates an expression in the page; it may be a promise.
func eval[A any](t *tab, expression string) (a A) {
	t.Helper()
	t.run(chromedp.Evaluate(expression, &a, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	return a
}

// see shows a page in a way, and waits until nothing is asked for any more.
func (t *tab) see(path string, l look) {
	t.Helper()
	scheme := "light"
	if l.dark {
		scheme = "dark"
	}
	t.run(emulation.SetDeviceMetricsOverride(l.width, l.height, 1, l.width < 600),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
		chromedp.Navigate("about:blank"), chromedp.Navigate(t.origin()+path), chromedp.WaitReady("main", chromedp.ByQuery))
	t.settle()
}

// settle waits until all requests of the page are answered and it has asked for nothing for a while.
func (t *tab) settle() {
	t.Helper()
	count := func() (all int, open []string) {
		t.mu.Lock()
		defer t.mu.Unlock()
		return len(t.requests), slices.Collect(maps.Values(t.open))
	}
	begun := time.Now()
	for still, last := 0, -1; still < 6; time.Sleep(50 * time.Millisecond) {
		n, open := count()
		if time.Since(begun) > 30*time.Second && len(open) > 0 {
			t.Fatalf("in half a minute no answer: %v", open)
		}
		if n == last && len(open) == 0 {
			still++
		} else {
			still, last = 0, n
		}
	}
}

// shoot keeps a picture of the page, for people.
func (t *tab) shoot(name string) {
	t.Helper()
	dir := os.Getenv("WAKE_PICTURES")
	if dir == "" {
		return
	}
	// Lines that aren't in the window aren't drawn.
	t.run(chromedp.Evaluate(`document.styleSheets[0].insertRule('* { content-visibility: visible !important }', document.styleSheets[0].cssRules.length)`, nil))
	var picture []byte
	// From the top: the bar stays at the upper edge of the window, wherever that is.
	t.run(chromedp.Evaluate(`scrollTo({top: 0, behavior: 'instant'})`, nil), chromedp.FullScreenshot(&picture, 100)) // what is below the window, too
	if err := os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o644); err != nil {
		t.Fatal(err)
	}
}

// violation is what axe finds.
type violation struct {
	ID, Impact, Help string
	Nodes            []struct{ HTML, FailureSummary string }
}

// checkPage checks what holds of every page: nothing serious for those who see or hear it otherwise, nothing
// wider than the window, few elements, no request to others, no problem.
func (t *tab) checkPage(name, axe string) {
	t.Helper()
	t.run(chromedp.Evaluate(axe, nil))
	var found []violation
	if err := json.Unmarshal([]byte(eval[string](t, `axe.run({resultTypes: ['violations']}).then(r => JSON.stringify(r.violations.map(v => ({ID: v.id, Impact: v.impact, Help: v.help, Nodes: v.nodes.slice(0, 3).map(n => ({HTML: n.html.slice(0, 200), FailureSummary: n.failureSummary}))}))))`)), &found); err != nil {
		t.Fatal(err)
	}
	for _, v := range found {
		if v.Impact == "serious" || v.Impact == "critical" {
			t.Errorf("%s: %s: %s, %s: %+v", name, v.Impact, v.ID, v.Help, v.Nodes)
		}
	}
	if over := eval[int](t, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); over > 0 {
		wide := eval[string](t, `[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll,pre,.tabs')).slice(0, 3).map(e => e.outerHTML.slice(0, 120)).join(' | ')`)
		t.Errorf("%s: %d pixels wider than the window: %s", name, over, wide)
	}
	if cut := eval[string](t, `[...document.querySelectorAll('.scroll')].filter(e => innerWidth < 600 && e.querySelector('table') && e.scrollWidth > e.clientWidth).map(e => e.innerText.slice(0, 80)).join(' | ')`); cut != "" {
		t.Errorf("%s: a table is wider than the window: %s", name, cut)
	}
	if n := eval[int](t, `document.querySelectorAll('*').length`); n > 5000 && !strings.HasPrefix(name, "shared") { // a shared run is one page with all in it
		t.Errorf("%s: %d elements", name, n)
	}
	t.checkQuiet(name)
}

// checkQuiet checks that the page asked nobody but the console, and has no problem.
func (t *tab) checkQuiet(name string) {
	t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.requests {
		if !strings.HasPrefix(r, t.origin()+"/") && !strings.HasPrefix(r, "data:") && r != "about:blank" {
			t.Errorf("%s asks %s", name, r)
		}
	}
	for _, p := range t.problems {
		t.Errorf("%s: %s", name, p)
	}
	t.requests, t.problems = nil, nil
}
