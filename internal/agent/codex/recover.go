package codex

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// recoverCalls returns the commands of Codex's own record of its thread that the log lacks: it had begun them when it died with its
// keeper, before that had read so. They are those that are later than the log's last call, since Codex's ids of items aren't in there.
func (p *Provider) recoverCalls(ctx context.Context, r agent.Request, _ agent.Calls) ([]*wire.Event, error) {
	if !r.Resume || r.History == nil {
		return nil, nil
	}
	last, err := lastCall(r)
	if err != nil || last == 0 {
		return nil, err
	}
	file, err := p.openRollout(r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it is on another machine
	}
	if err != nil {
		return nil, fmt.Errorf("codex: record of the thread: %w", err)
	}
	defer func() { _ = file.Close() }()
	l := rollout{thread: r.SessionID, after: last, inputs: map[string]wire.Raw{}}
	if err := l.readCalls(ctx, file); err != nil {
		return nil, fmt.Errorf("codex: record of the thread: %w", err)
	}
	return l.events, nil
}

// lastCall is when the log was last told that the execution begins a call, or else that it begins, in Unix ms; 0: never.
func lastCall(r agent.Request) (last int64, err error) {
	for e, err := range r.History {
		if err != nil {
			return 0, err
		}
		if e.Type() == wire.TypeToolIntent || e.Type() == wire.TypeAgentStart && last == 0 {
			last = max(last, e.Timestamp)
		}
	}
	return last, nil
}

