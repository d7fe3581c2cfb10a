package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// What is told of a run that pauses is no command for the terminal, and what it says to do none of a stranger's for the shell, whatever
// the run and its nodes are called.
func TestHintsOfOddRuns(t *testing.T) {
	nc := natstest.Start(t)
	logtest.Init(t, nc, topology.Config{Names: subjects.Default})
	log := logtest.Open(t, nc)
	run := "x;touch owned\x1b]0;owned\x07\x1b[2J"
	if err := subjects.CheckID(run); err != nil {
		t.Fatal(err)
	}
	owner := logtest.Claim(t, log, run, wire.RunNode)
	logtest.Append(t, owner, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", DefinitionHash: "h", Definition: wire.Null}},
		&wire.Event{Payload: &wire.FlowPaused{Reason: wire.PauseBudget}})
	logtest.Serve(t, log)
	reader, err := feed.Open(t.Context(), nc, feed.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	a := &app{errOut: &said, names: subjects.Default, log: slog.New(slog.DiscardHandler)}
	for e, err := range log.Read(t.Context(), eventlog.Query{Run: run}) {
		if err != nil {
			t.Fatal(err)
		}
		if err := a.tellPause(t.Context(), reader, e); err != nil {
			t.Fatal(err)
		}
	}
	if strings.ContainsRune(said.String(), 0x1b) || !strings.Contains(said.String(), "wake resume $'x;touch owned") {
		t.Errorf("the terminal is told %q", said.String())
	}
	for reason, nodes := range map[string][]string{
		wire.PauseIdle: nil, wire.PauseBudget: nil, wire.PauseSharedBudget: nil, wire.PauseEndedItsRunner: nil, wire.PauseWorkspaceLost: nil,
		wire.PauseRequiresAction: {"a b", "$(owned)"},
	} {
		step := toDo("x;owned #", wire.RunPaused, reason, nodes)
		if strings.Contains(strings.ReplaceAll(step, "'x;owned #'", ""), "owned #") || strings.Contains(strings.ReplaceAll(step, "'a b,$(owned)'", ""), "$(") {
			t.Errorf("%s: %s", reason, step)
		}
	}
	if step := nextStep(wire.StatusResponse{RunID: "x;owned", Imported: wire.ImportedCopy}); !strings.Contains(step, "wake fork 'x;owned'") {
		t.Error(step)
	}
}
