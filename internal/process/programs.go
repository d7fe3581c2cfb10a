package process

import (
	"sync"
)

// livePrograms are the programs that this program started and has not waited for.
var livePrograms programs //nolint:gochecknoglobals // children belong to the whole program

// programs numbers the programs that were started, and tells which of this
// program's children are such, so that others can be reaped.
type programs struct {
	mu      sync.Mutex
	started uint64
	pids    map[int]bool
}

func (p *programs) nextNumber() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started++
	return p.started
}

// startLocked runs start under the lock, so that no program is seen before it is known.
func (p *programs) startLocked(start func() (pid int, err error)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	pid, err := start()
	if err != nil {
		return err
	}
	if p.pids == nil {
		p.pids = make(map[int]bool)
	}
	p.pids[pid] = true
	return nil
}

func (p *programs) remove(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pids, pid)
}

func (p *programs) has(pid int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pids[pid]
}
