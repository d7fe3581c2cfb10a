package claude_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// journalHost is a host whose one program is a recording. It keeps a journal, and sessions come and go.
type journalHost struct {
	mu     sync.Mutex
	frames []process.Frame
	end    uint64
	at     int64
	last   process.Rest
	rests  int
	size   int // of the largest state
	users  []string
	exited chan struct{}
	exit   process.Exit
	conn   *conn // of the session that is there
	begun  bool
}

// conn is what one session has of the program.
type conn struct {
	host   *journalHost
	frames chan process.Frame
	gone   bool
}

func newJournalHost() *journalHost { return &journalHost{exited: make(chan struct{})} }

func (h *journalHost) Has(string) bool { return h.begun }

func (h *journalHost) Forget(string) {}

func (h *journalHost) Start(process.Config) (*process.Process, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &conn{host: h, frames: make(chan process.Frame, 1<<14)}
	h.conn = c
	p := &process.Process{Backend: c, Stdin: c, Frames: c.frames, Attached: h.begun, Last: h.last}
	for _, f := range h.frames {
		if end := f.Offset + uint64(len(f.Data)); end > h.last.Offset {
			skip := max(f.Offset, h.last.Offset) - f.Offset
			f.Offset, f.Data = f.Offset+skip, f.Data[skip:]
			c.frames <- f
		}
	}
	c.frames <- process.Frame{Offset: h.end, Direction: process.Live}
	h.begun = true
	select {
	case <-h.exited:
		close(c.frames)
	default:
	}
	return p, nil
}

// say has the program print something.
func (h *journalHost) say(data []byte, at int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at = at
	h.add(process.Out, data)
}

func (h *journalHost) add(d process.Direction, data []byte) {
	f := process.Frame{Offset: h.end, Direction: d, At: h.at, Data: bytes.Clone(data)}
	h.end += uint64(len(data))
	h.frames = append(h.frames, f)
	if d == process.Out && h.conn != nil && !h.conn.gone {
		h.conn.frames <- f
	}
}

// finish has the program exit.
func (h *journalHost) finish(e process.Exit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over(e)
}

func (h *journalHost) over(e process.Exit) {
	select {
	case <-h.exited:
	default:
		h.exit = e
		close(h.exited)
		if h.conn != nil && !h.conn.gone {
			close(h.conn.frames)
		}
	}
}

// crash has the session's process die.
func (h *journalHost) crash() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conn.gone {
		return
	}
	h.conn.gone = true
	select {
	case <-h.exited:
	default:
		close(h.conn.frames)
	}
}

// told returns what the program was told: the types of the lines, and what they answer.
func (h *journalHost) told() (lines []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.frames {
		if f.Direction != process.In {
			continue
		}
		m, err := wire.RawFromJSON(f.Data)
		if err != nil {
			panic(err)
		}
		what := m.TextAt("type")
		id := m.TextAt("response", "request_id")
		body, _ := json.Marshal(m.Get("response").Get("response"))
		lines = append(lines, strings.TrimSpace(strings.Join([]string{what, id, strings.TrimPrefix(string(body), "null")}, " ")))
	}
	return lines
}

func (c *conn) Pid() int                { return 1 }
func (c *conn) Exited() <-chan struct{} { return c.host.exited }
func (c *conn) Exit() process.Exit      { return c.host.exit }
func (c *conn) Words() string           { return "" }
func (c *conn) Close() error            { return nil }

func (c *conn) End(time.Duration) error {
	c.host.mu.Lock()
	defer c.host.mu.Unlock()
	if !c.gone {
		c.host.over(process.Exit{Code: -1, Signal: "TERM"})
	}
	return nil
}

func (c *conn) Rested(r process.Rest) {
	c.host.mu.Lock()
	defer c.host.mu.Unlock()
	if !c.gone {
		c.host.last = r
		c.host.rests++
		c.host.size = max(c.host.size, len(r.State))
	}
}

func (c *conn) Leave() bool {
	c.host.crash()
	return true
}

