package hook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
)

func TestMain(m *testing.M) {
	natstest.Main(m)
}

// says is a hook with a fixed answer.
func says(event, matcher, answer string) flow.Hook {
	return flow.Hook{Event: event, Matcher: matcher, Name: answer, Command: []string{"/bin/sh", "-c", "cat >/dev/null; printf '%s' '" + answer + "'"}}
}

func pre(answer string) flow.Hook { return says(flow.HookPreToolUse, "", answer) }

// sh is a hook that runs a script before a tool.
func sh(script string) flow.Hook {
	return flow.Hook{Event: flow.HookPreToolUse, Command: []string{"/bin/sh", "-c", script}}
}

func set(t *testing.T, hooks ...flow.Hook) *hook.Set {
	return hook.New(hook.Config{
		Hooks: hooks, RunID: "r1", NodeID: "coder", ExecID: "coder#1", Dir: t.TempDir(), Env: []string{"PATH=" + os.Getenv("PATH")},
		Client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, Logger: logtest.Logger(t),
	})
}

var bash = hook.Event{Name: flow.HookPreToolUse, Tool: "bash", ToolUseID: "t1"}

// text is an outcome in short.
func text(o hook.Outcome) string {
	input := ""
	if len(o.Input) > 0 {
		b, _ := wire.AppendJSON(nil, o.Input)
		input = string(b)
	}
	return strings.TrimSpace(strings.Join([]string{string(o.Decision), o.Reason + o.Message + input}, " "))
}

const (
	deny, denyToo = `{"decision":"deny","reason":"R"}`, `{"decision":"deny","reason":"S"}`
	first, second = `{"decision":"modify","input":{"n":1}}`, `{"decision":"modify","input":{"n":2}}`
	allow, goOn   = `{"decision":"allow"}`, `{"decision":"continue"}`
	stop          = `{"decision":"stop","reason":"enough"}`
	system, more  = `{"decision":"system","message":"SYS"}`, `{"decision":"context","message":"CTX"}`
)

// TestPrecedence is H1 of features.md.
func TestPrecedence(t *testing.T) {
	for _, test := range []struct {
		event   string
		answers []string
		want    string
	}{
		{flow.HookPreToolUse, nil, ""},
		{flow.HookPreToolUse, []string{first, deny}, "deny R"},
		{flow.HookPreToolUse, []string{deny, denyToo, first}, "deny R"},
		{flow.HookPreToolUse, []string{allow, first, second}, `modify {"n":1}`},
		{flow.HookPreToolUse, []string{goOn, allow, ""}, "allow"},
		{flow.HookPreToolUse, []string{goOn, "", "{}"}, ""},
		{flow.HookTurnStart, []string{system, stop}, "stop enough"},
		{flow.HookTurnEnd, []string{more, system}, "system SYS"},
		{flow.HookPostToolUse, []string{goOn, more}, "context CTX"},
		{flow.HookAgentStart, []string{more, more, goOn}, "context CTX\nCTX"},
		{flow.HookPostToolUseFailure, []string{"", goOn}, ""},
	} {
		t.Run(test.event+strings.Join(test.answers, ","), func(t *testing.T) {
			var hooks []flow.Hook
			for _, a := range test.answers {
				hooks = append(hooks, says(test.event, "", a))
			}
			o, fired := set(t, hooks...).Fire(t.Context(), hook.Event{Name: test.event})
			if text(o) != test.want {
				t.Errorf("got %q, want %q", text(o), test.want)
			}
			if len(fired) != len(hooks) {
				t.Errorf("%d of %d fired", len(fired), len(hooks))
			}
			for _, f := range fired {
				if f.HookEvent != test.event || f.DurationMs == nil || f.ExitCode == nil || *f.ExitCode != 0 || f.Decision == "" || f.Error != "" {
					t.Errorf("on record is %+v", f)
				}
			}
		})
	}
	var none *hook.Set
	if o, fired := none.Fire(t.Context(), bash); text(o) != "" || fired != nil || none.Has(flow.HookPreToolUse) {
		t.Errorf("no hooks: %v %v", o, fired)
	}
}