// isThread reports whether an id may be that of a thread: it is part of the name of a file.
var isThread = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9A-Za-z-]+$`) })

// agentFolder is a folder that the agent may write: a pipe in there doesn't hold what reads it.
type agentFolder struct{ *os.Root }

// Open implements [fs.FS].
func (f agentFolder) Open(name string) (fs.File, error) {
	return f.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// openRollout opens the file in which Codex keeps the thread of a request.
func (p *Provider) openRollout(r agent.Request) (fs.File, error) {
	home := ""
	for _, kv := range agent.Environment(p.User.Environ(p.Environ), r.Options.Env) {
		switch key, value, _ := strings.Cut(kv, "="); key {
		case "CODEX_HOME":
			home = value
		case "HOME":
			home = cmp.Or(home, filepath.Join(value, ".codex"))
		}
	}
	if home == "" || !isThread().MatchString(r.SessionID) {
		return nil, fs.ErrNotExist
	}
	root, err := os.OpenRoot(filepath.Join(home, "sessions") + "/.") // so that a pipe is an error
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	names, err := fs.Glob(agentFolder{root}, path.Join("*", "*", "*", "rollout-*-"+r.SessionID+".jsonl")) // by year, month and day
	if err != nil || len(names) == 0 {
		return nil, cmp.Or(err, fs.ErrNotExist)
	}
	file, err := agentFolder{root}.Open(names[len(names)-1])
	if err != nil {
		return nil, err
	}
	switch info, err := file.Stat(); {
	case err != nil:
		return nil, errors.Join(err, file.Close())
	case !info.Mode().IsRegular():
		return nil, errors.Join(fmt.Errorf("%s is not a regular file", info.Name()), file.Close())
	case info.Size() > maxRollout:
		return nil, errors.Join(fmt.Errorf("%s has %d bytes, more than %d", info.Name(), info.Size(), maxRollout), file.Close())
	}
	return file, nil
}

// rolloutLine is a line of the file, as far as calls of commands are concerned.
type rolloutLine struct {
	Timestamp time.Time `json:"timestamp"`
	Type      string    `json:"type"`
	Payload   struct {
		Type      string          `json:"type"`
		ID        string          `json:"id"`
		ForkedOf  string          `json:"forked_from_id"`
		TurnID    string          `json:"turn_id"`
		Name      string          `json:"name"`
		CallID    string          `json:"call_id"`
		Arguments string          `json:"arguments"`
		Output    json.RawMessage `json:"output"`
	} `json:"payload"`
}

// Bounds of what is read, since the agent may write there what it likes: the file and its lines in bytes, longer lines aren't of calls;
// and of what is kept of it: events, and the bytes of the lines that they are from.
const (
	maxRollout     = 256 << 20
	maxRolloutLine = 1 << 20
	maxRecovered   = 1000
	maxKept        = 16 << 20
)

// rollout is what is read of the file of a thread.
type rollout struct {
	thread string
	after  int64 // when the log was last told of a call, in Unix ms
	forked bool  // the file may begin with a copy of another thread's, with the time of the fork in each line
	own    bool  // a turn of this thread has begun
	inputs map[string]wire.Raw
	events []*wire.Event
	kept   int
}

// readCalls reads the calls of commands that are later than the log's, and their results.
func (r *rollout) readCalls(ctx context.Context, file io.Reader) error {
	in := bufio.NewReaderSize(io.LimitReader(file, maxRollout), maxRolloutLine)
	for {
		text, err := in.ReadSlice('\n')
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		var l rolloutLine
		if json.Unmarshal(text, &l) == nil {
			r.takeLine(l, len(text))
		}
		if errors.Is(err, io.EOF) || len(r.events) >= maxRecovered || r.kept >= maxKept {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// takeLine takes a line of so many bytes. Codex's ids are in the order of their times: turns that are older than the thread are copies.
func (r *rollout) takeLine(l rolloutLine, size int) {
	switch {
	case l.Type == "session_meta":
		r.forked = r.forked || l.Payload.ID == r.thread && l.Payload.ForkedOf != ""
	case l.Type == "turn_context", l.Payload.Type == "task_started":
		r.own = r.own || l.Payload.TurnID > r.thread
	case l.Type == "response_item" && (r.own || !r.forked) && l.Timestamp.UnixMilli() > r.after:
		if r.takeCall(l) {
			r.kept += size
		}
	}
}

// takeCall takes a call or its result, and reports whether it is one of a command.
func (r *rollout) takeCall(l rolloutLine) bool {
	id := l.Payload.CallID
	switch command := l.command(); {
	case l.Payload.Type == "function_call" && command != "" && id != "":
		input := mustMarshal(map[string]any{"command": command})
		r.inputs[id] = input
		sum := sha256.Sum256(input)
		r.events = append(r.events, &wire.Event{CallID: id, Payload: &wire.ToolIntent{
			ToolName: "command_execution", ToolInput: input, InputHash: hex.EncodeToString(sum[:]), Recovered: wire.RecoveredTranscript,
		}})
		return true
	case l.Payload.Type == "function_call_output" && r.inputs[id] != nil:
		r.endCall(id, l.Payload.Output)
		return true
	}
	return false
}

// endCall takes the result of a call.
func (r *rollout) endCall(id string, result json.RawMessage) {
	input := r.inputs[id]
	delete(r.inputs, id)
	var text string
	if json.Unmarshal(result, &text) != nil {
		return
	}
	if isRefusal(text) {
		r.events = slices.DeleteFunc(r.events, func(e *wire.Event) bool { return e.CallID == id })
		return
	}
	code, output, ended := parseResult(text)
	if !ended {
		return
	}
	p := &wire.AgentTool{ToolName: "command_execution", ToolInput: input, ToolOutput: wire.RawString(output), Recovered: wire.RecoveredTranscript}
	if code != "0" {
		p.Error = "the command ended with exit code " + code
	}
	r.events = append(r.events, &wire.Event{CallID: id, Payload: p})
}

// command is what a call has the shell do; "": it is another call.
func (l rolloutLine) command() string {
	if name := l.Payload.Name; name != "exec_command" && name != "shell_command" && name != "shell" {
		return ""
	}
	var x struct {
		Cmd     string          `json:"cmd"`
		Command json.RawMessage `json:"command"`
	}
	if json.Unmarshal([]byte(l.Payload.Arguments), &x) != nil {
		return ""
	}
	var text string
	var argv []string
	switch {
	case x.Cmd != "":
		text = x.Cmd
	case json.Unmarshal(x.Command, &text) == nil:
	case json.Unmarshal(x.Command, &argv) == nil:
		text = strings.Join(argv, " ")
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// isRefusal reports whether the result of a call says that its command never began.
func isRefusal(text string) bool {
	for _, begin := range []string{
		"exec command rejected by user", "rejected by user", "approval policy is ", "approval required by policy", "failed to parse function arguments",
		"Command blocked by PreToolUse hook",
	} {
		if strings.HasPrefix(text, begin) {
			return true
		}
	}
	return strings.HasPrefix(text, "exec_command failed") && strings.Contains(text, `message: "Rejected(`)
}

// exitCode is how the head of a result says how its command ended; one that was cut off has none.
var exitCode = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^(?:Process exited with code|Exit code:) (-?\d+)$`)
})

// parseResult reads what the result of a command says: a head and the output, or both in JSON.
func parseResult(text string) (code, output string, ended bool) {
	var x struct {
		Output   string `json:"output"`
		Metadata struct {
			ExitCode *int `json:"exit_code"`
		} `json:"metadata"`
	}
	if json.Unmarshal([]byte(text), &x) == nil && x.Metadata.ExitCode != nil {
		return strconv.Itoa(*x.Metadata.ExitCode), x.Output, true
	}
	head, output, ended := strings.Cut(text, "\nOutput:\n")
	if m := exitCode().FindStringSubmatch(head); ended && m != nil {
		return m[1], output, true
	}
	return "", "", false
}
