package process

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
)

// Mark is the environment variable that a process and its descendants carry:
// <pid of the program>-<its start time>-<number>-<PID namespace>-<home, hashed>.
const Mark = "WAKE_PROCESS"

// NewMark returns a mark for a program of a home that this process starts, or has another one
// start. It names this process by its pid, its start and its PID namespace: the processes of
// containers are seen from outside of them, where their pids are others'.
func NewMark(home string) string {
	pid := os.Getpid()
	return fmt.Sprintf("%d-%d-%d-%d-%s", pid, startTime(pid), livePrograms.nextNumber(), pidNamespace(), hashOf(home))
}

// hashOf makes a home a part of a mark; "" if it isn't known.
func hashOf(home string) string {
	if home == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(home))
	return hex.EncodeToString(sum[:8])
}

// markOwner returns the process that set a mark, unless it is of another home or can't be told here.
func markOwner(mark, home string) (pid int, start uint64, ok bool) {
	fields := strings.Split(mark, "-")
	if home == "" || len(fields) != 5 || fields[3] != strconv.FormatUint(pidNamespace(), 10) || fields[4] != hashOf(home) {
		return 0, 0, false
	}
	pid, err := strconv.Atoi(fields[0])
	if err != nil || pid <= 0 {
		return 0, 0, false
	}
	start, err = strconv.ParseUint(fields[1], 10, 64)
	return pid, start, err == nil
}

// Marked returns an environment with a mark.
func Marked(env []string, mark string) []string { return append(withoutVar(env, Mark), Mark+"="+mark) }

func withoutVar(env []string, key string) []string {
	out := make([]string, 0, len(env)+1)
	for _, kv := range env {
		if !strings.HasPrefix(kv, key+"=") {
			out = append(out, kv)
		}
	}
	return out
}

// tail keeps the end of what a reader gives.
type tail struct {
	mu   sync.Mutex
	buf  []byte
	done chan struct{}
}

// keepTail reads r to its end, which comes with the end of the tree.
func keepTail(r io.ReadCloser, limit int) *tail {
	t := &tail{done: make(chan struct{})}
	go func() {
		defer close(t.done)
		defer func() { _ = r.Close() }()
		piece := make([]byte, 4<<10)
		for {
			n, err := r.Read(piece)
			t.add(piece[:n], limit)
			if err != nil {
				return
			}
		}
	}()
	return t
}

func (t *tail) add(piece []byte, limit int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, piece...)
	if over := len(t.buf) - limit; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
}

func (t *tail) wait() { <-t.done }

// String returns what was kept, as text.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.buf), "\uFFFD")
}
