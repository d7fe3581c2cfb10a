package native_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/native"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/pkg/wire"
)

// called has the model make one call and returns its end.
func (b *bench) called(tool, input string) *wire.AgentTool {
	b.t.Helper()
	b.script.Replies = []apitest.Reply{apitest.Message(apitest.Call("t", tool, input)), apitest.Message(apitest.Text("ok"))}
	events := b.run()
	done := of[*wire.AgentTool](events)
	if len(done) != 1 || outcome(events) != "ok" {
		b.t.Fatalf("%d calls, outcome %q", len(done), outcome(events))
	}
	return done[0]
}

func TestTools(t *testing.T) {
	for _, test := range []struct{ name, tool, input, want string }{
		{"read", "read", `{"path":"lines","offset":2,"limit":1}`, "2\ttwo\n[1 more lines: go on with offset 3]\n"},
		{"read by its whole path", "read", `{"path":"DIR/lines","offset":3}`, "3\tthree\n"},
		{"read beyond", "read", `{"path":"lines","offset":9}`, "ERROR the file has only 3 lines"},
		{"read binary", "read", `{"path":"binary"}`, "ERROR binary is not a text file (2 bytes)"},
		{"read folder", "read", `{"path":"sub"}`, "ERROR sub is a folder: use glob to list it"},
		{"read pipe", "read", `{"path":"pipe"}`, "ERROR pipe is not a regular file"},
		{"escape upwards", "read", `{"path":"../secret"}`, "ERROR ../secret is outside the workspace DIR: use a path within it"},
		{"escape in the middle", "read", `{"path":"sub/../../secret"}`, "ERROR sub/../../secret is outside the workspace DIR: use a path within it"},
		{"escape by the whole path", "write", `{"path":"/etc/wake","content":""}`, "ERROR /etc/wake is outside the workspace DIR: use a path within it"},
		{"escape by a link", "read", `{"path":"out/secret"}`, "ERROR openat out/secret: path escapes from parent"},
		{"write through a link", "write", `{"path":"out/x","content":""}`, "ERROR mkdirat out: statat out: path escapes from parent"},
		{"link within", "read", `{"path":"in"}`, "1\tone\n2\ttwo\n3\tthree\n"},
		{"edit", "edit", `{"path":"lines","old_string":"two","new_string":"2"}`, "lines: modified, 12 bytes"},
		{"edit often", "edit", `{"path":"lines","old_string":"e","new_string":"E"}`, "ERROR old_string occurs 3 times: make it longer, or set replace_all"},
		{"edit nothing", "edit", `{"path":"lines","old_string":"four","new_string":""}`, "ERROR old_string does not occur in the file: read it again"},
		{"glob", "glob", `{"pattern":"**/*.{go,md}"}`, "a.go\nsub/b.go\nsub/c.md"},
		{"glob below", "glob", `{"pattern":"*.go","path":"sub"}`, "sub/b.go"},
		{"grep", "grep", `{"pattern":"t[wh]"}`, "lines:2:two\nlines:3:three\n[1 files were not searched, such as large: they have more than 16777216 bytes; use bash with grep]"},
		{"grep some", "grep", `{"pattern":"PACKAGE","ignore_case":true,"glob":"*.go"}`, "a.go:1:package a\nsub/b.go:1:package b"},
		{"grep wrongly", "grep", `{"pattern":"("}`, "ERROR error parsing regexp: missing closing ): `(`"},
		{"bash", "bash", `{"command":"cat lines; echo err >&2; exit 3"}`, "ERROR Exit code 3"},
		{"bash for too long", "bash", `{"command":"sleep 600 & sleep 600","timeout_ms":50}`, "ERROR Timed out after 50ms"},
		{"bash for ages", "bash", `{"command":"sleep 0.1; echo a","timeout_ms":18446744073710}`, "a\n"},
		{"grep what is too large", "grep", `{"pattern":"o","path":"large"}`, "Nothing matches.\n[1 files were not searched, such as large: they have more than 16777216 bytes; use bash with grep]"},
		{"grep beside it", "grep", `{"pattern":"one"}`, "lines:1:one\n[1 files were not searched, such as large: they have more than 16777216 bytes; use bash with grep]"},
		{"read what is too large", "read", `{"path":"large"}`, "ERROR large has 16777217 bytes, more than 16777216: use bash with grep, head or sed"},
		{"input of a wrong kind", "read", `{"path":1}`, "ERROR input: json: cannot unmarshal number"},
		{"nothing asked for", "read", `{}`, "ERROR path is required"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t)
			dir := filepath.Join(b.request.Options.Cwd, "work")
			b.request.Options.Cwd = dir
			fill(t, dir)
			p := b.called(test.tool, strings.ReplaceAll(test.input, "DIR", dir))
			got, _ := p.ToolOutput.Text()
			if p.Error != "" {
				got = "ERROR " + got
			}
			if got = strings.ReplaceAll(got, dir, "DIR"); !strings.HasPrefix(got, test.want) || !strings.HasPrefix(test.want, "ERROR") && got != test.want {
				t.Errorf("result %q, want %q", got, test.want)
			}
		})
	}
}

