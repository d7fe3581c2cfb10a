package claude_test

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/claude"
)

// TestMergeLines: lines stand in the order of their times, each file's in its own, and none is lost or broken.
func TestMergeLines(t *testing.T) {
	const limit = 1 << 10
	line := func(name, typ, second string) string {
		return fmt.Sprintf(`{"name":%q,"type":%q,"timestamp":"2026-01-01T00:00:%sZ"}`, name, typ, second)
	}
	long := `{"name":"` + strings.Repeat("x", 10*limit) + `"}`
	summary, poison := `{"type":"summary"}`, `{"timestamp":["no`
	main := []string{
		summary, line("prompt", "user", "10"), line("calls", "assistant", "20"), line("results", "user", "30"), poison, line("last", "assistant", "35"),
	}
	early := []string{line("a1", "user", "01"), line("a2", "assistant", "20"), long, line("a3", "assistant", "30")}
	late := []string{line("b1", "user", "21"), poison, line("b0", "assistant", "05"), line("b2", "assistant", "50")}
	want := []string{
		summary, main[1], // whatever a sub-agent's file says
		early[0], main[2], early[1], long, late[0], poison, late[2],
		early[3], main[3], poison, main[5], // the result behind what its sub-agent has said
		late[3],
	}
	r := claude.MergeLinesWithin(strings.NewReader(strings.Join(main, "\n")), []agent.SubAgent{
		{Content: []byte(strings.Join(early, "\n") + "\n")}, {Content: []byte(strings.Join(late, "\n"))}, {},
	}, limit)
	got, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(got), "\n")
	for i, line := range want {
		if i >= len(lines) || lines[i] != line+"\n" {
			t.Fatalf("line %d is %.60q, want %.60q", i+1, lines[min(i, len(lines)-1)], line)
		}
	}
	if len(lines) != len(want)+1 || lines[len(want)] != "" {
		t.Errorf("%d lines, want %d", len(lines), len(want))
	}
	if got, err := io.ReadAll(claude.MergeLines(iotest.ErrReader(io.ErrClosedPipe), []agent.SubAgent{{Content: []byte("x")}})); err == nil || len(got) > 0 {
		t.Errorf("of a file that can't be read %q, %v", got, err)
	}
	if got, err := io.ReadAll(claude.MergeLines(iotest.OneByteReader(bytes.NewReader(nil)), nil)); err != nil || len(got) > 0 {
		t.Errorf("of none %q, %v", got, err)
	}
}
