package deliver_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"code.wake.dev/wake/internal/deliver"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
)

// receive is a receiver of webhooks, in a process of its own. It checks signatures,
// refuses each notification once, and prints its address and the ids it takes.
func receive() {
	check, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		panic(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr())
	refused := map[string]bool{}
	panic(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		id := r.Header.Get("webhook-id")
		switch {
		case check.Verify(body, r.Header) != nil:
			w.WriteHeader(http.StatusUnauthorized)
		case !refused[id]:
			refused[id] = true
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			fmt.Println(id)
		}
	})))
}

// A receiver that is a program of its own takes what is signed, in order, and nothing
// with another secret.
func TestReceiver(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "RECEIVER=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	next := func() string {
		if !lines.Scan() {
			t.Fatal("the receiver ended", lines.Err())
		}
		return lines.Text()
	}
	address := "http://" + next()
	send(t, `{type: webhook, url: "`+address+`", secret: "`+strings.Replace(secret, "MfKQ", "AAAA", 1)+`"}`, "401")

	nc := natstest.Start(t)
	logtest.Init(t, nc, topology.Config{})
	w := &world{t: t, log: logtest.Open(t, nc)}
	d := deliver.New(deliver.Config{}, rules(t, strings.Replace(toOps, "http://ops/hook?token=${TOKEN}", address, 1)), w.log, logtest.Logger(t))
	logtest.Go(t, d.Run)
	for deadline := time.Now().Add(30 * time.Second); ; {
		all, err := deliver.StoredStatuses(t.Context(), w.log)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the sink doesn't begin")
		}
		<-time.After(10 * time.Millisecond)
	}
	for _, want := range w.raise(2) {
		if got := next(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// A file that is written, replaced or a link that is set elsewhere has changed; one
// that says what it said hasn't.
func TestWatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := dir + "/rules.yaml"
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("rules.yaml", "one")
	seen := make(chan string, 10)
	logtest.Go(t, watching(file, seen))
	write("rules.yaml", "two")
	expect(t, seen, "two")
	write("next", "two")
	move(t, dir+"/next", file)
	write("next", "three")
	move(t, dir+"/next", file)
	expect(t, seen, "three")
	write("data", "four")
	if err := os.Symlink("data", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	move(t, dir+"/link", file)
	expect(t, seen, "four")
}

func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, seen <-chan string, want string) {
	t.Helper()
	select {
	case got := <-seen:
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("%q is not seen", want)
	}
}

func watching(file string, seen chan<- string) func(context.Context) error {
	return func(ctx context.Context) error {
		return deliver.Watch(ctx, file, []byte("one"), func(now []byte) { seen <- string(now) })
	}
}
