package recorder_test

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// Each column of runs is derived from something, and is in the list of runs, or
// there is a reason why not.
func TestColumnsOfRuns(t *testing.T) {
	path := recorded(t, filepath.Join(t.TempDir(), "recorder.db"), func(p *tape) {
		p.add("r4", wire.RunNode, "", &wire.RunClaimed{Runner: "runner", Nonce: "n"})
		p.add("r4", wire.RunNode, "", &wire.FlowStart{FlowName: "f", Definition: wire.Null, DefinitionHash: "h", ParentRun: "r1", Imported: "elsewhere"})
		p.add("r4", wire.RunNode, "", &wire.FlowComplete{FlowName: "f", Status: wire.FlowStatusFailed, Error: "it failed"})
		p.add("r2", "judge", "judge#1", &wire.SessionCompared{Verdict: "complete"})
		p.add("r2", "judge", "judge#1", &wire.Usage{MessageID: "computed", InputTokens: 1, CostUsd: new(0.5), CostSource: wire.PricesOptions})
		p.seqs["r2/"+wire.RunNode]++ // one is missing
		p.add("r2", wire.RunNode, "", &wire.FlowAborted{Reason: "enough"})
	})
	s := openAt(t, path)
	defer closed(t, s)
	db := openDB(t, path)
	defer db.Close()
	db.SetMaxOpenConns(1) // it has the temporary table
	listed := func() wire.RunsResponse {
		r, err := s.Answers.Runs(t.Context(), wire.RunsRequest{}, time.UnixMilli(0), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	apart := []string{"activity_at", "refused", "lines", "last_pos", "state_pos", "head", "segments", "tail_events", "tail_bytes", "derivation"} // of status and log, or the recorder's own
	for _, c := range table.All().Named("runs").Columns {
		t.Run(c.Name, func(t *testing.T) {
			set := ""
			if err := db.QueryRow(`SELECT coalesce(max(CASE WHEN CAST(` + c.Name + ` AS TEXT) IN ('', '0', '0.0') THEN '' ELSE 'set' END), '') FROM runs`).Scan(&set); err != nil || set == "" {
				t.Errorf("nothing sets it: %v", err)
			}
			if c.Number || slices.Contains(apart, c.Name) {
				return
			}
			before := listed()
			value := any(int64(90_000_000))
			switch c.Type {
			case reflect.String:
				value = "another"
			case reflect.Float64:
				value = 0.125
			}
			mustExec(t, db, fmt.Sprintf(`CREATE TEMP TABLE kept AS SELECT id, %[1]s FROM runs`, c.Name))
			mustExec(t, db, fmt.Sprintf(`UPDATE runs SET %s = ?1 WHERE run = 'r4'`, c.Name), value) // of whose cost nothing is known
			if diff := cmp.Diff(before, listed()); diff == "" {
				t.Error("the list of runs doesn't have it")
			}
			mustExec(t, db, fmt.Sprintf(`UPDATE runs SET %[1]s = (SELECT kept.%[1]s FROM kept WHERE kept.id = runs.id)`, c.Name))
			mustExec(t, db, `DROP TABLE kept`)
		})
	}
	if v, err := s.Checker.Verify(t.Context(), ""); err != nil || len(v.Damages) > 0 {
		t.Errorf("%v, %v", err, v.Damages)
	}
}
