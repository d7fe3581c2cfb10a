package export_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/pkg/wire"
)

func page(t testing.TB, h *history) string {
	t.Helper()
	var b bytes.Buffer
	if _, err := export.HTML(&b, h.run, h.events()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Whatever an agent says is text on the page.
func TestHostile(t *testing.T) {
	const evil = `</pre></style><script>alert(1)</script><img src=x onerror=alert(1)>"'&{{.}}` + "\u202e\x1b[31m"
	h := newHistory(t)
	h.add(wire.RunNode, "", &wire.FlowStart{
		FlowName: evil, Definition: must(wire.Marshal(map[string]any{})), DefinitionHash: "x", Labels: map[string]string{evil: evil},
	})
	h.event("a", &wire.Event{ExecID: "a#1", SessionID: "s", Payload: &wire.AgentStart{Prompt: wire.RawString(evil), Model: evil}})
	h.event("a", &wire.Event{ExecID: "a#1", Payload: &wire.AgentText{Content: evil}})
	h.event("a", &wire.Event{ExecID: "a#1", CallID: "c", Payload: &wire.AgentTool{
		ToolName: evil, ToolInput: must(wire.Marshal(map[string]any{evil: evil})), ToolOutput: wire.RawString(evil), Error: evil,
	}})
	h.event("a", &wire.Event{ExecID: "a#1", Payload: &wire.Usage{MessageID: "m", Model: evil}})
	h.add(wire.RunNode, "", &wire.FlowComplete{FlowName: evil, Status: wire.FlowStatusFailed, Error: evil})
	got := page(t, h)
	for _, bad := range []string{"<script", "<img", "onerror=alert(1)>\"", "\u202e", "\x1b", "http:", "https:"} {
		if strings.Contains(got, bad) {
			i := strings.Index(got, bad)
			t.Errorf("the page has %q: %q", bad, got[max(0, i-60):min(len(got), i+60)])
		}
	}
	if tag := regexp.MustCompile(`<[a-z]+[^>]* (src|href|style|on[a-z]+)=[^>]*>`).FindString(got); tag != "" {
		t.Errorf("the page has %s", tag)
	}
	if n := strings.Count(got, "&lt;script&gt;alert(1)"); n < 8 {
		t.Errorf("it is shown %d times", n)
	}
	if strings.Count(got, "</style>") != 1 || strings.Count(got, "</html>") != 1 {
		t.Error("the page was ended by what it shows")
	}
}

// The policy of the page allows its own style and nothing else.
func TestPolicy(t *testing.T) {
	got := page(t, recorded(t, "stream/tools.jsonl"))
	style := regexp.MustCompile(`(?s)<style>(.*)</style>`).FindStringSubmatch(got)
	if style == nil {
		t.Fatal("the page has no style")
	}
	sum := sha256.Sum256([]byte(style[1]))
	want := `content="default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-` + base64.StdEncoding.EncodeToString(sum[:]) + `'"`
	if !strings.Contains(got, want) {
		t.Errorf("the page doesn't say %s", want)
	}
}

// What has been held back is complete: pieces that come late are in their row.
func TestRows(t *testing.T) {
	h := newHistory(t)
	h.start("")
	for i := range 3000 {
		h.event("a", &wire.Event{ExecID: "a#1", Payload: &wire.AgentTextDelta{Content: fmt.Sprintf("<%d", i), Block: i/3 + 1}})
		h.event("b", &wire.Event{ExecID: "b#1", Payload: &wire.AgentText{Content: fmt.Sprintf("whole %d", i)}})
	}
	got := page(t, h)
	if n := strings.Count(got, `<div class="r text`); n != 4000 {
		t.Errorf("%d rows of text", n)
	}
	for i := range 1000 {
		if want := fmt.Sprintf("&lt;%d&lt;%d&lt;%d<", 3*i, 3*i+1, 3*i+2); !strings.Contains(got, want) {
			t.Fatalf("block %d isn't whole", i+1)
		}
	}
}

// Long values are cut, and it is said.
func TestCut(t *testing.T) {
	h := newHistory(t)
	h.start("")
	h.event("a", &wire.Event{ExecID: "a#1", Payload: &wire.AgentText{Content: strings.Repeat("ä", 100_000)}})
	h.event("a", &wire.Event{ExecID: "a#1", CallID: "c", Payload: &wire.AgentTool{
		ToolName: "Read", ToolInput: wire.RawString("x"), ToolOutput: wire.RawString(strings.Repeat("ö", 20_000)),
	}})
	got := page(t, h)
	if len(got) > 120_000 || !strings.Contains(got, "134\u202f464 bytes more") || !strings.Contains(got, "23\u202f616 bytes more") {
		t.Errorf("%d bytes; %q", len(got), regexp.MustCompile(`\S+ bytes more`).FindAllString(got, -1))
	}
}

// The sums are those of the run.
func TestSums(t *testing.T) {
	got := page(t, recorded(t, "stream/tools.jsonl"))
	for _, want := range []string{
		`<b>$0.2228</b><span>cost</span>`, `<td>Bash</td><td data-of="calls">3</td><td data-of="failed">2</td>`, `<td>claude-opus-4-8</td><td data-of="calls">10</td>`,
		`pill complete`, `team=core`, `<title>coder#1</title>`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
}

// Times of rows have a tenth of a second, and never sixty of them.
func TestTimes(t *testing.T) {
	h := newHistory(t)
	h.start("")
	for _, at := range []int64{59_980, 3_599_999, 3_600_000, 90_061_000} {
		h.event("a", &wire.Event{ExecID: "a#1", Timestamp: began + 200 + at, Payload: &wire.AgentText{Content: "x"}})
	}
	got := page(t, h)
	for _, want := range []string{">0:59.9<", ">59:59.9<", ">1:00:00<", ">25:01:01<"} {
		if !strings.Contains(got, want) {
			t.Errorf("no row at %s", want)
		}
	}
}

// The page has what was worth telling, the flow, the node that failed, and every call of a bar, failures by themselves.
func TestPageTellsAll(t *testing.T) {
	h := newHistory(t)
	definition := must(wire.Marshal(map[string]any{"name": "f", "nodes": []any{
		map[string]any{"id": "a", "type": "agent", "input": map[string]any{"prompt": "x"}},
		map[string]any{"id": "b", "type": "agent", "input": map[string]any{"prompt": "x"}},
	}, "edges": []any{map[string]any{"from": "a", "to": "b"}}}))
	h.add(wire.RunNode, "", &wire.FlowStart{FlowName: "f", Definition: definition, DefinitionHash: "x"})
	h.event("a", &wire.Event{ExecID: "a#1", SessionID: "s", Payload: &wire.AgentStart{Prompt: wire.RawString("do")}})
	const calls = 5000
	for i := range calls {
		failed := ""
		if i == 1234 {
			failed = "exit 1"
		}
		h.event("a", &wire.Event{ExecID: "a#1", CallID: fmt.Sprint("c", i), Timestamp: began + 1000 + int64(i), Payload: &wire.AgentTool{
			ToolName: "Bash", ToolInput: wire.RawString("x"), ToolOutput: wire.RawString("y"), Error: failed,
		}})
	}
	h.event("a", &wire.Event{ExecID: "a#1", Timestamp: began + 7000, Payload: &wire.Usage{MessageID: "m", Model: "nobody-knows-its-price", InputTokens: 5, OutputTokens: 5}})
	h.run.Alerts = []wire.Alert{{Kind: "tool:failed", Severity: "warning", NodeID: "a", Text: "it <b>fails</b>"}}
	h.run.Note = "shared until tomorrow"
	got := page(t, h)
	for _, want := range []string{"tool:failed", "it &lt;b&gt;fails&lt;/b&gt;", `class="node pending"`, `class="edge `, `class="r tool failed"`, "shared until tomorrow", `<td data-of="cost">unknown</td>`} {
		if !strings.Contains(got, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	marks, counted := regexp.MustCompile(`<rect class="mark( bad)?"[^>]*><title>Bash(?:, (\S+) calls)?`).FindAllStringSubmatch(got, -1), 0
	bad := 0
	for _, m := range marks {
		n := 1
		if m[2] != "" {
			n, _ = strconv.Atoi(strings.ReplaceAll(m[2], "\u202f", ""))
		}
		if counted += n; m[1] != "" {
			bad += n
		}
	}
	if counted != calls || bad != 1 || len(marks) > 1700 {
		t.Errorf("%d marks of %d calls, %d of them bad", len(marks), counted, bad)
	}
}

// Executions that the chart has no room for are counted once each.
func TestChartBeyond(t *testing.T) {
	h := newHistory(t)
	h.start("")
	for i := range 310 {
		exec := fmt.Sprintf("n#%d", i+1)
		h.add("n", exec, &wire.NodeStart{NodeType: "agent"})
		h.event("n", &wire.Event{ExecID: exec, SessionID: "s", Payload: &wire.AgentStart{Prompt: wire.RawString("Go.")}})
	}
	if !strings.Contains(page(t, h), ">10 more executions") {
		t.Error("the page doesn't say that 10 more are left out")
	}
}
