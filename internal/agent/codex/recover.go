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
	"time"
	"unicode"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/workdir"
	"code.wake.dev/wake/internal/redact"
	"code.wake.dev/wake/pkg/wire"
)

// recoverCalls returns the commands, and calls of MCP servers, of Codex's own record of its thread that the log lacks: it had begun them when it
// died with its keeper, before that had read so. They are those that are later than the log's last call, since Codex's ids of items aren't in there.
func (p *Provider) recoverCalls(ctx context.Context, r agent.Request, _ agent.Calls) ([]*wire.Event, error) {
	if !r.Resume || r.History == nil {
		return nil, nil
	}
	last, err := lastCall(r)
	if err != nil || last == 0 {
		return nil, err
	}
	l := rollout{thread: r.SessionID, after: last, calls: map[string]recordedCall{}}
	if err := p.readRollout(ctx, r, &l); !errors.Is(err, fs.ErrNotExist) { // else it is on another machine
		return l.events, err
	}
	return nil, nil
}

// readRollout reads the file of a request's thread.
func (p *Provider) readRollout(ctx context.Context, r agent.Request, l *rollout) error {
	file, err := p.openRollout(r)
	if err == nil {
		defer func() { _ = file.Close() }()
		err = l.readCalls(ctx, file)
	}
	if err != nil {
		return fmt.Errorf("codex: record of the thread: %w", err)
	}
	return nil
}

// describeLapse tells the agent of the calls that the log has with their results behind the last one of Codex's own record of its thread: Codex
// tells of a result before it writes it there. Its ids of items aren't in that record: calls are compared by what they were given. In doubt
// the agent is told nothing.
func (p *Provider) describeLapse(ctx context.Context, r agent.Request) (string, error) {
	if !r.Resume || r.History == nil || len(r.Facts) == 0 {
		return "", nil
	}
	l := rollout{thread: r.SessionID, calls: map[string]recordedCall{}, ended: map[string]int{}}
	if err := p.readRollout(ctx, r, &l); err != nil {
		return "", err
	}
	lacks, unclear := map[string]bool{}, l.forked // a fork's file may have nothing of what came before it
	for e, err := range r.History {
		if err != nil {
			return "", err
		}
		x, is := e.Payload.(*wire.AgentTool)
		if !is {
			continue
		}
		switch key := callKey(x.ToolName, x.ToolInput); {
		case key == "":
		case l.ended[key] > 0:
			l.ended[key]--
			clear(lacks)
			unclear = false
		default:
			lacks[e.CallID] = true
		}
	}
	if unclear || l.scripted {
		return "", nil
	}
	text, _ := r.Prompt.Text()
	return agent.DescribeLapse(r.Facts, func(f agent.Fact) bool { return !lacks[f.Mark] || strings.Contains(text, f.Text) }), nil
}

// callKey is what a call is compared by; "": it can't be compared. Of commands these are the letters and digits: Codex tells them with a shell
// before them, and quoted.
func callKey(tool string, input wire.Raw) string {
	text, _ := wire.AppendJSON(nil, input)
	switch {
	case strings.Contains(string(text), redact.Mark): // the agent's record has what stood there
		return ""
	case strings.HasPrefix(tool, "mcp__"):
		return tool + " " + string(text)
	case tool != commandTool:
		return ""
	}
	command := strings.ReplaceAll(input.TextAt("command"), "sh -lc ", "sh -c ")
	for { // the agent's own shell may be in there
		before, inner, wrapped := strings.Cut(command, "sh -c ")
		if !wrapped || strings.Contains(before, " ") {
			break
		}
		command = inner
	}
	return strings.Map(func(c rune) rune {
		if unicode.IsLetter(c) || unicode.IsDigit(c) {
			return c
		}
		return -1
	}, command)
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
	names, err := fs.Glob(workdir.FS{Root: root}, path.Join("*", "*", "*", "rollout-*-"+r.SessionID+".jsonl")) // by year, month and day
	if err != nil || len(names) == 0 {
		return nil, cmp.Or(err, fs.ErrNotExist)
	}
	file, err := workdir.OpenIn(root, names[len(names)-1])
	if err != nil {
		return nil, err
	}
	switch info, err := file.Stat(); {
	case err != nil:
		return nil, errors.Join(err, file.Close())
	case info.Size() > maxRollout:
		return nil, errors.Join(fmt.Errorf("%s has %d bytes, more than %d", info.Name(), info.Size(), maxRollout), file.Close())
	}
	return file, nil
}