func (c *conn) Write(line []byte) (int, error) {
	c.host.mu.Lock()
	defer c.host.mu.Unlock()
	if c.gone {
		return 0, errors.New("gone")
	}
	c.host.add(process.In, line)
	var m struct{ Type, UUID string }
	if err := json.Unmarshal(line, &m); err != nil {
		return 0, err
	}
	if m.Type == "user" {
		c.host.users = append(c.host.users, m.UUID)
	}
	return len(line), nil
}

var _ io.WriteCloser = (*conn)(nil)

// attempt is one session of several on the same program.
type attempt struct {
	session agent.Session
	events  []*wire.Event
	rested  int // how many of them there were at the last resting point
	done    chan struct{}
	err     error
}

// run starts a session and collects its events; on is called with each and reports whether the session may go on.
func (h *journalHost) run(t *testing.T, r agent.Request, on func(*wire.Event)) *attempt {
	t.Helper()
	p := claude.Provider{Binary: os.Args[0]}
	p.RestEvery(1)
	a := &attempt{done: make(chan struct{})}
	r.Host = h
	r.Stored = func() bool {
		a.rested = len(a.events)
		return true
	}
	s, err := p.Start(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	a.session = s
	go func() {
		defer close(a.done)
		for e, err := range s.Events() {
			if err != nil {
				a.err = err
				return
			}
			a.events = append(a.events, e)
			if on != nil {
				on(e)
			}
		}
	}()
	return a
}

// play is a recording that is played to sessions.
type play struct {
	recording
	request func() agent.Request
}

// line returns a line as the program prints it. Echoes have the ids of what it was sent: all but the first
// are of messages that the session is given now.
func (p play) line(t *testing.T, h *journalHost, a *attempt, i int) []byte {
	line := append(bytes.Clone(p.lines[i]), '\n')
	old, echo := echoed(p.lines[i])
	if !echo {
		return line
	}
	n := 0
	for _, before := range p.lines[:i] {
		if _, echo := echoed(before); echo {
			n++
		}
	}
	if n == len(h.users) {
		synctest.Wait()
		err := a.session.Send(t.Context(), agent.Message{CommandID: fmt.Sprint("c", n), Content: "And?", Notice: n%2 == 0})
		if err != nil && !errors.Is(err, agent.ErrEnded) {
			t.Error(err)
		}
		synctest.Wait()
	}
	if n < len(h.users) && len(old) == len(h.users[n]) {
		line = bytes.ReplaceAll(line, []byte(old), []byte(h.users[n]))
	}
	return line
}

// echoed returns the id of a line that is the echo of a message.
func echoed(line []byte) (uuid string, ok bool) {
	m, err := wire.RawFromJSON(line)
	if err != nil {
		return "", false
	}
	uuid = m.TextAt("uuid")
	ok, _ = m.Get("isReplay").Any().(bool)
	return uuid, ok
}

func (p play) end(h *journalHost) {
	h.finish(process.Exit{Code: p.exit.Code, Signal: p.exit.Signal})
}

// whole plays it to one session.
func (p play) whole(t *testing.T) (events []*wire.Event, told []string) {
	h := newJournalHost()
	a := h.run(t, p.request(), nil)
	synctest.Wait()
	for i := range p.lines {
		h.say(p.line(t, h, a, i), p.at[i])
		synctest.Wait()
	}
	p.end(h)
	<-a.done
	if a.err != nil {
		t.Fatal(a.err)
	}
	return a.events, h.told()
}

// cut plays it to a session that dies after some lines and a part of the next one, and to another one
// that goes on. lost is how many events at most didn't get into the log of what the first has yielded. It returns
// the events of the log.
func (p play) cut(t *testing.T, after int, part func(line []byte) int, lost int) (events []*wire.Event, h *journalHost) {
	h = newJournalHost()
	first := h.run(t, p.request(), nil)
	synctest.Wait()
	for i := range after {
		h.say(p.line(t, h, first, i), p.at[i])
		synctest.Wait()
	}
	var rest []byte
	if after < len(p.lines) {
		line := p.line(t, h, first, after)
		n := part(line)
		if n > 0 {
			h.say(line[:n], p.at[after])
			synctest.Wait()
		}
		rest = line[n:]
	}
	least := first.rested
	for i, e := range first.events {
		if e.Type().Awaited() || e.JournalOffset == 0 { // the answer that follows one of the runner's own waits for it
			least = max(least, i+1)
		}
	}
	log := first.events[:max(least, len(first.events)-lost):len(first.events)]
	first.session.(agent.Leaver).Leave()
	<-first.done
	r := p.request()
	r.Decided = decisions(log)
	second := h.run(t, r, nil)
	if after%2 == 0 { // the program goes on before the session is there, or after
		synctest.Wait()
	}
	if len(rest) > 0 {
		h.say(rest, p.at[after])
	}
	for i := after + 1; i < len(p.lines); i++ {
		synctest.Wait()
		h.say(p.line(t, h, second, i), p.at[i])
	}
	synctest.Wait()
	p.end(h)
	<-second.done
	if second.err != nil {
		t.Fatal(second.err)
	}
	return joined(log, second.events), h
}

func decisions(log []*wire.Event) map[string]*wire.PermissionDecided {
	m := map[string]*wire.PermissionDecided{}
	for _, e := range log {
		if p, ok := e.Payload.(*wire.PermissionDecided); ok {
			m[e.CallID] = p
		}
	}
	return m
}

// joined returns a log with what is added to it: events of a place that it has are left out.
func joined(log, more []*wire.Event) []*wire.Event {
	var offset uint64
	var index int
	for _, e := range log {
		if e.JournalOffset > offset || e.JournalOffset == offset && e.JournalIndex > index {
			offset, index = e.JournalOffset, e.JournalIndex
		}
	}
	out := log
	for _, e := range more {
		if e.JournalOffset == 0 || e.JournalOffset > offset || e.JournalOffset == offset && e.JournalIndex > index {
			out = append(out, e)
		}
	}
	return out
}

// plain renders events, less the ids that are random and the times at which the runner did something.
func plain(t *testing.T, events []*wire.Event) []string {
	t.Helper()
	var lines []string
	for i, e := range events {
		c := *e
		c.RunID, c.NodeID, c.Seq, c.Epoch = "r", "coder", uint64(i+1), 1
		if c.Timestamp < epoch {
			c.Timestamp = 0
		}
		if p, ok := c.Payload.(*wire.UserMessage); ok {
			q := *p
			q.Point, c.Payload = "", &q
		}
		b, err := wire.EncodeJSON(&c)
		if err != nil {
			t.Fatalf("%s: %v", c.Type(), err)
		}
		lines = append(lines, string(b))
	}
	return lines
}

func attachRequest(t *testing.T) agent.Request {
	return agent.Request{
		RunID: "r", NodeID: "coder", ExecID: "coder#1", SessionID: "s1", Prompt: wire.RawString("Go."),
		Options: agent.Options{Cwd: t.TempDir(), Env: map[string]string{"HOME": t.TempDir()}},
	}
}

// A runner may die behind every line of every recording, and within any: the events
// are those of a session that was never disturbed, and the program is told the same.
func TestAttachAnywhere(t *testing.T) {
	files, err := filepath.Glob("testdata/stream/*.jsonl")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	for i, file := range files {
		if testing.Short() && i%4 != 1 { // the race detector, to which all are alike
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl"), func(t *testing.T) {
			t.Parallel()
			r := attachRequest(t)
			attachAnywhere(t, play{recording: load(t, file), request: func() agent.Request { return r }}, 1)
		})
	}
}

