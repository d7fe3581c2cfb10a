package ingest_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
)

// readSession reads a file that a real program has written. What is long and its maker's was cut out of it.
func readSession(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Streams and session files of other agents become runs by themselves: who was asked what, what was said and called, what it has used and how it
// ended. What is cut off has failed, and what can't be read is kept.
func TestOtherAgents(t *testing.T) {
	codex, gemini, geminiSession := readSession(t, "codex-session-0.169.jsonl"), readSession(t, "gemini-0.61.jsonl"), readSession(t, "gemini-session-0.61.jsonl")
	openCode, openCodeSession := readSession(t, "opencode-1.18.jsonl"), readSession(t, "opencode-session-1.18.json")
	const asked = "Do this.\n$ echo one\n$ echo two"
	whole := func(tool string) string {
		call := " | call " + tool + " echo "
		return "Now $ echo one" + call + "one | one | Now $ echo two" + call + "two | two | All of it is done."
	}
	log := openLog(t)
	for name, test := range map[string]struct {
		input   string
		format  ingest.Format
		session string
		prompt  string // "": the input tells none
		did     string
		tokens  int64
		turns   int64
		failed  string
	}{
		"codex's session":     {codex, ingest.CodexSession, "01a21388-761b-7c63-aff3-2578684d9250", asked, whole("exec_command"), 330, 1, ""},
		"gemini":              {gemini, ingest.Gemini, "167d12b0-6b38-4f94-8fdc-58dca2794dbe", asked, whole("run_shell_command"), 330, 1, ""},
		"gemini's session":    {geminiSession, ingest.GeminiSession, "167d12b0-6b38-4f94-8fdc-58dca2794dbe", asked, whole("run_shell_command"), 330, 1, ""},
		"opencode":            {openCode, ingest.OpenCode, "ses_dec6c8e39ffe6caieXfUtOZZcW", "", whole("bash"), 330, 1, ""},
		"opencode's session":  {openCodeSession, ingest.OpenCodeSession, "ses_dec6c8e39ffe6caieXfUtOZZcW", `"` + asked + "\nIt is all.\"", whole("bash"), 330, 1, ""},
		"codex, cut":          {firstLines(codex, 11), ingest.CodexSession, "01a21388-761b-7c63-aff3-2578684d9250", asked, "Now $ echo one | call exec_command echo one | !interrupted", 0, 1, "what codex has recorded ends before its turn does"},
		"gemini, cut":         {firstLines(gemini, 4), ingest.Gemini, "167d12b0-6b38-4f94-8fdc-58dca2794dbe", asked, "Now $ echo one | call run_shell_command echo one | !interrupted", 0, 1, "what gemini has recorded ends before its turn does"},
		"gemini, unanswered":  {firstLines(geminiSession, 3), ingest.GeminiSession, "167d12b0-6b38-4f94-8fdc-58dca2794dbe", asked, "", 0, 1, "what gemini has recorded ends before its turn does"},
		"opencode, cut":       {firstLines(openCode, 2), ingest.OpenCode, "ses_dec6c8e39ffe6caieXfUtOZZcW", "", "Now $ echo one", 0, 1, "what opencode has recorded ends before its turn does"},
		"opencode, half":      {firstLines(openCodeSession, 90), ingest.OpenCodeSession, "ses_dec6c8e39ffe6caieXfUtOZZcW", `"` + asked + "\nIt is all.\"", "", 0, 1, "the session that opencode has exported can't be read: unexpected EOF"},
		"with garbage":        {"\x1b[31mwarn\n" + firstLines(codex, 1) + "\x1b[31mwarn\n{\"type\":\"response_item\",\"payload\":7}\n" + codex, ingest.CodexSession, "01a21388-761b-7c63-aff3-2578684d9250", asked, whole("exec_command"), 330, 1, ""},
		"gemini says its end": {firstLines(gemini, 2) + `{"type":"result","status":"error","error":{"message":"quota"}}`, ingest.Gemini, "167d12b0-6b38-4f94-8fdc-58dca2794dbe", asked, "", 0, 1, "quota"},
	} {
		t.Run(name, func(t *testing.T) {
			res, err := ingest.Run(t.Context(), log, strings.NewReader(test.input), ingest.Options{RunID: strings.NewReplacer(" ", "-", ",", "", "'", "").Replace(name), Runner: "test"})
			if err != nil || res.Format != test.format || res.Error != test.failed {
				t.Fatalf("%+v, %v", res, err)
			}
			state, events := fold(t, log, res.RunID)
			if prompt, did := tellStory(events); prompt != test.prompt || did != test.did {
				t.Errorf("asked %q, did %q; want %q, %q", prompt, did, test.prompt, test.did)
			}
			u := state.Usage
			if got := u.InputTokens + u.CacheReadInputTokens + u.CacheCreationInputTokens + u.OutputTokens; got != test.tokens || u.Turns != test.turns {
				t.Errorf("%d tokens in %d turns, want %d in %d", got, u.Turns, test.tokens, test.turns)
			}
			if state.AgentSessions["agent"] != test.session || len(state.Tools) != 0 {
				t.Errorf("session %q, open calls %v", state.AgentSessions["agent"], state.Tools)
			}
		})
	}
}

// tellStory is what an agent was asked, and what it did.
func tellStory(events []*wire.Event) (prompt, did string) {
	var told []string
	pieces := ""
	for _, e := range events {
		switch p := e.Payload.(type) {
		case *wire.UserMessage:
			if p.Source == "replay" {
				prompt = strings.TrimSpace(p.Content)
			}
		case *wire.AgentTextDelta:
			pieces += p.Content
			continue
		case *wire.AgentText:
			told = append(told, p.Content)
		case *wire.ToolIntent:
			if pieces != "" {
				told = append(told, pieces)
			}
			command := p.ToolInput.TextAt("command")
			if command == "" {
				command = p.ToolInput.TextAt("cmd")
			}
			told = append(told, "call "+p.ToolName+" "+command)
			pieces = ""
		case *wire.AgentTool:
			output := p.ToolOutput.Plain()
			if _, text, found := strings.Cut(output, "Output:"); found { // as the model saw it
				output, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
			}
			if p.Error != "" {
				output = "!" + p.Error
			}
			told = append(told, strings.TrimSpace(output))
		}
	}
	if pieces != "" {
		told = append(told, pieces)
	}
	return prompt, strings.Join(told, " | ")
}

func firstLines(text string, n int) string {
	return strings.Join(strings.SplitAfterN(text, "\n", n+1)[:n], "")
}

// A database isn't read: the error says how its program writes the session.
func TestDatabase(t *testing.T) {
	_, _, err := ingest.Detect(strings.NewReader("SQLite format 3\x00\x10\x00"), ingest.Auto)
	if !errors.Is(err, ingest.ErrDatabase) || !strings.Contains(err.Error(), "opencode export") {
		t.Error(err)
	}
}

// Formats are told apart by their first lines, also while more is to come.
func TestFormats(t *testing.T) {
	for input, want := range map[string]ingest.Format{
		"{\n  \"info\": {\n    \"id\": \"ses_1\", \"directory\": \"/w\"},": ingest.OpenCodeSession,
		"{\n  \"info\": {\"id\": \"x\"}\n}":                                ingest.StreamJSON,
		"{\n  \"info\": 7":                                                 ingest.StreamJSON,
		"{\n":                                                              ingest.StreamJSON,
		"Loading {\n":                                                      ingest.StreamJSON,
		`{"info":{"id":"ses_1","directory":"/w"},"messages":[]}`:              ingest.OpenCodeSession,
		`{"type":"error","sessionID":"ses_1","error":{}}`:                     ingest.OpenCode,
		`{"type":"session_meta","payload":{}}`:                                ingest.CodexSession,
		`{"type":"system","subtype":"init","session_id":"s","timestamp":"x"}`: ingest.StreamJSON,
	} {
		if _, got, err := ingest.Detect(strings.NewReader(input), ingest.Auto); err != nil || got != want {
			t.Errorf("%s is read as %s, %v; want %s", input, got, err, want)
		}
	}
}

// What a session file tells came when the file says, also what its last lines, or its end, tell without a time.
func TestSessionTimes(t *testing.T) {
	old := strings.NewReplacer("2026-11-25T", "2020-11-25T", "17956247", "15956247").Replace
	codex, gemini := old(readSession(t, "codex-session-0.169.jsonl")), old(readSession(t, "gemini-session-0.61.jsonl"))
	openCode := old(readSession(t, "opencode-session-1.18.json"))
	log := openLog(t)
	for name, test := range map[string]struct {
		input string
		last  int64
	}{
		"codex":         {codex, 1606321640714},
		"codex-blank":   {codex + "\n", 1606321640714},
		"codex-cut":     {firstLines(codex, 11) + `{"timestamp":"2020`, 1606321640258},
		"codex-warned":  {"warn\n" + codex, 1606321640714},
		"gemini":        {gemini, 1606321664387},
		"gemini-cut":    {firstLines(gemini, 4), 1606321662387},
		"opencode":      {openCode, 1595624769484},
		"opencode-half": {firstLines(openCode, 90), 1595624761483},
	} {
		t.Run(name, func(t *testing.T) {
			program, _, _ := strings.Cut(name, "-")
			o := ingest.Options{RunID: "times-" + name, Runner: "test", Format: ingest.Format(program + "-session")}
			res, err := ingest.Run(t.Context(), log, strings.NewReader(test.input), o)
			if err != nil {
				t.Fatal(err)
			}
			_, events := fold(t, log, res.RunID)
			for _, e := range events {
				if claims := e.Type() == wire.TypeRunClaimed || e.Type() == wire.TypeNodeClaimed; !claims && (e.Timestamp > test.last || e.Timestamp < test.last-15_000) {
					t.Errorf("%s came at %d, and the last line at %d", e.Type(), e.Timestamp, test.last)
				}
			}
		})
	}
}

// A session of opencode's that is larger than what is held of it has failed.
func TestLargeDocument(t *testing.T) {
	log := openLog(t)
	text := strings.Repeat(`{"type":"text","text":"`+strings.Repeat("x", 1<<20)+"\"},\n", 65)
	input := "{\"info\":{\"id\":\"ses_1\",\"directory\":\"/w\"},\"messages\":[{\"info\":{},\"parts\":[\n" + text + "{}]}]}"
	res, err := ingest.Run(t.Context(), log, strings.NewReader(input), ingest.Options{RunID: "large", Runner: "test"})
	if err != nil || res.Format != ingest.OpenCodeSession || !strings.Contains(res.Error, "more than 67108864 bytes") || res.Events > 10 {
		t.Errorf("%+v, %v", res, err)
	}
}

// Something about other things in a stream isn't the time of its session.
func TestTimeOfAStream(t *testing.T) {
	begun := time.Now().UnixMilli()
	log := openLog(t)
	input := `{"type":"system","subtype":"init","session_id":"s1","info":{"time":{"created":1000}}}` + "\n" + `{"type":"result","subtype":"success","result":"ok","session_id":"s1"}` + "\n"
	if _, err := ingest.Run(t.Context(), log, strings.NewReader(input), ingest.Options{RunID: "info", Runner: "test"}); err != nil {
		t.Fatal(err)
	}
	_, events := fold(t, log, "info")
	for _, e := range events {
		if e.Timestamp < begun {
			t.Errorf("%s came at %d", e.Type(), e.Timestamp)
		}
	}
}

// What Codex tells of a turn's settings, among them a summary that is a word and no text, says which model it asks.
func TestSettingsOfATurn(t *testing.T) {
	log := openLog(t)
	if _, err := ingest.Run(t.Context(), log, strings.NewReader(readSession(t, "codex-session-0.169.jsonl")), ingest.Options{RunID: "r", Runner: "test"}); err != nil {
		t.Fatal(err)
	}
	_, events := fold(t, log, "r")
	calls := 0
	for _, e := range events {
		switch p := e.Payload.(type) {
		case *wire.Usage:
			if calls++; p.Model != "scripted" {
				t.Errorf("a call of model %q", p.Model)
			}
		case *wire.RawMessage:
			if p.Name == "malformed" {
				t.Errorf("a line can't be read: %s", p.Reason)
			}
		}
	}
	if calls == 0 {
		t.Error("no call of a model")
	}
}

// Messages of Gemini's session files with one id, or with none, are told all the same.
func TestGeminiWithoutOwnIDs(t *testing.T) {
	log := openLog(t)
	for _, id := range []string{"1", ""} {
		in := strings.ReplaceAll(`{"sessionId":"s","projectHash":"p","startTime":"2026-01-01T00:00:00Z"}
{"id":"ID","timestamp":"2026-01-01T00:00:00Z","type":"user","content":"hi"}
{"id":"ID","timestamp":"2026-01-01T00:00:01Z","type":"gemini","content":"ok","toolCalls":[{"id":"c","name":"ls","args":{},"status":"success","result":[{"text":"x"}]}]}
`, "ID", id)
		if id == "" {
			in += `{"timestamp":"2026-01-01T00:00:02Z","type":"user","content":"and"}
{"timestamp":"2026-01-01T00:00:03Z","type":"gemini","content":"done"}
`
		}
		if _, err := ingest.Run(t.Context(), log, strings.NewReader(in), ingest.Options{RunID: "r" + id, Runner: "w", Format: ingest.GeminiSession}); err != nil {
			t.Fatal(err)
		}
		var told []string
		_, events := fold(t, log, "r"+id)
		for _, e := range events {
			switch p := e.Payload.(type) {
			case *wire.UserMessage:
				told = append(told, p.Content)
			case *wire.AgentText:
				told = append(told, p.Content)
			case *wire.AgentTool:
				told = append(told, p.ToolName)
			}
		}
		want := map[string]string{"1": "hi ok ls", "": "hi ok ls and done"}[id]
		if got := strings.Join(told, " "); got != want {
			t.Errorf("with id %q: %s, want %s", id, got, want)
		}
	}
}

// What a program tells of fewer than no tokens counts for none.
func TestNegativeTokens(t *testing.T) {
	log := openLog(t)
	in := `{"type":"system","subtype":"init","cwd":"/work","session_id":"5e551011-0000-4000-8000-000000000001","tools":["Bash"],"model":"m","permissionMode":"default","uuid":"u0"}
{"type":"assistant","session_id":"5e551011-0000-4000-8000-000000000001","uuid":"u1","message":{"id":"m1","role":"assistant","content":[{"type":"text","text":"a"}],"usage":{"input_tokens":-5000000,"output_tokens":-7000000}}}
{"type":"result","subtype":"success","session_id":"5e551011-0000-4000-8000-000000000001","uuid":"u2","is_error":false,"num_turns":1,"duration_ms":1,"result":"a","total_cost_usd":-4,"usage":{"input_tokens":-5000000,"output_tokens":-7000000}}
`
	if _, err := ingest.Run(t.Context(), log, strings.NewReader(in), ingest.Options{RunID: "n", Runner: "w", Format: ingest.StreamJSON}); err != nil {
		t.Fatal(err)
	}
	s, _ := fold(t, log, "n")
	if ledger.Spent(s.Usage).Tokens < 0 || s.Usage.CostUsd < 0 {
		t.Errorf("%+v", ledger.Spent(s.Usage))
	}
}
