package native_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

// flowsBench is a bench whose agent may start two flows.
func flowsBench(t *testing.T, replies ...apitest.Reply) *bench {
	t.Helper()
	b := newBench(t, replies...)
	b.request.Flows = []flow.Child{
		{Name: "ask", Description: "Asks somebody.", Input: rawOf(t, `{"type":"object","required":["who"]}`), MaxRuns: 2},
		{Name: "any"},
	}
	b.request.RunFlow = func(_ context.Context, call, name string, input wire.Raw) (agent.Part, error) {
		usd := 0.25
		p := agent.Part{Run: "r.n#1." + call, CostUsd: &usd}
		switch who := input.TextAt("who"); who {
		case "nobody":
			p.Failed = "Run x failed: nobody is there"
		case "away":
			return agent.Part{}, errors.New("the log is away")
		default:
			p.Output = rawOf(t, fmt.Sprintf(`{"flow":%q,"who":%q}`, name, who))
		}
		return p, nil
	}
	return b
}

// TestRunFlow has an agent start flows: what comes of it, and what it isn't let.
func TestRunFlow(t *testing.T) {
	for name, test := range map[string]struct {
		input  string
		mode   string
		output string // of the call, its beginning
		error  bool
		cost   bool
	}{
		"done":       {input: `{"flow":"ask","input":{"who":"Ann"}}`, output: `{"flow":"ask","who":"Ann"}`, cost: true},
		"no input":   {input: `{"flow":"any"}`, output: `{"flow":"any","who":""}`, cost: true},
		"failed":     {input: `{"flow":"ask","input":{"who":"nobody"}}`, output: "Run x failed: nobody is there", error: true, cost: true},
		"not asked":  {input: `{"flow":"ask","input":{"who":"away"}}`, output: "the log is away", error: true},
		"unfit":      {input: `{"flow":"ask","input":{}}`, output: "input of flow ask: ", error: true},
		"missing":    {input: `{"flow":"ask"}`, output: "input of flow ask: ", error: true},
		"unknown":    {input: `{"flow":"rm"}`, output: `there is no flow "rm"; there are ask, any`, error: true},
		"may read":   {input: `{"flow":"any"}`, mode: "readonly", output: "Permission denied for tool: run_flow", error: true},
		"not a name": {input: `{"flow":{"name":"any"}}`, output: `there is no flow ""`, error: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := flowsBench(t, apitest.Message(apitest.Call("t0", "run_flow", test.input)), apitest.Message(apitest.Text("Done.")))
			b.request.Options.PermissionMode = test.mode
			p := of[*wire.AgentTool](b.run())[0]
			if got, _ := p.ToolOutput.Text(); !strings.HasPrefix(got, test.output) || (p.Error != "") != test.error {
				t.Errorf("%q (%q), want %q", got, p.Error, test.output)
			}
			if (p.ChildRun == "r.n#1.t0" && p.ChildCostUsd != nil && *p.ChildCostUsd == 0.25) != test.cost {
				t.Errorf("it has cost %v, run %q", p.ChildCostUsd, p.ChildRun)
			}
		})
	}
}

// TestRunFlowIsDescribed has the model know what it may start, and nothing of the tool if that
// is nothing.
func TestRunFlowIsDescribed(t *testing.T) {
	b := flowsBench(t, apitest.Message(apitest.Text("Done.")))
	b.run()
	for _, want := range []string{`- ask: Asks somebody. Its input, as JSON Schema: {\"required\":[\"who\"],\"type\":\"object\"}`, `- any"`, `"enum":["ask","any"]`} {
		if got := string(b.script.Requests()[0]); !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
	for _, edit := range []func(*agent.Request){
		func(r *agent.Request) { r.Flows = nil },
		func(r *agent.Request) { r.Options.DisallowedTools = []string{"run_flow"} },
	} {
		b := flowsBench(t, apitest.Message(apitest.Text("Done.")))
		edit(&b.request)
		b.run()
		if got := string(b.script.Requests()[0]); strings.Contains(got, "run_flow") {
			t.Errorf("told of flows: %s", got)
		}
	}
	b = flowsBench(t)
	b.request.Flows[0].Input = rawOf(t, `{"type":"nonsense"}`)
	b.run()
	if got := of[*wire.AgentError](b.log); len(got) != 1 || !strings.Contains(got[0].Message, "input of flow ask") {
		t.Errorf("a schema that is none: %v", got)
	}
}

// TestRunawayDelegation has an agent start more than it may, also after it was resumed.
func TestRunawayDelegation(t *testing.T) {
	ask := func(n int) apitest.Block {
		return apitest.Call(fmt.Sprint("t", n), "run_flow", `{"flow":"ask","input":{"who":"Ann"}}`)
	}
	b := flowsBench(t, apitest.Message(ask(0)), apitest.Message(ask(1), apitest.Call("o", "run_flow", `{"flow":"any"}`), ask(2)), apitest.Message(apitest.Text("Done.")))
	b.script.ByTurn = true
	b.each = func(_ agent.Session, e *wire.Event) bool {
		_, calls := e.Payload.(*wire.ToolIntent)
		return !calls || e.CallID == "t0"
	}
	b.run()
	b.each = nil
	b.resume("")
	b.run()
	for _, p := range of[*wire.AgentTool](b.log) {
		text, _ := p.ToolOutput.Text()
		if refused := strings.Contains(text, "as often as may be"); refused != (p.Point == "t2") {
			t.Errorf("%s: %s", p.Point, text)
		}
	}
	many := make([]apitest.Block, 101)
	for i := range many {
		many[i] = apitest.Call(fmt.Sprint("t", i), "agent", `{"prompt":"Go."}`)
	}
	b = newBench(t, apitest.Message(many...), apitest.Message(apitest.Text("Done.")))
	b.request.Delegate = func(context.Context, string, string) (agent.Part, error) {
		return agent.Part{Output: wire.RawString("Gone.")}, nil
	}
	b.run()
	for _, p := range of[*wire.AgentTool](b.log) {
		if text, _ := p.ToolOutput.Text(); (text == "Gone.") == (p.Point == "t100") {
			t.Errorf("%s: %s", p.Point, text)
		}
	}
}

func rawOf(t *testing.T, text string) wire.Raw {
	t.Helper()
	raw, err := wire.RawFromJSON([]byte(text))
	if err != nil {
		t.Error(err)
	}
	return raw
}

// TestPartsArePaid has an agent start a flow that costs more than it may spend: it ends at the end
// of the turn, also if it dies before.
func TestPartsArePaid(t *testing.T) {
	for _, killed := range []bool{false, true} {
		b := flowsBench(t, apitest.Message(apitest.Call("t0", "run_flow", `{"flow":"any"}`)), apitest.Message(apitest.Text("Done.")))
		b.dear()
		b.script.ByTurn = true
		b.request.Options.MaxBudgetUsd = 0.3
		if killed {
			b.each = func(_ agent.Session, e *wire.Event) bool { return e.Type() != wire.TypeTurnEnd }
			b.run()
			b.each = nil
			b.resume("")
		}
		b.run()
		if got := outcome(b.log); got != "error_max_budget_usd: the agent has spent $0.3600, and its budget is $0.3000" {
			t.Errorf("killed %v: outcome %q", killed, got)
		}
		if got := told(b.log); !strings.Contains(got, "of 0.11") {
			t.Errorf("killed %v: costs %s", killed, got)
		}
	}
}
