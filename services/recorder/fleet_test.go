package recorder_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/queries"
)

func runIDs(runs []wire.TopRun) []string {
	ids := []string{}
	for _, r := range runs {
		ids = append(ids, r.RunID)
	}
	return ids
}

func TestFleet(t *testing.T) {
	if r, err := openStore(t).Answers.Fleet(t.Context(), wire.FleetRequest{}, time.UnixMilli(1), 1<<20); err != nil || len(r.Runs) != 0 {
		t.Errorf("of nothing: %+v, %v", r, err)
	}
	p := fleet(t)
	for _, held := range []int{0, 100} {
		s := openStore(t)
		s.Answers.HoldLive(held)
		p.store(s, 7)
		now := time.UnixMilli(p.clock + 60_000)
		for name, tt := range map[string]struct {
			q    wire.FleetRequest
			want []string
		}{
			"who waits first, then what ended": {wire.FleetRequest{}, []string{"asks", "human", "broken", "held", "busy", "held-by-hand", "done"}},
			"of a state":                       {wire.FleetRequest{State: []string{"failed", "complete"}}, []string{"broken", "held-by-hand", "done"}},
			"those that go on":                 {wire.FleetRequest{State: []string{"open"}}, []string{"asks", "human", "held", "busy"}},
			"of a text":                        {wire.FleetRequest{Text: "INSTALL"}, []string{"asks"}},
			"of a label":                       {wire.FleetRequest{Label: "team=blue"}, []string{"asks"}},
			"the newest first":                 {wire.FleetRequest{Sort: "started", State: []string{"open"}}, []string{"held", "human", "asks", "busy"}},
			"a page":                           {wire.FleetRequest{Limit: 2, Cursor: "2.8f14e45f"}, []string{"broken", "held"}},
			"beyond the end":                   {wire.FleetRequest{Cursor: "9223372036854775807.8f14e45f"}, []string{}},
		} {
			r, err := s.Answers.Fleet(t.Context(), tt.q, now, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, runIDs(r.Runs)); diff != "" {
				t.Errorf("held %d, %s (-want +got):\n%s", held, name, diff)
			}
		}
	}
	s := openStore(t)
	p.store(s, 100)
	now := time.UnixMilli(p.clock + 60_000)
	for _, q := range []wire.FleetRequest{{Sort: "color"}, {Limit: 201}, {Cursor: "x"}, {Cursor: "-1"}, {Cursor: "2"}, {Cursor: "2.another0"}, {Cursor: "0.8f14e45f"}} {
		if _, err := s.Answers.Fleet(t.Context(), q, now, 1<<20); codeOf(err) != wire.CodeBadRequest {
			t.Errorf("%+v: %v", q, err)
		}
	}
	r, err := s.Answers.Fleet(t.Context(), wire.FleetRequest{Limit: 1}, now, 1<<20)
	want := map[string]int{"waiting": 2, "failed": 1, "paused": 1, "active": 1, "complete": 2}
	if diff := cmp.Diff(want, r.States); diff != "" || err != nil || r.Cursor != "1.8f14e45f" || r.Total != 7 || r.Waits["message"] != 1 || r.Waits["ask"] != 1 {
		t.Errorf("%+v, %v\n%s", r, err, diff)
	}
	for cursor, want := range map[string]struct {
		before   int
		previous string
	}{"": {}, "1.8f14e45f": {before: 1}, "2.8f14e45f": {before: 2}, "3.8f14e45f": {3, "1.8f14e45f"}, "9223372036854775807.8f14e45f": {7, "5.8f14e45f"}} {
		r, err := s.Answers.Fleet(t.Context(), wire.FleetRequest{Limit: 2, Cursor: cursor}, now, 1<<20)
		if err != nil || r.Before != want.before || r.Previous != want.previous {
			t.Errorf("before the page at %q are %d, from %q, want %+v; %v", cursor, r.Before, r.Previous, want, err)
		}
	}
}

