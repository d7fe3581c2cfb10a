package process_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"code.wake.dev/wake/internal/process"
)

// In the tests of how processes end, this program plays them: its role is its
// first argument.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "role:") {
		play(strings.TrimPrefix(os.Args[1], "role:"))
		return
	}
	goleak.VerifyTestMain(m)
}

// play starts children as an agent's tools do and says who is there.
func play(role string) {
	switch role {
	case "agent": // a tool in its own session, and one whose parent has died
		spawn("tool", true)
		spawn("launcher", true)
		fmt.Println("ready")
	case "launcher":
		spawn("daemon", true)
		return
	case "crasher": // as a runner that is killed; others were started from the same terminal
		spawn("bystander", false)
		p, err := process.Start(process.Config{Home: "home", Argv: []string{os.Args[0], "role:agent"}, Env: os.Environ()})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		_, _ = io.Copy(os.Stdout, p.Stdout)
	case "unprivileged": // as root of a container is
		become(os.Args[2:]...)
		return
	case "keeper": // as a runner with secrets
		keep()
		return
	case "quitter":
		spawn("daemon", true)
		os.Exit(7)
	}
	fmt.Println(role, os.Getpid())
	if role != "agent" { // the tools don't listen
		signal.Ignore(syscall.SIGTERM)
	}
	for {
		_ = syscall.Pause()
	}
}

func spawn(role string, session bool) {
	c := exec.Command(os.Args[0], "role:"+role)
	c.Stdout = os.Stdout
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: session}
	if err := c.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// roles reads "role pid" lines until all are there.
func roles(t *testing.T, r io.Reader, want ...string) map[string]int {
	t.Helper()
	got := make(map[string]int)
	for lines := bufio.NewScanner(r); len(got) < len(want); {
		if !lines.Scan() {
			t.Fatalf("only %v of %v", got, want)
		}
		role, pid, ok := strings.Cut(lines.Text(), " ")
		if n, err := strconv.Atoi(pid); ok && err == nil {
			got[role] = n
		}
	}
	return got
}

func alive(pid int) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')'):]), " ")
	return !strings.HasPrefix(state, "Z")
}

