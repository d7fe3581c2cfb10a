//go:build linux

package keeper

import (
	"bufio"
	"bytes"
	"net"
	"testing"

	"code.wake.dev/wake/internal/process"
)

// TestInputIsWhole shows that what is written at once is one message: half of a line never reaches the program, whenever the
// runner dies.
func TestInputIsWhole(t *testing.T) {
	ours, theirs := net.Pipe()
	defer func() { _ = ours.Close() }()
	line := bytes.Repeat([]byte("x"), 3<<20)
	go func() {
		_, _ = stdin{newRemote(newKeeper(theirs), process.Config{})}.Write(line)
		_ = theirs.Close()
	}()
	k, body, err := readMessage(bufio.NewReader(ours))
	if err != nil {
		t.Fatal(err)
	}
	if _, data, ok := parseInput(body); k != msgInput || !ok || !bytes.Equal(data, line) {
		t.Errorf("a message %q of %d bytes", k, len(body))
	}
}