// TestMatcher is H2 of features.md.
func TestMatcher(t *testing.T) {
	for _, test := range []struct {
		event, matcher, tool string
		want                 bool
	}{
		{flow.HookPreToolUse, "write|edit", "write", true},
		{flow.HookPreToolUse, "write|edit", "edit", true},
		{flow.HookPreToolUse, "write|edit", "read", false},
		{flow.HookPreToolUse, "write", "rewrite_all", false}, // whole names
		{flow.HookPreToolUse, "mcp__.*", "mcp__files__write", true},
		{flow.HookPreToolUse, "", "anything", true},
		{flow.HookPostToolUse, "edit", "write", false},
		{flow.HookTurnStart, "bash", "", true}, // there is no tool to match
		{flow.HookPreToolUse, "(", "bash", false},
	} {
		s := set(t, says(test.event, test.matcher, ""), says("Nap", "", ""))
		if _, fired := s.Fire(t.Context(), hook.Event{Name: test.event, Tool: test.tool}); len(fired) > 0 != test.want {
			t.Errorf("%s %q on %q: fired %v", test.event, test.matcher, test.tool, len(fired) > 0)
		}
		if s.Has(test.event) != (test.matcher != "(") || s.Has(flow.HookAgentStop) {
			t.Errorf("%s %q: Has is wrong", test.event, test.matcher)
		}
	}
}

// What can't be asked at all is logged when the agent begins.
func TestUnaskable(t *testing.T) {
	var log bytes.Buffer
	s := hook.New(hook.Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), Hooks: []flow.Hook{
		{Event: "PreToolUse", Matcher: "a(", Command: []string{"true"}},
		{Event: "Nap", Command: []string{"true"}},
		{Event: "PreToolUse"},
		{Event: "PreToolUse", Command: []string{"true"}, URL: "http://x/"},
	}})
	if o, fired := s.Fire(t.Context(), bash); text(o) != "" || len(fired) != 0 {
		t.Errorf("%v %v", o, fired)
	}
	if n := strings.Count(log.String(), "hook is never asked"); n != 4 || !strings.Contains(log.String(), `event \"Nap\" is unknown`) {
		t.Errorf("logged is\n%s", &log)
	}
}

