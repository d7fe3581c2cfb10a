package export_test

import (
	"bytes"
	stdcmp "cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// spans returns what OTLP sends, read by OpenTelemetry's own definitions, which
// refuse fields that they don't know. OTLP/JSON writes ids in hexadecimal where
// they have base64.
func spans(t testing.TB, run export.Run, events export.Events, o export.Spans) (all []*tracepb.Span) {
	t.Helper()
	ids := regexp.MustCompile(`"(traceId|spanId|parentSpanId)":"([0-9a-f]+)"`)
	_, err := export.OTLP(run, events, o, func(body []byte) error {
		proto := ids.ReplaceAllFunc(body, func(m []byte) []byte {
			part := ids.FindSubmatch(m)
			id := must(hex.DecodeString(string(part[2])))
			return []byte(`"` + string(part[1]) + `":"` + base64.StdEncoding.EncodeToString(id) + `"`)
		})
		var data tracepb.TracesData
		if err := protojson.Unmarshal(proto, &data); err != nil {
			t.Errorf("%v: %.300s", err, body)
			return err
		}
		if url := data.GetResourceSpans()[0].GetSchemaUrl(); url != semconv.SchemaURL {
			t.Errorf("schema %s, want %s", url, semconv.SchemaURL)
		}
		all = append(all, data.GetResourceSpans()[0].GetScopeSpans()[0].GetSpans()...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func attr(s *tracepb.Span, key string) string {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == key {
			v := a.GetValue()
			if n := v.GetIntValue(); n != 0 {
				return must1(json.Marshal(n))
			}
			return v.GetStringValue()
		}
	}
	return ""
}

func must1(b []byte, err error) string { return string(must(b, err)) }

// tree is the names of the spans below a parent, indented.
func tree(all []*tracepb.Span, parent []byte, indent string) (lines []string) {
	children := slices.DeleteFunc(slices.Clone(all), func(s *tracepb.Span) bool { return !bytes.Equal(s.GetParentSpanId(), parent) })
	slices.SortStableFunc(children, func(a, b *tracepb.Span) int {
		return stdcmp.Or(stdcmp.Compare(a.GetStartTimeUnixNano(), b.GetStartTimeUnixNano()), stdcmp.Compare(a.GetName(), b.GetName()))
	})
	for _, s := range children {
		lines = append(lines, indent+s.GetName())
		lines = append(lines, tree(all, s.GetSpanId(), indent+"  ")...)
	}
	return lines
}

func TestSpans(t *testing.T) {
	h := newHistory(t)
	h.start("")
	h.record("coder", "stream/subagents.jsonl", "")
	h.add("tests", "tests#1", &wire.NodeStart{NodeType: "exec", Attempt: 1})
	h.add("tests", "tests#1", &wire.ExecExit{ExitCode: 2, DurationMs: 10})
	h.add("tests", "tests#1", &wire.NodeError{Error: "exit code 2", ErrorType: "exit"})
	h.add(wire.RunNode, "note#1", &wire.NodeStart{Target: "note", NodeType: "set"})
	h.add(wire.RunNode, "note#1", &wire.NodeComplete{Target: "note", Output: wire.RawString("x")})
	h.add(wire.RunNode, "", &wire.FlowComplete{FlowName: "review", Status: wire.FlowStatusFailed, Error: "tests failed"})
	all := spans(t, h.run, h.events(), export.Spans{Batch: 3})
	want := []string{
		"invoke_workflow review",
		"  invoke_agent coder",
		"    chat claude-opus-4-8",
		"    execute_tool Agent",
		"      invoke_agent sub-agent",
		"        chat claude-opus-4-8",
		"        execute_tool Bash",
		"    execute_tool Agent",
		"      invoke_agent sub-agent",
		"        chat claude-opus-4-8",
		"        execute_tool Bash",
		"    chat claude-opus-4-8",
		"  execute_tool tests",
		"  node note",
	}
	if diff := cmp.Diff(want, tree(all, nil, "")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	ids := map[string]bool{}
	for _, s := range all {
		ids[hex.EncodeToString(s.GetSpanId())] = true
		if s.GetEndTimeUnixNano() < s.GetStartTimeUnixNano() || len(s.GetTraceId()) != 16 || len(s.GetSpanId()) != 8 {
			t.Errorf("%s: from %d to %d", s.GetName(), s.GetStartTimeUnixNano(), s.GetEndTimeUnixNano())
		}
		if attr(s, "gen_ai.tool.call.arguments") != "" {
			t.Errorf("%s tells what the tool was given", s.GetName())
		}
	}
	if len(ids) != len(all) {
		t.Errorf("%d ids of %d spans", len(ids), len(all))
	}
	chat := all[slices.IndexFunc(all, func(s *tracepb.Span) bool { return attr(s, "gen_ai.response.id") == "msg_01tBACGeCMvtcrA2ZxsUrMFd" })]
	// 12 and 1916 written to and 17246 read from the cache
	if in, out := attr(chat, "gen_ai.usage.input_tokens"), attr(chat, "gen_ai.usage.output_tokens"); in != "19174" || out != "112" {
		t.Errorf("%s tokens in, %s out", in, out)
	}
	for _, s := range all {
		failed := s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR
		if want := s.GetName() == "execute_tool tests" || strings.HasPrefix(s.GetName(), "invoke_workflow") || attr(s, "gen_ai.tool.call.id") == "toolu_01Lgb5GqjpncFPNtk0GpFkWx"; failed != want {
			t.Errorf("%s failed: %t", s.GetName(), failed)
		}
		if failed && attr(s, "error.type") == "" {
			t.Errorf("%s failed without a type", s.GetName())
		}
	}
}

// The spans of a run that goes on have the same ids once it has ended, and a
// second export changes nothing.
func TestSpansStay(t *testing.T) {
	h := recorded(t, "stream/tools.jsonl")
	names := func(all []*tracepb.Span) map[string]string {
		m := map[string]string{}
		for _, s := range all {
			m[hex.EncodeToString(s.GetSpanId())] = s.GetName()
		}
		return m
	}
	whole := names(spans(t, h.run, h.events(), export.Spans{}))
	for _, n := range []int{5, 20, 50, len(h.entries)} {
		for id, name := range names(spans(t, h.run, entries(h.entries[:n]...), export.Spans{})) {
			if got := whole[id]; got == "" || name != "chat" && got != name {
				t.Errorf("after %d events: span %s is %q, later %q", n, id, name, got)
			}
		}
	}
}

// A run that comes from another is linked to it.
func TestLinks(t *testing.T) {
	h := newHistory(t)
	h.add(wire.RunNode, "", &wire.RunForked{ParentRun: "r0", ParentPos: 3})
	all := spans(t, h.run, h.events(), export.Spans{})
	parent := newHistory(t)
	parent.run.ID = "r0"
	root := spans(t, parent.run, parent.events(), export.Spans{})[0]
	links := all[0].GetLinks()
	if len(links) != 1 || !bytes.Equal(links[0].GetTraceId(), root.GetTraceId()) || !bytes.Equal(links[0].GetSpanId(), root.GetSpanId()) {
		t.Errorf("%v, want the span %x", links, root.GetSpanId())
	}
}

func TestNothing(t *testing.T) {
	if all := spans(t, export.Run{ID: "r1"}, entries(), export.Spans{}); len(all) > 0 {
		t.Errorf("%v", all)
	}
}

// The names are those that OpenTelemetry generates of its conventions.
func TestNames(t *testing.T) {
	known := map[string]bool{}
	for _, k := range []attribute.Key{
		semconv.GenAIOperationNameKey, semconv.GenAIProviderNameKey, semconv.GenAIWorkflowNameKey, semconv.GenAIAgentNameKey,
		semconv.GenAIAgentIDKey, semconv.GenAIAgentVersionKey, semconv.GenAIConversationIDKey, semconv.GenAIRequestModelKey,
		semconv.GenAIResponseModelKey, semconv.GenAIResponseIDKey, semconv.GenAIResponseFinishReasonsKey, semconv.GenAIUsageInputTokensKey,
		semconv.GenAIUsageOutputTokensKey, semconv.GenAIUsageCacheCreationInputTokensKey, semconv.GenAIUsageCacheReadInputTokensKey,
		semconv.GenAIToolNameKey, semconv.GenAIToolTypeKey, semconv.GenAIToolCallIDKey, semconv.GenAIToolCallArgumentsKey,
		semconv.GenAIToolCallResultKey, semconv.ErrorTypeKey, semconv.ServiceNameKey, semconv.ServiceInstanceIDKey,
	} {
		known[string(k)] = true
	}
	for _, v := range []attribute.KeyValue{
		semconv.GenAIOperationNameInvokeWorkflow, semconv.GenAIOperationNameInvokeAgent, semconv.GenAIOperationNameChat,
		semconv.GenAIOperationNameExecuteTool, semconv.GenAIProviderNameAnthropic, semconv.ErrorTypeOther,
	} {
		known[v.Value.AsString()] = true
	}
	known["function"], known["extension"] = true, true // the type of a tool has no constants
	source := must(os.ReadFile("otlp_names.go"))
	ours, _, _ := bytes.Cut(source, []byte("// Names of wake's own."))
	names := regexp.MustCompile(`= "([^"]+)"`).FindAllSubmatch(ours, -1)
	if len(names) < 30 {
		t.Fatalf("%d names", len(names))
	}
	for _, n := range names {
		if name := string(n[1]); name != semconv.SchemaURL && !known[name] {
			t.Errorf("%s is no name of version 1.41.0", name)
		}
	}
}

// Each body is a line of a file, as OpenTelemetry's collector reads it.
func TestFile(t *testing.T) {
	b := must(os.ReadFile(filepath.Join("testdata", "tools.otlp.jsonl")))
	for line := range bytes.Lines(b) {
		if !json.Valid(line) {
			t.Errorf("%.80s", line)
		}
	}
}

func TestPost(t *testing.T) {
	var asked []string
	answers := []func(http.ResponseWriter){
		func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
		},
		func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) },
		func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"partialSuccess":{}}`) },
		func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadRequest); _, _ = io.WriteString(w, "what?") },
		func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `{"partialSuccess":{"rejectedSpans":"3","errorMessage":"too old"}}`)
		},
		func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://another/login")
			w.WriteHeader(http.StatusFound)
		},
		func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = io.WriteString(w, "<html>log in</html>")
		},
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, r.Method+" "+r.URL.Path+" "+r.Header.Get("Content-Type")+" "+r.Header.Get("Authorization")+" "+string(body))
		answers[0](w)
		answers = answers[1:]
	})
	synctest.Test(t, func(t *testing.T) {
		p := export.Endpoint{
			URL: "http://collector/v1/traces", Header: http.Header{"Authorization": {"Bearer x"}},
			Client: &http.Client{Transport: direct{handler}},
		}
		start := time.Now()
		if err := p.Post(t.Context(), []byte("{}")); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took != 9*time.Second { // 7 s that it asked for, and 2 s
			t.Errorf("after %s", took)
		}
		if err := p.Post(t.Context(), []byte("{}")); err == nil || !strings.Contains(err.Error(), `400 Bad Request: "what?"`) {
			t.Errorf("refused: %v", err)
		}
		if err := p.Post(t.Context(), []byte("{}")); err == nil || !strings.Contains(err.Error(), "rejected 3 spans: too old") {
			t.Errorf("in part: %v", err)
		}
		if err := p.Post(t.Context(), []byte("{}")); err == nil || !strings.Contains(err.Error(), "302 Found") { // the headers are for no other host
			t.Errorf("sent elsewhere: %v", err)
		}
		if err := p.Post(t.Context(), []byte("{}")); err == nil || !strings.Contains(err.Error(), "a page") {
			t.Errorf("a page: %v", err)
		}
	})
	if want := "POST /v1/traces application/json Bearer x {}"; len(asked) != 7 || asked[0] != want {
		t.Errorf("%q", asked)
	}
}

// What a tool gave is left out unless it is asked for, also where that is an error.
func TestToolErrorsAreContent(t *testing.T) {
	h := newHistory(t)
	h.event("a", &wire.Event{ExecID: "a#1", CallID: "c1", Payload: &wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawString("x"), ToolOutput: wire.RawString("Jane Doe"), Error: "Exit code 1\nJane Doe"}})
	for _, content := range []bool{false, true} {
		body, err := json.Marshal(spans(t, h.run, entries(h.entries...), export.Spans{Content: content}))
		if err != nil {
			t.Fatal(err)
		}
		if has := strings.Contains(string(body), "Jane Doe"); has != content {
			t.Errorf("with content %t it is there: %t", content, has)
		}
	}
}

// A usage that is told again, as of a session that was read anew, is no other call of the model.
func TestOTLPUsageAgain(t *testing.T) {
	h := newHistory(t)
	for _, id := range []string{"m1", "m2", "m1"} {
		h.event("a", &wire.Event{ExecID: "a#1", Payload: &wire.Usage{MessageID: id, InputTokens: 5}})
	}
	want := []string{"invoke_workflow", "  invoke_agent a", "    chat", "    chat"}
	if diff := cmp.Diff(want, tree(spans(t, h.run, entries(h.entries...), export.Spans{}), nil, "")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// direct answers requests without a network.
type direct struct{ http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w.Result(), nil
}

// What a log has that doesn't fit together makes spans all the same.
func TestOddHistories(t *testing.T) {
	h := newHistory(t)
	h.event("a", &wire.Event{ExecID: "a#1", CallID: "c1", Payload: &wire.AgentTool{ToolName: "Read", ToolInput: wire.RawString("x"), ToolOutput: wire.RawString("y")}})
	h.event("a", &wire.Event{ExecID: "a#1", CallID: "c2", Payload: &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.RawString("x")}})
	h.event("a", &wire.Event{ExecID: "a#1", CallID: "c3", Parent: "c9", Payload: &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.RawString("x")}})
	h.event("a", &wire.Event{ExecID: "a#1", Payload: &wire.Usage{MessageID: "m1"}})
	h.event("a", &wire.Event{ExecID: "a#1", Payload: &wire.Usage{MessageID: "m2"}})
	h.add("b", "b#7", &wire.NodeComplete{Output: wire.RawString("never began")})
	h.add(wire.RunNode, "", &wire.FlowAborted{Reason: "enough"})
	bad := eventlog.Entry{Pos: 999, Err: io.ErrUnexpectedEOF}
	all := spans(t, h.run, entries(append(h.entries, bad)...), export.Spans{})
	want := []string{
		"invoke_workflow", "  invoke_agent a", "    chat", "    chat", "    execute_tool Read", "    execute_tool Bash",
		"    invoke_agent sub-agent", "      chat", "      execute_tool Bash",
	}
	if diff := cmp.Diff(want, tree(all, nil, "")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTimesOfRun shows that a run takes as long as its state says, also a run that was ingested a week later: its writers' claims are of that day.
func TestTimesOfRun(t *testing.T) {
	h := recorded(t, "stream/tools.jsonl")
	s := run.New(h.run.ID)
	for _, e := range h.entries {
		switch e.Event.Payload.(type) {
		case *wire.RunClaimed, *wire.NodeClaimed:
			e.Event.Timestamp += (7 * 24 * time.Hour).Milliseconds()
		}
		if err := run.Apply(s, wire.Position{Incarnation: h.run.Incarnation, Seq: e.Pos}, e.Event); err != nil {
			t.Fatal(err)
		}
	}
	all := spans(t, h.run, h.events(), export.Spans{})
	root := all[slices.IndexFunc(all, func(s *tracepb.Span) bool { return len(s.ParentSpanId) == 0 })]
	if from, to := int64(root.StartTimeUnixNano/1e6), int64(root.EndTimeUnixNano/1e6); from != s.StartedAt || to != s.EndedAt {
		t.Errorf("its span is from %d to %d, the run from %d to %d", from, to, s.StartedAt, s.EndedAt)
	}
	if want := "<b>" + timeline.Took(s.EndedAt-s.StartedAt) + "</b><span>from its start to its end"; !strings.Contains(page(t, h), want) {
		t.Errorf("the page lacks %s", want)
	}
}
