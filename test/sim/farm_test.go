//go:build linux

package sim_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"
)

// share is how many seeds a process plays: one that stands still costs only the
// time until that is noticed.
const share = 50

// farm plays seeds in processes, side by side.
func farm(t *testing.T, first, count uint64) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	next, end := first, first+count
	total, said := tally{Faults: map[string]int{}, began: time.Now()}, time.Now()
	take := func() (from, n uint64) {
		mu.Lock()
		defer mu.Unlock()
		from, n = next, min(share, end-next)
		next += n
		return from, n
	}
	report := func(part tally, failed []byte) {
		mu.Lock()
		defer mu.Unlock()
		total.merge(part)
		if failed != nil {
			t.Errorf("%s", failed)
		}
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			fmt.Fprintln(os.Stderr, total.line())
		}
	}
	var all sync.WaitGroup
	for range *workers {
		all.Go(func() {
			for from, n := take(); n > 0; from, n = take() {
				for n > 0 { // behind a seed that stood still
					part, output, err := batch(program, from, n)
					if err != nil { // it has played them all, unless it broke down
						report(part, fmt.Appendf(output, "\nseeds %d to %d: %v", from, from+n-1, err))
						break
					}
					report(part, nil)
					done := min(n, uint64(part.Seeds+part.Frozen))
					from, n = from+done, n-done
				}
			}
		})
	}
	all.Wait()
	fmt.Fprintln(os.Stderr, total.String())
}

// batch plays seeds in a process and returns its tally, and what it said if it
// failed.
func batch(program string, from, n uint64) (part tally, output []byte, err error) {
	cmd := exec.Command(program, "-test.run=^TestSim$", "-test.timeout=0", "-tallied",
		"-from", strconv.FormatUint(from, 10), "-seeds", strconv.FormatUint(n, 10), "-procs", strconv.Itoa(*procs), "-keepers="+strconv.FormatBool(*kept), "-still", tooLong.String())
	output, err = cmd.CombinedOutput()
	if i := bytes.LastIndex(output, []byte(tallyMark)); i >= 0 {
		line, _, _ := bytes.Cut(output[i+len(tallyMark):], []byte("\n"))
		if e := json.Unmarshal(line, &part); e != nil {
			return part, output, e
		}
	}
	if e, ok := errors.AsType[*exec.ExitError](err); ok && e.ExitCode() == exitFrozen && part.Frozen > 0 && part.Failed == 0 {
		return part, nil, nil
	}
	if seed, leaked := leak(output); leaked && part.Failed == 0 {
		part.Frozen++
		part.Still = append(part.Still, seed)
		return part, nil, nil
	}
	if err == nil && part.Seeds == 0 {
		err = errors.New("no tally")
	}
	return part, output, err
}

// leak reports whether a process ended since its last seed left a goroutine behind that the client of the server has
// forgotten: an upload to the object store was cut off before it had begun (nats.go 1.55).
func leak(output []byte) (seed uint64, leaked bool) {
	_, died, ended := bytes.Cut(output, []byte("blocked goroutines remain"))
	left := bytes.Count(died, []byte(", synctest bubble "))
	if !ended || left == 0 || left != bytes.Count(died, []byte("created by github.com/nats-io/nats.go/jetstream.(*jetStream).newAsyncReply")) {
		return 0, false
	}
	if found := regexp.MustCompile(`FAIL: TestSim/seed=(\d+)`).FindSubmatch(output); found != nil {
		seed, _ = strconv.ParseUint(string(found[1]), 10, 64)
	}
	return seed, true
}
