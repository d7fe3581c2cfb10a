package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
)

// A fleet is looked through, sorted and filtered by keys, runs are opened, and what waits in them is answered.
func TestFleetKeys(t *testing.T) {
	fleet := wire.TopResponse{States: map[string]int{"waiting": 1, "active": 2}, Runs: []wire.TopRun{
		{RunID: "r1", FlowName: "review", AgentStatus: wire.AgentStatus{AgentID: "r1", State: "waiting", CostUsd: 1}},
		{RunID: "r2", FlowName: "Docs", AgentStatus: wire.AgentStatus{AgentID: "r2", State: "active", CostUsd: 3}},
		{RunID: "r3", FlowName: "build", AgentStatus: wire.AgentStatus{AgentID: "r3", State: "active", CostUsd: 2}},
	}}
	allowed := wire.Approval{Kind: wire.ApprovalCall, RunID: "r1", NodeID: "coder", CallID: "c1", ToolName: "Bash", ToolInput: wire.RawOf(map[string]any{"command": "make\x1b[2J deploy"})}
	asked := wire.Approval{Kind: wire.ApprovalMessage, RunID: "r1", NodeID: "coder", CallID: "q1", Text: "Tabs?"}
	type given struct {
		asked  []string
		orders []wire.Command
		open   string
		leaves bool
	}
	for _, tt := range []struct {
		name  string
		waits []wire.Approval // what there is to answer
		keys  []string
		want  given
		shows []string
	}{
		{"quit", nil, []string{"q"}, given{leaves: true}, nil},
		{"the first one is opened", nil, []string{"<enter>"}, given{open: "r1", leaves: true}, nil},
		{"the last one is", nil, []string{"jjjjj", "<enter>"}, given{open: "r3", leaves: true}, nil},
		{"by cost", nil, []string{"s", "k", "k", "<enter>"}, given{open: "r2", leaves: true}, []string{"r2   Docs", "r3   build", "r1   review"}},
		{"filtered", nil, []string{"/", "docq", "<backspace>", "<enter>", "<enter>"}, given{open: "r2", leaves: true}, []string{"r2", "/doc"}},
		{"q of a filter is a letter", nil, []string{"/", "q"}, given{}, []string{"/q", "enter keeps it"}},
		{"a call is allowed", []wire.Approval{asked, allowed}, []string{"a", "<later>", "y"}, given{asked: []string{"r1"}, orders: []wire.Command{{Type: "approve", RunID: "r1", NodeID: "coder", CallID: "c1"}}}, nil},
		{"it is shown before", []wire.Approval{asked, allowed}, []string{"a", "<later>"}, given{asked: []string{"r1"}}, []string{"coder wants to use Bash", "make␛[2J deploy", "y allows"}},
		{"or refused", []wire.Approval{allowed}, []string{"a", "<later>", "n"}, given{asked: []string{"r1"}, orders: []wire.Command{{Type: "deny", RunID: "r1", NodeID: "coder", CallID: "c1"}}}, nil},
		{"not before it was seen", []wire.Approval{allowed}, []string{"a", "y"}, given{asked: []string{"r1"}}, []string{"y allows"}},
		{"nothing to allow", []wire.Approval{asked}, []string{"a"}, given{asked: []string{"r1"}}, []string{"no call waits"}},
		{"a question is answered", []wire.Approval{allowed, asked}, []string{"r", "Tabs!", "<enter>"}, given{asked: []string{"r1"}, orders: []wire.Command{{Type: "reply", RunID: "r1", NodeID: "coder", PromptID: "q1", Content: wire.RawString("Tabs!")}}}, nil},
		{"the run ends meanwhile", nil, []string{"r", "stop", "<ended>", "<enter>"}, given{asked: []string{"r1"}, orders: []wire.Command{{Type: "send", RunID: "r1", Message: "stop"}}}, nil},
		{"its call is decided meanwhile", []wire.Approval{allowed}, []string{"a", "<later>", "<ended>", "y"}, given{asked: []string{"r1"}, orders: []wire.Command{{Type: "approve", RunID: "r1", NodeID: "coder", CallID: "c1"}}}, nil},
		{"the run is named", []wire.Approval{allowed}, []string{"a", "<ended>"}, given{asked: []string{"r1"}}, []string{"? r1", "coder wants to use Bash"}},
		{"a window that shows no call", []wire.Approval{allowed}, []string{"<small>", "a", "<later>", "y"}, given{asked: []string{"r1"}}, []string{"the window is too small"}},
		{"or it is a message", nil, []string{"r", "quick", "<enter>"}, given{asked: []string{"r1"}, orders: []wire.Command{{Type: "send", RunID: "r1", Message: "quick"}}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got given
				m := &fleetScreen{}
				m.order = func(c wire.Command) { got.orders = append(got.orders, c) }
				m.ask = func(run string) {
					got.asked = append(got.asked, run)
					m.Update(waitsMsg{run: run, waits: tt.waits})
				}
				m.Update(tea.WindowSizeMsg{Width: 60, Height: 20})
				m.Update(fleetMsg{fleet: fleet})
				for _, key := range tt.keys {
					switch key {
					case "<later>":
						<-time.After(2 * minShown)
						continue
					case "<ended>": // the first run
						m.Update(fleetMsg{fleet: wire.TopResponse{States: fleet.States, Runs: fleet.Runs[1:]}})
						continue
					case "<small>":
						m.Update(tea.WindowSizeMsg{Width: 60, Height: 5})
						continue
					}
					for _, k := range keysOf(key) {
						if _, cmd := m.Update(k); cmd != nil {
							got.leaves = true
						}
					}
				}
				got.open = m.open
				if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(given{})); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				screen := shownBy(m)
				rest := screen
				for _, want := range tt.shows {
					_, after, ok := strings.Cut(rest, want)
					if !ok {
						t.Errorf("%q isn't where it should be in\n%s", want, screen)
					}
					rest = after
				}
				if strings.Count(screen, "\n") > 20 {
					t.Errorf("too high:\n%s", screen)
				}
			})
		})
	}
}