// fill makes a workspace, beside which there is a secret.
func fill(t *testing.T, dir string) {
	t.Helper()
	for name, content := range map[string]string{
		"lines": "one\ntwo\nthree\n", "binary": "\xff\x00", "a.go": "package a\n", "sub/b.go": "package b\n", "sub/c.md": "c\n",
		"../secret": "two\n", ".git/x.go": "package x\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"out": "..", "in": "lines"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	mkfifo(t, filepath.Join(dir, "pipe"))
	large := filepath.Join(dir, "large")
	if err := errors.Join(os.WriteFile(large, []byte("one\n"), 0o600), os.Truncate(large, 16<<20+1)); err != nil {
		t.Fatal(err)
	}
}

// TestLongResult tells the model a part and keeps the whole.
func TestLongResult(t *testing.T) {
	b := newBench(t)
	p := b.called("bash", `{"command":"seq 100000"}`)
	out, _ := p.ToolOutput.Text()
	full := p.Structured.TextAt("output")
	if len(full) != 588895 || len(out) > 31_000 || !strings.Contains(out, "558895 bytes were left out here") || !strings.HasSuffix(out, "100000\n") {
		t.Errorf("%d bytes told, %d kept: %.100s", len(out), len(full), out)
	}
}

// TestPermissions is S16 of features.md.
func TestPermissions(t *testing.T) {
	for _, test := range []struct {
		name    string
		options agent.Options
		tool    string
		want    string
	}{
		{"deny and allow", agent.Options{DisallowedTools: []string{"write"}, AllowedTools: []string{"write"}}, "write", "deny by rule"},
		{"deny and require", agent.Options{DisallowedTools: []string{"write"}, RequireApproval: []string{"write"}}, "write", "deny by rule"},
		{"not allowed", agent.Options{AllowedTools: []string{"read"}}, "write", "deny by rule"},
		{"not allowed and required", agent.Options{AllowedTools: []string{"read"}, RequireApproval: []string{"write"}}, "write", "deny by rule"},
		{"allowed", agent.Options{AllowedTools: []string{"write"}}, "write", "done"},
		{"required", agent.Options{RequireApproval: []string{"write"}}, "write", "asked, deny by operator"},
		{"required before the mode", agent.Options{RequireApproval: []string{"write"}, PermissionMode: "readonly"}, "write", "asked, deny by operator"},
		{"approval", agent.Options{PermissionMode: "approval"}, "glob", "asked, deny by operator"},
		{"readonly changes nothing", agent.Options{PermissionMode: "readonly"}, "write", "deny by rule"},
		{"readonly runs nothing", agent.Options{PermissionMode: "readonly"}, "bash", "deny by rule"},
		{"readonly reads", agent.Options{PermissionMode: "readonly"}, "glob", "done"},
		{"auto", agent.Options{}, "write", "done"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t)
			test.options.Cwd = b.request.Options.Cwd
			b.request.Options = test.options
			b.request.Options.Decide = func(context.Context, agent.Permission) agent.Verdict {
				return agent.Verdict{By: "operator", Note: "no"}
			}
			p := b.called(test.tool, map[string]string{"write": `{"path":"f","content":"x"}`, "glob": `{"pattern":"*"}`, "bash": `{"command":"touch f"}`}[test.tool])
			var got []string
			if len(of[*wire.PermissionRequired](b.log)) > 0 {
				got = append(got, "asked")
			}
			for _, d := range of[*wire.PermissionDecided](b.log) {
				got = append(got, string(d.Decision)+" by "+d.By)
			}
			if p.Error == "" {
				got = append(got, "done")
			}
			if diff := cmp.Diff(test.want, strings.Join(got, ", ")); diff != "" || p.Denied == (p.Error == "") {
				t.Errorf("denied %t (-want +got):\n%s", p.Denied, diff)
			}
			_, err := os.Stat(filepath.Join(b.request.Options.Cwd, "f"))
			if wrote := err == nil; wrote != (test.tool != "glob" && test.want == "done") {
				t.Errorf("the file is there: %t", wrote)
			}
		})
	}
}

// TestApprovedInput runs the call with the input that was approved.
func TestApprovedInput(t *testing.T) {
	b := newBench(t)
	b.request.Options.RequireApproval = []string{"bash"}
	b.request.Options.Decide = func(context.Context, agent.Permission) agent.Verdict {
		return agent.Verdict{Allow: true, By: "ann", UpdatedInput: object(`{"command":"echo safe"}`)}
	}
	if out, _ := b.called("bash", `{"command":"rm -rf /"}`).ToolOutput.Text(); out != "safe\n" {
		t.Errorf("output %q", out)
	}
}