// The same with more lines and calls than are remembered.
func TestAttachLate(t *testing.T) {
	p := play{recording: recording{lines: [][]byte{[]byte(initLine)}, at: []int64{epoch}}}
	for i := range 150 {
		call := fmt.Sprint("t", i)
		say := message("m"+call, "", `{"type":"tool_use","id":"`+call+`","name":"Bash","input":{"command":"ls"}}`)
		done := `{"type":"user","uuid":"u` + call + `","message":{"content":[{"type":"tool_result","tool_use_id":"` + call + `","content":"a.go"}]}}`
		for _, line := range []string{say, done, done} { // the program says it again
			p.lines, p.at = append(p.lines, []byte(line)), append(p.at, int64(epoch+i))
		}
	}
	p.lines, p.at = append(p.lines, []byte(success)), append(p.at, epoch+1000)
	r := attachRequest(t)
	p.request = func() agent.Request { return r }
	attachAnywhere(t, p, 29)
}

// attachAnywhere cuts a play at every step-th line.
func attachAnywhere(t *testing.T, p play, step int) {
	var want []*wire.Event
	var told []string
	synctest.Test(t, func(t *testing.T) { want, told = p.whole(t) })
	random := rand.New(rand.NewPCG(1, uint64(len(p.lines))))
	rests, size := 0, 0
	for after := 0; after <= len(p.lines); after += step {
		for _, part := range []func([]byte) int{
			func([]byte) int { return 0 },
			func(line []byte) int { return random.IntN(len(line)) },
		} {
			ok := true
			synctest.Test(t, func(t *testing.T) {
				got, h := p.cut(t, after, part, random.IntN(4))
				if diff := cmp.Diff(plain(t, want), plain(t, got)); diff != "" {
					t.Errorf("cut after %d lines (-undisturbed +attached):\n%s", after, diff)
				}
				if diff := cmp.Diff(told, h.told()); diff != "" {
					t.Errorf("cut after %d lines, what the program was told (-undisturbed +attached):\n%s", after, diff)
				}
				ok, rests, size = !t.Failed(), rests+h.rests, max(size, h.size)
			})
			if !ok {
				return
			}
		}
	}
	t.Logf("%d lines, %d resting points, largest state %d bytes", len(p.lines), rests, size)
}

