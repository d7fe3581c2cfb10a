package codex_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/codex/codextest"
	"code.wake.dev/wake/pkg/wire"
)

// rolloutCall is a line of a thread's record in which the agent calls a tool, rolloutResult one that has the result.
func rolloutCall(at, id, name, arguments string) string {
	return fmt.Sprintf(`{"timestamp":%q,"type":"response_item","payload":{"type":"function_call","name":%q,"arguments":%q,"call_id":%q}}`, at, name, arguments, id)
}

func rolloutResult(at, id, output string) string {
	return fmt.Sprintf(`{"timestamp":%q,"type":"response_item","payload":{"type":"function_call_output","call_id":%q,"output":%q}}`, at, id, output)
}

// ended is how the result of a command begins, in the form of the commands that go on in the background.
const ended = "Chunk ID: 1\nWall time: 0.1 seconds\nProcess exited with code %d\nOutput:\n"

// newRollout makes a Codex home with the record of a thread, and a request to go on with it. The log's last call was 2 s after 1970.
func newRollout(t *testing.T, thread string, lines ...string) (home string, r agent.Request) {
	t.Helper()
	home = t.TempDir()
	day := filepath.Join(home, "sessions", "2026", "11", "25")
	if err := os.MkdirAll(day, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(day, "rollout-2026-11-25T00-00-00-"+thread+".jsonl"), []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	r = newPlace(t).request("")
	r.Options.Env = map[string]string{"CODEX_HOME": home}
	r.Resume, r.SessionID = true, thread
	r.History = func(yield func(*wire.Event, error) bool) {
		_ = yield(&wire.Event{Timestamp: 1000, Payload: &wire.AgentStart{}}, nil) && yield(&wire.Event{Timestamp: 2000, Payload: &wire.ToolIntent{}}, nil) &&
			yield(&wire.Event{Timestamp: 9000, Payload: &wire.AgentStart{Resumed: true}}, nil)
	}
	return home, r
}

// recoverCalls returns what is recovered of a thread: calls with their commands, and results with their errors.
func recoverCalls(t *testing.T, r agent.Request) (got []string) {
	t.Helper()
	events, err := provider(t).Capabilities().Recover(t.Context(), r, agent.Calls{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		switch p := e.Payload.(type) {
		case *wire.ToolIntent:
			command := p.ToolInput.TextAt("command")
			got = append(got, e.CallID+" "+cmp.Or(command, p.ToolName+" "+p.ToolInput.Plain()))
		case *wire.CCMessage:
			got = append(got, fmt.Sprintf("%s tells its parent a %s: %s", e.CallID, p.Priority, p.Text))
		case *wire.AgentTool:
			got = append(got, fmt.Sprintf("%s %s %s", e.CallID, p.ToolOutput.Plain(), p.Error))
		}
	}
	return got
}

// Commands that Codex's own record of its thread has behind the log's last call are recovered, with their results; others are the log's.
func TestRecovered(t *testing.T) {
	_, r := newRollout(t, "thread-1",
		rolloutCall("1970-01-01T00:00:01.500Z", "c1", "exec_command", `{"cmd":"one"}`), rolloutResult("1970-01-01T00:00:02.100Z", "c1", fmt.Sprintf(ended, 0)),
		rolloutCall("1970-01-01T00:00:02.200Z", "c2", "shell", `{"command":["echo","two"]}`), rolloutResult("1970-01-01T00:00:02.300Z", "c2", fmt.Sprintf(ended, 0)+"two"),
		rolloutCall("1970-01-01T00:00:02.400Z", "c3", "shell_command", `{"command":"three"}`), rolloutResult("1970-01-01T00:00:02.500Z", "c3", fmt.Sprintf(ended, 4)),
		rolloutCall("1970-01-01T00:00:02.600Z", "c4", "update_plan", `{}`), rolloutCall("1970-01-01T00:00:02.700Z", "c5", "exec_command", `{"cmd":"five"}`),
		rolloutResult("1970-01-01T00:00:02.800Z", "c5", "aborted by user"), rolloutCall("1970-01-01T00:00:02.900Z", "c6", "exec_command", `{"cmd":7}`), `{"timestamp":"x"`,
	)
	for session, want := range map[string][]string{
		"thread-1": {"c2 echo two", "c2 two ", "c3 three", "c3  the command ended with exit code 4", "c5 five"},
		"thread-2": nil, "../thread-1": nil, "*": nil,
	} {
		r.SessionID = session
		if diff := gocmp.Diff(want, recoverCalls(t, r)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", session, diff)
		}
	}
}

// A command's result has one of three forms. One that Codex has refused never began.
func TestRecoveredResults(t *testing.T) {
	for output, want := range map[string][]string{
		fmt.Sprintf(ended, 0) + "x": {"c1 do", "c1 x "},
		"Exit code: 3\nWall time: 0.1 seconds\nOutput:\nx\nProcess exited with code 0": {"c1 do", "c1 x\nProcess exited with code 0 the command ended with exit code 3"},
		"Exit code: 0\nWall time: 0.1 seconds\nTotal output lines: 9\nOutput:\nx":      {"c1 do", "c1 x "},
		"Exit code: -1\nWall time: 0 seconds\nOutput:\n":                               {"c1 do", "c1  the command ended with exit code -1"},
		`{"output":"x","metadata":{"exit_code":0,"duration_seconds":0.1}}`:             {"c1 do", "c1 x "},
		`{"output":"x","metadata":{"exit_code":2,"duration_seconds":0.1}}`:             {"c1 do", "c1 x the command ended with exit code 2"},
		`{"output":"x"}`:                     {"c1 do"},
		"said: Process exited with code 0\n": {"c1 do"},
		"exec_command failed for `do`: CreateProcess { message: \"No such file\" }":                       {"c1 do"},
		"exec_command failed for `do`: CreateProcess { message: \"Rejected(\\\"rejected by user\\\")\" }": nil,
		"exec command rejected by user": nil,
		"rejected by user":              nil,
		"approval policy is Never; reject command — you should not ask for this": nil,
		"failed to parse function arguments: missing field":                      nil,
	} {
		_, r := newRollout(t, "t", rolloutCall("1970-01-01T00:00:03Z", "c1", "shell", `{"command":"do"}`), rolloutResult("1970-01-01T00:00:04Z", "c1", output))
		if diff := gocmp.Diff(want, recoverCalls(t, r)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", output, diff)
		}
	}
}

// Calls of MCP servers are recovered, too, as 0.169 writes them. One that tells the agent's parent something has told it, unless it failed or
// nobody knows whether it was made.
func TestRecoveredServed(t *testing.T) {
	const at = "1970-01-01T00:00:03Z"
	call := func(server, tool, arguments string) string {
		return fmt.Sprintf(`{"timestamp":%q,"type":"response_item","payload":{"type":"function_call","namespace":"mcp__%s","name":%q,"arguments":%q,"call_id":"c1"}}`, at, server, tool, arguments)
	}
	end := func(status, text string) string {
		return fmt.Sprintf(`{"timestamp":%q,"type":"event_msg","payload":{"type":"item_completed","item":{"type":"McpToolCall","id":"c1","server":"s","tool":"t",`+
			`"arguments":{},"status":%q,"result":{"content":[{"type":"text","text":%q}]}}}}`, at, status, text)
	}
	const delivered = `[{"text":"delivered","type":"text"}]`
	for name, test := range map[string]struct{ lines, want []string }{
		"a call":      {[]string{call("srv", "get", `{"q":1}`), end("completed", "ok")}, []string{`c1 mcp__srv__get {"q":1}`, `c1 [{"text":"ok","type":"text"}] `}},
		"no end":      {[]string{call("parent", "notify_parent", `{"message":"Done."}`)}, []string{`c1 mcp__parent__notify_parent {"message":"Done."}`}},
		"another end": {[]string{call("srv", "get", `{}`), strings.Replace(end("completed", "ok"), "McpToolCall", "CommandExecution", 1)}, []string{`c1 mcp__srv__get {}`}},
		"an end only": {[]string{end("completed", "ok")}, nil},
		"no input":    {[]string{call("srv", "get", `{`)}, nil},
		"a message": {
			[]string{call("parent", "notify_parent", `{"message":"Done."}`), end("completed", "delivered")},
			[]string{`c1 mcp__parent__notify_parent {"message":"Done."}`, "c1 tells its parent a info: Done.", "c1 " + delivered + " "},
		},
		"a question": {
			[]string{call("parent", "notify_parent", `{"message":"Tabs?","priority":"question"}`), end("completed", "delivered")},
			[]string{`c1 mcp__parent__notify_parent {"message":"Tabs?","priority":"question"}`, "c1 tells its parent a question: Tabs?", "c1 " + delivered + " "},
		},
		"no message": {
			[]string{call("parent", "notify_parent", `{"message":""}`), end("failed", "invalid input")},
			[]string{`c1 mcp__parent__notify_parent {"message":""}`, `c1 [{"text":"invalid input","type":"text"}] the call failed`},
		},
	} {
		_, r := newRollout(t, "t", test.lines...)
		if diff := gocmp.Diff(test.want, recoverCalls(t, r)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// An agent whose record of its thread lacks results that the log has behind its last one is told of them, and of nothing else.
func TestLapse(t *testing.T) {
	shown := func(id, command string) *wire.Event {
		return &wire.Event{CallID: id, Payload: &wire.AgentTool{ToolName: "command_execution", ToolInput: wire.RawOf(map[string]any{"command": command})}}
	}
	served := &wire.Event{CallID: "m1", Payload: &wire.AgentTool{ToolName: "mcp__srv__get", ToolInput: wire.RawOf(map[string]any{"q": 1})}}
	patch := &wire.Event{CallID: "p1", Payload: &wire.AgentTool{ToolName: "file_change", ToolInput: wire.Null}}
	result := func(id, command string) []string {
		return []string{rolloutCall("1970-01-01T00:00:03Z", id, "exec_command", fmt.Sprintf(`{"cmd":%q}`, command)), rolloutResult("1970-01-01T00:00:03Z", id, fmt.Sprintf(ended, 0))}
	}
	served1MiB := fmt.Sprintf(`{"timestamp":"1970-01-01T00:00:03Z","type":"event_msg","payload":{"type":"item_completed","item":{"type":"McpToolCall","id":"m1","result":%q}}}`, strings.Repeat("x", 1<<20))
	const (
		forkOf  = `{"timestamp":"1970-01-01T00:00:03Z","type":"session_meta","payload":{"id":"thread-1","forked_from_id":"s"}}`
		running = "Chunk ID: 1\nWall time: 10 seconds\nProcess running with session ID 1\nOutput:\n"
	)
	var many []string
	for i := range 20 {
		many = append(many, result(fmt.Sprint(i), strings.Repeat("x", 900_000))...)
	}
	wrapped := shown("c4", `/bin/bash -lc "bash -lc 'echo four'"`)
	one, two, again := shown("c1", "/bin/bash -lc 'echo one'"), shown("c2", `/bin/bash -lc "echo 'two'"`), shown("c3", "/bin/bash -lc 'echo one'")
	for name, test := range map[string]struct {
		record []string
		log    []*wire.Event
		want   []string
	}{
		"all":           {slices.Concat(result("x1", "echo one"), result("x2", "echo 'two'")), []*wire.Event{one, two}, nil},
		"no result":     {append(result("x1", "echo one"), result("x2", "echo 'two'")[0]), []*wire.Event{one, two}, []string{"c2"}},
		"no call":       {result("x1", "echo one"), []*wire.Event{one, two}, []string{"c2"}},
		"no second one": {slices.Concat(result("x1", "echo one"), result("x2", "echo 'two'")), []*wire.Event{one, two, again}, []string{"c3"}},
		"nothing":       {nil, []*wire.Event{one, two, served}, []string{"c1", "c2", "m1"}},
		"an older one":  {result("x2", "echo 'two'"), []*wire.Event{one, two}, nil},
		"a long one":    {[]string{result("x1", "echo one")[0], rolloutResult("1970-01-01T00:00:03Z", "x1", running)}, []*wire.Event{one}, nil},
		"a refused one": {[]string{result("x1", "echo one")[0], rolloutResult("1970-01-01T00:00:03Z", "x1", "exec command rejected by user")}, []*wire.Event{one}, nil},
		"of its parent": {append([]string{forkOf}, result("x1", "echo one")...), []*wire.Event{one}, nil},
		"a fork":        {append([]string{forkOf}, result("x1", "echo one")...), []*wire.Event{one, two}, []string{"c2"}},
		"no copy":       {[]string{forkOf}, []*wire.Event{one}, nil},
		"much":          {append(many, result("x1", "echo one")...), []*wire.Event{one}, nil},
		"a long line":   {[]string{served1MiB}, []*wire.Event{served}, nil},
		"two shells":    {result("x4", "bash -lc 'echo four'"), []*wire.Event{wrapped}, nil},
		"other calls":   {[]string{`{"type":"response_item","payload":{"type":"custom_tool_call","name":"exec","call_id":"x1"}}`}, []*wire.Event{one}, nil},
		"a redacted":    {result("x1", "echo secret"), []*wire.Event{shown("c1", "/bin/bash -lc 'echo [redacted]'")}, nil},
		"a patch":       {result("x1", "echo one"), []*wire.Event{one, patch}, nil},
	} {
		p := newPlace(t)
		_, r := newRollout(t, "thread-1", test.record...)
		r.Options.Env[codextest.Home], r.Options.Env[codextest.Script], r.Prompt = p.home, "say Hi.", wire.RawString("Go on.")
		if err := os.WriteFile(filepath.Join(p.home, "thread-1"), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		r.History = func(yield func(*wire.Event, error) bool) {
			for _, e := range test.log {
				if !yield(e, nil) {
					return
				}
			}
		}
		want := "thread-1: Go on."
		for _, e := range test.log {
			r.Facts = append(r.Facts, agent.Fact{Mark: e.CallID, Text: "- " + e.CallID + " has ended"})
		}
		if len(test.want) > 0 {
			want += "\n\nYour record of this conversation lacks what came last. What is listed here has happened; do not do it again:"
		}
		for _, id := range test.want {
			want += "\n\n- " + id + " has ended"
		}
		drain(t, start(t, r), nil)
		if told := strings.TrimSpace(p.read(t, "prompts")); told != want {
			t.Errorf("%s: it was told %q, want %q", name, told, want)
		}
	}
}

// The record of a forked thread may begin with a copy of its parent's, with the time of the fork in each line: these calls are the parent's.
func TestRecoveredFork(t *testing.T) {
	const (
		parent, before = "01a214a2-3214-7873-a4e5-0e22b8bbdad0", "01a214a2-3221-7352-92c9-84342531d50e"
		fork, own      = "01a214a2-3425-7530-9af9-76797abff1af", "01a214a2-34b7-7100-acda-3fe9ac36775c"
		begun          = `{"timestamp":"1970-01-01T00:00:03Z","type":"event_msg","payload":{"type":"task_started","turn_id":%q}}`
		turnContext    = `{"timestamp":"1970-01-01T00:00:03Z","type":"turn_context","payload":{"turn_id":%q}}`
	)
	copied := []string{
		fmt.Sprintf(`{"timestamp":"1970-01-01T00:00:03Z","type":"session_meta","payload":{"id":%q,"forked_from_id":%q}}`, fork, parent),
		fmt.Sprintf(`{"timestamp":"1970-01-01T00:00:03Z","type":"session_meta","payload":{"id":%q}}`, parent), fmt.Sprintf(begun, before), fmt.Sprintf(turnContext, before),
		rolloutCall("1970-01-01T00:00:03Z", "c1", "exec_command", `{"cmd":"one"}`), rolloutResult("1970-01-01T00:00:03Z", "c1", fmt.Sprintf(ended, 0)),
	}
	for name, test := range map[string]struct{ lines, want []string }{
		"before its turn": {},
		"before a call":   {lines: []string{fmt.Sprintf(begun, own)}},
		"behind a call":   {[]string{fmt.Sprintf(begun, own), rolloutCall("1970-01-01T00:00:04Z", "c2", "shell", `{"command":"two"}`)}, []string{"c2 two"}},
		"by its context":  {[]string{fmt.Sprintf(turnContext, own), rolloutCall("1970-01-01T00:00:04Z", "c2", "shell", `{"command":"two"}`)}, []string{"c2 two"}},
	} {
		_, r := newRollout(t, fork, append(slices.Clone(copied), test.lines...)...)
		if diff := gocmp.Diff(test.want, recoverCalls(t, r)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// The record is in a folder of the agent: whatever that has put there, the resume isn't held by it.
func TestRecoveredHostile(t *testing.T) {
	call := rolloutCall("1970-01-01T00:00:03Z", "c1", "shell", `{"command":"do"}`)
	replace := func(place string, with func(string) error) func(string) error {
		return func(home string) error {
			if place = filepath.Join(home, place); os.RemoveAll(place) != nil {
				return errors.New("not removed")
			}
			return with(place)
		}
	}
	pipe := func(place string) error { return syscall.Mkfifo(place, 0o600) }
	endless := func(place string) error { return errors.Join(touch(place), os.Truncate(place, 1<<40)) }
	const day, file = "sessions/2026/11/25", "/rollout-2026-11-25T00-00-00-t.jsonl"
	for name, mess := range map[string]func(home string) error{
		"a pipe":            replace(day+file, pipe),
		"a pipe for a day":  replace(day, pipe),
		"a pipe for a year": replace("sessions/2026", pipe),
		"a pipe for all":    replace("sessions", pipe),
		"no end":            replace(day+file, endless),
		"a folder":          replace(day+file, func(place string) error { return os.Mkdir(place, 0o700) }),
	} {
		t.Run(name, func(t *testing.T) {
			home, r := newRollout(t, "t", call)
			if err := mess(home); err != nil {
				t.Fatal(err)
			}
			wantSoon(t, func() {
				if events, _ := provider(t).Capabilities().Recover(t.Context(), r, agent.Calls{}); len(events) > 0 {
					t.Errorf("it found %v", events)
				}
			})
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		_, r := newRollout(t, "t", call, call)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := provider(t).Capabilities().Recover(ctx, r, agent.Calls{}); !errors.Is(err, context.Canceled) {
			t.Errorf("it said %v", err)
		}
	})
	t.Run("much", func(t *testing.T) {
		var lines []string
		for i := range 40 {
			lines = append(lines, rolloutCall("1970-01-01T00:00:03Z", fmt.Sprint(i), "shell", `{"command":"`+strings.Repeat("x", 900_000)+`"}`))
		}
		_, r := newRollout(t, "t", lines...)
		if got := recoverCalls(t, r); len(got) == 0 || len(got) > 20 {
			t.Errorf("it kept %d of 40", len(got))
		}
	})
}

// wantSoon fails if something takes long.
func wantSoon(t *testing.T, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); do() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("it is held")
	}
}