// A run waits as long as what it waits for, whatever its agent says meanwhile: the longest waiting is the first one.
func TestFleetWaitsSince(t *testing.T) {
	p := newTape(t)
	since := map[string]int64{}
	for _, run := range []string{"long", "short"} {
		exec := p.start(run, "coder", nil)
		p.add(run, "coder", exec, &wire.CCMessage{Text: "Install it?", Priority: wire.PriorityQuestion})
		since[run] = p.clock
		p.clock += 60_000
	}
	p.add("long", "coder", "coder#1", &wire.AgentText{Content: "still waiting"})
	for _, held := range []int{0, 100} {
		s := openStore(t)
		s.Answers.HoldLive(held)
		p.store(s, 7)
		r, err := s.Answers.Fleet(t.Context(), wire.FleetRequest{}, time.UnixMilli(p.clock+1000), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"long", "short"}, runIDs(r.Runs)); diff != "" {
			t.Errorf("held %d (-want +got):\n%s", held, diff)
		}
		for _, run := range r.Runs {
			if want := since[run.RunID]; run.WaitsSince != want || run.Live[0].WaitsSince != want {
				t.Errorf("held %d: %s waits since %d, its agent since %d, want %d", held, run.RunID, run.WaitsSince, run.Live[0].WaitsSince, want)
			}
		}
	}
}

