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

	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/pkg/wire"
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
			if res.Format == ingest.StreamJSON || res.Format == ingest.Transcript { // the others' lines spent doesn't know
				spent(t, file, state.Usage)
			}
		})
		return nil
	})
	if err != nil || files < 150 {
		t.Fatalf("%d recordings, %v", files, err)
	}
	t.Logf("%d recordings, %d events", files, events)
}

// spent requires that tokens and cost are what the recording's own totals say, where it has any,
// and else the sum of its messages, each once with what was last said of it.
func spent(t *testing.T, file string, got wire.UsageTotals) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	type tokens struct {
		In      int64 `json:"input_tokens"`
		Out     int64 `json:"output_tokens"`
		Created int64 `json:"cache_creation_input_tokens"`
		Read    int64 `json:"cache_read_input_tokens"`
	}
	type model struct {
		InputTokens, OutputTokens, CacheReadInputTokens, CacheCreationInputTokens int64
		CostUSD                                                                   float64
	}
	var in, out int64
	var cost float64
	add := func(m model, sign int64) {
		in += sign * (m.InputTokens + m.CacheReadInputTokens + m.CacheCreationInputTokens)
		out += sign * m.OutputTokens
		cost += float64(sign) * m.CostUSD
	}
	messages, before, settled := map[string]tokens{}, map[string]model{}, false
	for line := range bytes.Lines(data) {
		var m struct {
			Type    string
			Model   map[string]model `json:"modelUsage"`
			Since   map[string]model `json:"model_usage_since_last_result"`
			Message struct {
				ID, Model string
				Usage     *tokens
			}
		}
		if json.Unmarshal(line, &m) != nil {
			continue
		}
		switch {
		case m.Type == "assistant" && m.Message.ID != "" && m.Message.Usage != nil && m.Message.Model != "<synthetic>":
			messages[m.Message.ID] = *m.Message.Usage
		case m.Type == "result" && m.Since != nil:
			settled = true
			for _, u := range m.Since {
				add(u, 1)
			}
		case (m.Type == "result" || m.Type == "cost-state") && len(m.Model) > 0:
			settled = true
			for name, u := range m.Model {
				add(before[name], -1)
				add(u, 1)
			}
			before = m.Model
		}
	}
	if !settled {
		for _, u := range messages {
			in, out = in+u.In+u.Created+u.Read, out+u.Out
		}
	}
	if sum := got.InputTokens + got.CacheCreationInputTokens + got.CacheReadInputTokens; sum != in {
		t.Errorf("%d tokens in, the recording says %d (totals: %t)", sum, in, settled)
	}
	if got.OutputTokens != out && settled {
		t.Errorf("%d tokens out, the recording says %d", got.OutputTokens, out)
	} else if got.OutputTokens != out {
		t.Logf("%d tokens out, the last lines of its messages say %d", got.OutputTokens, out)
	}
	if diff := got.CostUsd - cost; settled && (diff > 1e-9 || diff < -1e-9) {
		t.Errorf("costs $%f, its results say $%f", got.CostUsd, cost)
	}
}
