package recorder_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// What makes this program a recorder instead of a test: the server's URL. The
// file is its first argument.
const childURL = "WAKE_TEST_RECORD"

// child records until it is killed.
func child(url string) int {
	err := func() error {
		ctx := context.Background() //nolint:forbidigo // it is a program of its own
		nc, err := nats.Connect(url)
		if err != nil {
			return err
		}
		log, err := eventlog.Open(ctx, nc, eventlog.Options{})
		if err != nil {
			return err
		}
		r, err := recorder.New(recorder.Config{Path: os.Args[1], Batch: 50}, log, slog.New(slog.NewTextHandler(os.Stdout, nil)))
		if err != nil {
			return err
		}
		return r.Run(ctx)
	}()
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// TestKilledUnderLoad kills a recorder again and again while events come in. In
// the end every event is there once, and the file is sound: with what each kill
// left, too.
func TestKilledUnderLoad(t *testing.T) {
	port := freePort(t)
	srv := natstest.New(t, func(o *server.Options) { o.DontListen, o.Host, o.Port = false, "127.0.0.1", port })
	p := plantOn(t, srv.Conn(t), topology.Config{})
	done := make(chan struct{})
	var load sync.WaitGroup
	defer load.Wait()
	for i := range 4 {
		load.Go(func() { p.talk(fmt.Sprint("run", i), done) })
	}
	const kills = 5
	url := fmt.Sprintf("nats://127.0.0.1:%d", port)
	recorded := false
	for i := 0; i < kills || !recorded && i < 10*kills; i++ { // on a busy machine it may take long until one has recorded anything
		p.kill(url, time.Duration(1+i/kills)*time.Duration(50+rand.IntN(600))*time.Millisecond)
		if i%3 != 0 && i < kills-1 {
			continue
		}
		s := openAt(t, p.path())
		if v, err := s.Checker.Verify(t.Context(), ""); err != nil || len(v.Damages) > 0 {
			t.Errorf("after kill %d: %v, %v", i+1, v.Damages, err)
		}
		at, err := s.Archive.Position(t.Context())
		if err != nil {
			t.Error(err)
		}
		recorded = at.Seq > 0
		closed(t, s)
	}
	if !recorded {
		t.Error("none that was killed had recorded anything")
	}
	close(done)
	load.Wait()
	_, last, err := p.log.Bounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stop := p.record(recorder.Config{})
	p.until(last)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	p.same(last)
}

// talk appends events of an agent until done is closed.
func (p *plant) talk(run string, done <-chan struct{}) {
	w, err := p.log.Claim(p.t.Context(), run, "coder", eventlog.Claim{Runner: "test"})
	if err != nil {
		p.t.Error(err)
		return
	}
	defer func() {
		if err := w.Close(p.t.Context()); err != nil {
			p.t.Error(err)
		}
	}()
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	for i := 0; ; i++ {
		select {
		case <-done:
			return
		case <-pace.C:
		}
		for k := range 5 {
			e := &wire.Event{Timestamp: int64(i), Payload: &wire.AgentTextDelta{Content: fmt.Sprint("piece ", k, " of ", i, "; "), Block: i + 1}}
			if k == 4 {
				e.Payload = &wire.Usage{MessageID: fmt.Sprint(i), InputTokens: 3, OutputTokens: 1}
			}
			if err := w.Enqueue(p.t.Context(), e); err != nil {
				p.t.Error(err)
				return
			}
		}
	}
}

// kill lets a recorder of its own process work for a while.
func (p *plant) kill(url string, after time.Duration) {
	p.t.Helper()
	program, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.CommandContext(p.t.Context(), program, p.path())
	cmd.Env = append(os.Environ(), childURL+"="+url)
	stderr, err := os.Create(filepath.Join(p.dir, "stderr"))
	if err != nil {
		p.t.Fatal(err)
	}
	defer stderr.Close()
	cmd.Stderr = stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); !strings.Contains(line, "recording") {
		p.t.Errorf("it says %q, %v", line, err)
	}
	<-time.After(after)
	if err := cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() >= 0 {
		said, _ := os.ReadFile(stderr.Name())
		p.t.Fatalf("it ended before it was killed: %v: %s", err, said)
	}
}

// same checks that the file holds the stream up to last, nothing twice, and that
// a file that was recorded in one go says the same.
func (p *plant) same(last uint64) {
	p.t.Helper()
	s := openAt(p.t, p.path())
	derived(p.t, s)
	v, err := s.Checker.Verify(p.t.Context(), "")
	if err != nil || len(v.Damages) > 0 || v.Derived != last || uint64(v.Events) != last || v.Void+v.Gaps > 0 {
		p.t.Errorf("%+v, %v; want %d events", v, err, last)
	}
	closed(p.t, s)
	whole := newTarget(p.t)
	again := openAt(p.t, whole)
	batch := recorder.Batch{Incarnation: p.log.Incarnation()}
	for e, err := range p.log.Read(p.t.Context(), eventlog.Query{To: last}) {
		if err != nil {
			p.t.Fatal(err)
		}
		batch.Entries = append(batch.Entries, e)
	}
	if uint64(len(batch.Entries)) != last || last < 1000 {
		p.t.Fatalf("%d events in the stream, the last one at %d", len(batch.Entries), last)
	}
	if _, err := again.Index.Record(p.t.Context(), batch); err != nil {
		p.t.Fatal(err)
	}
	closed(p.t, again)
	if diff := cmp.Diff(dump(p.t, whole), dump(p.t, p.path())); diff != "" {
		p.t.Errorf("(-recorded at once +killed again and again):\n%.4000s", diff)
	}
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
