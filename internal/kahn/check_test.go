package kahn_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/kahn"
)

// brief writes events of an agent shorter: "run/agent start", "… step from to
// reason", "… step tool", "… audit result", "… end outcome steps calls audits passed
// failed".
func brief(t *testing.T, script string) []*kahn.Event {
	t.Helper()
	var all []*kahn.Event
	for line := range strings.Lines(script) {
		w := strings.Fields(line)
		if len(w) == 0 {
			continue
		}
		runID, agentID, _ := strings.Cut(w[0], "/")
		e := &kahn.Event{TS: "2026-05-05T09:00:00.000Z", RunID: runID, AgentID: agentID}
		switch w[1] {
		case "start":
			e.Body = &kahn.RunStart{Task: "t"}
		case "tool":
			e.Body = &kahn.ToolInvocation{Step: number(t, w[2]), ToolName: "Read", OK: true}
		case "audit":
			e.Body = &kahn.Audit{CheckpointID: "a", Result: kahn.Result(w[2])}
		case "end":
			end := &kahn.RunEnd{
				Outcome: kahn.Outcome(w[2]), TotalSteps: number(t, w[3]), TotalToolCalls: number(t, w[4]),
				TotalAuditCheckpoints: number(t, w[5]), AuditsPassed: number(t, w[6]), AuditsFailed: number(t, w[7]),
			}
			if len(w) > 8 {
				end.ConvergenceScore = new(float64)
				_, _ = fmt.Sscan(w[8], end.ConvergenceScore)
			}
			e.Body = end
		default:
			step := &kahn.Transition{Step: number(t, w[1]), From: kahn.Status(w[2]), To: kahn.Status(w[3])}
			if len(w) > 4 {
				step.Reason = &w[4]
			}
			e.Body = step
		}
		all = append(all, e)
	}
	return all
}

func number(t *testing.T, s string) (n int64) {
	t.Helper()
	if _, err := fmt.Sscan(s, &n); err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return n
}