// TestCompaction shortens a conversation that fills the window.
func TestCompaction(t *testing.T) {
	long := apitest.Message(apitest.Call("t0", "glob", `{"pattern":"*"}`))
	long.Input = 900
	b := newBench(t, long, apitest.Message(apitest.Text("SUMMARY")), apitest.Message(apitest.Text("Done.")))
	b.script.Window = 1000
	events := b.run()
	if got := outcome(events); got != "Done." {
		t.Fatalf("outcome %q", got)
	}
	p := of[*wire.Compaction](events)
	if len(p) != 1 || p[0].PreTokens != 910 || p[0].Summary != "SUMMARY" {
		t.Errorf("compactions %+v", p)
	}
	want := `[{"content":[{"text":"Do it.","type":"text"},{"text":"This conversation was shortened, as it had become too long. What has happened since the task above:\n\nSUMMARY","type":"text"}],"role":"user"}]`
	if diff := cmp.Diff(want, messages(t, b.script.Requests()[2])); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if c := of[*wire.AgentComplete](events)[0]; c.ModelUsage["scripted"].ContextWindow != 1000 || c.Usage.InputTokens != 1100 {
		t.Errorf("complete %+v", c)
	}
}

// TestChat speaks with a server of the OpenAI kind.
func TestChat(t *testing.T) {
	var requests []string
	chunks := [][]string{
		{
			`{"id":"c1","model":"gpt","choices":[{"delta":{"reasoning_content":"Hm."}}]}`,
			`{"id":"c1","choices":[{"delta":{"content":"I lo"}}]}`, `{"choices":[{"delta":{"content":"ok."}}]}`,
			`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"t0","function":{"name":"read","arguments":"{\"pa"}},{"index":1,"function":{"name":"glob","arguments":"{\"pattern\":\"*\"}"}}]}}]}`,
			`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"th\":\"a\"}"}}]}}]}`,
			`{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}`,
			`{"choices":[],"usage":{"prompt_tokens":50,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":20}}}`, `[DONE]`,
		},
		{`{"id":"c2","model":"gpt","choices":[{"delta":{"content":"Half"}}]}`}, // it breaks off
		{`{"id":"c1","model":"gpt","choices":[{"delta":{"content":"Done."},"finish_reason":"stop"}]}`, `[DONE]`},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Messages json.RawMessage }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer k" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		for _, c := range chunks[len(requests)] {
			_, _ = fmt.Fprintf(w, "data: %s\n\n", c)
		}
		requests = append(requests, string(body.Messages))
	}))
	defer server.Close()
	b := newBench(t)
	b.file("a", "A\n")
	b.request.Options.SystemPrompt, b.request.Options.Model = "S", "openai:gpt"
	p := &native.Provider{Environ: []string{"OPENAI_API_KEY=k", "OPENAI_BASE_URL=" + server.URL + "/v1"}, Client: server.Client()}
	b.play(p)
	if got := outcome(b.log); got != "Done." || len(of[*wire.AgentError](b.log)) != 1 {
		t.Fatalf("outcome %q", got)
	}
	want := `[{"content":"S","role":"system"},{"content":"Do it.","role":"user"},` +
		`{"content":"I look.","role":"assistant","tool_calls":[{"function":{"arguments":"{\"path\":\"a\"}","name":"read"},"id":"t0","type":"function"},` +
		`{"function":{"arguments":"{\"pattern\":\"*\"}","name":"glob"},"id":"c1-1","type":"function"}]},` +
		`{"content":"1\tA\n","role":"tool","tool_call_id":"t0"},{"content":"a","role":"tool","tool_call_id":"c1-1"}]`
	if diff := cmp.Diff([]string{want, want}, requests[1:]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if u := of[*wire.Usage](b.log); u[0].MessageID == u[1].MessageID {
		t.Errorf("two answers are counted as one: %q", u[0].MessageID)
	}
	if u := of[*wire.Usage](b.log)[0]; u.InputTokens != 30 || *u.CacheReadInputTokens != 20 || u.ContextTokens != 50 {
		t.Errorf("usage %+v", u)
	}
}

// TestRequests refuses what can't be served, before anything begins.
func TestRequests(t *testing.T) {
	for _, test := range []struct {
		name string
		edit func(*agent.Request)
		want string
	}{
		{"mode", func(r *agent.Request) { r.Options.PermissionMode = "acceptEdits" }, "permissionMode \"acceptEdits\" is unknown"},
		{"budget", func(r *agent.Request) { r.Options.MaxBudgetUsd = 1 }, "maxBudgetUsd can't be kept"},
		{"thinking", func(r *agent.Request) { r.Options.Thinking = wire.RawString("hard") }, "thinking is \"hard\""},
		{"thinking less", func(r *agent.Request) { r.Options.Thinking = object(`-1`) }, "thinking is -1"},
		{"schema", func(r *agent.Request) { r.Options.OutputSchema = object(`{"type":"text"}`) }, "outputSchema"},
		{"schema elsewhere", func(r *agent.Request) { r.Options.OutputSchema = object(`{"$ref":"file:///etc/hosts"}`) }, "outputSchema"},
		{"folder", func(r *agent.Request) { r.Options.Cwd = "" }, "a folder to work in is required"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t)
			test.edit(&b.request)
			if _, err := b.provider().Start(t.Context(), b.request); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v", err)
			}
		})
	}
	t.Run("no key", func(t *testing.T) {
		b := newBench(t)
		b.play(new(native.Provider))
		if got := outcome(b.log); !strings.Contains(got, "no ANTHROPIC_API_KEY") {
			t.Errorf("outcome %q", got)
		}
	})
}