// rolloutLine is a line of the file, as far as calls are concerned.
type rolloutLine struct {
	Timestamp time.Time `json:"timestamp"`
	Type      string    `json:"type"`
	Payload   struct {
		Type      string          `json:"type"`
		ID        string          `json:"id"`
		ForkedOf  string          `json:"forked_from_id"`
		TurnID    string          `json:"turn_id"`
		Name      string          `json:"name"`
		Namespace string          `json:"namespace"`
		CallID    string          `json:"call_id"`
		Arguments string          `json:"arguments"`
		Output    json.RawMessage `json:"output"`
		Item      json.RawMessage `json:"item"`
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
	after  int64                   // when the log was last told of a call, in Unix ms
	forked bool                    // the file may begin with a copy of another thread's, with the time of the fork in each line
	own    bool                    // a turn of this thread has begun
	calls  map[string]recordedCall // without a result so far
	ended  map[string]int          // calls with a result, by [callKey]; nil: they are events
	events []*wire.Event
	kept   int

	scripted bool // it has calls of tools that may run commands, which aren't in there
}

// recordedCall is a call that the file has.
type recordedCall struct {
	tool  string
	input wire.Raw
}

// readCalls reads the calls that are later than the log's, and their results.
func (r *rollout) readCalls(ctx context.Context, file io.Reader) error {
	in := bufio.NewReaderSize(io.LimitReader(file, maxRollout), maxRolloutLine)
	for {
		text, err := in.ReadSlice('\n')
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		tooLong := errors.Is(err, bufio.ErrBufferFull)
		if r.ended != nil && (tooLong || r.kept >= maxKept) {
			return fmt.Errorf("it has too much to be compared: calls with %d bytes, or a line with more than %d", r.kept, maxRolloutLine)
		}
		if tooLong {
			continue
		}
		var l rolloutLine
		if json.Unmarshal(text, &l) == nil {
			r.takeLine(l, len(text))
		}
		if errors.Is(err, io.EOF) || len(r.events) >= maxRecovered || r.kept >= maxKept && r.ended == nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// takeLine takes a line of so many bytes. Codex's ids are in the order of their times: turns that are older than the thread are copies.
func (r *rollout) takeLine(l rolloutLine, size int) {
	switch kind := l.Payload.Type; {
	case kind == "local_shell_call", kind == "custom_tool_call" && l.Payload.Name != "apply_patch":
		r.scripted = true
	case l.Type == "session_meta":
		r.forked = r.forked || l.Payload.ID == r.thread && l.Payload.ForkedOf != ""
	case l.Type == "turn_context", l.Payload.Type == "task_started":
		r.own = r.own || l.Payload.TurnID > r.thread
	case (r.own || !r.forked || r.ended != nil) && l.Timestamp.UnixMilli() > r.after:
		if r.takeCall(l) {
			r.kept += size
		}
	}
}

// takeCall takes a call or its result, and reports whether the line is one.
func (r *rollout) takeCall(l rolloutLine) bool {
	id := l.Payload.CallID
	switch open, isOpen := r.calls[id]; {
	case l.Type == "event_msg" && l.Payload.Type == "item_completed":
		return r.endServed(l.Payload.Item)
	case l.Type != "response_item" || id == "":
		return false
	case l.Payload.Type == "function_call":
		c, is := l.call()
		if !is {
			return false
		}
		if r.calls[id] = c; r.ended != nil {
			return true
		}
		sum := sha256.Sum256(c.input)
		r.events = append(r.events, &wire.Event{CallID: id, Payload: &wire.ToolIntent{
			ToolName: c.tool, ToolInput: c.input, InputHash: hex.EncodeToString(sum[:]), Recovered: wire.RecoveredTranscript,
		}})
		return true
	case l.Payload.Type == "function_call_output" && isOpen && r.ended != nil && open.tool == commandTool:
		r.endCall(id, nil, "") // one that goes on is told of, too
		return true
	case l.Payload.Type == "function_call_output" && isOpen && open.tool == commandTool:
		r.endCommand(id, l.Payload.Output)
		return true
	}
	return false
}

// endServed takes the end of an item, and reports whether it is a call of an MCP server.
func (r *rollout) endServed(item json.RawMessage) bool {
	m, err := wire.RawFromJSON(item)
	id := m.TextAt("id")
	if _, isOpen := r.calls[id]; err != nil || !isOpen || m.TextAt("type") != "McpToolCall" {
		return false
	}
	output, failed, _ := resultOf("mcp_tool_call", m)
	r.endCall(id, output, failed)
	return true
}

func (r *rollout) endCommand(id string, result json.RawMessage) {
	var text string
	if json.Unmarshal(result, &text) != nil {
		return
	}
	if isRefusal(text) {
		delete(r.calls, id)
		r.events = slices.DeleteFunc(r.events, func(e *wire.Event) bool { return e.CallID == id })
		return
	}
	code, output, ended := parseResult(text)
	switch {
	case !ended:
		delete(r.calls, id)
	case code == "0":
		r.endCall(id, wire.RawString(output), "")
	default:
		r.endCall(id, wire.RawString(output), "the command ended with exit code "+code)
	}
}

// endCall ends a call; failed says why it failed, if it did.
func (r *rollout) endCall(id string, output wire.Raw, failed string) {
	c := r.calls[id]
	delete(r.calls, id)
	if r.ended != nil {
		r.ended[callKey(c.tool, c.input)]++
		return
	}
	p := &wire.AgentTool{ToolName: c.tool, ToolInput: c.input, ToolOutput: output, Error: failed, Recovered: wire.RecoveredTranscript}
	if told := toldParent(p); told != nil {
		r.events = append(r.events, &wire.Event{CallID: id, Payload: told})
	}
	r.events = append(r.events, &wire.Event{CallID: id, Payload: p})
}

// call is the call that a line has: a command or one of an MCP server.
func (l rolloutLine) call() (c recordedCall, is bool) {
	if command := l.command(); command != "" {
		return recordedCall{commandTool, wire.RawOf(map[string]any{"command": command})}, true
	}
	name := strings.TrimPrefix(l.Payload.Namespace+"__"+l.Payload.Name, "__")
	input, err := wire.RawFromJSON([]byte(l.Payload.Arguments))
	return recordedCall{name, input}, err == nil && strings.HasPrefix(name, "mcp__")
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
