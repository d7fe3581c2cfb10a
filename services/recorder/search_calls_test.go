package recorder_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// What calls were given and answered is found, also if they succeeded, and also after
// everything is derived again.
func TestSearchFindsCalls(t *testing.T) {
	log, p := logtest.Start(t), newTape(t)
	for _, id := range []string{"gitbuild", "tools"} {
		f, err := os.Open(filepath.Join("../../internal/agent/claude/testdata/stream", id+".jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = ingest.Run(t.Context(), log, f, ingest.Options{RunID: id, Runner: "test"})
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		for e, err := range log.Read(t.Context(), eventlog.Query{Run: id}) {
			if err != nil || e.Err != nil {
				t.Fatal(err, e.Err)
			}
			p.put(e.Event)
		}
	}
	for _, size := range []int{1, 1000} {
		s := openStore(t)
		p.storeAndIndex(s, size)
		findsCalls(t, s, p.clock)
		if err := s.Index.Rebuild(t.Context(), "again", func(int64, int64) {}); err != nil {
			t.Fatal(err)
		}
		findsCalls(t, s, p.clock)
		if v, err := s.Checker.Verify(t.Context(), ""); err != nil || len(v.Damages) > 0 {
			t.Errorf("verify: %+v, %v", v.Damages, err)
		}
	}
}

func findsCalls(t *testing.T, s *recorder.Store, clock int64) {
	t.Helper()
	now := time.UnixMilli(clock)
	for q, want := range map[string]string{
		`"1 insertion"`:           "gitbuild/tool",
		`"1 file changed" commit`: "gitbuild/tool",
		`hello print`:             "tools/tool",
	} {
		r, err := s.Answers.Search(t.Context(), wire.SearchRequest{Text: q, Type: wire.LineTool}, now, 1<<20)
		if err != nil || len(r.Hits) == 0 || r.Hits[0].RunID+"/"+string(r.Hits[0].Type) != want || len(r.Hits[0].Matches) == 0 {
			t.Errorf("%s: %+v, %v", q, r, err)
		}
	}
	r, err := s.Answers.Log(t.Context(), wire.LogRequest{Run: "gitbuild", Grep: `\d insertion`, Details: true}, now, 1<<20)
	if err != nil || len(r.Lines) != 1 || r.Lines[0].Type != wire.LineTool || !strings.Contains(r.Lines[0].Found, "1 file changed, 1 insertion(+)") {
		t.Errorf("grep: %+v, %v", r.Lines, err)
	}
}

// Of large inputs and outputs the beginning and the end are found, and answers say
// that they lack the middle.
func TestLargeCallsAreCut(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	hay := strings.Repeat("häy ", 4000) // 20 KB
	output := "first\n" + hay + "middle\n" + hay + "last"
	list := []any{map[string]any{"type": "text", "text": "answered"}, map[string]any{"type": "image", "source": map[string]any{"type": "base64", "data": "picture"}}}
	p.add("r1", "coder", exec, &wire.AgentTool{ToolName: "Read", ToolInput: mustRaw(t, map[string]any{"file_path": "/a", "old": "x\ny", "n": 7}), ToolOutput: wire.RawString(output)})
	p.add("r1", "coder", exec, &wire.AgentTool{ToolName: "Bash", ToolInput: mustRaw(t, map[string]any{"command": "make"}), ToolOutput: mustRaw(t, list)})
	p.add("r1", "coder", exec, &wire.AgentText{Content: "No call."})
	now := time.UnixMilli(p.clock)
	for _, held := range []int{0, 100} {
		s := openStore(t)
		s.Answers.HoldLive(held)
		p.storeAndIndex(s, 100)
		got := map[string]string{}
		for _, word := range []string{"first", "middle", "last", "answered", "picture", "call", "y", "7", "make"} {
			found, err := s.Answers.Search(t.Context(), wire.SearchRequest{Text: word}, now, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			page, err := s.Answers.Log(t.Context(), wire.LogRequest{Run: "r1", Grep: `(?m)^` + word + `|: ` + word + `|no ` + word, Details: true}, now, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			excerpt := ""
			for _, l := range page.Lines {
				excerpt = l.Found
			}
			got[word] = fmt.Sprintf("%d of %d, %d of %d, %.20s", len(found.Hits), found.Cut, len(page.Lines), page.Cut, excerpt)
		}
		want := map[string]string{
			"first": "1 of 1, 1 of 1, first", "middle": "0 of 1, 0 of 1, ", "last": "1 of 1, 0 of 1, ", "answered": "1 of 1, 1 of 1, answered",
			"picture": "0 of 1, 0 of 1, ", "call": "1 of 1, 1 of 1, ", "y": "1 of 1, 1 of 1, y", "7": "1 of 1, 1 of 1, n: 7", "make": "1 of 1, 1 of 1, ",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d lines held (-want +got):\n%s", held, diff)
		}
	}
}
