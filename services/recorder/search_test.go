package recorder_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

func TestSearch(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", map[string]string{"team": "blue"})
	p.add("r1", "coder", exec, &wire.AgentText{Content: "The panic was a nil pointer in load_config."})
	for _, piece := range []string{"Stream", "ed words, a panic", " again: nil pointer"} {
		p.add("r1", "coder", exec, &wire.AgentTextDelta{Content: piece, Block: 1})
	}
	p.add("r1", "coder", exec, &wire.AgentTextDelta{Content: "another block", Block: 2})
	p.add("r1", "coder", exec, &wire.AgentTextDelta{Content: " and late words", Block: 1}) // of a finished one
	p.add("r1", "coder", exec, &wire.AgentTool{ToolName: "Bash", ToolInput: mustRaw(t, map[string]any{"command": "go test"}), ToolOutput: wire.Null, Error: "panic: boom"})
	p.clock += 3_600_000
	exec = p.start("r2", "judge", nil)
	p.add("r2", "judge", exec, &wire.AgentText{Content: "No PANIC, \x1b[31mplease\x1b[0m: naïve café."})
	p.add("r2", "judge", exec, &wire.AgentText{Content: "panic hidden later"})
	seq := p.seqs["r2/judge"]
	p.add("r2", "judge", exec, &wire.LogTruncated{AtSeq: seq - 1, Reason: "rollback"})
	for _, size := range []int{1, 4, 100} {
		s := openStore(t)
		p.storeAndIndex(s, size)
		now := time.UnixMilli(p.clock)
		find := func(q wire.SearchRequest) []string {
			t.Helper()
			r, err := s.Answers.Search(t.Context(), q, now, 1<<20)
			if err != nil {
				t.Fatalf("%+v: %v", q, err)
			}
			got := []string{}
			for _, h := range r.Hits {
				text := []rune(h.Snippet)
				for _, m := range slices.Backward(h.Matches) {
					text = append(text[:m.To:m.To], append([]rune("]"), text[m.To:]...)...)
					text = append(text[:m.From:m.From], append([]rune("["), text[m.From:]...)...)
				}
				got = append(got, fmt.Sprintf("%s/%s %s: %s", h.RunID, h.Node, h.Type, string(text)))
			}
			return got
		}
		const (
			judged   = "r2/judge text: No [PANIC], please: naïve café."
			called   = "r1/coder tool: ❌ Bash\ngo test\n[panic]: boom"
			streamed = "r1/coder text: Streamed words, a [panic] again: nil pointer and late words"
			whole    = "r1/coder text: The [panic] was a nil pointer in load_config."
		)
		for name, tt := range map[string]struct {
			q    wire.SearchRequest
			want []string
		}{
			"a word":         {wire.SearchRequest{Text: "panic"}, []string{judged, called, streamed, whole}},
			"of a run":       {wire.SearchRequest{Text: "panic", Run: "r2"}, []string{judged}},
			"of a node":      {wire.SearchRequest{Text: "panic", Node: "judge"}, []string{judged}},
			"of a type":      {wire.SearchRequest{Text: "panic", Type: wire.LineTool}, []string{called}},
			"of a time":      {wire.SearchRequest{Text: "panic", Since: 600_000}, []string{judged}},
			"of a label":     {wire.SearchRequest{Text: "panic", Label: "team=blue", Type: wire.LineTool}, []string{called}},
			"of a flow":      {wire.SearchRequest{Text: "panic", Flow: "other"}, []string{}},
			"two words":      {wire.SearchRequest{Text: "boom PANIC"}, []string{"r1/coder tool: ❌ Bash\ngo test\n[panic]: [boom]"}},
			"a phrase":       {wire.SearchRequest{Text: `"was a nil"`}, []string{"r1/coder text: The panic [was a nil] pointer in load_config."}},
			"a beginning":    {wire.SearchRequest{Text: "load*"}, []string{"r1/coder text: The panic was a nil pointer in [load_config]."}},
			"without":        {wire.SearchRequest{Text: "-boom panic -café -streamed"}, []string{whole}},
			"late words":     {wire.SearchRequest{Text: "late"}, []string{"r1/coder text: Streamed words, a panic again: nil pointer and [late] words"}},
			"no part":        {wire.SearchRequest{Text: "pani"}, []string{}},
			"its language":   {wire.SearchRequest{Text: `panic OR "AND NOT`}, []string{}},
			"no accents":     {wire.SearchRequest{Text: "cafe"}, []string{"r2/judge text: No PANIC, please: naïve [café]."}},
			"what is hidden": {wire.SearchRequest{Text: "later"}, []string{}},
		} {
			got := find(tt.q)
			if os.Getenv(testPostgres) != "" { // it splits words and cuts snippets in its own way
				if name == "no accents" {
					continue
				}
				got, tt.want = places(got), places(tt.want)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%d at once, %s (-want +got):\n%s", size, name, diff)
			}
		}
		var paged []string
		for q := (wire.SearchRequest{Text: "panic", Limit: 2}); ; {
			r, err := s.Answers.Search(t.Context(), q, now, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range r.Hits {
				paged = append(paged, h.RunID)
			}
			if q.Cursor = r.Cursor; q.Cursor == "" {
				break
			}
		}
		if diff := cmp.Diff([]string{"r2", "r1", "r1", "r1"}, paged); diff != "" {
			t.Errorf("pages (-want +got):\n%s", diff)
		}
		for _, q := range []wire.SearchRequest{{}, {Text: " - * "}, {Text: "-a"}, {Text: "a", Limit: 501}, {Text: "a", Type: "x"}, {Text: "a", Cursor: "x"}, {Text: "a", Cursor: "5.01234567"}} {
			if _, err := s.Answers.Search(t.Context(), q, now, 1<<20); codeOf(err) != wire.CodeBadRequest {
				t.Errorf("%+v: got %v", q, err)
			}
		}
		if v, err := s.Checker.Verify(t.Context(), ""); err != nil || len(v.Damages) > 0 {
			t.Errorf("verify: %+v, %v", v.Damages, err)
		}
	}
}

// storeAndIndex records everything on the tape in batches, and takes each into the
// full text at once.
func (p *tape) storeAndIndex(s *recorder.Store, size int) {
	p.t.Helper()
	for rest := range slices.Chunk(p.entries, size) {
		if _, err := s.Index.Record(p.t.Context(), recorder.Batch{Incarnation: incarnation, Entries: rest}); err != nil {
			p.t.Fatal(err)
		}
		indexed(p.t, s)
	}
}

// indexed takes what is recorded into the full text.
func indexed(t testing.TB, s *recorder.Store) {
	t.Helper()
	for more, err := true, error(nil); more; {
		if more, err = s.Index.IndexLines(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// The full text may be behind, says so, and is the same in the end whenever lines
// got there.
func TestTheFullTextLags(t *testing.T) {
	if os.Getenv(testPostgres) != "" {
		t.Log("the full text is an index there, which never lags")
		return
	}
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	p.add("r1", "coder", exec, &wire.AgentText{Content: "the first needle"})
	p.add("r1", "coder", exec, &wire.AgentTextDelta{Content: "a needle that ", Block: 1})
	p.add("r1", "coder", exec, &wire.AgentTextDelta{Content: "grows", Block: 1})
	p.add("r1", "coder", exec, &wire.AgentTextDelta{Content: "another needle", Block: 2})
	p.add("r1", "coder", exec, &wire.AgentTextDelta{Content: " and late words", Block: 1})
	for i := range 5000 {
		p.add("r1", "coder", exec, &wire.AgentThinking{Content: fmt.Sprintf("hay %d", i)})
	}
	p.add("r1", "coder", exec, &wire.AgentText{Content: "the last needle"})
	needles := func(s *recorder.Store) (hits int, through uint64) {
		t.Helper()
		r, err := s.Answers.Search(t.Context(), wire.SearchRequest{Text: "needle"}, time.UnixMilli(p.clock), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		return len(r.Hits), r.Through
	}
	path := newTarget(t)
	s := openAt(t, path)
	p.store(s, 1000)
	if hits, through := needles(s); hits != 0 || through != 0 {
		t.Errorf("before anything is indexed: %d hits, through %d", hits, through)
	}
	if more, err := s.Index.IndexLines(t.Context()); err != nil || !more {
		t.Fatalf("indexed: more %t, %v", more, err)
	}
	if hits, through := needles(s); hits != 3 || through < 1000 || through > 4000 {
		t.Errorf("after a while: %d hits, through %d", hits, through)
	}
	closed(t, s)
	s = openAt(t, path) // as after a crash
	indexed(t, s)
	if hits, through := needles(s); hits != 4 || through != 0 {
		t.Errorf("in the end: %d hits, through %d", hits, through)
	}
	closed(t, s)
	at := []string{path}
	for _, size := range []int{3, 1000} {
		other := newTarget(t)
		s := openAt(t, other)
		p.storeAndIndex(s, size)
		closed(t, s)
		at = append(at, other)
	}
	for _, path := range at {
		db := openDB(t, path)
		if _, err := db.Exec(`INSERT INTO lines_fts (lines_fts, rank) VALUES ('integrity-check', 1)`); err != nil {
			t.Errorf("the full text isn't that of the lines: %v", err)
		}
		if got := rowsOf(t, db, `SELECT count(*) AS n FROM lines_fts WHERE lines_fts MATCH 'late'`); len(got) != 1 || strings.TrimSpace(got[0]) != "n=1" {
			t.Errorf("late words: %q", got)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Words of any language are found, in whatever case, also where the locale of the database knows ASCII alone, and beside signs.
func TestSearchOfLanguages(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	p.add("r1", "coder", exec, &wire.AgentText{Content: "ПРИВЕТ Мир Ёлка ΑΘΗΝΑ ΣΊΣΥΦΟΣ →arrow ✓check 中文，测试。हिन्दी Zürich µ snake_case שָׁלוֹם"})
	s := openStore(t)
	p.storeAndIndex(s, 100)
	for _, text := range []string{
		"привет", "ПРИВЕТ", "Мир", "мир", "ёлка", "αθηνα", "ΣΊΣΥΦΟΣ", "σίσυφος", "arrow", "check", "中文", "测试", "हिन्दी", "zurich", "ZÜRICH", "µ", "snake_case", "שָׁלוֹם", "при*",
	} {
		r, err := s.Answers.Search(t.Context(), wire.SearchRequest{Text: text}, time.UnixMilli(p.clock), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Hits) != 1 || len(r.Hits[0].Matches) == 0 {
			t.Errorf("%s: %+v", text, r.Hits)
		}
	}
}

// A search finds what was recorded before it was asked.
func TestSearchFindsWhatWasRecorded(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		p.record(recorder.Config{})
		w := p.claim("r1", "coder")
		for i := range 3 {
			p.until(p.write(w, text(fmt.Sprintf("word%d", i))))
			<-time.After(time.Duration(i) * time.Second)
			r, err := api.Call[wire.SearchResponse](t.Context(), p.nc, subjects.Default, wire.VerbSearch, wire.SearchRequest{Text: fmt.Sprintf("word%d", i)})
			if err != nil || len(r.Hits) != 1 || r.Through != 0 {
				t.Errorf("got %+v, %v", r, err)
			}
		}
	})
}

// places are hits without their snippets.
func places(hits []string) []string {
	for i, h := range hits {
		hits[i], _, _ = strings.Cut(h, ": ")
	}
	return hits
}

func TestStats(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", map[string]string{"team": "blue"})
	usage := func(run, node, id, model string, in, out int64) {
		p.add(run, node, node+"#1", &wire.Usage{MessageID: id, Model: model, InputTokens: in, OutputTokens: out, CacheReadInputTokens: new(int64(10))})
	}
	usage("r1", "coder", "m1", "opus", 100, 5)
	usage("r1", "coder", "m1", "opus", 100, 5) // told again
	usage("r1", "coder", "m2", "haiku", 50, 1)
	p.add("r1", "coder", exec, &wire.TurnEnd{TurnCostUsd: new(0.4), TotalCostUsd: new(0.4), ModelUsage: map[string]wire.ModelUsage{"opus[1m]": {CostUsd: new(0.3)}, "haiku": {CostUsd: new(0.1)}}})
	for i := range 10 {
		tool := &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null, DurationMs: new(int64((i + 1) * 100))}
		switch {
		case i == 0:
			tool.Denied, tool.Error, tool.DurationMs = true, "no", nil
		case i < 4:
			tool.Error = "exit code 1"
		}
		p.add("r1", "coder", exec, tool)
	}
	p.add("r1", "coder", exec, &wire.AgentTool{ToolName: "Read", ToolInput: wire.Null, ToolOutput: wire.Null})
	p.clock += 24 * 3_600_000
	p.add("r1", "coder", exec, &wire.TurnEnd{TurnCostUsd: new(0.2), TotalCostUsd: new(0.6)})
	p.add("r1", "coder", exec, &wire.AgentComplete{TotalCostUsd: new(0.7)}) // 0.1 more than its turns
	finish(p, wire.FlowStatusComplete)
	p.start("r2", "judge", nil)
	usage("r2", "judge", "m1", "opus", 1, 1)
	p.add("r2", "judge", "judge#1", &wire.TurnEnd{TurnCostUsd: new(0.05)})
	now := time.UnixMilli(p.clock)
	ask := func(s *recorder.Store, q wire.StatsRequest) wire.StatsResponse {
		t.Helper()
		r, err := s.Answers.Stats(t.Context(), q, now)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, size := range []int{1, 1000} {
		s := openStore(t)
		p.store(s, size)
		got := ask(s, wire.StatsRequest{})
		want := wire.StatsResponse{
			Runs:  wire.RunStats{Runs: 2, ByStatus: map[string]int64{"complete": 1, "running": 1}, P50Ms: 86_423_000, P95Ms: 86_423_000},
			Total: wire.SpendStats{Name: "total", Runs: 2, Calls: 3, TokensIn: 181, TokensOut: 7, CostUsd: 0.75, CostBasis: "reported"},
			Days: []wire.SpendStats{
				{Name: "2026-01-04", Runs: 2, Calls: 1, TokensIn: 11, TokensOut: 1, CostUsd: 0.35, CostBasis: "reported"},
				{Name: "2026-01-03", Runs: 1, Calls: 2, TokensIn: 170, TokensOut: 6, CostUsd: 0.4, CostBasis: "reported"},
			},
			Models: []wire.SpendStats{
				{Name: "opus", Runs: 2, Calls: 2, TokensIn: 121, TokensOut: 6, CostUsd: 0.65, CostBasis: "reported"},
				{Name: "haiku", Runs: 1, Calls: 1, TokensIn: 60, TokensOut: 1, CostUsd: 0.1, CostBasis: "reported"},
			},
			Flows: []wire.SpendStats{{Name: "review", Runs: 2, Calls: 3, TokensIn: 181, TokensOut: 7, CostUsd: 0.75, CostBasis: "reported"}},
			Nodes: []wire.SpendStats{
				{Name: "coder", Runs: 1, Calls: 2, TokensIn: 170, TokensOut: 6, CostUsd: 0.7, CostBasis: "reported"},
				{Name: "judge", Runs: 1, Calls: 1, TokensIn: 11, TokensOut: 1, CostUsd: 0.05, CostBasis: "reported"},
			},
			Tools: []wire.ToolStats{
				{Tool: "Bash", Calls: 10, Failed: 3, Denied: 1, FailureRate: 1. / 3, P50Ms: 600, P95Ms: 960},
				{Tool: "Read", Calls: 1},
			},
		}
		near := cmp.Comparer(func(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 })
		if diff := cmp.Diff(want, got, near); diff != "" {
			t.Errorf("%d at once (-want +got):\n%s", size, diff)
		}
		runs, err := s.Answers.Runs(t.Context(), wire.RunsRequest{}, now, 1<<20)
		if err != nil || len(runs.Runs) != 2 {
			t.Fatal(runs, err)
		}
		for _, r := range runs.Runs {
			if one := ask(s, wire.StatsRequest{Run: r.RunID}); !cmp.Equal(one.Total.CostUsd, r.CostUsd, near) {
				t.Errorf("%s: the parts cost %f, the run %f", r.RunID, one.Total.CostUsd, r.CostUsd)
			} else if one.Total.TokensIn != r.TokensIn || one.Total.TokensOut != r.TokensOut {
				t.Errorf("%s: its parts had %d and %d tokens, the run %d and %d", r.RunID, one.Total.TokensIn, one.Total.TokensOut, r.TokensIn, r.TokensOut)
			}
			st, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: r.RunID}, now, 1<<20)
			if err != nil || st.Agents[0].TokensIn != r.TokensIn || st.Agents[0].TokensOut != r.TokensOut {
				t.Errorf("%s: its agents had %+v, the run %d and %d tokens; %v", r.RunID, st.Agents, r.TokensIn, r.TokensOut, err)
			}
		}
		if r := ask(s, wire.StatsRequest{Since: 600_000}); len(r.Days) != 1 || len(r.Tools) != 0 || r.Runs.Runs != 2 {
			t.Errorf("of the last hour: %+v", r)
		}
		if r := ask(s, wire.StatsRequest{Label: "team=blue", Status: []string{"complete"}}); r.Total.Runs != 1 || len(r.Nodes) != 1 {
			t.Errorf("of a label: %+v", r.Total)
		}
		shared := []wire.SharedBudget{
			{Name: "all", Usd: 9},
			{Name: "blue", Label: "team=blue", Usd: 9},
			{Name: "blue today", Label: "team=blue", Per: "day"},
			{Name: "red", Label: "team=red"},
			{Name: "today", Per: "day"},
		}
		spent, err := s.Answers.Budgets(t.Context(), slices.Clone(shared), now)
		for i, want := range []wire.Spent{{Usd: 0.75, Tokens: 188}, {Usd: 0.7, Tokens: 176}, {Usd: 0.3}, {}, {Usd: 0.35, Tokens: 12}} {
			if shared[i].Spent = want; shared[i].Per != "" {
				shared[i].Day = "2026-01-04"
			}
		}
		if diff := cmp.Diff(shared, spent.Budgets, near); diff != "" || err != nil {
			t.Errorf("budgets (-want +got):\n%s%v", diff, err)
		}
		if _, err := s.Answers.Stats(t.Context(), wire.StatsRequest{Run: "r9"}, now); codeOf(err) != wire.CodeRunNotFound {
			t.Errorf("got %v", err)
		}
	}
}

func TestRunsByWhatTheyDid(t *testing.T) {
	p := fleet(t)
	p.add("busy", "coder", "coder#1", &wire.AgentTool{ToolName: "Bash", ToolInput: wire.Null, ToolOutput: wire.Null})
	p.add("busy", "coder", "coder#1", &wire.TurnEnd{TurnCostUsd: new(0.5)})
	p.add("asks", "coder", "coder#1", &wire.AgentError{ErrorType: "rate_limit", Message: "100%_slow!"})
	p.add("done", "coder", "coder#1", &wire.AgentError{ErrorType: "overloaded", Message: "ÜBERLAST\x00behind NUL"})
	s := openStore(t)
	p.store(s, 9)
	indexed(t, s)
	for _, tt := range []struct {
		q    wire.RunsRequest
		want []string
	}{
		{wire.RunsRequest{Tool: "Bash"}, []string{"busy"}},
		{wire.RunsRequest{Tool: "bash"}, nil},
		{wire.RunsRequest{Error: "WHY"}, []string{"broken"}},
		{wire.RunsRequest{Error: "100%_slow!"}, []string{"asks"}},
		{wire.RunsRequest{Error: "1%w"}, nil},
		{wire.RunsRequest{Error: "überLAST"}, []string{"done"}},
		{wire.RunsRequest{Error: "behind"}, []string{"done"}},
		{wire.RunsRequest{MinCostUsd: 0.5}, []string{"busy"}},
		{wire.RunsRequest{MinCostUsd: 0.51}, nil},
		{wire.RunsRequest{Until: 3_600_000}, []string{"done", "asks", "busy"}},
		{wire.RunsRequest{Until: 3_600_000, Status: []string{"active"}, Tool: "Bash"}, []string{"busy"}},
	} {
		r, err := s.Answers.Runs(t.Context(), tt.q, time.UnixMilli(p.clock), 1<<20)
		var got []string
		for _, x := range r.Runs {
			got = append(got, x.RunID)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("%+v: %v (-want +got):\n%s", tt.q, err, diff)
		}
	}
	hits, err := s.Answers.Search(t.Context(), wire.SearchRequest{Text: "behind"}, time.UnixMilli(p.clock), 1<<20)
	if err != nil || len(hits.Hits) != 1 || !strings.Contains(hits.Hits[0].Snippet, "ÜBERLAST\u2400behind NUL") {
		t.Errorf("a text with NUL is found as %+v, %v", hits.Hits, err)
	}
}
