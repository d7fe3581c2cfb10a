package native_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/native"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/pkg/wire"
)

func TestMain(m *testing.M) {
	if os.Getenv("BE_AN_MCP_SERVER") != "" {
		if err := serveTools().Run(context.Background(), &sdk.StdioTransport{}); err != nil { //nolint:forbidigo // the program's own
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// bench runs the agent against a script, and keeps its log.
type bench struct {
	t       *testing.T
	script  *apitest.Script
	request agent.Request
	log     []*wire.Event
	each    func(s agent.Session, e *wire.Event) bool // called before e is stored; false ends the agent as a kill does
}

func newBench(t *testing.T, replies ...apitest.Reply) *bench {
	t.Helper()
	return &bench{t: t, script: &apitest.Script{Replies: replies}, request: agent.Request{
		RunID: "r", NodeID: "n", ExecID: "n#1", SessionID: "s", Prompt: wire.RawString("Do it."),
		Options: agent.Options{Cwd: t.TempDir(), Model: "m"},
	}}
}

// hooks gives the agent hooks.
func (b *bench) hooks(hooks ...flow.Hook) {
	b.request.Hooks = hook.New(hook.Config{
		Hooks: hooks, Dir: b.request.Options.Cwd, Env: []string{"PATH=" + os.Getenv("PATH")},
	})
}

func (b *bench) provider() *native.Provider {
	environ := []string{"ANTHROPIC_API_KEY=k", "OPENAI_API_KEY=k", "PATH=" + os.Getenv("PATH"), "SECRET=x"}
	return &native.Provider{Environ: environ, Client: b.script.Client()}
}

// play runs an agent of another provider to its end.
func (b *bench) play(p *native.Provider) {
	b.t.Helper()
	s, err := p.Start(b.t.Context(), b.request)
	if err != nil {
		b.t.Fatal(err)
	}
	for e, err := range s.Events() {
		if err != nil {
			b.t.Fatal(err)
		}
		b.store(e)
	}
}

// run runs the agent to its end and returns the events of this run.
func (b *bench) run() []*wire.Event {
	b.t.Helper()
	s, err := b.provider().Start(b.t.Context(), b.request)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	from := len(b.log)
	for e, err := range s.Events() {
		if err != nil {
			b.t.Fatal(err)
		}
		if b.each != nil && !b.each(s, e) {
			break
		}
		b.store(e)
	}
	return b.log[from:]
}

// store adds an event to the log as it comes out of it again.
func (b *bench) store(e *wire.Event) {
	b.t.Helper()
	stored := *e
	stored.RunID, stored.NodeID, stored.Seq, stored.Epoch = "r", "n", uint64(len(b.log)+1), 1
	data, err := wire.Encode(&stored)
	if err != nil {
		b.t.Fatal(err)
	}
	again, err := wire.Decode(data)
	if err != nil {
		b.t.Fatal(err)
	}
	b.log = append(b.log, again)
}

// resume makes the next run one that goes on.
func (b *bench) resume(message string) {
	log := b.log
	b.request.Resume, b.request.Prompt = true, wire.Null
	if message != "" {
		b.request.Prompt = wire.RawString(message)
	}
	b.request.History = func(yield func(*wire.Event, error) bool) {
		for _, e := range log {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// file writes a file of the workspace.
func (b *bench) file(name, content string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.request.Options.Cwd, name), []byte(content), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// of returns the payloads of a type.
func of[P wire.Payload](events []*wire.Event) []P {
	var list []P
	for _, e := range events {
		if p, ok := e.Payload.(P); ok {
			list = append(list, p)
		}
	}
	return list
}

// outcome is the result of an execution, or its error.
func outcome(events []*wire.Event) string {
	o := agent.Outcome{}
	for _, e := range events {
		o.Observe(e)
	}
	if err := o.Error(); err != nil {
		return err.ErrorType + ": " + err.Message
	}
	if o.Paused() != nil {
		return "paused"
	}
	out, err := o.Output()
	if err != nil {
		return err.Error()
	}
	text := out.TextAt("text")
	return text
}

// types lists the types of events, without pieces.
func types(events []*wire.Event) string {
	var list []string
	for _, e := range events {
		if e.Type().Kind() != wire.KindDelta {
			list = append(list, string(e.Type()))
		}
	}
	return strings.Join(list, " ")
}

func messages(t *testing.T, request []byte) string {
	t.Helper()
	var body struct{ Messages json.RawMessage }
	if err := json.Unmarshal(request, &body); err != nil {
		t.Fatal(err)
	}
	return string(body.Messages)
}

func TestText(t *testing.T) {
	b := newBench(t, apitest.Message(apitest.Thinking("Well."), apitest.Text("Hello.")))
	events := b.run()
	if got := outcome(events); got != "Hello." {
		t.Errorf("outcome %q", got)
	}
	want := "agent:start agent:init turn:start prompt:system breakpoint_changed usage agent:message checkpoint turn:end agent:complete"
	if diff := cmp.Diff(want, types(events)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := messages(t, b.script.Requests()[0]); got != `[{"content":[{"text":"Do it.","type":"text"}],"role":"user"}]` {
		t.Errorf("messages %s", got)
	}
	var pieces []string
	for _, p := range of[*wire.AgentThinkingDelta](events) {
		pieces = append(pieces, fmt.Sprint(p.Block, p.Content))
	}
	for _, p := range of[*wire.AgentTextDelta](events) {
		pieces = append(pieces, fmt.Sprint(p.Block, p.Content))
	}
	if diff := cmp.Diff([]string{"1We", "1ll.", "2Hel", "2lo."}, pieces); diff != "" {
		t.Errorf("pieces (-want +got):\n%s", diff)
	}
	if c := of[*wire.AgentComplete](events)[0]; c.Usage.InputTokens != 100 || c.Usage.OutputTokens != 10 || c.NumTurns != 1 {
		t.Errorf("complete %+v", c)
	}
}

// TestToolsTogether reads two files at once and writes one after them.
func TestToolsTogether(t *testing.T) {
	b := newBench(t,
		apitest.Message(apitest.Text("Look."), apitest.Call("t0", "read", `{"path":"a"}`), apitest.Call("t1", "read", `{"path":"b"}`),
			apitest.Call("t2", "write", `{"path":"d/c","content":"C"}`), apitest.Call("t3", "bash", `{"command":"cat d/c; echo $SECRET"}`)),
		apitest.Message(apitest.Text("Done.")))
	b.file("a", "A\n")
	b.file("b", "B\n")
	events := b.run()
	if got := outcome(events); got != "Done." {
		t.Fatalf("outcome %q", got)
	}
	want := `[{"content":[{"text":"Do it.","type":"text"}],"role":"user"},` +
		`{"content":[{"text":"Look.","type":"text"},{"id":"t0","input":{"path":"a"},"name":"read","type":"tool_use"},` +
		`{"id":"t1","input":{"path":"b"},"name":"read","type":"tool_use"},` +
		`{"id":"t2","input":{"content":"C","path":"d/c"},"name":"write","type":"tool_use"},` +
		`{"id":"t3","input":{"command":"cat d/c; echo $SECRET"},"name":"bash","type":"tool_use"}],"role":"assistant"},` +
		`{"content":[{"content":"1\tA\n","tool_use_id":"t0","type":"tool_result"},{"content":"1\tB\n","tool_use_id":"t1","type":"tool_result"},` +
		`{"content":"d/c: created, 1 bytes","tool_use_id":"t2","type":"tool_result"},` +
		`{"content":"C\n","tool_use_id":"t3","type":"tool_result"}],"role":"user"}]`
	if diff := cmp.Diff(want, messages(t, b.script.Requests()[1])); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var points []string
	for _, p := range of[*wire.Checkpoint](events) {
		point := string(p.Kind)
		if p.SubIdx != nil {
			point = "sub"
		}
		points = append(points, point)
	}
	if diff := cmp.Diff([]string{"subturn", "sub", "sub", "sub", "sub", "turn", "turn"}, points); diff != "" {
		t.Errorf("checkpoints (-want +got):\n%s", diff)
	}
}

// TestRetries is C4 of features.md.
func TestRetries(t *testing.T) {
	limit := apitest.Failure(http.StatusTooManyRequests, "rate_limit_error")
	later := limit
	later.Header = http.Header{"Retry-After": {"7"}}
	never := limit
	never.Header = http.Header{"Retry-After": {"3601"}}
	named := limit
	named.Header = http.Header{"Request-Id": {"req_1 \x1b[31m"}}
	for _, test := range []struct {
		name    string
		replies []apitest.Reply
		want    string // type, attempt, delay
		outcome string
		took    time.Duration
	}{
		{
			"three failures",
			[]apitest.Reply{limit, apitest.Failure(529, "overloaded_error"), apitest.Failure(500, "api_error"), apitest.Message(apitest.Text("ok"))},
			"rate_limit 429 1/3 500, overloaded 529 2/3 1000, server_error 500 3/3 2000", "ok", 3500 * time.Millisecond,
		},
		{
			"four failures",
			[]apitest.Reply{limit, limit, limit, named},
			"rate_limit 429 1/3 500, rate_limit 429 2/3 1000, rate_limit 429 3/3 2000, rate_limit 429 3/3 0",
			"rate_limit: rate_limit (HTTP 429, rate_limit_error, request req_1): the script says so", 3500 * time.Millisecond,
		},
		{"the API says when", []apitest.Reply{later, apitest.Message(apitest.Text("ok"))}, "rate_limit 429 1/3 7000", "ok", 7 * time.Second},
		{
			"the API says never",
			[]apitest.Reply{never},
			"rate_limit 429 0/0 0", "rate_limit: rate_limit (HTTP 429, rate_limit_error): the script says so", 0,
		},
		{
			"cut in the middle",
			[]apitest.Reply{{Blocks: []apitest.Block{apitest.Text("Half")}, Cut: true}, apitest.Message(apitest.Text("Whole"))},
			"network_error 0 1/3 500", "Whole", 500 * time.Millisecond,
		},
		{
			"overloaded in the middle",
			[]apitest.Reply{{Blocks: []apitest.Block{apitest.Text("Half")}, Kind: "overloaded_error"}, apitest.Message(apitest.Text("Whole"))},
			"overloaded 0 1/3 500", "Whole", 500 * time.Millisecond,
		},
		{
			"silent",
			[]apitest.Reply{{Blocks: []apitest.Block{apitest.Text("Half")}, Hang: true}, apitest.Message(apitest.Text("Whole"))},
			"network_error 0 1/3 500", "Whole", 5*time.Minute + 500*time.Millisecond,
		},
		{
			"refused",
			[]apitest.Reply{apitest.Failure(http.StatusUnauthorized, "authentication_error")},
			"authentication_failed 401 0/0 0", "authentication_failed: authentication_failed (HTTP 401, authentication_error): the script says so", 0,
		},
		{
			"refused in the middle",
			[]apitest.Reply{{Blocks: []apitest.Block{apitest.Text("Half")}, Kind: "billing_error"}},
			"billing_error 0 0/0 0", "billing_error: the script says so", 0,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, test.replies...)
				begin := time.Now()
				events := b.run()
				if took := time.Since(begin); took != test.took {
					t.Errorf("took %s, want %s", took, test.took)
				}
				var failures []string
				for _, p := range of[*wire.AgentError](events) {
					delay, retry := 0.0, int64(0)
					if p.RetryDelayMs != nil {
						delay = *p.RetryDelayMs
					}
					if p.Attempt != nil {
						retry = *p.Attempt
					}
					if (delay > 0) != (p.Severity == wire.SeverityWarning) {
						t.Errorf("error %+v", p)
					}
					failures = append(failures, fmt.Sprintf("%s %d %d/%d %v", p.ErrorType, p.Status, retry, p.MaxAttempts, delay))
				}
				got := strings.Join(failures, ", ")
				if got != test.want || outcome(events) != test.outcome {
					t.Errorf("got %q and %q, want %q and %q", got, outcome(events), test.want, test.outcome)
				}
				for _, r := range b.script.Requests() {
					if string(r) != string(b.script.Requests()[0]) {
						t.Errorf("another prompt: %s", r)
					}
				}
			})
		})
	}
}

func TestEnds(t *testing.T) {
	length := func(s string) apitest.Reply {
		return apitest.Reply{Blocks: []apitest.Block{apitest.Text(s)}, Stop: "max_tokens"}
	}
	for _, test := range []struct {
		name    string
		replies []apitest.Reply
		options func(*agent.Options)
		outcome string
		last    string // part of the last request
	}{
		{"refusal", []apitest.Reply{{Blocks: []apitest.Block{apitest.Text("No")}, Stop: "refusal"}}, nil, "refusal: the model refused to answer", ""},
		{"one cut answer", []apitest.Reply{length("One"), apitest.Message(apitest.Text("two"))}, nil, "two", "cut off at the limit"},
		{"cut answers", []apitest.Reply{length("1"), length("2"), length("3"), length("4")}, nil, "max_tokens: 4 answers in a row were cut off at the limit of their length", ""},
		{
			"cut call",
			[]apitest.Reply{{Blocks: []apitest.Block{apitest.Text("One"), apitest.Call("t", "write", `{"path":"a","cont`)}, Stop: "max_tokens"}, apitest.Message(apitest.Text("two"))},
			nil, "two", `[{"text":"One","type":"text"}],"role":"assistant"}`,
		},
		{
			"call that was cut off before its input",
			[]apitest.Reply{{Blocks: []apitest.Block{apitest.Text("One"), apitest.Call("t", "bash", "")}, Stop: "max_tokens"}, apitest.Message(apitest.Text("two"))},
			nil, "two", `[{"text":"One","type":"text"}],"role":"assistant"}`,
		},
		{
			"text without words",
			[]apitest.Reply{apitest.Message(apitest.Text("\n"), apitest.Call("t", "glob", `{"pattern":"*"}`)), apitest.Message(apitest.Text("ok"))},
			nil, "ok", `{"content":[{"id":"t","input":{"pattern":"*"},"name":"glob","type":"tool_use"}],"role":"assistant"}`,
		},
		{
			"malformed input",
			[]apitest.Reply{apitest.Message(apitest.Call("t", "bash", `{"command":`)), apitest.Message(apitest.Text("sorry"))},
			nil, "sorry", `"is_error":true`,
		},
		{
			"unknown tool",
			[]apitest.Reply{apitest.Message(apitest.Call("t", "fly", `{}`)), apitest.Message(apitest.Text("sorry"))},
			nil, "sorry", `"Tool not found: fly","is_error":true`,
		},
		{
			"too many turns",
			[]apitest.Reply{apitest.Message(apitest.Call("t", "glob", `{"pattern":"*"}`)), apitest.Message(apitest.Call("u", "glob", `{"pattern":"*"}`))},
			func(o *agent.Options) { o.MaxTurns = 2 }, "error_max_turns: the agent has taken 2 turns without coming to an end", "",
		},
		{
			"structured",
			[]apitest.Reply{apitest.Message(apitest.Text(`{"n":1}`))},
			func(o *agent.Options) { o.OutputSchema = object(`{"type":"object"}`) }, `{"n":1}`, `"output_config":{"format":{"schema":{"type":"object"},"type":"json_schema"}}`,
		},
		{
			"not structured",
			[]apitest.Reply{apitest.Message(apitest.Text(`hm`))},
			func(o *agent.Options) { o.OutputSchema = object(`{"type":"object"}`) }, "invalid_output: the answer is no JSON, though a schema was given: ", "",
		},
		{
			"other than its schema",
			[]apitest.Reply{apitest.Message(apitest.Text(`{"n":"1"}`))},
			func(o *agent.Options) {
				o.OutputSchema = object(`{"type":"object","properties":{"n":{"type":"integer"}}}`)
			},
			"invalid_output: the answer is not what its schema asks for: ", "",
		},
		{
			"calls with one id",
			[]apitest.Reply{
				apitest.Message(apitest.Call("t", "bash", `{"command":"echo a >> f"}`), apitest.Call("t", "bash", `{"command":"echo b >> f"}`)),
				apitest.Message(apitest.Call("t", "bash", `{"command":"cat f"}`)),
				apitest.Message(apitest.Text("ok")),
			},
			func(o *agent.Options) { o.MaxTurns = 3 }, "ok", `"content":"a\nb\n","tool_use_id":"call-2-0-0"`,
		},
		{
			"thinking by number",
			[]apitest.Reply{apitest.Message(apitest.Text("ok"))},
			func(o *agent.Options) { o.Thinking = object(`1024`) }, "ok", `"budget_tokens":1024`,
		},
		{"pause", []apitest.Reply{{Blocks: []apitest.Block{apitest.Text("wait")}, Stop: "pause_turn"}, apitest.Message(apitest.Text("ok"))}, nil, "ok", `"role":"assistant"}]`},
		{"nothing said", []apitest.Reply{apitest.Message()}, nil, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, test.replies...)
			if test.options != nil {
				test.options(&b.request.Options)
			}
			events := b.run()
			if got := outcome(events); !strings.HasPrefix(got, test.outcome) || test.outcome == "" && got != "" {
				t.Errorf("outcome %q, want %q", got, test.outcome)
			}
			requests := b.script.Requests()
			if len(requests) != len(test.replies) {
				t.Errorf("%d requests, want %d", len(requests), len(test.replies))
			}
			if last := string(requests[len(requests)-1]); !strings.Contains(last, test.last) {
				t.Errorf("last request %s", last)
			}
		})
	}
}

func object(s string) wire.Raw {
	r, err := wire.RawFromJSON([]byte(s))
	if err != nil {
		panic(err)
	}
	return r
}

// TestSystemPrompt makes the system prompt anew for each turn; the log has its hash.
func TestSystemPrompt(t *testing.T) {
	b := newBench(t, apitest.Message(apitest.Call("t", "glob", `{"pattern":"*"}`)), apitest.Message(apitest.Text("ok")))
	b.request.Options.SystemPrompt, b.request.Options.AppendSystemPrompt = "Be secret.", "Be brief."
	events := b.run()
	const system = "Be secret.\n\nBe brief."
	sum := sha256.Sum256([]byte(system))
	want := []*wire.PromptSystem{{SHA256: hex.EncodeToString(sum[:]), Bytes: int64(len(system))}}
	if diff := cmp.Diff(want, of[*wire.PromptSystem](events)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, r := range b.script.Requests() {
		if !strings.Contains(string(r), `"system":[{"text":"Be secret.\n\nBe brief."`) {
			t.Errorf("request %s", r)
		}
	}
	for _, e := range events {
		if data, err := wire.Encode(e); err != nil || bytes.Contains(data, []byte("Be secret")) {
			t.Errorf("%s: %v", e.Type(), err)
		}
	}
}
