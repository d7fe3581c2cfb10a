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
	"strings"
	"sync"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// recoverCalls returns the commands of Codex's own record of its thread that the log lacks: it had begun them when it died with its
// keeper, before that had read so. They are those that are later than the log's last call, since Codex's ids of items aren't in there.
func (p *Provider) recoverCalls(_ context.Context, r agent.Request, _ agent.Calls) ([]*wire.Event, error) {
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
	events, err := readCalls(file, last)
	if err != nil {
		return nil, fmt.Errorf("codex: record of the thread: %w", err)
	}
	return events, nil
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
	root, err := os.OpenRoot(filepath.Join(home, "sessions"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	names, err := fs.Glob(root.FS(), path.Join("*", "*", "*", "rollout-*-"+r.SessionID+".jsonl")) // by year, month and day
	if err != nil || len(names) == 0 {
		return nil, cmp.Or(err, fs.ErrNotExist)
	}
	return root.Open(names[len(names)-1])
}

// rolloutLine is a line of the file, as far as calls of commands are concerned.
type rolloutLine struct {
	Timestamp time.Time `json:"timestamp"`
	Type      string    `json:"type"`
	Payload   struct {
		Type      string          `json:"type"`
		Name      string          `json:"name"`
		CallID    string          `json:"call_id"`
		Arguments string          `json:"arguments"`
		Output    json.RawMessage `json:"output"`
	} `json:"payload"`
}

// Bounds of what is read, since the agent may write there what it likes: lines in bytes, longer ones aren't of calls, and events.
const (
	maxRolloutLine = 1 << 20
	maxRecovered   = 1000
)

// readCalls returns the calls of commands later than a time, in Unix ms, and their results.
func readCalls(file io.Reader, after int64) (events []*wire.Event, err error) {
	inputs := map[string]wire.Raw{}
	in := bufio.NewReaderSize(file, maxRolloutLine)
	for {
		text, err := in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		var l rolloutLine
		if json.Unmarshal(text, &l) == nil && l.Type == "response_item" && l.Timestamp.UnixMilli() > after {
			events = append(events, l.callEvents(inputs)...)
		}
		if errors.Is(err, io.EOF) || len(events) >= maxRecovered {
			return events, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// callEvents are those of a line; inputs has the calls that have no result yet.
func (l rolloutLine) callEvents(inputs map[string]wire.Raw) []*wire.Event {
	id := l.Payload.CallID
	switch command := l.command(); {
	case l.Payload.Type == "function_call" && command != "" && id != "":
		input := mustMarshal(map[string]any{"command": command})
		inputs[id] = input
		sum := sha256.Sum256(input)
		return []*wire.Event{{CallID: id, Payload: &wire.ToolIntent{
			ToolName: "command_execution", ToolInput: input, InputHash: hex.EncodeToString(sum[:]), Recovered: wire.RecoveredTranscript,
		}}}
	case l.Payload.Type == "function_call_output" && inputs[id] != nil:
		input := inputs[id]
		code, output, ended := l.result()
		if delete(inputs, id); !ended {
			return nil
		}
		p := &wire.AgentTool{ToolName: "command_execution", ToolInput: input, ToolOutput: wire.RawString(output), Recovered: wire.RecoveredTranscript}
		if code != "0" {
			p.Error = "the command ended with exit code " + code
		}
		return []*wire.Event{{CallID: id, Payload: p}}
	}
	return nil
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

// exitCode is how the result of a command says how that ended; one that was cut off has none.
var exitCode = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^Process exited with code (\d+)$`) })

// result is what the result of a command says.
func (l rolloutLine) result() (code, output string, ended bool) {
	var text string
	if json.Unmarshal(l.Payload.Output, &text) != nil {
		return "", "", false
	}
	about, output, _ := strings.Cut(text, "\nOutput:\n")
	m := exitCode().FindStringSubmatch(about)
	if m == nil {
		return "", "", false
	}
	return m[1], output, true
}
