package acp

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	acp "github.com/coder/acp-go-sdk"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/pipe"
	"code.wake.dev/wake/internal/agent/workdir"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// session is one run of the program. The goroutine that consumes Events owns all that isn't under Mu.
type session struct {
	*pipe.Program

	provider Provider
	request  agent.Request
	argv     []string
	prompt   []acp.ContentBlock
	folder   workdir.Folder

	f         *fold
	replaying bool         // what the program says, and was told, is from its journal
	open      []rpcMessage // requests of the journal without an answer, in order
	asked     time.Time    // when the program was last asked something
	over      time.Time    // since when the program has nothing more to do; zero: it has
	rested    time.Time    // when the host was last told of a resting point
	rests     uint64       // where that was
	reason    string       // why the program was ended, if it was
	deciding  map[string]context.CancelFunc
	decided   chan decision
	terminals map[string]*terminal

	redirect bool // the agent is to do something else; under Mu
}

// decision is the answer to a question for permission.
type decision struct {
	question rpcMessage
	call     string // that was asked about
	verdict  agent.Verdict
}

func newSession(ctx context.Context, p Provider, r agent.Request, argv []string, prompt []acp.ContentBlock) *session {
	return &session{
		Program: pipe.NewProgram(ctx, r, p.Grace, p.Logger, pipe.NewOutbox()), provider: p, request: r, argv: argv, prompt: prompt, folder: workdir.Folder{Dir: r.Options.Cwd, User: p.User},
		f: newFold(r), replaying: true, deciding: map[string]context.CancelFunc{}, decided: make(chan decision), terminals: map[string]*terminal{},
	}
}

func (s *session) put(m rpcMessage) {
	if err := s.Outbox.Put(m); err != nil {
		s.provider.Logger.Debug("line not sent", "method", m.Method, "error", err)
	}
}

// environ is the environment of the agent and its terminals.
func (s *session) environ() []string {
	return agent.Environment(s.provider.Environ, s.request.Options.Env)
}

// restoreRest puts the session where it was at a resting point. What another version of this program has left there can't
// be gone on with: the execution fails, and says why.
func (s *session) restoreRest(last process.Rest) {
	s.Offset, s.rests = last.Offset, last.Offset
	if len(last.State) == 0 {
		return
	}
	var x state
	err := wire.Unmarshal(last.State, &x)
	if err == nil && x.Version != stateVersion {
		err = fmt.Errorf("it is of version %d; this program reads %d", x.Version, stateVersion)
	}
	if err != nil {
		s.f.fail(wire.ErrorJournalUnreadable, "what a former runner knew of the agent can't be read: "+err.Error(), nil)
		return
	}
	x.fillMaps()
	s.f.state, s.Index = x, x.Index
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Halting, s.Ended = x.Halting, s.Ended || x.Over
}

// Send gives the agent a message, when its turn is over; see [agent.Session].
func (s *session) Send(ctx context.Context, m agent.Message) error {
	return s.Receive(ctx, m, func() { s.redirect = s.redirect || m.Interrupt })
}

// Interrupt asks the agent to stop; see [agent.Session].
func (s *session) Interrupt(ctx context.Context) error {
	return s.Halt(ctx, func() {})
}

// takeNews does what a message or an interruption asks for.
func (s *session) takeNews() {
	s.Mu.Lock()
	halting, redirect := s.Halting, s.redirect
	s.redirect = false
	s.Mu.Unlock()
	s.f.Halting = halting
	if s.f.Over || !halting && !redirect {
		return
	}
	if s.inTurn() {
		s.cutTurn()
	} else if halting {
		s.closeInput()
	}
}

// inTurn reports whether the agent has a prompt that it hasn't come to the end of.
func (s *session) inTurn() bool {
	for _, r := range s.f.Sent {
		if r.Method == acp.AgentMethodSessionPrompt {
			return true
		}
	}
	return false
}

// cutTurn has the agent cut its turn short. What it asks is answered by that.
func (s *session) cutTurn() {
	if s.replaying || s.f.Cancelled {
		return
	}
	s.f.Cancelled = true
	params, _ := wire.AppendJSON(nil, wire.RawOf(map[string]any{"sessionId": s.f.Session}))
	s.put(rpcMessage{JSONRPC: "2.0", Method: acp.AgentMethodSessionCancel, Params: params})
	for _, cancel := range s.deciding {
		cancel()
	}
}

// nextMessage takes the next message. If there is none, the program's input is closed, and the inbox, unless the agent waits for an answer.
func (s *session) nextMessage() (m agent.Message, ok bool) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if len(s.Inbox) > 0 {
		m, s.Inbox = s.Inbox[0], s.Inbox[1:]
		return m, true
	}
	if len(s.f.Asked) > 0 {
		return m, false
	}
	s.Ended, s.f.Over = true, true
	s.Outbox.Close()
	return m, false
}

// closeInput ends the program's input: there is nothing more to do. Messages that wait are for the session that goes on.
func (s *session) closeInput() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Ended, s.f.Over = true, true
	s.Outbox.Close()
}

func nowMillis() int64 { return time.Now().UnixMilli() }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
