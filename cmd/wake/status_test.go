package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/pkg/wire"
)

// Whoever sees a run that is paused sees how it goes on.
func TestToDo(t *testing.T) {
	tests := []struct {
		name   string
		status wire.RunStatus
		reason string
		nodes  []string
		want   string
	}{
		{"running", wire.RunRunning, "", nil, ""},
		{"ended, of an interruption", wire.RunAborted, wire.PauseRequiresAction, []string{"deploy"}, ""},
		{"operator", wire.RunPaused, wire.PauseOperator, nil, "wake resume r1"},
		{"no reason", wire.RunPaused, "", nil, "wake resume r1"},
		{"decision", wire.RunPaused, wire.PauseRequiresAction, []string{"deploy", "lint"}, "wake resume r1 --rerun deploy,lint runs again what was interrupted, --fail deploy,lint gives it up"},
		{"a session that is watched", wire.RunPaused, wire.PauseIdle, nil, "wake adopt r1 goes on with the session as a run that wake executes"},
		{"set aside", wire.RunPaused, wire.PauseEndedItsRunner, nil, "see what its runners wrote last; wake resume r1 once the cause is mended"},
		{"folder", wire.RunPaused, wire.PauseWorkspaceLost, nil, "start the runner that has its folder; wake resume r1 once the folder is there"},
	}
	for _, tt := range tests {
		if got := toDo("r1", tt.status, tt.reason, tt.nodes); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	copied := wire.StatusResponse{RunID: "r1", Status: wire.RunPaused, Imported: wire.ImportedCopy}
	if got := nextStep(copied); !strings.Contains(got, "wake fork r1") {
		t.Errorf("a copy: %q", got)
	}
}

func TestPausedRunsSayHowTheyGoOn(t *testing.T) {
	var out bytes.Buffer
	s := wire.StatusResponse{
		AgentStatus: wire.AgentStatus{Reason: wire.PauseRequiresAction},
		RunID:       "r1", Status: wire.RunPaused,
		Agents: []wire.AgentStatus{
			{AgentID: "plan", State: "complete"},
			{AgentID: "deploy", State: "failed", Reason: wire.ErrorInterrupted, Error: "the runner died"},
		},
	}
	if err := printStatus(&out, s); err != nil {
		t.Fatal(err)
	}
	if err := printRuns(&out, wire.RunsResponse{Runs: []wire.RunInfo{{RunID: "r1", Status: wire.RunPaused, Reason: wire.PauseOperator}, {RunID: "r2", Status: wire.RunRunning}}}, time.Now(), false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"status    paused (requires_action)\n",
		"to do     wake resume r1 --rerun deploy runs again",
		"failed (interrupted)",
		"r1 is paused: wake status r1 says why, wake resume r1 goes on\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "r2 is paused") || strings.Contains(out.String(), "--rerun plan") {
		t.Errorf("says too much:\n%s", out.String())
	}
}
