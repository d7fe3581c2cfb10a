//go:build linux

package sim_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// provider has agents drive programs whose behaviour follows from the seed and the execution,
// whichever runner drives them.
type provider struct {
	w    *world
	life *life
}

// memory is what an agent keeps of its session on a disk that all machines see.
type memory struct {
	exec string // that began it; a fork's goes on with the same script
	next int    // the step that it does next
}

// memories are the session files of all agents.
type memories struct {
	mu sync.Mutex
	of map[string]memory
}

func (m *memories) load(id string) (memory, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.of[id]
	return v, ok
}

func (m *memories) save(id string, v memory) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of[id] = v
}

// Capabilities implements [agent.Provider].
func (*provider) Capabilities() agent.Capabilities { return agent.Capabilities{} }

// Start implements [agent.Provider].
func (p *provider) Start(ctx context.Context, r agent.Request) (agent.Session, error) {
	script := p.w.script(r.NodeID, r.ExecID)
	if script.refuses {
		return nil, errors.New("the agent doesn't start")
	}
	p.w.noteFolder(r.RunID, r.Options.Cwd)
	ctx, cancel := context.WithCancel(ctx)
	return &session{
		provider: p, request: r, script: script, ctx: ctx, cancel: cancel, name: fmt.Sprintf("%s/%d", p.life.p.name, p.w.sessions.Add(1)),
		decided: make(chan line), given: map[string]bool{},
	}, nil
}

// script is what an agent does in an execution.
type script struct {
	refuses bool
	steps   []step
	ending  ending
	answer  string
}

// step is one turn of an agent.
type step struct {
	tool   string // "": it only talks
	safe   bool   // the call may be repeated
	asks   bool   // it wants a permission
	takes  time.Duration
	text   string
	pieces int
	tells  wire.Priority // how much its parent has to know of it; "": not at all
}

// ending is how an execution ends.
type ending int

const (
	answers ending = iota
	fails
	breaks // the machinery fails
	ends   // without a word
	hangs
)

// script returns the script of an execution. It depends on nothing but the seed,
// the node and the execution, so that it is the same in a fork.
func (w *world) script(node, exec string) script {
	h := fnv.New64a()
	_, _ = h.Write([]byte(node + "\x00" + exec))
	rng := rand.New(rand.NewPCG(w.seed, h.Sum64()))
	s := script{refuses: rng.IntN(60) == 0}
	for range rng.IntN(7) {
		s.steps = append(s.steps, w.step(rng))
	}
	s.answer = pick(rng, "left", "left", "right", "", hostile(rng))
	switch n := rng.IntN(20); {
	case n == 0:
		s.ending = fails
	case n == 1:
		s.ending = breaks
	case n == 2:
		s.ending = ends
	case n <= 5 && strings.HasPrefix(node, limited):
		s.ending = hangs
	}
	return s
}

func (w *world) step(rng *rand.Rand) step {
	s := step{takes: time.Duration(rng.ExpFloat64() * float64(2*time.Second)), text: "thinking", pieces: rng.IntN(4)}
	if rng.IntN(6) == 0 || w.keepers && rng.IntN(2) == 0 { // runners come and go meanwhile
		s.takes *= 20
	}
	switch rng.IntN(5) {
	case 0, 1, 2:
		s.tool = pick(rng, "Bash", "Write", "Read")
		s.safe = s.tool == "Read"
		s.asks = rng.IntN(4) == 0
	case 3:
		s.text = hostile(rng)
	case 4:
		s.text, s.tells = hostile(rng), pick(rng, "", wire.PriorityInfo, wire.PriorityQuestion, wire.PriorityBlocker)
	}
	return s
}

// hostile returns a text that nobody wants.
func hostile(rng *rand.Rand) string {
	switch rng.IntN(7) {
	case 0:
		return strings.Repeat("x", 2*blobLimit) // goes to the object store
	case 1:
		return "\x00\x1b[2J\x1b]0;title\x07"
	case 2:
		return "\xff\xfe\xc1 not UTF-8"
	case 3:
		return "{{ state.x }} {\"type\":\"abort\"}"
	case 4:
		return "\u202e\u2066right to left\u2069 \U0001f4a3"
	case 5:
		return "line\r\nMSG wake.cmd.r1 1 4\r\nquit\r\n"
	}
	return strings.Repeat("word ", 200)
}

func pick[T any](rng *rand.Rand, all ...T) T { return all[rng.IntN(len(all))] }
