package main

import (
	"strings"
	"testing"

	"code.wake.dev/wake/pkg/wire"
)

func TestParseOverrides(t *testing.T) {
	nodes := []string{"coder", "v1", "v1.2", "env"}
	tests := []struct{ sets, want string }{
		{"", ""},
		{"model=opus", `{"model":"opus"}`},
		{"coder.model=x", `{"coder":{"model":"x"}}`},
		{"model=opus coder.model=x coder.maxTurns=3", `{"coder":{"maxTurns":3,"model":"x"},"model":"opus"}`},
		{"v1.2.model=x", `{"v1.2":{"model":"x"}}`},
		{"v1.model=x", `{"v1":{"model":"x"}}`},
		{"env.A=x", `{"env":{"A":"x"}}`},
		{"coder.systemPrompt=1=2", `{"coder":{"systemPrompt":"1=2"}}`},
		{`allowedTools=["Bash"]`, `{"allowedTools":["Bash"]}`},
		{"model=null", `{"model":null}`},
	}
	for _, tt := range tests {
		raw, err := parseOverrides(strings.Fields(tt.sets), nodes)
		if err != nil {
			t.Errorf("%s: %v", tt.sets, err)
			continue
		}
		got := ""
		if raw != nil {
			line, err := wire.AppendJSON(nil, raw)
			if err != nil {
				t.Fatal(err)
			}
			got = string(line)
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.sets, got, tt.want)
		}
	}
	for _, set := range []string{"model", "=x", "nosuch.model=x", "nosuch.limits.maxCostUsd=5", "limits.maxCostUsd=5", ".model=x", "coder.=x", "coder..model=x", "\xe9=x", "model=\xff"} {
		if raw, err := parseOverrides([]string{set}, nodes); err == nil {
			t.Errorf("%s: accepted as %v", set, raw.Any())
		} else if exitCode(apiError(err).Code) != exitUsage {
			t.Errorf("%s: %v is no usage error", set, err)
		}
	}
	if _, err := parseOverrides([]string{"coder=x", "coder.model=y"}, nodes); err == nil {
		t.Error("a value and its fields: accepted")
	}
}
