package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
)

func TestFleetText(t *testing.T) {
	f := wire.TopResponse{
		States: map[string]int{"waiting": 1, "active": 2, "skipped": 9},
		Runs: []wire.TopRun{
			{RunID: "r1", FlowName: "review", AgentStatus: wire.AgentStatus{
				AgentID: "sentry", State: "waiting", Runtime: "12m", CostUsd: 0.34, TokensIn: 45_000, TokensOut: 1200, ToolsUsed: 8, ToolErrors: 1,
				ContextPct: 75, Alerts: 2, WaitingFor: "coder: an answer: Install it?", LastActivity: "writing", LastActivityAge: "30s ago",
			}, Live: []wire.AgentStatus{{AgentID: "coder"}}},
			{RunID: "r2\x1b[2J", AgentStatus: wire.AgentStatus{AgentID: "r2\x1b[2J", State: "active", Runtime: "5s", OpenTool: "Bash", LastActivity: "running make", LastActivityAge: "1s ago"}, Live: []wire.AgentStatus{
				{AgentID: "plan", NodeType: "agent", State: "active", Runtime: "5s", OpenTool: "Bash", LastActivity: "running make", LastActivityAge: "1s ago"},
				{AgentID: "test", NodeType: "exec", State: "active", Runtime: "2s"},
			}},
		},
		Omitted: 1,
	}
	const want = `1 waiting, 2 active

RUN     NAME    FLOW    STATE          TOOK  COST   TOKENS            CONTEXT  TOOLS        ALERTS  LAST  WAITS FOR, OR DOES
r1      sentry  review  waiting        12m   $0.34  45k in, 1.2k out  75%      8, 1 failed  2       30s   coder: an answer: Install it?
r2      -       -       active (Bash)  5s    -      -                 -        -            -       1s    running make
└ plan  -       agent   active (Bash)  5s    -      -                 -        -            -       1s    running make
└ test  -       exec    active         2s    -      -                 -        -            -       -     -
… 1 more
`
	if diff := cmp.Diff(want, fleetText(f, fleetView{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	const narrow = `1 waiting, 2 active

RUN     STATE    WAITS FOR, OR DOES
r1      waiting  coder: an answer: Install it?
r2      active   running make
… 1 more
`
	if diff := cmp.Diff(narrow, fleetText(f, fleetView{columns: 49, rows: 7})); diff != "" {
		t.Errorf("narrow (-want +got):\n%s", diff)
	}
	if got := fleetText(f, fleetView{columns: 60, rows: 1}); strings.Count(got, "\n") != 5 || !strings.HasSuffix(got, "… 2 more\n") {
		t.Errorf("flat: %q", got)
	}
	colored := fleetText(wire.TopResponse{Runs: f.Runs[:1], States: f.States}, fleetView{color: true})
	if want := "\x1b[33mr1 "; !strings.Contains(colored, want) || strings.Contains(colored, "└") {
		t.Errorf("%q isn't in %q", want, colored)
	}
	if got := fleetText(wire.TopResponse{}, fleetView{color: true}); got != "no runs\n" {
		t.Errorf("%q", got)
	}
}

// A run that has been aborted or paused does nothing: it says why.
func TestFleetTextOfEnded(t *testing.T) {
	for state, reason := range map[string]string{"aborted": "too dear", "paused": "BUDGET", "skipped": ""} {
		r := wire.TopRun{RunID: "r1", AgentStatus: wire.AgentStatus{AgentID: "r1", State: state, Reason: reason, LastActivity: "writing"}}
		if got := fleetText(wire.TopResponse{Runs: []wire.TopRun{r}}, fleetView{}); strings.Contains(got, "writing") || !strings.Contains(got, reason) {
			t.Errorf("%s: %q", state, got)
		}
	}
}