// A hook that fails counts for nothing: what comes after it is asked all the same.
func TestBroken(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, deny, http.StatusInternalServerError) })
	mux.HandleFunc("/elsewhere", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/fine", http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("/fine", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, allow) })
	mux.HandleFunc("/long", func(w http.ResponseWriter, _ *http.Request) {
		for range 300 {
			if _, err := w.Write(bytes.Repeat([]byte(" "), 16<<10)); err != nil {
				return
			}
		}
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	url := func(path string) flow.Hook { return flow.Hook{Event: flow.HookPreToolUse, URL: server.URL + path} }
	for name, test := range map[string]struct {
		hook flow.Hook
		want string
	}{
		"no such program":      {flow.Hook{Event: flow.HookPreToolUse, Command: []string{"/no/such"}}, "no such file"},
		"exit code":            {sh("echo why >&2; exit 3"), "exit code 3: why"},
		"no words":             {sh("exit 3"), "exit code 3"},
		"signal":               {sh("kill -9 $$"), "ended by SIGKILL"},
		"no JSON":              {pre("yes"), "its answer: invalid character"},
		"half an answer":       {pre(`{"decision":"deny"`), "its answer: unexpected EOF"},
		"more than an answer":  {pre(deny + deny), "more than one JSON object"},
		"unknown field":        {pre(`{"verdict":"deny"}`), `unknown field "verdict"`},
		"unknown decision":     {pre(`{"decision":"forbid"}`), `its decision is "forbid", which is none for PreToolUse: it is one of deny, modify, allow, continue`},
		"another's decision":   {pre(stop), `its decision is "stop"`},
		"modify nothing":       {pre(`{"decision":"modify"}`), "the input it wants"},
		"modify no object":     {pre(`{"decision":"modify","input":[1]}`), "no object"},
		"input without modify": {pre(`{"input":{}}`), `only "modify"`},
		"message before":       {pre(`{"decision":"allow","message":"x"}`), "only \"system\""},
		"an array":             {pre(`[]`), "cannot unmarshal array"},
		"long reason":          {pre(`{"decision":"deny","reason":"` + strings.Repeat("x", 40<<10) + `"}`), "longer than 32768 bytes"},
		"too slow":             {flow.Hook{Event: flow.HookPreToolUse, Command: []string{"sleep", "60"}, TimeoutMs: 30}, "it didn't answer within 30ms"},
		"megabytes":            {sh("yes '{}' | head -c 30000000"), "longer than 1048576 bytes"},
		"megabytes for ever":   {sh("yes"), "longer than 1048576 bytes"},
		"status":               {url("/broken"), "it answers with status 500"},
		"redirection":          {url("/elsewhere"), "it answers with status 307"},
		"long page":            {url("/long"), "longer than 1048576 bytes"},
		"nobody there":         {flow.Hook{Event: flow.HookPreToolUse, URL: "http://127.0.0.1:1/s3cret?token=s3cret"}, "connection refused"},
		"no NATS":              {flow.Hook{Event: flow.HookPreToolUse, Subject: "policy"}, "no way to ask a NATS subject"},
	} {
		t.Run(name, func(t *testing.T) {
			test.hook.Name = ""
			o, fired := set(t, test.hook, pre(deny)).Fire(t.Context(), bash)
			if text(o) != "deny R" || len(fired) != 2 {
				t.Fatalf("got %q, %d fired", text(o), len(fired))
			}
			if f := fired[0]; !strings.Contains(f.Error, test.want) || f.Decision != "" || f.DurationMs == nil || strings.Contains(f.Error+f.HookName, "token") {
				t.Errorf("on record is %+v, want %s", *f, test.want)
			}
		})
	}
}

// TestExitCodes shows what the exit code of a command means.
func TestExitCodes(t *testing.T) {
	const why = "echo ' no network ' >&2; exit "
	for _, test := range []struct {
		event, script, want string
		exit                int64
		failed              bool
	}{
		{flow.HookPreToolUse, why + "0", "", 0, false},
		{flow.HookPreToolUse, why + "2", "deny no network", 2, false},
		{flow.HookPreToolUse, why + "1", "", 1, true},
		{flow.HookPostToolUse, why + "2", "", 2, true},
	} {
		o, fired := set(t, flow.Hook{Event: test.event, Command: []string{"/bin/sh", "-c", test.script}}).Fire(t.Context(), hook.Event{Name: test.event, Tool: "bash"})
		f := fired[0]
		if text(o) != test.want || *f.ExitCode != test.exit || (f.Error != "") != test.failed {
			t.Errorf("%s %s: %q, on record %+v", test.event, test.script, text(o), *f)
		}
	}
}

// A hook that hangs is ended with all that it has started, whatever it does about it.
func TestHang(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	h := sh("trap '' TERM; echo $$ >" + pids + "; (trap '' TERM; exec setsid sleep 1000) & echo $! >>" + pids + "; while :; do sleep 1000; done")
	h.TimeoutMs = 500
	o, fired := set(t, h).Fire(t.Context(), bash)
	if text(o) != "" || fired[0].Error != "it didn't answer within 500ms" || *fired[0].DurationMs < 500 {
		t.Fatalf("got %q, on record %+v", text(o), fired[0])
	}
	list, err := os.ReadFile(pids)
	if err != nil || len(strings.Fields(string(list))) != 2 {
		t.Fatalf("it began %q: %v", list, err)
	}
	for field := range strings.FieldsSeq(string(list)) {
		// one that is dead may not have been taken note of by its new parent
		if stat, err := os.ReadFile("/proc/" + field + "/stat"); err == nil && !strings.Contains(string(stat), ") Z ") {
			t.Errorf("process %s goes on: %s", field, stat)
		}
	}
}

// What a command leaves running isn't waited for, and doesn't stay.
func TestLeftBehind(t *testing.T) {
	if o, fired := set(t, sh("sleep 1000 & echo '"+deny+"'")).Fire(t.Context(), bash); text(o) != "deny R" {
		t.Errorf("got %q, on record %+v", text(o), fired[0])
	}
}

// A command needn't read its question, nor keep quiet on stderr.
func TestDeaf(t *testing.T) {
	e := bash
	e.Input = wire.RawString(strings.Repeat("x", 4<<20))
	if o, fired := set(t, sh("yes why | head -c 5000000 >&2; echo '"+deny+"'")).Fire(t.Context(), e); text(o) != "deny R" {
		t.Errorf("got %q, on record %+v", text(o), fired[0])
	}
}

// Commands run in the agent's folder and see the environment of its commands only.
func TestSurroundings(t *testing.T) {
	t.Setenv("SECRET", "s3cret")
	dir := t.TempDir()
	s := hook.New(hook.Config{Dir: dir, Env: []string{"GIVEN=g"}, Hooks: []flow.Hook{{
		Event: flow.HookTurnEnd, Command: []string{"/bin/sh", "-c", `printf '{"decision":"context","message":"%s|%s|%s"}' "$SECRET" "$GIVEN" "$PWD"`},
	}}})
	if o, _ := s.Fire(t.Context(), hook.Event{Name: flow.HookTurnEnd}); o.Message != "|g|"+dir {
		t.Errorf("it saw %q", o.Message)
	}
}

// The end of the session ends its hooks.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	began := filepath.Join(t.TempDir(), "began")
	done := make(chan hook.Outcome)
	s := set(t, sh(": >"+began+"; sleep 1000"), pre(deny))
	go func() {
		o, _ := s.Fire(ctx, bash)
		done <- o
	}()
	for {
		if _, err := os.Stat(began); err == nil {
			break
		}
		<-time.After(5 * time.Millisecond)
	}
	cancel()
	if o := <-done; text(o) != "" {
		t.Errorf("got %q", text(o))
	}
}

// All ways to ask get the same question and may give the same answer.
func TestTransports(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var b bytes.Buffer
		_, _ = b.ReadFrom(r.Body)
		asked = append(asked, r.Method+" "+r.Header.Get("Content-Type")+" "+b.String())
		_, _ = fmt.Fprint(w, first)
	}))
	defer server.Close()
	nc := natstest.Start(t)
	replies, err := nc.Subscribe("policy.bash", func(m *nats.Msg) {
		asked = append(asked, "NATS  "+string(m.Data))
		_ = m.Respond([]byte(first))
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = replies.Unsubscribe() }()
	dir := t.TempDir()
	file := filepath.Join(dir, "question")
	script := "cat >" + file + "; echo '" + first + "'"
	input, _ := wire.Marshal(map[string]any{"command": "echo <a> & \x1b[31m"})
	s := hook.New(hook.Config{
		Hooks: []flow.Hook{
			{Event: flow.HookPreToolUse, Command: []string{"/bin/sh", "-c", script}},
			{Event: flow.HookPreToolUse, URL: strings.Replace(server.URL, "//", "//user:s3cret@", 1) + "/p?key=s3cret"},
			{Event: flow.HookPreToolUse, Subject: "policy.bash"},
			{Event: flow.HookPreToolUse, Subject: "nobody.there"},
		},
		RunID: "r1", NodeID: "coder", ExecID: "coder#1", Dir: dir, Env: []string{"PATH=" + os.Getenv("PATH")}, Logger: logtest.Logger(t),
		Client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		Ask: func(ctx context.Context, subject string, question []byte) ([]byte, error) {
			m, err := nc.RequestWithContext(ctx, subject, question)
			if err != nil {
				return nil, err
			}
			return m.Data, nil
		},
	})
	o, fired := s.Fire(t.Context(), hook.Event{Name: flow.HookPreToolUse, Turn: 2, Tool: "bash", ToolUseID: "t1", AgentID: "a1", Input: input})
	name := script[:60] + "…"
	if text(o) != `modify {"n":1}` || o.Hook != name {
		t.Errorf("got %q of %q", text(o), o.Hook)
	}
	var names []string
	for _, f := range fired {
		names = append(names, f.HookName+" "+f.Decision+f.Error)
	}
	want := []string{name + " modify", server.URL + "/p modify", "policy.bash modify", "nobody.there nats: no responders available for request"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("on record (-want +got):\n%s", diff)
	}
	question, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const line = `{"event":"PreToolUse","runId":"r1","nodeId":"coder","execId":"coder#1","cwd":"DIR","agentId":"a1","turn":2,` +
		`"toolName":"bash","toolUseId":"t1","toolInput":{"command":"echo <a> & \u001b[31m"}}` + "\n"
	if got := strings.Replace(string(question), dir, "DIR", 1); got != line {
		t.Errorf("the command was asked\n%s\nwant\n%s", got, line)
	}
	if diff := cmp.Diff([]string{"POST application/json " + string(question), "NATS  " + string(question)}, asked); diff != "" {
		t.Errorf("(-command +others):\n%s", diff)
	}
	if err := schema(t, "question").Validate(decoded(t, question)); err != nil {
		t.Error(err)
	}
}

