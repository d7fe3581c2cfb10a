package acp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	acp "github.com/coder/acp-go-sdk"

	"code.wake.dev/wake/internal/process"
)

// terminal is a command that the agent has the session run, in its folder.
type terminal struct {
	process *process.Process
	ended   chan struct{} // closed when it has ended and its output is read

	mu    sync.Mutex
	limit int // bytes of output that are kept: the last ones
	out   []byte
	cut   bool
	waits int // requests that wait for its end
}

// The most output of a terminal that is kept, and how much may come until its host is told that what came before is taken care
// of; bytes.
const (
	terminalOutput = 1 << 20
	terminalRest   = 4 << 20
)

// drainTime is how long the output of a command is read on when it has ended and something else holds it open.
const drainTime = 300 * time.Millisecond

// terminalID names the terminal that a request asks for: asked again, it is the same.
func terminalID(m rpcMessage) string {
	sum := sha256.Sum256(m.ID)
	return "terminal-" + hex.EncodeToString(sum[:6])
}

// createTerminal starts a command. One that was started for the same request goes on.
func (s *session) createTerminal(m rpcMessage, r acp.CreateTerminalRequest) (any, error) {
	if r.Command == "" {
		return nil, errors.New("command is required")
	}
	dir := "."
	if r.Cwd != nil && *r.Cwd != "" {
		dir = *r.Cwd
	}
	root, rel, err := s.folder.OpenPath(dir)
	if err != nil {
		return nil, err
	}
	info, err := root.Stat(rel) // which follows no link that leads out of it
	_ = root.Close()
	if err != nil || !info.IsDir() {
		return nil, fmt.Errorf("%s is no folder within the workspace", dir)
	}
	argv := append([]string{r.Command}, r.Args...)
	if len(r.Args) == 0 && strings.ContainsAny(r.Command, " \t\n|&;<>$") { // some agents give a line for a shell
		argv = []string{"/bin/sh", "-c", r.Command}
	}
	added := map[string]string{}
	for _, v := range r.Env {
		added[v.Name] = v.Value
	}
	limit := terminalOutput
	if r.OutputByteLimit != nil && *r.OutputByteLimit > 0 {
		limit = min(limit, *r.OutputByteLimit)
	}
	id := terminalID(m)
	if err := s.openTerminal(id, limit, argv, filepath.Join(s.folder.Dir, rel), overlayEnvironment(s.environ(), added)); err != nil {
		return nil, err
	}
	if !slices.Contains(s.f.Terminals, id) {
		s.f.Terminals = append(s.f.Terminals, id)
	}
	return acp.CreateTerminalResponse{TerminalId: id}, nil
}

// overlayEnvironment returns an environment with variables that replace its own.
func overlayEnvironment(env []string, added map[string]string) []string {
	env = slices.DeleteFunc(env, func(kv string) bool {
		key, _, _ := strings.Cut(kv, "=")
		_, replaced := added[key]
		return replaced
	})
	for _, key := range sortedKeys(added) {
		env = append(env, key+"="+added[key])
	}
	return env
}

func (s *session) openTerminal(id string, limit int, argv []string, dir string, env []string) error {
	name := "terminal/" + id
	if !s.request.Host.Has(name) {
		path, err := exec.LookPath(argv[0])
		if err != nil {
			return fmt.Errorf("%s can't be run: %w", argv[0], err)
		}
		argv = append([]string{path}, argv[1:]...)
	}
	p, err := s.request.Host.Start(process.Config{Name: name, Argv: argv, Dir: dir, Env: env, Journal: true})
	if err != nil {
		return err
	}
	_ = p.Stdin.Close() // it has no input
	t := &terminal{process: p, ended: make(chan struct{}), limit: limit, out: p.Last.State}
	for f := range p.Frames { // what it has printed for a former session comes first
		if f.Direction == process.Live {
			break
		}
		t.keep(f.Data)
	}
	s.terminals[id] = t
	s.Tasks.Go(func() { s.tendTerminal(t) })
	return nil
}

// tendTerminal reads what a command prints, and ends it with the session, or leaves it with the agent.
func (s *session) tendTerminal(t *terminal) {
	stop := context.AfterFunc(s.Context(), func() {
		if s.IsLeft() {
			t.process.Leave()
			return
		}
		_ = t.process.End(s.provider.Grace) // what survives is reported with the agent's own
	})
	defer stop()
	exited, drained := t.process.Exited(), make(<-chan time.Time)
	unrested := 0
	for open := true; open; {
		select {
		case f, more := <-t.process.Frames:
			if open = more; more && (f.Direction == process.Out || f.Direction == process.Err) {
				kept := t.keep(f.Data)
				if unrested += len(f.Data); unrested > terminalRest {
					unrested = 0
					t.process.Rested(process.Rest{Offset: f.Offset + uint64(len(f.Data)), State: kept})
				}
			}
		case <-exited:
			exited, drained = nil, time.After(drainTime)
		case <-drained:
			open = false
		}
	}
	select {
	case <-t.process.Exited():
	case <-s.Context().Done():
	}
	close(t.ended)
	<-s.Context().Done()
	if !s.IsLeft() {
		_ = t.process.End(s.provider.Grace)
	}
	for range t.process.Frames {
		// what else there is isn't asked for any more
	}
	_ = t.process.Close()
}