// What the program asks while its runner dies is answered once, by whichever session is there then, and
// what the log has of the answer isn't said again.
func TestAttachQuestions(t *testing.T) {
	intent := func(id string) string {
		return message("m"+id, "", `{"type":"tool_use","id":"`+id+`","name":"Bash","input":{"command":"ls"}}`)
	}
	pre := func(request, id string) string {
		return `{"type":"control_request","request_id":"` + request + `","request":{"subtype":"hook_callback","callback_id":"pre","input":{"hook_event_name":"PreToolUse","permission_mode":"default","tool_name":"Bash","tool_input":{"command":"ls"},"tool_use_id":"` + id + `"}}}`
	}
	can := func(request, id string) string {
		return `{"type":"control_request","request_id":"` + request + `","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"ls"},"tool_use_id":"` + id + `"}}`
	}
	done := func(id string) string {
		return `{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"` + id + `","content":"a.go"}]}}`
	}
	failed := func(id string) string {
		return `{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"` + id + `","is_error":true,"content":"The user doesn't want to proceed with this tool use. No."}]}}`
	}
	parent := func(request, params string) string {
		return `{"type":"control_request","request_id":"` + request + `","request":{"subtype":"mcp_message","server_name":"parent","message":{"jsonrpc":"2.0","id":5,` + params + `}}}`
	}
	notify := message("mt6", "", `{"type":"tool_use","id":"t6","name":"mcp__parent__notify_parent","input":{"message":"Half done."}}`)
	lines := []string{
		parent("q9", `"method":"initialize","params":{"protocolVersion":"2025-11-25"}`), parent("q10", `"method":"tools/list"`),
		initLine, intent("t1"), pre("q1", "t1"), can("q2", "t1"), done("t1"),
		intent("t2"), intent("t3"), pre("q3", "t2"), pre("q4", "t3"), can("q5", "t2"), can("q6", "t3"), failed("t3"), done("t2"),
		intent("t4"), pre("q7", "t4"), done("t4"), intent("t5"), can("q8", "t5"), `{"type":"control_cancel_request","request_id":"q8"}`, failed("t5"),
		notify, parent("q11", `"method":"tools/call","params":{"name":"notify_parent","arguments":{"message":"Half done."}}`), done("t6"), success,
	}
	p := play{recording: recording{}}
	for i, line := range lines {
		p.lines, p.at = append(p.lines, []byte(line)), append(p.at, int64(epoch+i))
	}
	base := attachRequest(t)
	base.Options.PermissionMode = "default"
	base.Options.Decide = func(ctx context.Context, p agent.Permission) agent.Verdict {
		if p.CallID == "t5" { // nobody is there
			<-ctx.Done()
		}
		return agent.Verdict{Allow: p.CallID != "t3", By: "ada"}
	}
	base.Hooks = hook.New(hook.Config{
		Hooks: []flow.Hook{{Event: flow.HookPreToolUse, Subject: "x"}},
		Ask: func(_ context.Context, _ string, question []byte) ([]byte, error) {
			if bytes.Contains(question, []byte(`"t4"`)) {
				return []byte(`{"decision":"deny","reason":"no"}`), nil
			}
			return []byte(`{}`), nil
		},
	})
	p.request = func() agent.Request { return base }
	attachAnywhere(t, p, 1)
}

