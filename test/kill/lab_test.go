//go:build kill

package kill_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"code.wake.dev/wake/test/lab"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "where and when to kill; 0: another one each time")
	killsFlag = flag.Int("kills", 40, "how often to kill")
	keepFlag  = flag.Bool("keep", false, "keep the folders of tests that passed")
)

// bin is the folder of the programs.
var bin string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(lab.Main(m, &bin))
}

// build builds the programs, once.
var build = sync.OnceValues(func() (lab.Programs, error) { return lab.Build(bin) })

// bench is a lab with the tests' own scenarios.
type bench struct{ *lab.Lab }

// newLab starts a server and the services but runners. Everything ends with the
// test, at the latest after limit.
func newLab(t *testing.T, ttl, limit time.Duration) *bench {
	t.Helper()
	return newLabOf(t, lab.Config{TTL: ttl, Limit: limit})
}

// newLabOf is newLab with further settings.
func newLabOf(t *testing.T, c lab.Config) *bench {
	t.Helper()
	p, err := build()
	if err != nil {
		t.Fatal(err)
	}
	c.Programs, c.Seed, c.Keep = p, *seedFlag, *keepFlag
	return &bench{lab.New(t, c)}
}

// agents are the processes of agents, by their programs: not what they have started.
func (l *bench) agents() (pids []int) {
	for _, pid := range l.Marked() {
		argv, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && bytes.HasPrefix(argv, []byte(l.Prog.Claude+"\x00")) && bytes.Contains(argv, []byte("stream-json")) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}
