// Package codextest is a Codex that goes by a script, for tests: codex exec --json, resume and fork, in the lines of 0.169.
package codextest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Script is the environment variable that holds the script; Home names the folder in which threads are kept. A script has a part
// for each turn of a thread, divided by lines of "--"; the last part serves all further turns. A line of a part is one of
//
//	say TEXT, think TEXT        an item
//	todo TEXT, TEXT …           the first is done
//	begin ID COMMAND            a command is at work
//	end ID CODE OUTPUT          it has ended
//	change ID PATH              a file was written
//	mcp ID SERVER TOOL          a call that succeeds
//	tokens IN CACHED OUT        that the turn adds to the thread
//	raw LINE, stderr TEXT       printed as it is
//	await FILE, touch FILE      waits until a file exists; makes it
//	fail TEXT                   ends the turn
//	die CODE, hang              ends the program; doesn't go on
const (
	Script = "WAKE_TEST_CODEX_SCRIPT"
	Home   = "WAKE_TEST_CODEX_HOME"
)

// Refusal is the script of a Codex that refuses to start.
const Refusal = "!refuse"

// Main plays the script of the environment and reports true, if there is one.
func Main() bool {
	script, ok := os.LookupEnv(Script) //nolint:forbidigo // tests start it as a program
	if !ok {
		return false
	}
	p := &player{home: os.Getenv(Home), out: os.Stdout} //nolint:forbidigo // likewise
	if err := p.run(script, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
	return true
}

// thread is what is kept of one.
type thread struct {
	Turns, In, Cached, Out int
}

type player struct {
	home     string
	out      io.Writer
	thread   thread
	commands map[string]string
}

func (p *player) tell(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.out, "%s\n", line)
	return err
}

func (p *player) item(state string, item map[string]any) error {
	return p.tell(map[string]any{"type": "item." + state, "item": item})
}

func (p *player) load(id string) bool {
	b, err := os.ReadFile(filepath.Join(p.home, filepath.Base(id)))
	return err == nil && json.Unmarshal(b, &p.thread) == nil
}

// trouble is what Codex says of a thread that it can't load.
func (p *player) trouble(id string) string {
	file := filepath.Join(p.home, filepath.Base(id))
	if _, err := os.Stat(file); err != nil {
		return fmt.Sprintf("no rollout found for thread id %s (code -32600)", id)
	}
	return fmt.Sprintf("failed to read thread: thread-store internal error: failed to read session metadata %s: rollout at %s is empty (code -32603)\n\nStack backtrace:\n   0: <unknown>", file, file)
}

func (p *player) save(id string) error {
	b, err := json.Marshal(p.thread)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(p.home, filepath.Base(id)), b, 0o600)
}

// run plays the part of the turn that the command line asks for.
func (p *player) run(script string, argv []string) error {
	if len(argv) == 0 || argv[0] != "exec" || !slices.Contains(argv, "--json") || argv[len(argv)-1] != "-" {
		return fmt.Errorf("unexpected arguments %q", argv)
	}
	if script == Refusal {
		return errors.New("loading config.toml: unclosed array")
	}
	prompt, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	id := ""
	if argv[1] == "resume" || argv[1] == "fork" {
		id = argv[len(argv)-2]
		if request := "thread/" + argv[1]; !p.load(id) {
			return fmt.Errorf("%s: %s failed: %s", request, request, p.trouble(id))
		}
	}
	for n := 1; id == "" || argv[1] == "fork" && n == 1; n++ {
		if name := fmt.Sprintf("thread-%d", n); argv[1] == "fork" {
			id += "-fork"
		} else if _, err := os.Stat(filepath.Join(p.home, name)); err != nil {
			id = name
		}
	}
	if err := p.note(fmt.Sprintf("%s: %s", id, prompt), strings.Join(argv, " ")); err != nil {
		return err
	}
	part := p.thread.Turns
	p.thread.Turns++
	if err := p.save(id); err != nil {
		return err
	}
	if err := p.tell(map[string]any{"type": "thread.started", "thread_id": id}); err != nil {
		return err
	}
	if err := p.tell(map[string]any{"type": "turn.started"}); err != nil {
		return err
	}
	parts := strings.Split(script, "\n--\n")
	for line := range strings.Lines(parts[min(part, len(parts)-1)]) {
		if over, err := p.play(strings.TrimSpace(line)); over || err != nil {
			return err
		}
	}
	if err := p.save(id); err != nil {
		return err
	}
	return p.tell(map[string]any{"type": "turn.completed", "usage": map[string]int{
		"input_tokens": p.thread.In, "cached_input_tokens": p.thread.Cached, "cache_write_input_tokens": 0, "output_tokens": p.thread.Out, "reasoning_output_tokens": 0,
	}})
}

