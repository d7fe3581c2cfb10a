package agent_test

import (
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

func TestOutcome(t *testing.T) {
	cost := 0.5
	complete := &wire.AgentComplete{
		Result: "Done.", Usage: wire.TokenUsage{InputTokens: 3, OutputTokens: 4}, DurationMs: 5, NumTurns: 2, TotalCostUsd: &cost,
		ModelUsage: map[string]wire.ModelUsage{"m": {InputTokens: 3, OutputTokens: 9}},
	}
	failed := &wire.AgentError{ErrorType: wire.ErrorMaxTurns, Message: "too many", Severity: wire.SeverityError}
	for _, test := range []struct {
		name   string
		events []*wire.Event
		output map[string]any
		err    string
	}{
		{
			"complete after an error that was overcome",
			[]*wire.Event{{Payload: failed}, {SessionID: "s2", Payload: complete}},
			map[string]any{
				"text": "Done.", "durationMs": int64(5), "numTurns": int64(2), "totalCostUsd": 0.5, "sessionId": "s2",
				"usage":      map[string]any{"inputTokens": int64(3), "outputTokens": int64(4)},
				"modelUsage": map[string]any{"m": map[string]any{"inputTokens": int64(3), "outputTokens": int64(9)}},
			},
			"",
		},
		{
			"paused",
			[]*wire.Event{{Payload: &wire.SessionBound{NewSession: "s3"}}, {Payload: &wire.AgentPaused{NumTurns: 1}}},
			map[string]any{
				"text": "", "durationMs": int64(0), "numTurns": int64(1), "sessionId": "s3", "paused": true,
				"usage": map[string]any{"inputTokens": int64(0), "outputTokens": int64(0)},
			},
			"",
		},
		{"failed", []*wire.Event{{Payload: failed}}, nil, wire.ErrorMaxTurns},
		{
			"warnings and failures of sub-agents don't count",
			[]*wire.Event{{Payload: &wire.AgentError{ErrorType: "rate_limit", Severity: wire.SeverityWarning}}, {Parent: "t1", Payload: failed}},
			nil, wire.ErrorMissingResult,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := agent.Outcome{SessionID: "s1"}
			for _, e := range test.events {
				o.Observe(e)
			}
			raw, err := o.Output()
			if err != nil {
				t.Fatal(err)
			}
			output, _ := raw.Any().(map[string]any)
			if diff := cmp.Diff(test.output, output); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
			got := ""
			if p := o.Error(); p != nil {
				got = p.ErrorType
			}
			if got != test.err {
				t.Errorf("error %q, want %q", got, test.err)
			}
			if (o.Paused() != nil) != (test.name == "paused") {
				t.Errorf("paused: %v", o.Paused())
			}
		})
	}
}

func TestEnvironment(t *testing.T) {
	got := agent.Environment([]string{
		"PATH=/bin", "WAKE_TOKEN=x", "NATS_CREDS=x", "PGPASSWORD=x", "IS_SANDBOX=1", "CLAUDECODE=1", "ANTHROPIC_API_KEY=k", "A=old",
	}, map[string]string{"A": "new", "CLAUDECODE": "2"})
	want := []string{"PATH=/bin", "IS_SANDBOX=1", "ANTHROPIC_API_KEY=k", "A=new", "CLAUDECODE=2"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNewSessionID(t *testing.T) {
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := make(map[string]bool)
	for range 1000 {
		id := agent.NewSessionID()
		if !uuid.MatchString(id) || seen[id] {
			t.Fatalf("id %q", id)
		}
		seen[id] = true
	}
}
