package supervisor_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"code.wake.dev/wake/internal/supervisor"
)

// In the tests of processes this program plays them: its role is its first argument.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "role:") {
		play(strings.TrimPrefix(os.Args[1], "role:"), os.Args[2:])
		return
	}
	os.Exit(m.Run())
}

// play plays a role and says on stdout what it is: role and pid, a line each.
func play(role string, args []string) {
	told := make(chan os.Signal, 16)
	switch role {
	case "supervisor": // of a role
		code, err := supervisor.Run(supervisor.Config{
			Path: os.Args[0], Argv: append(os.Args[:1:1], args...), Env: os.Environ(), Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		})
		if err != nil {
			fmt.Println(err)
			code = 99
		}
		os.Exit(code)
	case "runner": // starts a keeper and does as it is told
		signal.Notify(told, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
		spawn("keeper")
	case "litterer": // leaves many behind that end by themselves
		for range 20 {
			spawn("launcher")
		}
	case "launcher":
		spawn("passerby")
		return
	case "passerby":
		return
	case "exit": // with a code
		fmt.Println(role, os.Getpid())
		code, _ := strconv.Atoi(args[0])
		os.Exit(code)
	}
	fmt.Println(role, os.Getpid())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // its end is that of the test
		os.Exit(0)
	}()
	for sig := range told {
		fmt.Println("told", int(sig.(syscall.Signal)))
		if sig == syscall.SIGTERM {
			os.Exit(7)
		}
	}
}

func spawn(role string) {
	c := exec.Command(os.Args[0], "role:"+role)
	c.Stdin, c.Stdout = os.Stdin, os.Stdout
	if err := c.Start(); err != nil {
		fmt.Println(err)
		os.Exit(98)
	}
}

// patience is how long a test waits for what should come at once.
const patience = 20 * time.Second

// supervised is a supervisor that is a process of its own.
type supervised struct {
	*exec.Cmd
	t      *testing.T
	lines  *bufio.Scanner
	unread map[string][]int // numbers by their words
}

func supervise(t *testing.T, role ...string) *supervised {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	s := &supervised{Cmd: exec.CommandContext(ctx, os.Args[0], append([]string{"role:supervisor"}, role...)...), t: t, unread: make(map[string][]int)}
	out, w, err := os.Pipe() // it has no end before all that were started are gone
	if err != nil {
		t.Fatal(err)
	}
	in, stdin, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s.Stdin, s.Stdout, s.Stderr = in, w, w
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = in.Close(), w.Close()
	_ = out.SetReadDeadline(time.Now().Add(patience))
	s.lines = bufio.NewScanner(out)
	t.Cleanup(func() {
		_ = s.Process.Kill() // it may have ended
		_ = s.Wait()
		_ = stdin.Close()               // with that the others end
		_, _ = io.Copy(io.Discard, out) // and with them this
		_ = out.Close()
	})
	return s
}

// next returns the number behind the next line with this word.
func (s *supervised) next(word string) int {
	s.t.Helper()
	for len(s.unread[word]) == 0 {
		if !s.lines.Scan() {
			s.t.Fatalf("no %s: %v", word, s.lines.Err())
		}
		first, rest, _ := strings.Cut(s.lines.Text(), " ")
		if n, err := strconv.Atoi(rest); err == nil {
			s.unread[first] = append(s.unread[first], n)
		}
	}
	n := s.unread[word][0]
	s.unread[word] = s.unread[word][1:]
	return n
}

// code waits for its end.
func (s *supervised) code() int {
	s.t.Helper()
	_ = s.Wait()
	return s.ProcessState.ExitCode()
}

func (s *supervised) send(pid int, sig syscall.Signal) {
	s.t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		s.t.Fatal(err)
	}
}

// children returns its children by pid, with their states as in /proc.
func (s *supervised) children() map[int]string {
	found := make(map[int]string)
	paths, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range paths {
		b, _ := os.ReadFile(path)
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(f) > 1 && f[1] == strconv.Itoa(s.Process.Pid) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			found[pid] = f[0]
		}
	}
	return found
}

// until waits until the children are as they should be.
func (s *supervised) until(what string, met func(children map[int]string) bool) {
	s.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); !met(s.children()); {
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("%s: not after %s: %v", what, patience, s.children())
		}
	}
}

// A runner that is killed is started again. Its keeper goes on, and is reaped once it ends.
func TestKilledRunner(t *testing.T) {
	s := supervise(t, "role:runner")
	keeper := s.next("keeper")
	runner := s.next("runner")
	s.send(runner, syscall.SIGKILL)
	if again := s.next("runner"); again == runner {
		t.Errorf("runner %d again", again)
	}
	s.until("the keeper is an orphan that lives", func(children map[int]string) bool {
		state, ok := children[keeper]
		return ok && state != "Z"
	})
	s.send(keeper, syscall.SIGKILL)
	s.until("the keeper is reaped", func(children map[int]string) bool { return children[keeper] == "" })
}

// A supervisor that is told to end ends with the runner. The runner's keeper is told nothing.
func TestSignals(t *testing.T) {
	s := supervise(t, "role:runner")
	keeper := s.next("keeper")
	s.next("runner")
	for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP, syscall.SIGTERM} {
		s.send(s.Process.Pid, sig)
		if told := s.next("told"); told != int(sig) {
			t.Errorf("told %d, want %d", told, sig)
		}
	}
	if code := s.code(); code != 7 {
		t.Errorf("exit code %d, want the program's, 7", code)
	}
	s.send(keeper, syscall.SIGKILL) // else there is none
}

// A supervisor that is told to end doesn't start the program again: neither one that
// is dead at that moment, nor one that dies of the signal.
func TestToldWhileDead(t *testing.T) {
	for _, role := range [][]string{{"role:exit", "1"}, {"role:idler"}} {
		s := supervise(t, role...)
		s.next(strings.TrimPrefix(role[0], "role:"))
		if role[0] == "role:exit" {
			s.until("the program is gone", func(children map[int]string) bool { return len(children) == 0 })
		}
		s.send(s.Process.Pid, syscall.SIGINT)
		if code := s.code(); code != 128+int(syscall.SIGINT) {
			t.Errorf("%v: exit code %d", role, code)
		}
	}
}

func TestExitCodes(t *testing.T) {
	for _, code := range []int{0, 2} {
		s := supervise(t, "role:exit", strconv.Itoa(code))
		if got := s.code(); got != code {
			t.Errorf("exit code %d, want %d", got, code)
		}
	}
	for _, code := range []int{1, 3, 255} {
		s := supervise(t, "role:exit", strconv.Itoa(code))
		if first, second := s.next("exit"), s.next("exit"); first == second {
			t.Errorf("exit code %d: not started again", code)
		}
	}
}

func TestNoZombies(t *testing.T) {
	s := supervise(t, "role:litterer")
	litterer := s.next("litterer")
	s.until("all but the program are reaped", func(children map[int]string) bool { return len(children) == 1 && children[litterer] != "Z" })
	s.send(litterer, syscall.SIGKILL) // its own children are orphans from now on
	s.next("litterer")
	s.until("the children of a program that was killed are reaped", func(children map[int]string) bool { return len(children) == 1 && children[litterer] == "" })
}

func TestNoProgram(t *testing.T) {
	code, err := supervisor.Run(supervisor.Config{Path: filepath.Join(t.TempDir(), "nosuch"), Argv: []string{"nosuch"}, Log: slog.New(slog.DiscardHandler)})
	if err == nil {
		t.Errorf("exit code %d", code)
	}
}