// keep adds output and returns all that is kept.
func (t *terminal) keep(data []byte) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.out = append(t.out, data...)
	if over := len(t.out) - t.limit; over > 0 {
		for over < len(t.out) && !utf8.RuneStart(t.out[over]) {
			over++
		}
		t.out, t.cut = append([]byte(nil), t.out[over:]...), true
	}
	return slices.Clone(t.out)
}

// output returns the output so far, and whether its beginning is left out.
func (t *terminal) output() (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return toValidUTF8(string(t.out)), t.cut
}

func (s *session) findTerminal(id string) (*terminal, error) {
	t := s.terminals[id]
	if t == nil {
		return nil, fmt.Errorf("there is no terminal %q", id)
	}
	return t, nil
}

func (t *terminal) hasEnded() bool {
	select {
	case <-t.ended:
		return true
	default:
		return false
	}
}

// exitStatus is how the command ended.
func (t *terminal) exitStatus() acp.TerminalExitStatus {
	e := t.process.Exit()
	if e.Signal != "" {
		return acp.TerminalExitStatus{Signal: &e.Signal}
	}
	return acp.TerminalExitStatus{ExitCode: &e.Code}
}

func (s *session) terminalOutput(r acp.TerminalOutputRequest) (any, error) {
	t, err := s.findTerminal(r.TerminalId)
	if err != nil {
		return nil, err
	}
	text, cut := t.output()
	answer := acp.TerminalOutputResponse{Output: text, Truncated: cut}
	if t.hasEnded() {
		answer.ExitStatus = new(t.exitStatus())
	}
	return answer, nil
}

// awaitTerminal answers when the command has ended.
func (s *session) awaitTerminal(m rpcMessage, r acp.WaitForTerminalExitRequest) (any, error) {
	t, err := s.findTerminal(r.TerminalId)
	if err != nil {
		return nil, err
	}
	t.addWaits(1)
	s.Tasks.Go(func() {
		defer t.addWaits(-1)
		select {
		case <-t.ended:
			e := t.exitStatus()
			s.put(resultOf(m.ID, acp.WaitForTerminalExitResponse{ExitCode: e.ExitCode, Signal: e.Signal}))
		case <-s.Context().Done():
		}
	})
	return nil, nil
}

func (t *terminal) addWaits(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waits += n
}

// isWaiting reports whether a request waits for the end of a command.
func (s *session) isWaiting() bool {
	for _, t := range s.terminals {
		t.mu.Lock()
		waits := t.waits
		t.mu.Unlock()
		if waits > 0 {
			return true
		}
	}
	return false
}

func (s *session) killTerminal(r acp.KillTerminalRequest) (any, error) {
	t, err := s.findTerminal(r.TerminalId)
	if err != nil {
		return nil, err
	}
	return acp.KillTerminalResponse{}, t.process.End(s.provider.Grace)
}

// releaseTerminal ends a command, if it runs, and forgets it.
func (s *session) releaseTerminal(m rpcMessage, r acp.ReleaseTerminalRequest) (any, error) {
	t, err := s.findTerminal(r.TerminalId)
	if err != nil {
		return nil, err
	}
	if err := t.process.End(s.provider.Grace); err != nil {
		return nil, err
	}
	s.forgetTerminal(m)
	return acp.ReleaseTerminalResponse{}, nil
}

// forgetTerminal forgets the terminal that a request releases.
func (s *session) forgetTerminal(m rpcMessage) {
	var r acp.ReleaseTerminalRequest
	if json.Unmarshal(m.Params, &r) != nil {
		return
	}
	delete(s.terminals, r.TerminalId)
	s.f.Terminals = slices.DeleteFunc(s.f.Terminals, func(id string) bool { return id == r.TerminalId })
}

// mendTerminals attaches to the commands that a former session has started.
func (s *session) mendTerminals() {
	for _, id := range s.f.Terminals {
		if !s.request.Host.Has("terminal/" + id) {
			continue // its host has lost it: a request for it is told that there is none
		}
		if err := s.openTerminal(id, terminalOutput, nil, "", nil); err != nil {
			s.provider.Logger.Warn("terminal lost", "terminal", id, "error", err)
		}
	}
}