func start(t *testing.T, role string, env ...string) *process.Process {
	t.Helper()
	p, err := process.Start(process.Config{Argv: []string{os.Args[0], "role:" + role}, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.End(0), p.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestEndTree(t *testing.T) {
	p := start(t, "agent")
	pids := roles(t, p.Stdout, "agent", "tool", "daemon")
	if err := p.End(100 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	for role, pid := range pids {
		if alive(pid) {
			t.Errorf("%s (pid %d) lives", role, pid)
		}
	}
	exit, err := p.Wait(t.Context())
	if err != nil || exit.Signal != "TERM" {
		t.Errorf("exit %+v, %v; want signal TERM", exit, err)
	}
}

// What a program begins when it is asked to end, to clean up, isn't asked itself.
func TestEndCleansUp(t *testing.T) {
	dir := t.TempDir()
	p, err := process.Direct{}.Start(process.Config{
		Dir: dir, Argv: []string{"sh", "-c", `trap 'sh -c "sleep 0.2; echo done > ended"; exit' TERM; echo; sleep 600 & wait`},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := p.End(10 * time.Second); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "ended")); err != nil {
		t.Error(err)
	}
}

// What a program leaves behind when it ends by itself is ended too.
func TestEndAfterExit(t *testing.T) {
	p := start(t, "quitter")
	exit, err := p.Wait(t.Context())
	if err != nil || exit.Code != 7 {
		t.Fatalf("exit %+v, %v; want code 7", exit, err)
	}
	daemon := roles(t, p.Stdout, "daemon")["daemon"]
	if !alive(daemon) {
		t.Fatal("the daemon ended with its parent: the test shows nothing")
	}
	if err := p.End(0); err != nil {
		t.Fatal(err)
	}
	if alive(daemon) {
		t.Errorf("pid %d lives", daemon)
	}
	if rest, err := io.ReadAll(p.Stdout); err != nil || len(rest) > 0 {
		t.Errorf("stdout doesn't end: %q, %v", rest, err)
	}
}

func TestOthersLive(t *testing.T) {
	a, b := start(t, "agent"), start(t, "agent")
	roles(t, a.Stdout, "agent", "tool", "daemon")
	others := roles(t, b.Stdout, "agent", "tool", "daemon")
	if err := a.End(0); err != nil {
		t.Fatal(err)
	}
	for role, pid := range others {
		if !alive(pid) {
			t.Errorf("%s of another tree was ended", role)
		}
	}
}

func TestEndOrphans(t *testing.T) {
	crasher := exec.Command(os.Args[0], "role:crasher")
	crasher.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := crasher.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := crasher.Start(); err != nil {
		t.Fatal(err)
	}
	pids := roles(t, out, "agent", "tool", "daemon", "bystander")
	bystander := pids["bystander"]
	delete(pids, "bystander")
	t.Cleanup(func() { _ = syscall.Kill(bystander, syscall.SIGKILL) }) // it may be gone
	living := start(t, "agent")
	roles(t, living.Stdout, "agent", "tool", "daemon")
	if err := crasher.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = crasher.Wait()
	n, err := process.EndOrphans(t.Context(), "home", 50*time.Millisecond)
	if err != nil || n < len(pids) {
		t.Fatalf("ended %d, %v; want at least %d", n, err, len(pids))
	}
	for role, pid := range pids {
		if alive(pid) {
			t.Errorf("%s (pid %d) lives", role, pid)
		}
	}
	if !alive(living.Pid()) {
		t.Error("a tree of a living program was ended")
	}
	if !alive(bystander) {
		t.Error("a process that only shares the session of the program that crashed was ended")
	}
}

// The agents of a container are seen from outside of it, where their runner's pid
// means nothing: they are nobody's orphans here. Nor are those of another home, or of one that
// isn't known.
func TestOrphansOfOthers(t *testing.T) {
	link, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	here := strings.Trim(link, "pid:[]")
	own := process.NewMark("home")
	own = own[strings.LastIndexByte(own, '-'):]
	other := process.NewMark("other")
	other = other[strings.LastIndexByte(other, '-'):]
	for namespace, ends := range map[string]bool{here + own: true, "17" + own: false, here + other: false, here + "-": false, here: false} {
		c := exec.Command("/bin/sleep", "600")
		c.Env = []string{process.Mark + "=1-1-1-" + namespace} // of a process 1 that is gone
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := process.EndOrphans(t.Context(), "home", 50*time.Millisecond); err != nil {
			t.Error(err)
		}
		if ended := !alive(c.Process.Pid); ended != ends {
			t.Errorf("namespace %s: ended as an orphan: %t, want %t", namespace, ended, ends)
		}
		_ = c.Process.Kill() // it may be gone
		_ = c.Wait()
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("WAKE_SECRET", "s3cret")
	p, err := process.Start(process.Config{Argv: []string{"/usr/bin/env"}, Env: []string{"A=1", process.Mark + "=forged"}})
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(p.Stdout)
	if err != nil || strings.Contains(string(out), "s3cret") || strings.Contains(string(out), "forged") || !strings.Contains(string(out), "A=1\n") {
		t.Errorf("environment %q, %v", out, err)
	}
	if err := errors.Join(p.End(0), p.Close()); err != nil {
		t.Error(err)
	}
}

func TestWords(t *testing.T) {
	p, err := process.Start(process.Config{
		Argv: []string{"/bin/sh", "-c", `i=0; while [ $i -lt 3000 ]; do echo "line $i" >&2; i=$((i+1)); done; printf 'bad \377' >&2; exit 3`}, KeepStderr: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait(t.Context())
	if err != nil || exit.Code != 3 {
		t.Errorf("exit %+v, %v", exit, err)
	}
	if err := errors.Join(p.End(0), p.Close()); err != nil {
		t.Fatal(err)
	}
	if words := p.Words(); len(words) > 17<<10 || !strings.HasSuffix(words, "line 2999\nbad \uFFFD") {
		t.Errorf("%d bytes of words, ending in %.40q", len(words), words[max(0, len(words)-40):])
	}
}

func TestStartFails(t *testing.T) {
	for _, argv := range [][]string{nil, {"/nonexistent/program"}} {
		if _, err := process.Start(process.Config{Argv: argv}); err == nil {
			t.Errorf("%v started", argv)
		}
	}
	_, err := process.Start(process.Config{Argv: []string{"/nonexistent/program"}})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want not exist", err)
	}
	// The system says of a folder that isn't there that the program isn't.
	_, err = process.Start(process.Config{Argv: []string{"/bin/sh"}, Dir: "/nonexistent/folder"})
	if err == nil || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "/nonexistent/folder") {
		t.Errorf("error %v, want that of its folder", err)
	}
}

func TestWaitEndsWithContext(t *testing.T) {
	p := start(t, "agent")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want canceled", err)
	}
}