// note keeps what the agent was asked, and how it was called.
func (p *player) note(prompt, argv string) error {
	for name, text := range map[string]string{"prompts": prompt, "arguments": argv} {
		f, err := os.OpenFile(filepath.Join(p.home, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintln(f, strings.TrimSpace(text))
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

// play plays a line. It reports whether the turn is over.
func (p *player) play(line string) (over bool, err error) {
	verb, rest, _ := strings.Cut(line, " ")
	first, second, _ := strings.Cut(rest, " ")
	switch verb {
	case "":
		return false, nil
	case "say":
		return false, p.item("completed", map[string]any{"id": "item_0", "type": "agent_message", "text": rest})
	case "think":
		return false, p.item("completed", map[string]any{"id": "item_0", "type": "reasoning", "text": rest})
	case "todo":
		var items []map[string]any
		for i, text := range strings.Split(rest, ", ") {
			items = append(items, map[string]any{"text": text, "completed": i == 0})
		}
		return false, p.item("updated", map[string]any{"id": "item_9", "type": "todo_list", "items": items})
	case "begin":
		if p.commands == nil {
			p.commands = map[string]string{}
		}
		p.commands[first] = second
		return false, p.item("started", map[string]any{
			"id": first, "type": "command_execution", "command": second, "aggregated_output": "", "exit_code": nil, "status": "in_progress",
		})
	case "end":
		code, output, _ := strings.Cut(second, " ")
		n, _ := strconv.Atoi(code)
		status := map[bool]string{true: "completed", false: "failed"}[n == 0]
		return false, p.item("completed", map[string]any{
			"id": first, "type": "command_execution", "command": p.commands[first], "aggregated_output": output, "exit_code": n, "status": status,
		})
	case "change":
		return false, p.item("completed", map[string]any{
			"id": first, "type": "file_change", "changes": []any{map[string]any{"path": second, "kind": "add"}}, "status": "completed",
		})
	case "mcp":
		server, tool, _ := strings.Cut(second, " ")
		return false, p.item("completed", map[string]any{
			"id": first, "type": "mcp_tool_call", "server": server, "tool": tool, "arguments": map[string]any{"q": 1},
			"result": map[string]any{"content": []any{map[string]any{"type": "text", "text": "ok"}}}, "error": nil, "status": "completed",
		})
	case "tokens":
		for i, n := range strings.Fields(rest) {
			x, _ := strconv.Atoi(n)
			*[]*int{&p.thread.In, &p.thread.Cached, &p.thread.Out}[i] += x
		}
		return false, nil
	case "raw":
		_, err := fmt.Fprintln(p.out, rest)
		return false, err
	case "stderr":
		_, err := fmt.Fprintln(os.Stderr, rest)
		return false, err
	case "await":
		for {
			if _, err := os.Stat(rest); err == nil {
				return false, nil
			}
			<-time.After(5 * time.Millisecond)
		}
	case "touch":
		return false, os.WriteFile(rest, nil, 0o600)
	case "fail":
		if err := p.tell(map[string]any{"type": "error", "message": rest}); err != nil {
			return true, err
		}
		_ = p.tell(map[string]any{"type": "turn.failed", "error": map[string]any{"message": rest}})
		os.Exit(1)
	case "die":
		code, _ := strconv.Atoi(rest)
		os.Exit(code)
	case "hang":
		<-time.After(time.Hour)
	default:
		return true, fmt.Errorf("no such line: %s", line)
	}
	return false, nil
}