// The selected run is on the screen, however far down it is.
func TestFleetScrolls(t *testing.T) {
	var fleet wire.TopResponse
	for i := range 60 {
		id := string(rune('a'+i/26)) + string(rune('a'+i%26))
		fleet.Runs = append(fleet.Runs, wire.TopRun{RunID: id, AgentStatus: wire.AgentStatus{AgentID: id, State: "active"}})
	}
	m := &fleetScreen{}
	m.Update(tea.WindowSizeMsg{Width: 60, Height: 12})
	m.Update(fleetMsg{fleet: fleet})
	for range fleet.Runs {
		if got := shownBy(m); !strings.Contains(got, "\n"+m.view.selected+" ") || strings.Count(got, "\n") > 12 {
			t.Fatalf("%s isn't on the screen:\n%s", m.view.selected, got)
		}
		for _, k := range keysOf("j") {
			m.Update(k)
		}
	}
	if m.view.selected != "ch" {
		t.Errorf("%s is selected in the end", m.view.selected)
	}
}

// What waits in a child of the run on the line is answered there.
func TestTopAnswersChild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet := wire.TopResponse{States: map[string]int{"waiting": 1}, Runs: []wire.TopRun{{RunID: "r1", AgentStatus: wire.AgentStatus{AgentID: "r1", State: "waiting"}}}}
		m := &fleetScreen{}
		var given []string
		m.order = func(c wire.Command) {
			if given = append(given, c.Type); c.RunID != "child" || c.NodeID != "coder" {
				t.Errorf("%s of call %s goes to node %q of run %q", c.Type, c.CallID+c.PromptID, c.NodeID, c.RunID)
			}
		}
		m.ask = func(run string) {
			m.Update(waitsMsg{run: run, waits: []wire.Approval{
				{Kind: wire.ApprovalCall, RunID: "child", NodeID: "coder", CallID: "c1", ToolName: "Bash"},
				{Kind: wire.ApprovalMessage, RunID: "child", NodeID: "coder", CallID: "q1", Text: "Tabs?"},
			}})
		}
		m.Update(tea.WindowSizeMsg{Width: 60, Height: 20})
		m.Update(fleetMsg{fleet: fleet})
		press := func(keys string) {
			for _, k := range keysOf(keys) {
				m.Update(k)
			}
		}
		press("a")
		<-time.After(2 * minShown)
		press("y")
		press("r")
		press("yes")
		press("<enter>")
		if len(given) != 2 {
			t.Errorf("given were %v", given)
		}
	})
}
