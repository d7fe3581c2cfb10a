//go:build shareddata

package ingest_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"wake/internal/ingest"
	"wake/pkg/wire"
)

// TestSharedData makes a run of every recording: it folds without a complaint
// and has ended, whatever is in it.
func TestSharedData(t *testing.T) {
	root := os.Getenv("WAKE_SHARED_DATA")
	if root == "" {
		root = "../../../shared/data"
	}
	log := openLog(t)
	files, events := 0, 0
	err := filepath.WalkDir(root, func(file string, _ fs.DirEntry, err error) error {
		if ext := filepath.Ext(file); err != nil || ext != ".jsonl" && ext != ".ndjson" && ext != ".traj" {
			return err
		}
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		name, _ := filepath.Rel(root, file)
		files++
		t.Run(name, func(t *testing.T) {
			id := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(name, "-")
			res, err := ingest.Run(t.Context(), log, f, ingest.Options{RunID: id, Runner: "test"})
			if err != nil {
				t.Fatal(err)
			}
			events += res.Events
			state, _ := fold(t, log, id)
			if state.Status != wire.RunComplete || len(state.Tools) > 0 || state.VoidEvents > 0 {
				t.Errorf("run is %s, %d calls open, %d events void", state.Status, len(state.Tools), state.VoidEvents)
			}
			spent(t, file, state.Usage)
		})
		return nil
	})
	if err != nil || files < 150 {
		t.Fatalf("%d recordings, %v", files, err)
	}
	t.Logf("%d recordings, %d events", files, events)
}

// spent requires that tokens and cost are those of the recording: each message
// once, and of totals that go on what each adds.
func spent(t *testing.T, file string, got wire.UsageTotals) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	type tokens struct {
		In      int64 `json:"input_tokens"`
		Created int64 `json:"cache_creation_input_tokens"`
		Read    int64 `json:"cache_read_input_tokens"`
	}
	messages := map[string]tokens{}
	var cost, total float64
	for line := range bytes.Lines(data) {
		var m struct {
			Type    string
			Total   *float64                             `json:"total_cost_usd"`
			Since   map[string]struct{ CostUSD float64 } `json:"model_usage_since_last_result"`
			Message struct {
				ID    string
				Usage *tokens
			}
		}
		if json.Unmarshal(line, &m) != nil {
			continue
		}
		switch {
		case m.Type == "assistant" && m.Message.ID != "" && m.Message.Usage != nil:
			messages[m.Message.ID] = *m.Message.Usage
		case m.Type == "result" && m.Since != nil:
			for _, u := range m.Since {
				cost += u.CostUSD
			}
		case m.Type == "result" && m.Total != nil:
			if *m.Total < total {
				total = 0
			}
			cost += *m.Total - total
			total = *m.Total
		}
	}
	var in int64
	for _, u := range messages {
		in += u.In + u.Created + u.Read
	}
	if sum := got.InputTokens + got.CacheCreationInputTokens + got.CacheReadInputTokens; sum != in {
		t.Errorf("%d tokens in, its %d messages had %d", sum, len(messages), in)
	}
	if diff := got.CostUsd - cost; cost > 0 && (diff > 1e-9 || diff < -1e-9) {
		t.Errorf("costs $%f, its results say $%f", got.CostUsd, cost)
	}
}
