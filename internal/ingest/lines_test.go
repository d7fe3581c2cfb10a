package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/kahn"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/pkg/wire"
)

const (
	coderStart = `{"ts":"2026-05-05T09:00:00.000Z","run_id":"RUN","event":"agent_run_start","agent_id":"coder","task":"Add /v2/health","model":"m"}`
	coderCall  = `{"ts":"2026-05-05T09:00:01.200Z","run_id":"RUN","event":"agent_transition","agent_id":"coder","step":0,"from":"thinking","to":"tool_call","reason":"tool_call:Read"}`
	coderRead  = `{"ts":"2026-05-05T09:00:01.250Z","run_id":"RUN","event":"tool_invocation","agent_id":"coder","step":0,"tool_name":"Read","duration_s":0.04,"ok":false,"output_summary":"none","error":"no such file","gpu":[0, 1]}`
	coderTest  = `{"ts":"2026-05-05T09:00:02.000Z","run_id":"RUN","event":"audit_checkpoint","agent_id":"coder","checkpoint_id":"audit:unit","result":"pass","duration_s":1.5,"evidence":{"tests":12}}`
	wholeRun   = `{"ts":"2026-05-05T09:00:02.000Z","run_id":"RUN","event":"audit_checkpoint","agent_id":null,"checkpoint_id":"audit:tree","result":"fail","duration_s":0.5}`
	coderEnd   = `{"ts":"2026-05-05T09:01:05.000Z","run_id":"RUN","event":"agent_run_end","agent_id":"coder","outcome":"partial","total_steps":1,"total_tool_calls":1,"total_audit_checkpoints":1,"audits_passed":1,"audits_failed":0,"total_duration_s":65.0,"convergence_score":0.5}`
	subStart   = `{"ts":"2026-05-05T09:00:01.000Z","run_id":"RUN","event":"agent_run_start","agent_id":"claude-subagent:explore","task":"look"}`
	subEnd     = `{"ts":"2026-05-05T09:00:01.000Z","run_id":"RUN","event":"agent_run_end","agent_id":"claude-subagent:explore","outcome":"aborted","total_steps":0,"total_tool_calls":0,"total_audit_checkpoints":0,"audits_passed":0,"audits_failed":0,"total_duration_s":0.0}`
)

// inputLines makes a file of lines about a run.
func inputLines(runID string, all ...string) string {
	return strings.ReplaceAll(strings.Join(all, "\n"), "RUN", runID) + "\n"
}

func push(t testing.TB, log *eventlog.Log, file string, o ingest.LinesOptions) (ingest.LinesResult, error) {
	t.Helper()
	o.Runner = "test"
	return ingest.Lines(t.Context(), log, strings.NewReader(file), o)
}

// export returns the lines of a run, and how many events it has.
func export(t testing.TB, log *eventlog.Log, id string, o kahn.Projection) (out string, events int) {
	t.Helper()
	p := kahn.NewProjector(o)
	var b strings.Builder
	for e, err := range log.Read(t.Context(), eventlog.Query{Run: id}) {
		if err != nil || e.Err != nil {
			t.Fatal(err, e.Err)
		}
		events++
		made, err := p.Add(e.Pos, e.Event)
		if err != nil {
			t.Errorf("%s at %d: %v", e.Event.Type(), e.Pos, err)
		}
		for _, line := range made {
			b.Write(line)
			b.WriteByte('\n')
		}
	}
	return b.String(), events
}