// What has changed is told by its position, and what is kept of the rest agrees with what a store tells that is asked for the first time.
func TestFleetChanges(t *testing.T) {
	p := fleet(t)
	s := openStore(t)
	p.store(s, 100)
	before, err := s.Answers.Fleet(t.Context(), wire.FleetRequest{}, time.UnixMilli(p.clock), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	p.entries = nil
	p.add("busy", "coder", "coder#1", &wire.CCMessage{Text: "Which one?", Priority: wire.PriorityQuestion})
	p.store(s, 100)
	now := time.UnixMilli(p.clock + 5000)
	changed, err := s.Answers.Fleet(t.Context(), wire.FleetRequest{Since: before.Position}, now, 1<<20)
	if diff := cmp.Diff([]string{"busy"}, runIDs(changed.Runs)); diff != "" || err != nil || changed.States["waiting"] != 3 {
		t.Errorf("%+v, %v\n%s", changed.States, err, diff)
	}
	none, err := s.Answers.Fleet(t.Context(), wire.FleetRequest{Since: changed.Position}, now, 1<<20)
	if err != nil || none.Total != 0 || len(none.Runs) != 0 {
		t.Errorf("%+v, %v", none, err)
	}
	kept, err := s.Answers.Fleet(t.Context(), wire.FleetRequest{}, now, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	s.Answers.ForgetLive()
	fresh, err := s.Answers.Fleet(t.Context(), wire.FleetRequest{}, now, 1<<20)
	if diff := cmp.Diff(fresh, kept); diff != "" || err != nil {
		t.Errorf("%v (-asked for the first time +kept):\n%s", err, diff)
	}
}

// A list of some runs is kept up to date by what has changed: what passes the filters now, and what doesn't any more.
func TestFleetLeft(t *testing.T) {
	p := fleet(t)
	s := openStore(t)
	p.store(s, 100)
	ask := func(q wire.FleetRequest) wire.FleetResponse {
		t.Helper()
		r, err := s.Answers.Fleet(t.Context(), q, time.UnixMilli(p.clock), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	waiting := wire.FleetRequest{State: []string{"waiting"}}
	before := ask(waiting)
	if diff := cmp.Diff([]string{"asks", "human"}, runIDs(before.Runs)); diff != "" || before.Left != nil {
		t.Fatalf("left %v\n%s", before.Left, diff)
	}
	p.entries = nil
	p.add("busy", "coder", "coder#1", &wire.CCMessage{Text: "Which one?", Priority: wire.PriorityQuestion})
	p.add("asks", wire.RunNode, "", &wire.FlowAborted{Reason: "enough"})
	p.add("child-1", wire.RunNode, "", &wire.RunClaimed{Runner: "runner", Nonce: "n"})
	p.add("child-1", wire.RunNode, "", &wire.FlowStart{FlowName: "f", Definition: wire.Null, DefinitionHash: "h", ParentRun: "busy"})
	p.add("child-1", wire.RunNode, "", &wire.FlowComplete{FlowName: "f", Status: wire.FlowStatusComplete})
	p.store(s, 100)
	for name, tt := range map[string]struct {
		q          wire.FleetRequest
		runs, left []string
	}{
		"of a state": {wire.FleetRequest{State: waiting.State, Since: before.Position}, []string{"busy"}, []string{"child-1", "asks"}},
		"of all":     {wire.FleetRequest{Since: before.Position}, []string{"busy", "asks"}, []string{"child-1"}},
		"of a text":  {wire.FleetRequest{Since: before.Position, Text: "which"}, []string{"busy"}, []string{"child-1", "asks"}},
		"of a label": {wire.FleetRequest{Since: before.Position, Label: "team=blue", State: waiting.State}, []string{}, []string{"asks"}},
		"page 2":     {wire.FleetRequest{Since: before.Position, Cursor: "1.8f14e45f"}, []string{"asks"}, nil},
	} {
		r := ask(tt.q)
		slices.Sort(r.Left)
		slices.Sort(tt.left)
		if diff := cmp.Diff(tt.runs, runIDs(r.Runs)) + cmp.Diff(tt.left, r.Left); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if r := ask(wire.FleetRequest{State: waiting.State, Since: ask(waiting).Position}); len(r.Runs)+len(r.Left) > 0 {
		t.Errorf("nothing has changed: %v left, runs %v", r.Left, runIDs(r.Runs))
	}
}

// What is known of a run that has ended is read again when more of it is derived, though nothing was recorded meanwhile.
func TestFleetIsDerivedLater(t *testing.T) {
	p := fleet(t)
	s := openStore(t)
	p.store(s, 100)
	p.entries = nil
	p.add("done", "coder", "coder#1", &wire.AgentText{Content: "By the way."})
	if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: p.entries, Later: true}); err != nil {
		t.Fatal(err)
	}
	now := time.UnixMilli(p.clock + 5000)
	if _, err := s.Answers.Fleet(t.Context(), wire.FleetRequest{}, now, 1<<20); err != nil {
		t.Fatal(err)
	}
	derived(t, s)
	kept, err := s.Answers.Fleet(t.Context(), wire.FleetRequest{}, now, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	s.Answers.ForgetLive()
	fresh, err := s.Answers.Fleet(t.Context(), wire.FleetRequest{}, now, 1<<20)
	if diff := cmp.Diff(fresh, kept); diff != "" || err != nil {
		t.Errorf("%v (-asked for the first time +kept):\n%s", err, diff)
	}
}

// No failure, no wait and no alert vanishes, however few pixels there are.
func TestTimeline(t *testing.T) {
	p := newTape(t)
	exec := p.start("r", "coder", nil)
	for i := range 300 {
		tool := &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.RawString("ok"), DurationMs: new(int64(900))}
		if i%100 == 50 {
			tool.Error = "exit 1"
		}
		p.add("r", "coder", exec, tool)
		p.add("r", "coder", exec, &wire.AgentText{Content: fmt.Sprint("said ", i)})
	}
	p.add("r", "coder", exec, &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.Null})
	p.add("r", wire.RunNode, "judge#1", &wire.NodeScheduled{Target: "judge", Attempt: 1})
	p.add("r", "judge", "judge#1", &wire.NodeClaimed{Runner: "runner", Nonce: "n"})
	p.add("r", "judge", "judge#1", &wire.NodeStart{NodeType: "ask", Attempt: 1})
	p.add("r", "judge", "judge#1", &wire.InputRequested{PromptID: "p-1", Prompt: "Go on?"})
	s := openStore(t)
	p.store(s, 100)
	now := time.UnixMilli(p.clock + 5000)
	for _, px := range []int{10, 100, 4000} {
		r, counts := marksOf(t, s.Answers, wire.TimelineRequest{Run: "r", Px: px}, now, 1<<20)
		marks := 0
		for _, l := range r.Lanes {
			marks += len(l.Marks)
		}
		if counts["failed"] != 3 || counts["tool"] != 300 || counts["text"] != 300 || counts["wait"] == 0 || !r.Open || r.Last != now.UnixMilli() {
			t.Errorf("%d px: %v", px, counts)
		}
		if px == 10 && marks > 100 {
			t.Errorf("%d marks on %d px", marks, px)
		}
	}
	if _, counts := marksOf(t, s.Answers, wire.TimelineRequest{Run: "r", Px: 4000}, now, 20_000); counts["failed"] != 3 {
		t.Errorf("in little room: %v", counts)
	}
	for _, q := range []wire.TimelineRequest{{Run: "r", Px: 5}, {Run: "r", Px: 5000}, {Run: "r", From: 5, To: 5}, {Run: "r", From: -1}} {
		if _, err := s.Answers.Timeline(t.Context(), q, now, 1<<20); codeOf(err) != wire.CodeBadRequest {
			t.Errorf("%+v: %v", q, err)
		}
	}
}

// What is tried again, compacted or taken up again is told apart from what else the system says, however few pixels there are.
func TestTimelineOfRecoveries(t *testing.T) {
	p := newTape(t)
	exec := p.start("r", "coder", nil)
	p.add("r", "coder", exec, &wire.Compaction{Trigger: "auto", PreTokens: 150_000})
	p.add("r", wire.RunNode, "", &wire.FlowResumed{Strategy: "takeover"})
	p.add("r", "coder", exec, &wire.AgentResumed{Strategy: "resume"})
	p.add("r", wire.RunNode, "coder#2", &wire.NodeScheduled{Target: "coder", Attempt: 2})
	p.end("r")
	s := openStore(t)
	p.store(s, 100)
	for _, px := range []int{10, 1000} {
		if _, counts := marksOf(t, s.Answers, wire.TimelineRequest{Run: "r", Px: px}, time.UnixMilli(p.clock), 1<<20); counts["compaction"] != 1 || counts["resumed"] != 2 || counts["retry"] != 1 {
			t.Errorf("%d px: %v", px, counts)
		}
	}
}

// The list of runs knows which ones come from another: its child runs, and its forks at any distance.
func TestRunsOfAncestor(t *testing.T) {
	p := fleet(t)
	s := openStore(t)
	p.store(s, 100)
	r, err := s.Answers.Runs(t.Context(), wire.RunsRequest{Ancestor: "held"}, time.UnixMilli(p.clock), 1<<20)
	var got []string
	for _, run := range r.Runs {
		got = append(got, run.RunID)
	}
	if diff := cmp.Diff([]string{"held-by-hand", "child-0123", "held.coder#1"}, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

// marksOf counts what a picture of a run shows, by kind.
func marksOf(t *testing.T, a *queries.Answers, q wire.TimelineRequest, now time.Time, room int) (r wire.TimelineResponse, counts map[string]int64) {
	t.Helper()
	r, err := a.Timeline(t.Context(), q, now, room)
	if err != nil {
		t.Fatal(err)
	}
	counts = map[string]int64{}
	for _, l := range r.Lanes {
		for _, m := range l.Marks {
			counts[m.Kind] += m.N
		}
	}
	return r, counts
}

// Nothing of weight vanishes from a run with more sub-agents than lanes, or with many waits, even where there is no room for a second lane.
func TestTimelineOfMany(t *testing.T) {
	p := newTape(t)
	exec := p.start("r", "coder", nil)
	for i := range 1000 {
		e := p.add("r", "coder", exec, &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null, Error: "exit 1"})
		p.entries = p.entries[:len(p.entries)-1]
		p.pos--
		e.Parent = fmt.Sprint("agent-", i)
		p.put(e)
	}
	for i := range 3000 {
		p.add("r", "coder", exec, &wire.PermissionRequired{ToolName: "Bash", ToolInput: wire.RawString(fmt.Sprint("make ", i))})
		p.add("r", "coder", exec, &wire.AgentText{Content: "Thank you."})
	}
	p.end("r")
	s := openStore(t)
	p.store(s, 500)
	now := time.UnixMilli(p.clock)
	for _, room := range []int{1 << 20, 100_000, 5000} {
		r, counts := marksOf(t, s.Answers, wire.TimelineRequest{Run: "r", Px: 1000}, now, room)
		if counts["failed"] != 1000 || counts["wait"] != 3000 {
			t.Errorf("in %d bytes: %v", room, counts)
		}
		if r.Omitted == 0 || r.Omitted+len(r.Lanes) != 1002 {
			t.Errorf("in %d bytes: %d lanes, %d are left out", room, len(r.Lanes), r.Omitted)
		}
		if b, err := wire.Marshal(r); err != nil || len(b) > room {
			t.Errorf("%d bytes in %d: %v", len(b), room, err)
		}
	}
	// Of a part of it, what is there.
	from := p.entries[1006].Event.Timestamp
	if _, counts := marksOf(t, s.Answers, wire.TimelineRequest{Run: "r", Px: 1000, From: from, To: from + 99_000}, now, 1<<20); counts["failed"] != 0 || counts["wait"] != 50 {
		t.Errorf("of 50 waits: %v", counts)
	}
}

// Times that no clock tells, which a writer may stamp, cost no picture.
func TestTimelineOfAbsurdTimes(t *testing.T) {
	p := newTape(t)
	exec := p.start("r", "coder", nil)
	e := p.add("r", "coder", exec, &wire.AgentText{Content: "in a while"})
	p.entries = p.entries[:len(p.entries)-1]
	p.pos--
	e.Timestamp = math.MaxInt64 - 5
	p.put(e)
	p.end("r")
	s := openStore(t)
	p.store(s, 100)
	at := []int64{p.clock, 4e15, math.MaxInt64 - 5}
	var alerts []archive.AlertMessage
	for i, ts := range at {
		a := wire.Alert{V: wire.Version, Key: fmt.Sprint("key", i), Kind: "stuck", Severity: wire.SeverityWarning, RunID: "r", NodeID: "coder", Timestamp: ts, Text: "stuck"}
		alerts = append(alerts, archive.AlertMessage{Pos: uint64(i + 1), Data: mustRaw(t, a)}) // three
	}
	if err := s.Archive.RecordAlerts(t.Context(), "created", alerts); err != nil {
		t.Fatal(err)
	}
	now := time.UnixMilli(p.clock)
	for _, q := range []wire.TimelineRequest{{}, {From: 1, To: math.MaxInt64}, {From: 1e16}, {From: math.MaxInt64 - 1, To: math.MaxInt64}, {To: 1}} {
		q.Run, q.Px = "r", 4000
		r, err := s.Answers.Timeline(t.Context(), q, now, 1<<20)
		if err != nil || r.To <= r.From {
			t.Errorf("%+v: from %d to %d: %v", q, r.From, r.To, err)
		}
	}
	if _, counts := marksOf(t, s.Answers, wire.TimelineRequest{Run: "r", Px: 4000}, now, 1<<20); counts["alert"] != 1 {
		t.Errorf("%v", counts)
	}
}

// A picture that was asked for again and again while the run went on is the one that is asked for once.
func TestTimelineGoesOn(t *testing.T) {
	p := newTape(t)
	exec := p.start("r", "coder", nil)
	s, stored, texts := openStore(t), 0, int64(0)
	for i := range 30 {
		p.add("r", "coder", exec, &wire.AgentTextDelta{Content: "some ", Block: i})
		p.add("r", "coder", exec, &wire.AgentText{Content: "some words"})
		p.add("r", "coder", exec, &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null, DurationMs: new(int64(i * 100)), Denied: i%5 == 0})
		p.add("r", "coder", exec, &wire.PermissionRequired{ToolName: "Bash", ToolInput: wire.RawString("make")})
		if i == 20 { // the last two turns didn't happen
			p.add("r", "coder", exec, &wire.LogTruncated{AtSeq: p.seqs["r/coder"] - 8})
		}
		if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: p.entries[stored:]}); err != nil {
			t.Fatal(err)
		}
		stored = len(p.entries)
		q, now := wire.TimelineRequest{Run: "r", Px: 500}, time.UnixMilli(p.clock+500)
		held, counts := marksOf(t, s.Answers, q, now, 1<<20)
		if fresh, _ := marksOf(t, queries.New(s.Archive), q, now, 1<<20); !cmp.Equal(fresh, held) {
			t.Fatalf("at %d (-asked once +asked again):\n%s", i, cmp.Diff(fresh, held))
		}
		if fewer := counts["text"] < texts; fewer != (i == 20) {
			t.Errorf("at %d there are %d texts, before it %d", i, counts["text"], texts)
		}
		texts = counts["text"]
	}
}
