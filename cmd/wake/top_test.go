package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"wake/pkg/wire"
)

func TestFleetText(t *testing.T) {
	f := wire.TopResponse{
		States: map[string]int{"waiting": 1, "active": 2, "skipped": 9},
		Runs: []wire.TopRun{
			{RunID: "r1", FlowName: "review", AgentStatus: wire.AgentStatus{
				State: "waiting", Runtime: "12m", CostUsd: 0.34, TokensIn: 45_000, TokensOut: 1200, ToolsUsed: 8, ToolErrors: 1,
				ContextPct: 75, Alerts: 2, WaitingFor: "coder: an answer: Install it?", LastActivity: "writing", LastActivityAge: "30s ago",
			}, Live: []wire.AgentStatus{{AgentID: "coder"}}},
			{RunID: "r2\x1b[2J", AgentStatus: wire.AgentStatus{State: "active", Runtime: "5s", OpenTool: "Bash", LastActivity: "running make", LastActivityAge: "1s ago"}, Live: []wire.AgentStatus{
				{AgentID: "plan", NodeType: "agent", State: "active", Runtime: "5s", OpenTool: "Bash", LastActivity: "running make", LastActivityAge: "1s ago"},
				{AgentID: "test", NodeType: "exec", State: "active", Runtime: "2s"},
			}},
		},
		Omitted: 1,
	}
	const want = `1 waiting, 2 active

RUN     FLOW    STATE          TOOK  COST   TOKENS            CONTEXT  TOOLS        ALERTS  WAITS FOR, OR DOES
r1      review  waiting        12m   $0.34  45k in, 1.2k out  75%      8, 1 failed  2       coder: an answer: Install it?, 30s ago
r2      -       active (Bash)  5s    -      -                 -        0            -       running make, 1s ago
└ plan  agent   active (Bash)  5s    -      -                 -        0            -       running make, 1s ago
└ test  exec    active         2s    -      -                 -        0            -       -
… 1 more
`
	got, err := fleetText(f, false)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	colored, err := fleetText(wire.TopResponse{Runs: f.Runs[:1], States: f.States}, true)
	if want := "\x1b[33mr1  "; err != nil || !strings.Contains(colored, want) {
		t.Errorf("%v: %q isn't in %q", err, want, colored)
	}
	if got, err := fleetText(wire.TopResponse{}, true); got != "no runs\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