// A runner that dies when a decision is in the log and the program doesn't have it yet: the next one tells it, and
// records nothing.
func TestAttachDecided(t *testing.T) {
	lines := []string{
		initLine, message("m1", "", `{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"ls"}}`),
		`{"type":"control_request","request_id":"q1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"ls"},"tool_use_id":"t1"}}`,
	}
	synctest.Test(t, func(t *testing.T) {
		h, r, asked := newJournalHost(), attachRequest(t), 0
		r.Options.PermissionMode = "default"
		r.Options.Decide = func(context.Context, agent.Permission) agent.Verdict {
			asked++
			return agent.Verdict{By: "ada", Note: "not today"}
		}
		first := h.run(t, r, func(e *wire.Event) {
			if e.Type() == wire.TypePermissionDecided {
				h.crash()
			}
		})
		synctest.Wait()
		for i, line := range lines {
			h.say([]byte(line+"\n"), int64(epoch+i))
			synctest.Wait()
		}
		log := first.events
		r.Decided = decisions(log)
		second := h.run(t, r, nil)
		synctest.Wait()
		if told := h.told(); len(told) != 3 || told[2] != `control_response q1 {"behavior":"deny","message":"not today"}` {
			t.Errorf("the program was told %q", told)
		}
		if added := joined(log, second.events)[len(log):]; len(added) > 0 || asked != 1 {
			t.Errorf("asked %d times, %v", asked, plain(t, added))
		}
		h.say([]byte(success+"\n"), epoch+9)
		h.finish(process.Exit{})
		<-second.done
		first.session.(agent.Leaver).Leave()
	})
}

// The state of another version isn't read: the session says so, and goes on.
func TestAttachOtherVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newJournalHost()
		data, err := wire.Marshal(map[string]any{"version": 1000, "turn": 7, "blocks": 9, "lines": "many"})
		if err != nil {
			t.Fatal(err)
		}
		h.begun, h.end, h.last = true, 100, process.Rest{Offset: 100, State: data}
		a := h.run(t, attachRequest(t), nil)
		h.say([]byte(message("m9", "", textOf("Hi."))+"\n"+success+"\n"), epoch)
		h.finish(process.Exit{})
		<-a.done
		wantSaid(t, a.events, `agent:error journal_unreadable "what a former runner knew of the agent can't be read: it is of version 1000; this program reads 4" warning`,
			"turn:start 8", `agent:text #10 "Hi."`, "usage m9 1/2", "turn:end", `agent:complete "Done."`)
		if told := h.told(); len(told) > 0 {
			t.Errorf("the program was told %q", told)
		}
	})
}

