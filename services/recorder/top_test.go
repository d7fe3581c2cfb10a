package recorder_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// fleet is runs in every state.
func fleet(t *testing.T) *tape {
	p := newTape(t)
	exec := p.start("busy", "coder", nil)
	p.add("busy", "coder", exec, &wire.ToolIntent{ToolName: "Bash", ToolInput: mustRaw(t, map[string]any{"command": "make"})})
	exec = p.start("asks", "coder", map[string]string{"team": "blue"})
	p.add("asks", "coder", exec, &wire.CCMessage{Text: "Install it?", Priority: wire.PriorityQuestion})
	p.start("done", "coder", nil)
	p.add("done", "coder", "coder#1", &wire.NodeComplete{Output: wire.RawString("ok")})
	p.add("done", wire.RunNode, "", &wire.FlowComplete{FlowName: "review", Status: wire.FlowStatusComplete})
	p.clock += 3_600_000
	exec = p.start("human", "judge", nil)
	p.add("human", "judge", exec, &wire.InputRequested{PromptID: "p-1", Prompt: "Deploy?"})
	p.start("broken", "coder", nil)
	p.add("broken", "coder", "coder#1", &wire.NodeError{Error: "why"})
	p.add("broken", wire.RunNode, "", &wire.FlowComplete{FlowName: "review", Status: wire.FlowStatusFailed, Error: "why"})
	for _, id := range []string{"held.coder#1", "child-0123", "held-by-hand"} {
		p.add(id, wire.RunNode, "", &wire.RunClaimed{Runner: "runner", Nonce: "n"})
		p.add(id, wire.RunNode, "", &wire.FlowStart{FlowName: "part", Definition: wire.Null, DefinitionHash: "h", ParentRun: "held", ParentNode: "coder"})
		p.add(id, wire.RunNode, "", &wire.FlowComplete{FlowName: "part", Status: wire.FlowStatusComplete})
	}
	p.start("held", "coder", nil)
	p.add("held", wire.RunNode, "", &wire.FlowPaused{Reason: wire.PauseOperator})
	return p
}

