package kahn_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"code.wake.dev/wake/internal/kahn"
	"code.wake.dev/wake/internal/natstest"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// specification are the lines of seeds/002.
var specification = []string{
	`{"ts":"2026-05-05T09:00:00.000Z","run_id":"agent-coder-1","event":"agent_run_start","agent_id":"coder","task":"Add /v2/health"}`,
	`{"ts":"2026-05-05T09:00:01.200Z","run_id":"agent-coder-1","event":"agent_transition","agent_id":"coder","step":0,"from":"thinking","to":"tool_call","reason":"tool_call:Read"}`,
	`{"ts":"2026-05-05T09:00:01.250Z","run_id":"agent-coder-1","event":"tool_invocation","agent_id":"coder","step":0,"tool_name":"Read","duration_s":0.04,"ok":true}`,
	`{"ts":"2026-05-05T09:01:05.000Z","run_id":"agent-coder-1","event":"agent_run_end","agent_id":"coder","outcome":"converged","total_steps":12,"total_tool_calls":7,"total_audit_checkpoints":2,"audits_passed":2,"audits_failed":0,"total_duration_s":65.0,"convergence_score":1.0}`,
}

func schema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	f, err := os.Open("../../schemas/kahn.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	doc, err := jsonschema.UnmarshalJSON(f)
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("kahn.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("kahn.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// valid validates a line with the schema.
func valid(s *jsonschema.Schema, line string) error {
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(line))
	if err != nil {
		return err
	}
	return s.Validate(v)
}

func TestSpecification(t *testing.T) {
	s := schema(t)
	for _, line := range specification {
		if err := valid(s, line); err != nil {
			t.Error(err)
		}
		e, err := kahn.Parse([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		got, err := e.Append(nil)
		if err != nil || string(got) != line {
			t.Errorf("%v\n got %s\nwant %s", err, got, line)
		}
	}
}

// with returns a line of the specification with fields replaced; null removes one.
func with(t testing.TB, line int, fields string) string {
	t.Helper()
	var all, other map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal([]byte(specification[line]), &all), json.Unmarshal([]byte(fields), &other)); err != nil {
		t.Fatal(err)
	}
	for name, v := range other {
		if string(v) == `"absent"` {
			delete(all, name)
		} else {
			all[name] = v
		}
	}
	b, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const (
	start, transition, invocation, end = 0, 1, 2, 3

	audit = `{"ts":"2026-05-05T09:00:02.000Z","run_id":"r","event":"audit_checkpoint","agent_id":"coder","checkpoint_id":"audit:unit","result":"pass","duration_s":0.5}`
)

// TestSchema: parser and schema agree on what is a line.
func TestSchema(t *testing.T) {
	s := schema(t)
	for _, test := range []struct {
		line int
		with string
		ok   bool
	}{
		// K2, A2.11: ids.
		{start, `{"agent_id":"coder"}`, true},
		{start, `{"agent_id":"claude-subagent:explore"}`, true},
		{start, `{"agent_id":"` + strings.Repeat("a", 64) + `"}`, true},
		{start, `{"agent_id":"` + strings.Repeat("a", 65) + `"}`, false},
		{start, `{"agent_id":"Coder"}`, false},
		{start, `{"agent_id":"-x"}`, false},
		{start, `{"agent_id":"a.b"}`, false},
		{start, `{"agent_id":""}`, false},
		{start, `{"agent_id":"coder\n"}`, false},
		{start, `{"run_id":"a.b"}`, false},
		{start, `{"run_id":"` + strings.Repeat("R", 65) + `"}`, false},
		// K3: only an audit may be of no agent.
		{start, `{"agent_id":null}`, false},
		{transition, `{"agent_id":null}`, false},
		{invocation, `{"agent_id":null}`, false},
		{end, `{"agent_id":null}`, false},
		{start, `{"agent_id":"absent"}`, false},
		// A2.1: times.
		{start, `{"ts":"2026-05-05T09:00:00Z"}`, false},
		{start, `{"ts":"2026-05-05T09:00:00.000+01:00"}`, false},
		{start, `{"ts":"2026-13-05T09:00:00.000Z"}`, false},
		{start, `{"ts":1}`, false},
		// What is required, and nothing else is null.
		{start, `{"task":"absent"}`, false},
		{start, `{"task":null}`, false},
		{start, `{"task":""}`, true},
		{start, `{"model":"claude"}`, true},
		{start, `{"model":null}`, false},
		{start, `{"event":"run_start"}`, false},
		{transition, `{"reason":null}`, false},
		{transition, `{"reason":"absent"}`, true},
		{transition, `{"step":-1}`, false},
		{transition, `{"step":1.5}`, false},
		{transition, `{"step":2.0}`, true},
		{transition, `{"step":"0"}`, false},
		{transition, `{"step":9007199254740992}`, false},
		{transition, `{"to":"blocked-on-clarification"}`, true},
		{transition, `{"to":"blocked_on_clarification"}`, false},
		{transition, `{"to":"thoughtful"}`, false},
		{invocation, `{"ok":0}`, false},
		{invocation, `{"duration_s":-0.1}`, false},
		{invocation, `{"duration_s":1e-7}`, true},
		{invocation, `{"error":"no such file"}`, true},
		{invocation, `{"input_summary":"` + strings.Repeat("ü", 2048) + `"}`, true},
		{invocation, `{"output_summary":"` + strings.Repeat("ü", 2049) + `"}`, false},
		{end, `{"outcome":"unknown"}`, false},
		{end, `{"outcome":"escaped"}`, true},
		{end, `{"total_steps":-1}`, false},
		// K5: scores.
		{end, `{"convergence_score":-0.1}`, false},
		{end, `{"convergence_score":1.1}`, false},
		{end, `{"convergence_score":0}`, true},
		{end, `{"convergence_score":1}`, true},
		{end, `{"convergence_score":"absent"}`, true},
		{end, `{"convergence_score":null}`, false},
	} {
		agree(t, s, with(t, test.line, test.with), test.ok)
	}
	for line, ok := range map[string]bool{
		audit: true,
		strings.Replace(audit, `"coder"`, "null", 1):                                true, // A2.5
		strings.Replace(audit, `"agent_id":"coder",`, "", 1):                        false,
		strings.Replace(audit, "audit:unit", "audit:test-coverage.unit", 1):         true,
		strings.Replace(audit, "audit:unit", strings.Repeat("a", 128), 1):           true,
		strings.Replace(audit, "audit:unit", strings.Repeat("a", 129), 1):           false,
		strings.Replace(audit, "audit:unit", "Audit", 1):                            false,
		strings.Replace(audit, `"pass"`, `"warn"`, 1):                               true,
		strings.Replace(audit, `"pass"`, `"skip"`, 1):                               false,
		strings.Replace(audit, `"pass",`, `"pass","evidence":{"covered":0.83},`, 1): true,
		strings.Replace(audit, `"pass",`, `"pass","evidence":[1],`, 1):              false,
		strings.Replace(audit, `"pass",`, `"pass","later":{"x":[1,2.50]},`, 1):      true, // K11
		`{}`: false, `[]`: false, `"agent_run_start"`: false, `{"event":7}`: false,
	} {
		agree(t, s, line, ok)
	}
}

func agree(t *testing.T, s *jsonschema.Schema, line string, ok bool) {
	t.Helper()
	if err := valid(s, line); (err == nil) != ok {
		t.Errorf("%s: the schema says %v", line, err)
	}
	e, err := kahn.Parse([]byte(line))
	if (err == nil) != ok {
		t.Errorf("%s: the parser says %v", line, err)
	}
	if err != nil {
		var bad *kahn.Error
		if !errors.As(err, &bad) || len(bad.Problems) == 0 {
			t.Errorf("%s: %v", line, err)
		}
		return
	}
	if _, err := e.Append(nil); err != nil {
		t.Errorf("%s: can't be written again: %v", line, err)
	}
}

func TestSyntax(t *testing.T) {
	for line, want := range map[string]string{
		"":                          "is no JSON: it breaks off",
		"{":                         "is no JSON: it breaks off",
		`{"ts":1} {}`:               "has text after the object",
		`{"ts":1,"ts":2}`:           `"ts" is there twice`,
		"7":                         "is no JSON object",
		"\xff":                      "is not UTF-8",
		`{"convergence_score":NaN}`: "is no JSON: ",
		`{"ts":"x"}`:                "ts must be a time like 2026-05-05T09:00:00.000Z; run_id is required; event is required; agent_id is required",
		with(t, start, `{"ts":"2026-02-30T09:00:00.000Z"}`): "ts is no date",
	} {
		if _, err := kahn.Parse([]byte(line)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", line, err, want)
		}
	}
}

// What isn't valid isn't written either.
func TestAppend(t *testing.T) {
	good := kahn.Event{TS: "2026-05-05T09:00:00.000Z", RunID: "r", AgentID: "a", Body: &kahn.RunEnd{Outcome: kahn.OutcomePartial}}
	if _, err := good.Append(nil); err != nil {
		t.Error(err)
	}
	for _, score := range []float64{-0.1, 1.1, math.NaN(), math.Inf(1)} {
		e := good
		e.Body = &kahn.RunEnd{Outcome: kahn.OutcomePartial, ConvergenceScore: &score}
		if _, err := e.Append(nil); err == nil {
			t.Errorf("a score of %v was written", score)
		}
	}
	for _, change := range []func(*kahn.Event){
		func(e *kahn.Event) { e.Body = nil },
		func(e *kahn.Event) { e.AgentID = "" },
		func(e *kahn.Event) { e.RunID = "a b" },
		func(e *kahn.Event) { e.TS = "now" },
		func(e *kahn.Event) { e.Body = &kahn.RunEnd{Outcome: kahn.OutcomeUnknown} },
		func(e *kahn.Event) { e.Body = &kahn.RunEnd{Outcome: kahn.OutcomePartial, TotalSteps: -1} },
		func(e *kahn.Event) { e.Body = &kahn.ToolInvocation{ToolName: "x", DurationS: math.NaN()} },
		func(e *kahn.Event) { e.Body = &kahn.ToolInvocation{OutputSummary: new(strings.Repeat("x", 2049))} },
		func(e *kahn.Event) {
			e.Body = &kahn.Audit{CheckpointID: "a", Result: kahn.Pass, Evidence: json.RawMessage("[]")}
		},
	} {
		e := good
		change(&e)
		if b, err := e.Append(nil); err == nil {
			t.Errorf("%s was written", b)
		}
	}
}

func TestUnknownFieldsSurvive(t *testing.T) {
	line := strings.Replace(specification[2], `,"ok":true}`, `,"ok":true,"gpu":{"ids":[0,1],"load":0.50},"z":null}`, 1)
	e, err := kahn.Parse([]byte(line))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := e.Append(nil); err != nil || string(got) != line {
		t.Errorf("%v\n got %s\nwant %s", err, got, line)
	}
}

// TestLegal: of all pairs of statuses exactly these follow each other.
func TestLegal(t *testing.T) {
	var got []string
	for _, from := range kahn.Statuses {
		for _, to := range kahn.Statuses {
			if kahn.Legal(from, to) {
				got = append(got, string(from)+"→"+string(to))
			}
		}
	}
	want := []string{
		"thinking→tool_call", "thinking→blocked-on-clarification", "thinking→failed", "tool_call→tool_result", "tool_result→response",
		"response→reflect", "reflect→thinking", "reflect→converged", "blocked-on-clarification→thinking",
	}
	if diff := cmp.Diff(want, got); diff != "" || len(kahn.Statuses) != 8 {
		t.Error(diff)
	}
}

func TestSummary(t *testing.T) {
	long := kahn.Summary(strings.Repeat("ä", 2047) + "€ and more")
	if n := utf8.RuneCountInString(long); n != kahn.MaxSummary || !utf8.ValidString(long) || !strings.HasSuffix(long, "ä€") {
		t.Errorf("%d characters, end %q", n, long[len(long)-8:])
	}
	if got := kahn.Summary("a\xffb"); got != "a\uFFFDb" {
		t.Errorf("%q", got)
	}
	// The secret is gone also where the cut would have taken half of it.
	secret := "sk-ant-api03-" + strings.Repeat("Zx9", 20)
	for _, at := range []int{0, 2000, 2030, 2047} {
		got := kahn.Summary(strings.Repeat("é", at) + " " + secret + " rest")
		if strings.Contains(got, "sk-ant") || strings.Contains(got, "Zx9") || utf8.RuneCountInString(got) > kahn.MaxSummary {
			t.Errorf("at %d: %q", at, got[len(got)-40:])
		}
	}
	for text, want := range map[string]string{
		"nothing to hide, not even tokens: 512":                                  "nothing to hide, not even tokens: 512",
		`{"password":"hunter22x","n":1}`:                                         `{"password":"[redacted]","n":1}`,
		"Authorization: Bearer abcdefghijklmnop":                                 "Authorization: Bearer [redacted]",
		"https://me:pa55word@host/x":                                             "https://me:[redacted]@host/x",
		"export API_KEY=abcdef123456 && go":                                      "export API_KEY=[redacted] && go",
		"ghp_0123456789abcdefghijABCDEFGHIJ01":                                   "[redacted]",
		"AKIAIOSFODNN7EXAMPLE":                                                   "[redacted]",
		"-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nx": "[redacted]\nx",
		"-----BEGIN PRIVATE KEY-----\nMII":                                       "[redacted]",
		"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl":                      "[redacted]",
	} {
		if got := kahn.Summary(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

func TestIDs(t *testing.T) {
	for name, want := range map[string]string{
		"coder": "coder", "Coder": "coder", "review/3": "review-3", "a.b_c": "a-b-c", "__x": "x", "büro": "b-ro", "": "x", "-/-": "x",
		strings.Repeat("Ab", 40): strings.Repeat("ab", 32),
	} {
		if got := kahn.AgentID(name); got != want {
			t.Errorf("%q became %q, want %q", name, got, want)
		}
	}
	if got := kahn.RunID("01K_a-B"); got != "01K_a-B" {
		t.Error(got)
	}
	a, b := kahn.RunID("a.b"), kahn.RunID("a b")
	if a == b || !strings.HasPrefix(a, "a-b-") || len(kahn.RunID(strings.Repeat("x", 99))) != 64 {
		t.Error(a, b)
	}
}

// FuzzParse: what is parsed can be written, and written again is the same; parser
// and schema agree.
func FuzzParse(f *testing.F) {
	for _, line := range specification {
		f.Add([]byte(line))
	}
	f.Add([]byte(audit))
	f.Add([]byte(`{"ts":"2026-05-05T09:00:00.000Z","run_id":"r","event":"audit_checkpoint","agent_id":null,"checkpoint_id":"a","result":"warn","duration_s":1e300,"evidence":{"a":{}},"x":"\u2028"}`))
	s := schema(f)
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := kahn.Parse(line)
		schemaErr := valid(s, string(line))
		if err != nil {
			if _, ok := errors.AsType[*kahn.Error](err); !ok {
				t.Fatalf("%q: %v", line, err)
			}
			stricter := strings.Contains(err.Error(), "there twice") || strings.Contains(err.Error(), "UTF-8") || strings.Contains(err.Error(), "is no date") ||
				strings.Contains(err.Error(), "out of range") || strings.Contains(err.Error(), "is no JSON")
			if schemaErr == nil && !stricter {
				t.Fatalf("%q: the schema allows what the parser refuses: %v", line, err)
			}
			return
		}
		if schemaErr != nil {
			t.Fatalf("%q: the parser allows what the schema refuses: %v", line, schemaErr)
		}
		once, err := e.Append(nil)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		again, err := kahn.Parse(once)
		if err != nil {
			t.Fatalf("%q became %q: %v", line, once, err)
		}
		if twice, err := again.Append(nil); err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%q became %q, then %q: %v", line, once, twice, err)
		}
		var c kahn.Checker
		c.Add(e)
	})
}
