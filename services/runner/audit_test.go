package runner_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner"
)

// audits returns those of a run, as text: node, agent, id, result and evidence.
func audits(t *testing.T, entries []eventlog.Entry) (all [][]string) {
	t.Helper()
	for _, e := range entries {
		p, ok := e.Event.Payload.(*wire.AuditCheckpoint)
		if !ok {
			continue
		}
		evidence := ""
		if p.Evidence != nil {
			b, err := wire.AppendJSON(nil, p.Evidence)
			if err != nil {
				t.Fatal(err)
			}
			evidence = string(b)
		}
		all = append(all, []string{e.NodeID, e.Event.AgentID, p.CheckpointID, string(p.Result), evidence})
	}
	return all
}

// TestAudits: the audits of a node run in its folder when it has completed, before
// its end is on record; what they find doesn't fail it. Only those of an agent's
// work name it.
func TestAudits(t *testing.T) {
	b := newBench(t)
	b.runner("r1", &scripted{say: echo})
	b.submit("run1", `
name: audited
nodes:
  - id: build
    type: exec
    input: {command: "echo 1 > made", env: {WHO: me}}
    audits: [{id: "audit:made", command: "test -f made && printf '{\"made\": %s, \"who\": \"%s\"}' $(cat made) $WHO"}]
  - id: code
    type: agent
    input: {prompt: "x"}
    audits:
      - {id: "audit:unit", command: "echo not json"}
      - {id: "audit:list", command: "echo '[1, 2]'; exit 4"}
      - {id: "audit:lint", command: "echo out; echo bad >&2; exit 3"}
      - {id: "audit:slow", command: "exec sleep 1000", timeoutMs: 50}
      - {id: "audit:tree", command: "true", run: true}
  - id: fails
    type: exec
    input: {command: "false"}
    audits: [{id: "audit:never", command: "true"}]
    policy: {continueOnError: true}
edges:
  - {from: build, to: code}
  - {from: code, to: fails}
`)
	state, entries := b.ended("run1")
	if state.Result != wire.FlowStatusComplete || state.NodeStatus["code"] != wire.NodeDone {
		t.Errorf("the run ended as %s (%s):\n%s", state.Result, state.Error, story(entries))
	}
	want := [][]string{
		{"build", "", "audit:made", "pass", `{"made":1,"who":"me"}`},
		{"code", "code", "audit:unit", "pass", ""},
		{"code", "code", "audit:list", "fail", `{"value":[1,2]}`},
		{"code", "code", "audit:lint", "fail", `{"error":"the command ended with exit code 3","output":"bad\n"}`},
		{"code", "code", "audit:slow", "fail", ""},
		{"code", "", "audit:tree", "pass", ""},
	}
	got := audits(t, entries)
	if len(got) == len(want) {
		got[4][4] = "" // how long it took
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	var order []wire.Type
	for _, e := range entries {
		if e.NodeID == "code" && (e.Event.Type() == wire.TypeAuditCheckpoint || e.Event.Type() == wire.TypeAgentComplete || e.Event.Type() == wire.TypeNodeComplete) {
			order = append(order, e.Event.Type())
		}
	}
	if n := len(order); n != 7 || order[4] != wire.TypeAuditCheckpoint || order[5] != wire.TypeAgentComplete || order[6] != wire.TypeNodeComplete {
		t.Errorf("%v", order)
	}
}

// The time limit of a node ends its audits, not its success.
func TestAuditsAndTimeLimit(t *testing.T) {
	b := newBench(t)
	b.runner("r1", &scripted{say: echo})
	b.submit("run1", `
name: audited
nodes:
  - id: code
    type: agent
    input: {prompt: "x"}
    policy: {timeoutMs: 1000}
    audits: [{id: "audit:slow", command: "exec sleep 1000"}, {id: "audit:next", command: "true"}]
`)
	state, entries := b.ended("run1")
	got := audits(t, entries)
	if state.NodeStatus["code"] != wire.NodeDone || len(got) != 2 || got[0][3] != "fail" || got[1][3] != "fail" {
		t.Errorf("code is %s, audits %v", state.NodeStatus["code"], got)
	}
}

// A runner that stops while it audits leaves the execution open: the worker that goes on
// audits it again.
func TestAuditOfStoppedRunner(t *testing.T) {
	b := newBench(t)
	stop := b.runner("r1", &scripted{say: echo}, func(c *runner.Config) { c.DrainTimeout = 100 * time.Millisecond })
	b.submit("run1", `
name: audited
nodes:
  - id: code
    type: agent
    input: {prompt: "x"}
    audits: [{id: "audit:first", command: "true"}, {id: "audit:long", command: "exec sleep 1000"}]
`)
	b.until("run1", wire.TypeAuditCheckpoint)
	stop()
	entries := b.read("run1")
	state := b.fold("run1", entries)
	if got := audits(t, entries); state.NodeStatus["code"] != wire.NodeRunning || len(got) != 1 || count(entries, wire.TypeAgentComplete) != 0 {
		t.Errorf("code is %s, audits %v:\n%s", state.NodeStatus["code"], got, story(entries))
	}
}