// The runner that attaches to a program gives it no message that the former runner has given it, though the echo isn't on record
// yet; a new message it gives.
func TestMessageGivenOnce(t *testing.T) {
	recorded := load(t, "testdata/stream/subagents.jsonl")
	for _, lines := range []int{0, 3, 12} { // with resting points before the message
		t.Run(fmt.Sprint(lines, " lines"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := play{recording: recorded, request: func() agent.Request { return attachRequest(t) }}
				h, r := newJournalHost(), p.request()
				send := func(a *attempt, command string) {
					t.Helper()
					if err := a.session.Send(t.Context(), agent.Message{CommandID: command, Content: "ADD-ONE"}); err != nil {
						t.Error(err)
					}
				}
				first := h.run(t, r, nil)
				synctest.Wait()
				for i := range lines {
					h.say(p.line(t, h, first, i), p.at[i])
					synctest.Wait()
				}
				before := len(h.users)
				send(first, "c1")
				synctest.Wait()
				first.session.(agent.Leaver).Leave()
				<-first.done
				second := h.run(t, r, nil)
				send(second, "c1")
				synctest.Wait()
				send(second, "c1")
				send(second, "c2")
				synctest.Wait()
				if given := len(h.users) - before; given != 2 {
					t.Errorf("the program was given %d messages, not c1 and c2", given)
				}
				p.end(h)
				<-second.done
			})
		})
	}
}

// The file of a session goes on being kept by the runner that goes on with the program.
func TestAttachKept(t *testing.T) {
	p := newPlace(t)
	before, after := line("u1", "01")+"\n", line("u2", "02")+"\n"
	kept := &shelf{files: map[string][]byte{"s1": []byte(before)}, others: map[string]bool{"s1": true}}
	p.put(t, "s1", before+after)
	r := attachRequest(t)
	p.request(&r)
	r.Transcript = kept.transcript()
	h := newJournalHost()
	h.begun = true
	a := h.run(t, r, nil)
	h.say([]byte(success+"\n"), epoch)
	h.finish(process.Exit{})
	<-a.done
	if got := string(kept.files["s1"]); got != before+after {
		t.Errorf("kept %q, want %q", got, before+after)
	}
}

// TestStateVersion fails if what a session leaves at a resting point has another shape under the same version.
func TestStateVersion(t *testing.T) {
	shape := fmt.Sprintf("version %d\n%s", claude.StateVersion, shapeOf(reflect.TypeFor[claude.State](), ""))
	const file = "testdata/state.golden"
	before, err := os.ReadFile(file)
	version, _, _ := strings.Cut(shape, "\n")
	if *update && (err != nil || !strings.HasPrefix(string(before), version+"\n")) {
		if err := os.WriteFile(file, []byte(shape), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(strings.Split(string(before), "\n"), strings.Split(shape, "\n")); diff != "" {
		t.Errorf("count stateVersion up and run with -update (-golden +now):\n%s", diff)
	}
}

// shapeOf tells the fields of a type as they are stored: sorted, those of embedded structs among them, and without the names of types.
func shapeOf(typ reflect.Type, indent string) string {
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return shapeOf(typ.Elem(), indent)
	case reflect.Struct:
		fields := map[string]string{}
		for _, f := range reflect.VisibleFields(typ) {
			if !f.Anonymous {
				name, tagged := f.Tag.Lookup("json")
				if !tagged {
					name = f.Name
				}
				fields[name] = fmt.Sprintf("%s%s %s\n%s", indent, name, kindOf(f.Type), shapeOf(f.Type, indent+"\t"))
			}
		}
		var b strings.Builder
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			b.WriteString(fields[name])
		}
		return b.String()
	}
	return ""
}

func kindOf(typ reflect.Type) string {
	switch typ.Kind() {
	case reflect.Pointer:
		return "*" + kindOf(typ.Elem())
	case reflect.Slice:
		return "[]" + kindOf(typ.Elem())
	case reflect.Map:
		return "map[" + kindOf(typ.Key()) + "]" + kindOf(typ.Elem())
	}
	return typ.Kind().String()
}
