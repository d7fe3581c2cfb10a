package apitest

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Program starts the made-up API that test/claude/run builds, for agents that are programs, and returns its address. It writes what
// it is asked into a folder.
func Program(t testing.TB, requests string) string {
	t.Helper()
	program, scenarios := os.Getenv("WAKE_FAKE_API"), os.Getenv("WAKE_FAKE_SCENARIOS") //nolint:forbidigo // a test's, from test/claude/run
	c := exec.Command(program, "-addr", "127.0.0.1:0", "-scenarios", scenarios, "-log", requests)
	out, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatalf("%v: run test/claude/run", err)
	}
	read := make(chan struct{})
	t.Cleanup(func() {
		_ = c.Process.Kill()
		<-read
		_ = c.Wait()
	})
	lines := bufio.NewScanner(out)
	told := lines.Scan()
	go func() {
		defer close(read)
		_, _ = io.Copy(io.Discard, out)
	}()
	if !told {
		t.Fatal("the API doesn't say where it listens")
	}
	return "http://" + lines.Text()[strings.LastIndexByte(lines.Text(), ' ')+1:]
}