func TestChecker(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		want   []string
	}{
		"a whole life": {`
r/a start
r/a 0 thinking tool_call
r/a tool 0
r/a tool 0
r/a 0 tool_call tool_result
r/a 0 tool_result response
r/a 0 response reflect
r/a 1 reflect thinking
r/a 1 thinking blocked-on-clarification
r/a 1 blocked-on-clarification thinking
r/a 1 thinking tool_call
r/a tool 1
r/a 1 tool_call tool_result
r/a 1 tool_result response
r/a 1 response reflect
r/a audit pass
r/a audit warn
r/ audit fail
r/a 1 reflect converged
r/a end converged 2 3 2 1 0 1.0`, nil},
		"a step that decreases":           {"r/a start\nr/a tool 3\nr/a tool 2", []string{"3 violation: step 2 follows step 3"}},
		"a step used again after the end": {"r/a start\nr/a tool 0\nr/a end partial 1 1 0 0 0\nr/a start\nr/a tool 0", []string{"5 violation: step 0 was used before agent_run_end"}},
		"steps that go on after the end":  {"r/a start\nr/a tool 0\nr/a end partial 1 1 0 0 0\nr/a start\nr/a tool 1\nr/a end partial 2 2 0 0 0", nil},
		"one agent in two runs":           {"r/a start\nr/a tool 7\nq/a start\nq/a tool 0\nr/a tool 7\nq/a end partial 1 1 0 0 0\nr/a end partial 8 2 0 0 0", nil},
		"two agents in one run":           {"r/a start\nr/b start\nr/a tool 4\nr/b tool 0\nr/a tool 5\nr/b tool 1", nil},
		"no start":                        {"r/a tool 0\nr/a tool 0", []string{"1 violation: tool_invocation before agent_run_start"}},
		"two starts":                      {"r/a start\nr/a start", []string{"2 violation: agent_run_start of an agent that has not ended"}},
		"after the end":                   {"r/a start\nr/a end aborted 0 0 0 0 0\nr/a audit pass", []string{"3 violation: audit_checkpoint after agent_run_end"}},
		"another status": {"r/a start\nr/a 0 reflect thinking\nr/a 0 thinking failed\nr/a 0 failed thinking", []string{
			"2 violation: from reflect, but the agent is in thinking", "4 violation: thinking can't follow failed",
		}},
		"an extension": {"r/a start\nr/a 0 thinking response ext:no_tool\nr/a 0 response thinking why", []string{
			"2 extension: thinking→response: ext:no_tool", "3 violation: thinking can't follow response",
		}},
		"totals that are wrong": {"r/a start\nr/a tool 0\nr/a audit fail\nr/a end partial 3 2 0 1 0", []string{
			"4 violation: total_steps is 3, the lines have 1", "4 violation: total_tool_calls is 2, the lines have 1",
			"4 violation: total_audit_checkpoints is 0, the lines have 1", "4 violation: audits_passed is 1, the lines have 0",
			"4 violation: audits_failed is 0, the lines have 1", "4 violation: fewer audits than passed and failed",
		}},
		"a score below 1": {"r/a start\nr/a end converged 0 0 0 0 0 0.9", []string{"2 warning: converged with a score of 0.9"}},
	} {
		t.Run(name, func(t *testing.T) {
			var c kahn.Checker
			var got []string
			for _, e := range brief(t, test.script) {
				for _, f := range c.Add(e) {
					got = append(got, fmt.Sprintf("%d %s: %s", f.Line, f.Severity, f.Problem))
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestNoEnd: an agent without an end has an unknown outcome, whatever its status.
func TestNoEnd(t *testing.T) {
	var c kahn.Checker
	for _, e := range brief(t, "r/a start\nr/a 0 thinking failed\nr/b start\nr/b end partial 0 0 0 0 0") {
		c.Add(e)
	}
	agents := c.Agents()
	if len(agents) != 2 || agents[0].Outcome != kahn.OutcomeUnknown || agents[0].Ended || agents[0].Status != kahn.Failed || agents[1].Outcome != kahn.OutcomePartial {
		t.Errorf("%+v", agents)
	}
}

// TestFileOrder: lines of one time, and of times that go back, are in the order of
// the file.
func TestFileOrder(t *testing.T) {
	events := brief(t, "r/a start\nr/a 0 thinking tool_call\nr/a 0 tool_call tool_result\nr/a 0 tool_result response")
	events[3].TS = "2025-01-01T00:00:00.000Z"
	var c kahn.Checker
	for _, e := range events {
		if found := c.Add(e); len(found) > 0 {
			t.Errorf("%+v", found)
		}
	}
	if status := c.Agents()[0].Status; status != kahn.Response {
		t.Errorf("the agent is in %s", status)
	}
	if events[0].Time() != 1777971600000 || (&kahn.Event{TS: "x"}).Time() != 0 {
		t.Error(events[0].Time())
	}
}

// What a writer says that had been replaced is told by nobody.
func TestVoidEvents(t *testing.T) {
	s := newStory(t, "name: f\nnodes: [{id: a, type: agent, input: {provider: claude, prompt: x}}]\n")
	s.do("start a")
	s.do(`a node:claimed {"runner":"r2","nonce":"n2"}`)
	s.log[len(s.log)-1].Epoch = 2
	s.do(`a tool:intent {"callId":"c","toolName":"Read","toolInput":{}}`)
	if lines, _, _ := project(t, s.log, kahn.Projection{}); len(lines) != 1 {
		t.Errorf("%q", lines)
	}
}

func TestAuditScore(t *testing.T) {
	s := newStory(t, "name: f\nnodes: [{id: a, type: agent, input: {provider: claude, prompt: x}}]\n")
	for _, line := range []string{
		"start a",
		`a audit:checkpoint {"agentId":"a","checkpointId":"x","result":"pass","durationMs":1}`,
		`a audit:checkpoint {"agentId":"a","checkpointId":"y","result":"warn","durationMs":1}`,
		`a audit:checkpoint {"agentId":"a","checkpointId":"z","result":"fail","durationMs":1}`,
		`a node:complete {"output":{},"durationMs":1}`,
	} {
		s.do(line)
	}
	lines, _, _ := project(t, s.log, kahn.Projection{AuditScore: true})
	if last := lines[len(lines)-1]; !strings.HasSuffix(last, `"convergence_score":0.5}`) {
		t.Error(last)
	}
}