func TestLines(t *testing.T) {
	log := logtest.Start(t)
	file := inputLines("r1", coderStart, subStart, coderCall, coderRead, wholeRun, coderTest, subEnd, coderEnd)
	res, err := push(t, log, file, ingest.LinesOptions{Labels: map[string]string{"team": "core"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Runs) != 1 || res.Found != 0 {
		t.Fatalf("%+v", res)
	}
	r := res.Runs[0]
	if r.RunID != "r1" || r.Lines != 8 || r.Added != 8 || r.Raw != 0 || !r.Complete || len(r.Agents) != 2 {
		t.Errorf("%+v", r)
	}
	state, events := fold(t, log, "r1")
	if state.Status != wire.RunComplete || state.Result != wire.FlowStatusFailed || state.Labels["team"] != "core" || state.Usage.ToolCalls != 1 || state.Usage.ToolErrors != 1 {
		t.Errorf("%s, %s, %v, %+v", state.Status, state.Result, state.Labels, state.Usage)
	}
	if state.NodeStatus["coder"] != wire.NodeDone || state.NodeStatus["claude-subagent_explore"] != wire.NodeFailed {
		t.Errorf("%v", state.NodeStatus)
	}
	if outcome := state.Outputs["coder"].TextAt("outcome"); outcome != "partial" {
		t.Errorf("the outcome of coder is %q", outcome)
	}
	for _, e := range events {
		if p, ok := e.Payload.(*wire.AuditCheckpoint); ok && (p.CheckpointID == "audit:tree") != (e.AgentID == "" && e.NodeID == wire.RunNode) {
			t.Errorf("%s of %q on %s", p.CheckpointID, e.AgentID, e.NodeID)
		}
	}
	if got, _ := export(t, log, "r1", kahn.Projection{}); got != file {
		t.Error(cmp.Diff(file, got))
	}
}

// TestLinesSpending: the ends of an agent tell what it has used in the run so far, and lines when all of it was.
// countedReader counts what is read, also by a goroutine that reads on.
type countedReader struct {
	r io.Reader
	n atomic.Int64
}

func (c *countedReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// What isn't KAHN at all isn't read to its end: lines in front of the first one of KAHN wait in memory.
func TestLinesWithoutKahn(t *testing.T) {
	log := openLog(t)
	for name, line := range map[string]string{"many": "x\n", "large": strings.Repeat("x", 100<<10) + "\n"} {
		const size = 64 << 20
		in := &countedReader{r: strings.NewReader(strings.Repeat(line, size/len(line)))}
		if _, err := ingest.Lines(t.Context(), log, in, ingest.LinesOptions{Runner: "w"}); !errors.Is(err, ingest.ErrNoLine) || in.n.Load() > size/2 {
			t.Errorf("%s: %v, with %d of %d MiB read", name, err, in.n.Load()>>20, size>>20)
		}
	}
}

func TestLinesSpending(t *testing.T) {
	log := logtest.Start(t)
	end := func(at, ext string) string {
		return strings.Replace(strings.Replace(coderEnd, "09:01:05", at, 1), `}`, `,"ext":{`+ext+`}}`, 1)
	}
	all := []string{
		coderStart, end("09:01:05", `"tokens_in":100,"tokens_out":20,"cost_usd":0.5,"cost_basis":"computed"`),
		strings.Replace(coderStart, "09:00", "09:02", 1), end("09:03:00", `"tokens_in":150,"tokens_out":30,"cost_usd":0.75,"cost_basis":"partly unknown"`),
		strings.ReplaceAll(subStart, "09:00", "09:04"), strings.Replace(strings.Replace(subEnd, "09:00:01", "09:05:00", 1), `}`, `,"ext":{"tokens_in":-1,"tokens_out":7}}`, 1),
	}
	for _, n := range []int{3, len(all)} { // the second time, only what is new counts
		if _, err := push(t, log, inputLines("r1", all[:n]...), ingest.LinesOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	state, events := fold(t, log, "r1")
	u := state.Usage
	if u.InputTokens != 150 || u.OutputTokens != 37 || u.CostUsd != 0.75 || u.ComputedUsd != 0.5 || u.Unpriced != 1 {
		t.Errorf("%+v", u)
	}
	var begun, ended int64
	for _, e := range events {
		switch e.Payload.(type) {
		case *wire.FlowStart:
			begun = e.Timestamp
		case *wire.FlowComplete:
			ended = e.Timestamp
		}
	}
	if took := time.Duration(ended-begun) * time.Millisecond; took != 5*time.Minute {
		t.Errorf("the run took %s", took)
	}
	if got, _ := export(t, log, "r1", kahn.Projection{}); got != inputLines("r1", all...) {
		t.Error(cmp.Diff(inputLines("r1", all...), got))
	}
}

// TestPushedTwice: a file that comes again adds nothing, not even a claim; a longer
// one adds its end; another history is refused and leaves nothing.
func TestPushedTwice(t *testing.T) {
	log := logtest.Start(t)
	all := []string{coderStart, coderCall, coderRead, coderTest, coderEnd}
	for n := range all {
		for range 2 {
			res, err := push(t, log, inputLines("r1", all[:n+1]...), ingest.LinesOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if r := res.Runs[0]; r.Complete != (n == len(all)-1) || r.Lines != n+1 {
				t.Errorf("%d lines: %+v", n+1, r)
			}
		}
	}
	file := inputLines("r1", all...)
	got, before := export(t, log, "r1", kahn.Projection{})
	if got != file {
		t.Error(cmp.Diff(file, got))
	}
	for _, again := range []string{file, inputLines("r1", all[:2]...), "\n" + strings.ReplaceAll(file, "\n", "\r\n\n")} {
		res, err := push(t, log, again, ingest.LinesOptions{})
		if err != nil || res.Runs[0].Added != 0 {
			t.Errorf("%+v, %v", res.Runs, err)
		}
	}
	for line, changed := range map[int]string{
		1: strings.Replace(file, "Add /v2", "Add /v3", 1),
		3: strings.Replace(file, "0.04", "0.05", 1),
		2: inputLines("r1", all[0], all[2], all[1]),
	} {
		_, err := push(t, log, changed, ingest.LinesOptions{})
		if bad, ok := errors.AsType[*ingest.ChangedError](err); !ok || bad.Line != line || bad.RunID != "r1" {
			t.Errorf("line %d changed: %v", line, err)
		}
	}
	if _, err := push(t, log, file+inputLines("r1", coderStart), ingest.LinesOptions{}); !errors.Is(err, ingest.ErrComplete) {
		t.Errorf("behind the end: %v", err)
	}
	if _, after := export(t, log, "r1", kahn.Projection{}); after != before {
		t.Errorf("%d events have become %d", before, after)
	}
	if _, err := ingest.Run(t.Context(), log, strings.NewReader("x\n"), ingest.Options{RunID: "r2", Runner: "test"}); err != nil {
		t.Fatal(err)
	}
	if _, err := push(t, log, inputLines("r2", all...), ingest.LinesOptions{}); !errors.Is(err, ingest.ErrExists) {
		t.Errorf("a run of another format: %v", err)
	}
}

// An agent that begins anew, and one that goes on when the file grows.
func TestGrowingFile(t *testing.T) {
	log := logtest.Start(t)
	all := []string{coderStart, coderCall, coderRead, coderTest, coderEnd, coderStart, strings.Replace(coderCall, `"step":0`, `"step":1`, 1), strings.Replace(coderEnd, "partial", "converged", 1)}
	all[7] = strings.Replace(all[7], `"total_steps":1`, `"total_steps":2`, 1)
	for n := range all {
		res, err := push(t, log, inputLines("r1", all[:n+1]...), ingest.LinesOptions{More: true})
		if err != nil || res.Runs[0].Added != 1 || res.Runs[0].Complete {
			t.Fatalf("%d: %+v, %v", n, res.Runs[0], err)
		}
	}
	res, err := push(t, log, inputLines("r1", all...), ingest.LinesOptions{})
	if err != nil || res.Runs[0].Added != 0 || !res.Runs[0].Complete {
		t.Fatalf("%+v, %v", res.Runs[0], err)
	}
	for _, f := range res.Findings {
		if f.Severity == kahn.Violation {
			t.Error(f)
		}
	}
	state, _ := fold(t, log, "r1")
	if n := state.Nodes["coder"]; n.Execs != 2 || state.Result != wire.FlowStatusComplete || state.VoidEvents != 0 {
		t.Errorf("%+v, %s", n, state.Result)
	}
	if got, _ := export(t, log, "r1", kahn.Projection{}); got != inputLines("r1", all...) {
		t.Error(cmp.Diff(inputLines("r1", all...), got))
	}
}

// TestBadLines: what is no event is kept and told; what the life cycle doesn't
// allow is told; strictly, both end it.
func TestBadLines(t *testing.T) {
	log := logtest.Start(t)
	file := inputLines("r1", "not json", `{"event":"agent_run_start"}`, coderStart, `{"cut":`, coderEnd, coderTest)
	res, err := push(t, log, file, ingest.LinesOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var told []int
	for _, f := range res.Findings {
		told = append(told, f.Line)
	}
	// Of line 5 three totals are wrong.
	if r := res.Runs[0]; r.Raw != 3 || r.Lines != 6 || !cmp.Equal(told, []int{1, 2, 4, 5, 5, 5, 5, 6}) || res.Found != len(told) {
		t.Errorf("%+v, told of %v: %+v", r, told, res.Findings)
	}
	if got, _ := export(t, log, "r1", kahn.Projection{}); got != inputLines("r1", coderStart, coderEnd, coderTest) {
		t.Error(got)
	}
	if res, err := push(t, log, file, ingest.LinesOptions{}); err != nil || res.Runs[0].Added != 0 {
		t.Errorf("again: %+v, %v", res.Runs[0], err)
	}
	for i, test := range []struct {
		file string
		line int
	}{
		{inputLines("s0", "not json", coderStart), 1},
		{inputLines("s1", coderStart, coderStart), 2},
		{inputLines("s2", coderStart, "", coderCall, coderCall), 4},
	} {
		_, err := push(t, log, test.file, ingest.LinesOptions{Strict: true})
		if bad, ok := errors.AsType[*ingest.LineError](err); !ok || bad.Line != test.line {
			t.Errorf("%d: %v", i, err)
		}
	}
	if _, err := push(t, log, "x\n", ingest.LinesOptions{}); !errors.Is(err, ingest.ErrNoLine) {
		t.Errorf("no line: %v", err)
	}
	if _, err := push(t, log, " \n\n", ingest.LinesOptions{}); !errors.Is(err, ingest.ErrEmpty) {
		t.Errorf("empty: %v", err)
	}
	if _, err := push(t, log, strings.Repeat("x", ingest.MaxKahnLine+1), ingest.LinesOptions{}); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("a long line: %v", err)
	}
	if _, err := push(t, log, inputLines("a", coderStart)+inputLines("b", coderStart), ingest.LinesOptions{RunID: "one"}); err == nil || !strings.Contains(err.Error(), "second run") {
		t.Errorf("two runs as one: %v", err)
	}
}

// Lines of KAHN are told from others; as what one agent printed they are kept too.
func TestDetectLines(t *testing.T) {
	log := logtest.Start(t)
	file := inputLines("r1", coderStart, coderCall)
	in, format, err := ingest.Detect(strings.NewReader(file), ingest.Auto)
	if err != nil || format != ingest.Kahn {
		t.Fatalf("%s, %v", format, err)
	}
	if all, err := io.ReadAll(in); err != nil || string(all) != file {
		t.Errorf("%q, %v", all, err)
	}
	res, err := ingest.Run(t.Context(), log, strings.NewReader(file), ingest.Options{RunID: "r1", Runner: "test"})
	if err != nil || res.Format != ingest.StreamJSON || res.Raw != 2 {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := ingest.Run(t.Context(), log, strings.NewReader(file), ingest.Options{RunID: "r2", Runner: "test", Format: ingest.Kahn}); err == nil {
		t.Error("lines of KAHN were taken for one agent's")
	}
}

// TestSeveralRuns: lines of two runs are two runs; named otherwise, one keeps its
// lines.
func TestSeveralRuns(t *testing.T) {
	log := logtest.Start(t)
	res, err := push(t, log, inputLines("a", coderStart)+inputLines("b", coderStart)+inputLines("a", coderCall), ingest.LinesOptions{})
	if err != nil || len(res.Runs) != 2 || res.Runs[0].Lines != 2 || res.Runs[1].Lines != 1 || res.Found != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	for id, want := range map[string]string{"a": inputLines("a", coderStart, coderCall), "b": inputLines("b", coderStart)} {
		if got, _ := export(t, log, id, kahn.Projection{}); got != want {
			t.Error(got)
		}
	}
	if agents := res.Runs[0].Agents; len(agents) != 1 || agents[0].Outcome != kahn.OutcomeUnknown || res.Runs[0].Complete {
		t.Errorf("%+v", res.Runs[0])
	}
	if _, err := push(t, log, inputLines("b", coderStart), ingest.LinesOptions{RunID: "other"}); err != nil {
		t.Fatal(err)
	}
	if got, _ := export(t, log, "other", kahn.Projection{}); got != inputLines("b", coderStart) {
		t.Error(got)
	}
}

// TestTwoPushers: the writer that comes later fences the one before; what is there is the
// beginning of the file, whichever of them wrote it, and the next push brings the rest.
func TestTwoPushers(t *testing.T) {
	log := logtest.Start(t)
	other := logtest.Open(t, log.Conn())
	r, w := io.Pipe()
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, err := ingest.Lines(ctx, log, r, ingest.LinesOptions{Runner: "slow"})
		done <- err
	}()
	if _, err := io.WriteString(w, inputLines("r1", coderStart, coderCall)); err != nil {
		t.Fatal(err)
	}
	for e, err := range log.Follow(t.Context(), eventlog.Query{Run: "r1"}) { // stored while the input goes on
		if err != nil {
			t.Fatal(err)
		}
		if line, ok := kahn.LineOf(e.Event); ok && line == strings.ReplaceAll(coderCall, "RUN", "r1") {
			break
		}
	}
	all := []string{coderStart, coderCall, coderRead, coderTest, wholeRun, coderEnd}
	if res, err := push(t, other, inputLines("r1", all[:4]...), ingest.LinesOptions{}); err != nil || res.Runs[0].Added != 2 {
		t.Fatalf("%+v, %v", res.Runs, err)
	}
	if _, err := io.WriteString(w, inputLines("r1", coderRead)); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if err := <-done; !errors.Is(err, eventlog.ErrFenced) {
		t.Errorf("the one before: %v", err)
	}
	if res, err := push(t, log, inputLines("r1", all...), ingest.LinesOptions{}); err != nil || res.Runs[0].Added != 2 || !res.Runs[0].Complete {
		t.Fatalf("%+v, %v", res.Runs, err)
	}
	if got, _ := export(t, log, "r1", kahn.Projection{}); got != inputLines("r1", all...) {
		t.Error(cmp.Diff(inputLines("r1", all...), got))
	}
}

// TestRoundTrip: what is exported of any run, imported and exported again is the same
// to the byte, and so are its agents.
func TestRoundTrip(t *testing.T) {
	log := logtest.Start(t)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		var all []string
		step := map[string]int{}
		for range rapid.IntRange(1, 12).Draw(rt, "lines") {
			agentID := rapid.SampledFrom([]string{"coder", "tester", "claude-subagent:explore"}).Draw(rt, "agent")
			step[agentID] += rapid.IntRange(0, 1).Draw(rt, "step")
			line := rapid.SampledFrom([]string{coderStart, coderStart, coderCall, coderRead, coderTest, wholeRun, coderEnd, subEnd, "junk"}).Draw(rt, "line")
			line = strings.Replace(line, `"step":0`, fmt.Sprintf(`"step":%d`, step[agentID]), 1)
			line = strings.Replace(line, `"agent_id":"coder"`, fmt.Sprintf(`"agent_id":%q`, agentID), 1)
			if rapid.Bool().Draw(rt, "more") {
				line = strings.Replace(line, `"event"`, fmt.Sprintf(`"x":{"y":[%g,null]},"event"`, rapid.Float64().Draw(rt, "x")), 1)
			}
			all = append(all, line)
		}
		from, to := fmt.Sprintf("from-%d", n), fmt.Sprintf("to-%d", n)
		file := inputLines(from, all...)
		first, err := push(t, log, file, ingest.LinesOptions{More: rapid.Bool().Draw(rt, "open")})
		if errors.Is(err, ingest.ErrNoLine) {
			return
		}
		if err != nil {
			rt.Fatal(err)
		}
		out, _ := export(t, log, from, kahn.Projection{})
		var valid []string
		for line := range strings.Lines(file) {
			if !strings.HasPrefix(line, "junk") {
				valid = append(valid, strings.TrimSuffix(line, "\n"))
			}
		}
		if want := inputLines(from, valid...); out != want {
			rt.Fatal(cmp.Diff(want, out))
		}
		second, err := push(t, log, out, ingest.LinesOptions{RunID: to})
		if err != nil {
			rt.Fatal(err)
		}
		if again, _ := export(t, log, to, kahn.Projection{}); again != out {
			rt.Fatal(cmp.Diff(out, again))
		}
		for i, a := range first.Runs[0].Agents {
			b := second.Runs[0].Agents[i]
			if a.AgentID != b.AgentID || a.Outcome != b.Outcome || a.Steps != b.Steps || a.ToolCalls != b.ToolCalls || a.Audits != b.Audits {
				rt.Fatalf("%+v became %+v", a, b)
			}
		}
		if s, _ := fold(t, log, from); s.VoidEvents > 0 {
			rt.Fatalf("%d events are void", s.VoidEvents)
		}
		if t.Failed() {
			rt.FailNow()
		}
	})
}

// TestRunIsKept: lines that were made of a run of wake tell of it again, to the byte.
func TestRunIsKept(t *testing.T) {
	log := logtest.Start(t)
	for _, name := range []string{"stream/subagents", "stream/tools", "stream/old20-denied"} {
		id := strings.ReplaceAll(name, "/", "-")
		recorded(t, log, "../agent/claude/testdata/"+name+".jsonl", id)
		for i, o := range []kahn.Projection{{}, {Strict: true}} {
			out, _ := export(t, log, id, o)
			to := fmt.Sprintf("%s-again-%d", id, i)
			res, err := push(t, log, out, ingest.LinesOptions{RunID: to, Strict: true})
			if err != nil || !res.Runs[0].Complete || res.Runs[0].Raw != 0 {
				t.Fatalf("%s: %+v, %v", name, res, err)
			}
			if again, _ := export(t, log, to, o); again != out || out == "" {
				t.Error(cmp.Diff(out, again))
			}
		}
	}
}

// TestStrictExport: of lines that were imported, those transitions are left out that
// KAHN doesn't know, and those that can't follow without them.
func TestStrictExport(t *testing.T) {
	log := logtest.Start(t)
	step := func(from, to, more string) string {
		return fmt.Sprintf(`{"ts":"2026-05-05T09:00:00.000Z","run_id":"r1","event":"agent_transition","agent_id":"coder","step":0,"from":%q,"to":%q%s}`, from, to, more)
	}
	told := []string{
		coderStart, step("thinking", "response", `,"reason":"ext:no_tool"`), step("response", "reflect", ""), step("thinking", "tool_call", ""), step("tool_call", "converged", ""),
	}
	if _, err := push(t, log, inputLines("r1", told...), ingest.LinesOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, _ := export(t, log, "r1", kahn.Projection{Strict: true}); got != inputLines("r1", told[0], told[3]) {
		t.Error(got)
	}
	if got, _ := export(t, log, "r1", kahn.Projection{}); got != inputLines("r1", told...) {
		t.Error(got)
	}
}

// FuzzLines imports anything as lines: what is there is a run that folds, whose
// lines are those that were valid; once more, it adds nothing.
func FuzzLines(f *testing.F) {
	f.Add([]byte(inputLines("r", coderStart, subStart, coderCall, coderRead, wholeRun, coderTest, subEnd, coderEnd)))
	f.Add([]byte("junk\n" + inputLines("r", coderRead, coderStart, coderEnd, coderStart, coderEnd)))
	f.Add([]byte(inputLines("r", strings.Replace(coderRead, "0.04", "1e308", 1), strings.Replace(coderCall, `"step":0`, `"step":9007199254740991`, 1))))
	log := logtest.Start(f)
	n := 0
	f.Fuzz(func(t *testing.T, input []byte) {
		n++
		id := fmt.Sprintf("fuzz-%p-%d", &n, n)
		res, err := push(t, log, string(input), ingest.LinesOptions{RunID: id})
		_, refused := errors.AsType[*ingest.LineError](err)
		if refused || errors.Is(err, ingest.ErrEmpty) || errors.Is(err, ingest.ErrNoLine) || err != nil && strings.Contains(err.Error(), "longer than") {
			return
		}
		if err != nil {
			t.Fatalf("%q: %v", input, err)
		}
		state, _ := fold(t, log, id)
		if state.VoidEvents > 0 || (state.Status == wire.RunComplete) != res.Runs[0].Complete {
			t.Fatalf("%q: %s, %+v", input, state.Status, res.Runs[0])
		}
		out, before := export(t, log, id, kahn.Projection{})
		if got := strings.Count(out, "\n"); got != res.Runs[0].Lines-res.Runs[0].Raw {
			t.Fatalf("%q: %d lines of %+v", input, got, res.Runs[0])
		}
		again, err := push(t, log, string(input), ingest.LinesOptions{RunID: id})
		if err != nil || again.Runs[0].Added != 0 {
			t.Fatalf("%q again: %+v, %v", input, again.Runs, err)
		}
		if _, after := export(t, log, id, kahn.Projection{}); after != before {
			t.Fatalf("%q: %d events have become %d", input, before, after)
		}
	})
}

// recorded makes a run of a recording.
func recorded(t *testing.T, log *eventlog.Log, file, id string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := ingest.Run(t.Context(), log, f, ingest.Options{RunID: id, Runner: "test"}); err != nil {
		t.Fatal(err)
	}
}
