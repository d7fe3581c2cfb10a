package wire_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
)

func TestAgo(t *testing.T) {
	for text, want := range map[string]int64{
		`300000`: 300_000, `0`: 0, `"5m"`: 300_000, `"90s"`: 90_000, `"1h30m"`: 5_400_000, `"2d"`: 172_800_000, `"0.5d"`: 43_200_000, `"0s"`: 0,
	} {
		raw, err := wire.RawFromJSON([]byte(`{"since":` + text + `}`))
		if err != nil {
			t.Fatal(err)
		}
		var q wire.LogRequest
		if err := wire.Unmarshal(raw, &q); err != nil || int64(q.Since) != want {
			t.Errorf("%s: got %d, %v, want %d", text, q.Since, err, want)
		}
	}
	for _, text := range []string{`-1`, `"-5m"`, `"5"`, `"5 m"`, `"d"`, `"1h2d"`, `"-2d"`, `"NaNd"`, `"99999999d"`, `""`, `"soon"`, `1.5`, `true`, `[]`, `{}`} {
		raw, err := wire.RawFromJSON([]byte(`{"since":` + text + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if err := wire.Unmarshal(raw, new(wire.LogRequest)); err == nil {
			t.Errorf("%s: was accepted", text)
		}
	}
}

func TestAnswersSurviveTheWire(t *testing.T) {
	want := wire.StatusResponse{
		AgentStatus: wire.AgentStatus{AgentID: "sentinella", State: "active", Runtime: "12m", CostUsd: 0.34, TokensIn: 45_000, LastActivityAge: "30s ago"},
		RunID:       "r1", Status: wire.RunRunning, Labels: map[string]string{"name": "sentinella"},
		Position: wire.Position{Incarnation: "i", Seq: 9}, Agents: []wire.AgentStatus{{AgentID: "coder", ContextPct: 75}},
	}
	raw, err := wire.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	for name, field := range map[string]string{"agentId": "sentinella", "runtime": "12m", "lastActivityAge": "30s ago", "runId": "r1"} {
		if got := raw.TextAt(name); got != field {
			t.Errorf("%s is %q, want %q: the fields of seeds/004 are on top", name, got, field)
		}
	}
	var got wire.StatusResponse
	if err := wire.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAnAPIErrorNamesItsMatches(t *testing.T) {
	e := &wire.APIError{Code: wire.CodeAmbiguousID, Message: `"r" may mean 2 runs`}
	if got := e.Error(); got != `"r" may mean 2 runs` {
		t.Error(got)
	}
	e.Matches = []string{"r2", "r1"}
	if got := e.Error(); got != `"r" may mean 2 runs: r2, r1` {
		t.Error(got)
	}
}
