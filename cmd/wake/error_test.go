package main

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/pkg/wire"
)

func TestErrors(t *testing.T) {
	unreachable := &service.Error{Code: service.CodeUnreachable, Err: errors.New("no answer"), Hint: "wake up"}
	tests := []struct {
		name string
		err  error
		exit int
		text string
		json string
	}{
		{"any", errors.New("disk is gone"), 1, "wake: disk is gone\n", `{"error":{"code":"FAILED","message":"disk is gone"}}`},
		{"wrong use", usageError("try this", "no"), 2, "wake: no\nhint: try this\n", `{"error":{"code":"BAD_USAGE","hint":"try this","message":"no"}}`},
		{"wrapped", fmt.Errorf("connect: %w", unreachable), 3, "wake: connect: no answer\nhint: wake up\n", `{"error":{"code":"UNREACHABLE","hint":"wake up","message":"connect: no answer"}}`},
		{"a service's", &wire.APIError{Code: wire.CodeAmbiguousID, Message: "several", Matches: []string{"r1", "r2"}}, 1, "wake: several: r1, r2\n", `{"error":{"code":"AMBIGUOUS_ID","matches":["r1","r2"],"message":"several"}}`},
		{"no service", &wire.APIError{Code: wire.CodeUnreachable, Message: "no recorder"}, 3, "wake: no recorder\n", `{"error":{"code":"UNREACHABLE","message":"no recorder"}}`},
		{"a bad pattern", &wire.APIError{Code: wire.CodeBadRegex, Message: "("}, 2, "wake: (\n", `{"error":{"code":"BAD_REGEX","message":"("}}`},
		{"rules", fmt.Errorf("alerter: %w", serviceError(codeRulesInvalid, "read", "%w", errors.New("r.yaml:2: one\nr.yaml:3: two"))), 1, "wake: alerter: r.yaml:2: one\nwake: r.yaml:3: two\nhint: read\n", `{"error":{"code":"RULES_INVALID","hint":"read","message":"alerter: r.yaml:2: one\nr.yaml:3: two"}}`},
		{"the run's own", serviceError(codeRunFailed, "", "run failed"), 4, "wake: run failed\n", `{"error":{"code":"RUN_FAILED","message":"run failed"}}`},
		{"hostile text", errors.New("a\x1b[2Jb\nc"), 1, "wake: ab c\n", `{"error":{"code":"FAILED","message":"ab c"}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := apiError(tt.err)
			if got := exitCode(e.Code); got != tt.exit {
				t.Errorf("exit code %d, want %d", got, tt.exit)
			}
			var out bytes.Buffer
			a := &app{errOut: &out}
			a.printError(e, false)
			if out.String() != tt.text {
				t.Errorf("text %q, want %q", out.String(), tt.text)
			}
			out.Reset()
			a.printError(e, true)
			if got := out.String(); got != tt.json+"\n" {
				t.Errorf("JSON %s, want %s", got, tt.json)
			}
		})
	}
}