// A session that is watched, and in which nothing goes on, is idle and behind those that go on; one that asks something waits.
func TestIdleSessions(t *testing.T) {
	p := newTape(t)
	p.start("busy", "coder", nil)
	for _, id := range []string{"quiet", "asking"} {
		exec := p.start(id, "agent", nil)
		if id == "asking" {
			p.add(id, "agent", exec, &wire.CCMessage{Text: "Install it?", Priority: wire.PriorityQuestion})
		}
		p.add(id, wire.RunNode, "", &wire.FlowPaused{Reason: wire.PauseIdle})
	}
	s := openStore(t)
	p.store(s, 7)
	r, err := s.Answers.Top(t.Context(), wire.TopRequest{}, time.UnixMilli(p.clock+60_000), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range r.Runs {
		got = append(got, x.RunID+" "+x.State)
	}
	if diff := cmp.Diff([]string{"asking waiting", "busy active", "quiet idle"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Of a run its status says what one waits for that it has begun, and waits for.
func TestStatusOfFlowsThatWait(t *testing.T) {
	p := newTape(t)
	all := [][2]string{{"top", ""}, {"top.coder#1", "top"}, {"top.coder#1.coder#1", "top.coder#1"}, {"beside", "top"}}
	for i := range 60 {
		all = append(all, [2]string{fmt.Sprintf("top.coder/%d#1", i), "top"})
	}
	for _, one := range all {
		p.add(one[0], wire.RunNode, "", &wire.RunClaimed{Runner: "runner", Nonce: "n"})
		p.add(one[0], wire.RunNode, "", &wire.FlowStart{FlowName: "part", Definition: wire.Null, DefinitionHash: "h", ParentRun: one[1], ParentNode: "coder"})
		p.add(one[0], wire.RunNode, "", &wire.NodeScheduled{Target: "coder", Attempt: 1})
		p.add(one[0], "coder", "coder#1", &wire.NodeClaimed{Runner: "runner", Nonce: "n"})
		p.add(one[0], "coder", "coder#1", &wire.NodeStart{NodeType: "flow", Attempt: 1})
	}
	p.add("beside", wire.RunNode, "", &wire.FlowPaused{Reason: wire.PauseOperator})
	s := openStore(t)
	status := func(run string) wire.StatusResponse {
		r, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: run}, time.UnixMilli(p.clock), 1<<20)
		if err == nil {
			err = s.Answers.FillWaits(t.Context(), &r, time.UnixMilli(p.clock), 1<<20)
		}
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	p.store(s, 7)
	if r := status("top"); r.WaitingFor != "" || r.Agents[0].WaitingFor != "" {
		t.Errorf("all go on: %+v", r)
	}
	p.add("top.coder#1.coder#1", wire.RunNode, "", &wire.FlowPaused{Reason: wire.PauseOperator})
	p.store(s, 7) // again from the first event, which is known
	const want = "run top.coder#1.coder#1: an operator to resume it"
	for _, run := range []string{"top", "top.coder#1"} {
		if r := status(run); r.WaitingFor != want || len(r.Agents) != 1 || r.Agents[0].WaitingFor != want {
			t.Errorf("%s waits for %q, %+v", run, r.WaitingFor, r.Agents)
		}
	}
}

func TestTop(t *testing.T) {
	p := fleet(t)
	s := openStore(t)
	p.store(s, 7)
	now := time.UnixMilli(p.clock + 60_000)
	for name, tt := range map[string]struct {
		q    wire.TopRequest
		want []string
	}{
		"those that go on": {wire.TopRequest{}, []string{
			"asks waiting for coder: an answer: \"Install it?\" (question)", "human waiting for judge: an answer to p-1: Deploy?",
			"held paused for an operator to resume it", "busy active",
		}},
		"and lately ended": {wire.TopRequest{Since: 600_000}, []string{
			"asks waiting for coder: an answer: \"Install it?\" (question)", "human waiting for judge: an answer to p-1: Deploy?",
			"broken failed", "held paused for an operator to resume it", "busy active", "held-by-hand complete",
		}},
		"two":      {wire.TopRequest{Limit: 2}, []string{"asks waiting for coder: an answer: \"Install it?\" (question)", "human waiting for judge: an answer to p-1: Deploy?"}},
		"of label": {wire.TopRequest{Label: "team=blue"}, []string{"asks waiting for coder: an answer: \"Install it?\" (question)"}},
		"of flow":  {wire.TopRequest{Flow: "other"}, []string{}},
	} {
		r, err := s.Answers.Top(t.Context(), tt.q, now, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for _, x := range r.Runs {
			text := x.RunID + " " + x.State
			if x.WaitingFor != "" {
				text += " for " + x.WaitingFor
			}
			got = append(got, text)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	r, err := s.Answers.Top(t.Context(), wire.TopRequest{Limit: 1}, now, 1<<20)
	if diff := cmp.Diff(map[string]int{"waiting": 2, "paused": 1, "active": 1}, r.States); diff != "" || err != nil || r.Omitted != 3 {
		t.Errorf("omitted %d, %v (-want +got):\n%s", r.Omitted, err, diff)
	}
	r, err = s.Answers.Top(t.Context(), wire.TopRequest{}, now, 1<<20)
	if busy := r.Runs[3]; err != nil || len(busy.Live) != 1 || busy.Live[0].OpenTool != "Bash" || busy.OpenTool != "Bash" || busy.Live[0].LastActivity != "running make" {
		t.Errorf("at work: %+v", busy)
	}
	if _, err := s.Answers.Top(t.Context(), wire.TopRequest{Limit: 201}, now, 1<<20); codeOf(err) != wire.CodeBadRequest {
		t.Errorf("got %v", err)
	}
	small, err := s.Answers.Top(t.Context(), wire.TopRequest{}, now, 16<<10)
	if err != nil || len(small.Runs) == 0 || len(small.Runs)+small.Omitted != 4 || len(encoded(t, small)) > 16<<10 {
		t.Errorf("%d runs, %d omitted, %v", len(small.Runs), small.Omitted, err)
	}
}

// Asking again while a run goes on gives what asking once gives.
func TestStatusWhileRecording(t *testing.T) {
	p := fleet(t)
	for i := range 700 {
		p.add("busy", "coder", "coder#1", &wire.AgentTool{ToolName: "Bash", ToolInput: mustRaw(t, map[string]any{"command": fmt.Sprint("make ", i)}), ToolOutput: wire.Null})
	}
	warm, cold := openStore(t), openStore(t)
	p.store(cold, 1000)
	for rest := p.entries; len(rest) > 0; {
		n := min(61, len(rest))
		if _, err := warm.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: rest[:n]}); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
		if _, err := warm.Answers.Status(t.Context(), wire.StatusRequest{Run: "busy"}, time.UnixMilli(p.clock), 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	for _, run := range []string{"busy", "asks", "done", "human", "broken", "held"} {
		a, errA := warm.Answers.Status(t.Context(), wire.StatusRequest{Run: run}, time.UnixMilli(p.clock), 1<<20)
		b, errB := cold.Answers.Status(t.Context(), wire.StatusRequest{Run: run}, time.UnixMilli(p.clock), 1<<20)
		if diff := cmp.Diff(a, b); diff != "" || errors.Join(errA, errB) != nil {
			t.Errorf("%s: %v %v (-warm +cold):\n%s", run, errA, errB, diff)
		}
	}
}

func TestWaitingForPermission(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	call := func(payload wire.Payload) {
		e := p.add("r1", "coder", exec, payload)
		e.CallID = "c1"
		p.entries = p.entries[:len(p.entries)-1]
		p.pos--
		p.put(e)
	}
	call(&wire.ToolIntent{ToolName: "Bash", ToolInput: mustRaw(t, map[string]any{"command": "rm -r build"})})
	call(&wire.ToolState{From: wire.ToolPending, To: wire.ToolApprovalRequired})
	call(&wire.PermissionRequired{ToolName: "Bash"})
	s := openStore(t)
	p.store(s, 100)
	r, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "r1"}, time.UnixMilli(p.clock), 1<<20)
	if err != nil || r.State != "waiting" || !strings.HasPrefix(r.WaitingFor, "coder: permission: Bash rm -r build") {
		t.Errorf("state %q, waiting for %q, %v", r.State, r.WaitingFor, err)
	}
}

// What an agent waits for is what it has asked first and wasn't answered, not what it has
// told last; the list of what waits has all of it.
func TestWaitsForTheOldest(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	say := func(id string, payload wire.Payload) {
		e := p.add("r1", "coder", exec, payload)
		e.CallID = id
		p.entries = p.entries[:len(p.entries)-1]
		p.pos--
		p.put(e)
	}
	say("m1", &wire.CCMessage{Text: "First?", Priority: wire.PriorityQuestion})
	say("m2", &wire.CCMessage{Text: "Second?", Priority: wire.PriorityBlocker})
	say("m3", &wire.CCMessage{Text: "Half done.", Priority: wire.PriorityInfo})
	p.start("r2", "coder", nil)
	for _, held := range []int{0, 100} {
		s := openStore(t)
		s.Answers.HoldLive(held)
		p.store(s, 100)
		r, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "r1"}, time.UnixMilli(p.clock), 1<<20)
		if want := `coder: an answer: "First?" (question) (and 1 more)`; err != nil || r.WaitingFor != want || r.State != "waiting" {
			t.Errorf("held %d: %s, waiting for %q, %v", held, r.State, r.WaitingFor, err)
		}
		for _, q := range []wire.ApprovalsRequest{{}, {Run: "r1"}} {
			a, err := s.Answers.Approvals(t.Context(), q, time.UnixMilli(p.clock), 1<<20)
			if err != nil || len(a.Approvals) != 2 || a.Approvals[0].CallID != "m1" || a.Approvals[1].Text != "Second?" || a.Approvals[1].Priority != wire.PriorityBlocker {
				t.Errorf("held %d: %+v, %v", held, a, err)
			}
		}
		if a, err := s.Answers.Approvals(t.Context(), wire.ApprovalsRequest{Run: "r2"}, time.UnixMilli(p.clock), 1<<20); err != nil || len(a.Approvals) != 0 {
			t.Errorf("held %d: %+v, %v", held, a, err)
		}
		if a, err := s.Answers.Approvals(t.Context(), wire.ApprovalsRequest{}, time.UnixMilli(p.clock), 1500); err != nil || len(a.Approvals)+a.Omitted != 2 || a.Omitted == 0 {
			t.Errorf("held %d, in little room: %+v, %v", held, a, err)
		}
		if a, err := s.Answers.Approvals(t.Context(), wire.ApprovalsRequest{Limit: 1}, time.UnixMilli(p.clock), 1<<20); err != nil || len(a.Approvals) != 1 || a.Omitted != 1 || a.Approvals[0].CallID != "m1" {
			t.Errorf("held %d, one: %+v, %v", held, a, err)
		}
		for _, limit := range []int{-1, 1001} {
			if _, err := s.Answers.Approvals(t.Context(), wire.ApprovalsRequest{Limit: limit}, time.UnixMilli(p.clock), 1<<20); codeOf(err) != wire.CodeBadRequest {
				t.Errorf("held %d, limit %d: %v", held, limit, err)
			}
		}
		if _, err := s.Answers.Approvals(t.Context(), wire.ApprovalsRequest{Run: "nope"}, time.UnixMilli(p.clock), 1<<20); codeOf(err) != wire.CodeRunNotFound {
			t.Errorf("held %d: %v", held, err)
		}
	}
}

// BenchmarkStatus asks for the status of a run with a long history that goes on.
func BenchmarkStatus(b *testing.B) {
	p := long(b, "r1", 5000)
	s := openStore(b)
	p.store(s, 1000)
	for b.Loop() {
		if _, err := s.Answers.Status(b.Context(), wire.StatusRequest{Run: "r1"}, time.UnixMilli(p.clock), 1<<20); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPoll asks again and again how a run goes that is being recorded, and for
// its last lines: from the store, and from memory.
func BenchmarkPoll(b *testing.B) {
	for _, held := range []int{0, 1000} {
		b.Run(fmt.Sprint("held=", held), func(b *testing.B) {
			p := long(b, "r1", 5000)
			s := openStore(b)
			s.Answers.HoldLive(held)
			p.store(s, 1000)
			for b.Loop() {
				p.entries = p.entries[:0]
				p.add("r1", "coder", "coder#1", &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null})
				b.StopTimer()
				p.store(s, 1)
				b.StartTimer()
				_, err1 := s.Answers.Status(b.Context(), wire.StatusRequest{Run: "r1"}, time.UnixMilli(p.clock), 1<<20)
				_, err2 := s.Answers.Log(b.Context(), wire.LogRequest{Run: "r1"}, time.UnixMilli(p.clock), 1<<20)
				if err := errors.Join(err1, err2); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// How full a context is, is told before the agent has said how large it is.
func TestContextOfAFirstTurn(t *testing.T) {
	for _, tt := range []struct {
		model         string
		tokens, later int64
		want, then    int
	}{{"opus", 150_000, 1_000_000, 75, 15}, {"opus[1m]", 150_000, 0, 15, 15}, {"opus", 250_000, 0, 25, 25}, {"opus", 0, 0, 0, 0}} {
		p := newTape(t)
		exec := p.start("r1", "coder", nil)
		p.add("r1", "coder", exec, &wire.AgentInit{Model: tt.model})
		p.add("r1", "coder", exec, &wire.Usage{MessageID: "m", InputTokens: 1, ContextTokens: tt.tokens})
		s := openStore(t)
		p.store(s, 100)
		p.add("r1", "coder", exec, &wire.TurnEnd{ModelUsage: map[string]wire.ModelUsage{tt.model: {ContextWindow: tt.later}, "haiku": {ContextWindow: 7}}})
		for _, want := range []int{tt.want, tt.then} {
			r, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "r1"}, time.UnixMilli(p.clock), 1<<20)
			if err != nil || r.Agents[0].ContextPct != want || r.ContextPct != want {
				t.Errorf("%+v: %d%% and %d%%, want %d%%, %v", tt, r.Agents[0].ContextPct, r.ContextPct, want, err)
			}
			p.store(s, 100)
		}
	}
}

// Runs that wait for a person who didn't pause them are told beside what is asked: no copies, which nothing goes on in, and as many as fit.
func TestApprovalsOfPaused(t *testing.T) {
	p := newTape(t)
	for _, c := range []struct{ run, reason, imported string }{
		{"decide", wire.PauseRequiresAction, ""}, {"spent", wire.PauseBudget, ""}, {"asked", wire.PauseOperator, ""},
		{"shared", wire.PauseSharedBudget, ""}, {"copy", wire.PauseRequiresAction, wire.ImportedCopy},
	} {
		p.add(c.run, wire.RunNode, "", &wire.RunClaimed{Runner: "runner", Nonce: "n"})
		p.add(c.run, wire.RunNode, "", &wire.FlowStart{FlowName: "part", Definition: wire.Null, DefinitionHash: "h", Imported: c.imported})
		p.add(c.run, wire.RunNode, "", &wire.FlowPaused{Reason: c.reason})
	}
	s := openStore(t)
	p.store(s, 100)
	for _, test := range []struct {
		run     string
		limit   int
		want    []string
		omitted int
	}{
		{"", 1 << 20, []string{"decide", "spent"}, 0},
		{"spent", 1 << 20, []string{"spent"}, 0},
		{"asked", 1 << 20, nil, 0},
		{"copy", 1 << 20, nil, 0},
		{"", 1<<10 + 300, []string{"decide"}, 1},
	} {
		a, err := s.Answers.Approvals(t.Context(), wire.ApprovalsRequest{Run: test.run}, time.UnixMilli(p.clock), test.limit)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range a.Paused {
			got = append(got, r.RunID)
		}
		if diff := cmp.Diff(test.want, got); diff != "" || a.Omitted != test.omitted {
			t.Errorf("of %q in %d bytes: %d omitted (-want +got):\n%s", test.run, test.limit, a.Omitted, diff)
		}
	}
}

// What waits in a run is also what waits in those that it waits for itself, however deep; not
// in runs that somebody has started for it, nor in their forks.
func TestApprovalsOfChildren(t *testing.T) {
	p := newTape(t)
	p.start("r", "lead", nil)
	for _, c := range []struct{ run, parent string }{
		{"r.lead#1.call", "r"}, {"child-01", "r.lead#1.call"}, {"r-by-hand", "r"}, {"rx.lead#1.call", "rx"},
	} {
		p.add(c.run, wire.RunNode, "", &wire.RunClaimed{Runner: "runner", Nonce: "n"})
		p.add(c.run, wire.RunNode, "", &wire.FlowStart{FlowName: "part", Definition: wire.Null, DefinitionHash: "h", ParentRun: c.parent})
		p.add(c.run, wire.RunNode, "judge#1", &wire.NodeScheduled{Target: "judge", Attempt: 1})
		p.add(c.run, "judge", "judge#1", &wire.NodeClaimed{Runner: "runner", Nonce: "n"})
		p.add(c.run, "judge", "judge#1", &wire.NodeStart{NodeType: "ask", Attempt: 1})
		p.add(c.run, "judge", "judge#1", &wire.InputRequested{PromptID: "p-1", Prompt: "Go on?"})
	}
	s := openStore(t)
	p.store(s, 100)
	for run, want := range map[string][]string{
		"r": {"r.lead#1.call", "child-01"}, "r.lead#1.call": {"r.lead#1.call", "child-01"}, "child-01": {"child-01"}, "r-by-hand": {"r-by-hand"},
	} {
		a, err := s.Answers.Approvals(t.Context(), wire.ApprovalsRequest{Run: run}, time.UnixMilli(p.clock), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, w := range a.Approvals {
			got = append(got, w.RunID)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("of %s (-want +got):\n%s", run, diff)
		}
	}
}
