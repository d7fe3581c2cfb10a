package runner_test

import (
	"math"
	"net/http"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/native"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// TestNativeCostsAndFails has the run of a native agent tell what it cost, and why its model's
// API failed: all that is known of it.
func TestNativeCostsAndFails(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		overloaded := apitest.Failure(529, "overloaded_error")
		overloaded.Header = http.Header{"Request-Id": {"req_7"}}
		script := &apitest.Script{Replies: []apitest.Reply{apitest.Message(apitest.Call("t", "glob", `{"pattern":"*"}`)), overloaded}}
		p := &native.Provider{Environ: []string{"ANTHROPIC_API_KEY=k"}, Client: script.Client()}
		b.runner("r1", nil, func(c *runner.Config) { c.Providers = map[string]agent.Provider{"native": p} })
		b.submit("run1", strings.Replace(written, "requireApproval: [write]", "retries: 0, maxBudgetUsd: 5, prices: {m: {input: 1000, output: 1000}}", 1))
		state, entries := b.ended("run1")
		const want = "overloaded (HTTP 529, overloaded_error, request req_7): the script says so"
		if failed := first[*wire.NodeError](t, entries); failed.ErrorType != wire.ErrorOverloaded || failed.Error != want || !strings.Contains(state.Error, want) {
			t.Errorf("node failed by %+v, the run by %q", failed, state.Error)
		}
		if e := first[*wire.AgentError](t, entries); e.Status != 529 || e.Attempt != nil {
			t.Errorf("error %+v", e)
		} else if id := e.Details.TextAt("request_id"); id != "req_7" {
			t.Errorf("details %v", e.Details.Any())
		}
		if usd := state.Usage.CostUsd; math.Abs(usd-0.11) > 1e-9 || math.Abs(state.Nodes["a"].CostUsd-0.11) > 1e-9 {
			t.Errorf("the run cost %v", usd)
		}
	})
}
