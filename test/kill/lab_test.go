//go:build kill

package kill_test

import (
	"flag"
	"os"
	"sync"
	"testing"
	"time"

	"wake/test/lab"
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
	p, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return &bench{lab.New(t, lab.Config{Programs: p, TTL: ttl, Limit: limit, Seed: *seedFlag, Keep: *keepFlag})}
}