// answers asks a hook whose answer is what is given.
func answers(ctx context.Context, event string, answer []byte) (hook.Outcome, *wire.HookFired) {
	s := hook.New(hook.Config{
		Hooks: []flow.Hook{{Event: event, Subject: "s"}},
		Ask:   func(context.Context, string, []byte) ([]byte, error) { return answer, nil },
	})
	o, fired := s.Fire(ctx, hook.Event{Name: event})
	return o, fired[0]
}

func schema(t testing.TB, def string) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile("../../schemas/hook.schema.json#/$defs/" + def)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func decoded(t testing.TB, b []byte) any {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// The schema and the code agree on what an answer is.
func TestAnswerSchema(t *testing.T) {
	s := schema(t, "answer")
	for _, a := range []string{
		deny, first, allow, goOn, stop, system, more, "{}", `{"decision":""}`, `{"decision":"maybe"}`, `{"decision":"modify"}`, `{"decision":"modify","input":1}`,
		`{"input":{}}`, `{"decision":"system"}`, `{"decision":"context","message":" "}`, `{"decision":"stop","message":"x"}`, `{"message":"x"}`, `{"other":1}`, `[]`, `{"decision":7}`,
	} {
		_, before := answers(t.Context(), flow.HookPreToolUse, []byte(a))
		_, elsewhere := answers(t.Context(), flow.HookTurnEnd, []byte(a))
		if understood, valid := before.Error == "" || elsewhere.Error == "", s.Validate(decoded(t, []byte(a))) == nil; understood != valid {
			t.Errorf("%s: understood %v, valid %v", a, understood, valid)
		}
	}
}

// Whatever a hook answers, what comes of it is one of the event's decisions with what
// belongs to it, and can be told, stored and put on a command line.
func FuzzAnswer(f *testing.F) {
	for _, a := range []string{deny, first, allow, goOn, stop, system, more, "", "{}", "null", `{"decision":"modify","input":{"a":[{}]}}`, "{\"decision\":\"context\",\"message\":\"\\u0000\xff\\ud800\"}", `{"decision":"deny","reason":"\u001b[2J"}`} {
		f.Add(true, []byte(a))
		f.Add(false, []byte(a))
	}
	f.Fuzz(func(t *testing.T, before bool, answer []byte) {
		event, want := flow.HookTurnStart, []hook.Decision{hook.Stop, hook.System, hook.Context, hook.Continue}
		if before {
			event, want = flow.HookPreToolUse, []hook.Decision{hook.Deny, hook.Modify, hook.Allow, hook.Continue}
		}
		o, fired := answers(t.Context(), event, answer)
		ok := false
		for _, d := range want {
			ok = ok || o.Decision == d
		}
		if !ok {
			t.Fatalf("decision %q about %s", o.Decision, event)
		}
		if (len(o.Input) > 0) != (o.Decision == hook.Modify) || (o.Message != "") != (o.Decision == hook.System || o.Decision == hook.Context) {
			t.Fatalf("outcome %+v", o)
		}
		if fired.Error != "" && o.Decision != hook.Continue {
			t.Fatalf("it failed with %s, and decided %s", fired.Error, o.Decision)
		}
		for _, s := range []string{o.Reason, o.Message, fired.Error, fired.Output, fired.HookName} {
			if !utf8.ValidString(s) || len(s) > 64<<10 {
				t.Fatalf("%d bytes, %q", len(s), s)
			}
		}
		if strings.Contains(o.Message+o.Reason, "\x00") {
			t.Fatal("a zero byte")
		}
		if len(o.Input) > 0 {
			if b, err := json.Marshal(o.Input); err != nil || b[0] != '{' {
				t.Fatalf("%s: %v", b, err)
			}
		}
	})
}
