//go:build shareddata

package recorder_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
	"code.wake.dev/wake/services/recorder/archive"
)

func sharedFiles(t testing.TB) (files []string) {
	t.Helper()
	root := os.Getenv("WAKE_SHARED_DATA")
	if root == "" {
		root = "../../../shared/data"
	}
	err := filepath.WalkDir(root, func(file string, _ fs.DirEntry, err error) error {
		if ext := filepath.Ext(file); err == nil && (ext == ".jsonl" || ext == ".ndjson" || ext == ".traj") {
			files = append(files, file)
		}
		return err
	})
	if err != nil || len(files) < 150 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	return files
}

// TestSharedDataSpending is [TestSpendingAgrees] of all recordings, and holds each place to what [countLines] finds in
// the lines themselves, too.
func TestSharedDataSpending(t *testing.T) {
	files := sharedFiles(t)
	runs, s, target := ingested(t, files)
	if told := checkSpending(t, files, runs, s, target); told < 50 {
		t.Errorf("%d of them cost anything", told)
	}
	var all counted
	var turns int64
	for i, file := range files {
		t.Run("turns of "+filepath.Base(file), func(t *testing.T) {
			id := fmt.Sprintf("r%d", i)
			turns += checkNumbers(t, s, id, runs[id]).Turns
		})
		if regexp.MustCompile(`codex|gemini|opencode`).MatchString(filepath.Base(file)) { // countLines knows lines of Claude Code
			continue
		}
		id := fmt.Sprintf("r%d", i)
		t.Run("lines of "+filepath.Base(file), func(t *testing.T) {
			want := countLines(t, file)
			all.calls, all.spawns, all.text, all.in = all.calls+want.calls, all.spawns+want.spawns, all.text+want.text, all.in+want.in
			checkCounted(t, want, runs[id], s, target, id)
		})
	}
	t.Logf("%+v, %d turns", all, turns)
	if turns < 500 || all.calls < 450 || all.spawns < 20 || all.text < 100_000 || all.in < 20_000_000 {
		t.Errorf("%+v are no test", all)
	}
}

// counted is what the lines of a recording tell.
type counted struct {
	calls, failed int64 // calls, and those of them that have failed or have no answer
	spawns        int64 // sub-agents that were begun
	text          int   // bytes that were said, thoughts left out
	in, out       int64
	usd           float64
	totals        bool // tokens and cost are those of its results
}

// countLines counts without the code that makes events of lines: each call by its id, each message's usage once with what
// was last said of it, unless results have totals.
func countLines(t *testing.T, file string) (n counted) {
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
	type line struct {
		Type    string
		Failed  bool `json:"isApiErrorMessage"`
		Error   json.RawMessage
		At      string           `json:"timestamp"`
		Model   map[string]model `json:"modelUsage"`
		Since   map[string]model `json:"model_usage_since_last_result"`
		Message struct {
			ID, Model string
			Usage     *tokens
			Content   json.RawMessage
		}
	}
	add := func(m model, sign int64) {
		n.totals = true
		n.in += sign * (m.InputTokens + m.CacheReadInputTokens + m.CacheCreationInputTokens)
		n.out += sign * m.OutputTokens
		n.usd += float64(sign) * m.CostUSD
	}
	messages, before := map[string]tokens{}, map[string]model{}
	type said struct{ message, at, text string }
	told := map[said]bool{}
	tools, answered, failed := map[string]string{}, map[string]bool{}, map[string]bool{}
	for text := range bytes.Lines(data) {
		var l line
		if json.Unmarshal(text, &l) != nil {
			continue
		}
		speaks := l.Type == "assistant" && !l.Failed && l.Error == nil // what the program says of an error is an error
		if l.Type == "assistant" && l.Message.Model != "<synthetic>" && l.Message.ID != "" && l.Message.Usage != nil {
			messages[l.Message.ID] = *l.Message.Usage
		}
		for _, u := range l.Since {
			add(u, 1)
		}
		if l.Since == nil && len(l.Model) > 0 && (l.Type == "result" || l.Type == "cost-state") {
			for name, u := range l.Model {
				add(before[name], -1)
				add(u, 1)
			}
			before = l.Model
		}
		var blocks []struct {
			Type, ID, Name, Text string
			For                  string `json:"tool_use_id"`
			Failed               bool   `json:"is_error"`
		}
		_ = json.Unmarshal(l.Message.Content, &blocks) // a text alone has none
		for _, b := range blocks {
			switch {
			case speaks && b.Type == "text" && (l.At == "" || !told[said{l.Message.ID, l.At, b.Text}]):
				told[said{l.Message.ID, l.At, b.Text}] = true // which a file that was rewritten has twice
				n.text += len(b.Text)
			case l.Type == "assistant" && b.Type == "tool_use":
				tools[b.ID] = b.Name
			case l.Type == "user" && b.Type == "tool_result": // of a call whose line is broken, too
				answered[b.For] = true
				failed[b.For] = failed[b.For] || b.Failed
				if _, known := tools[b.For]; !known {
					tools[b.For] = ""
				}
			}
		}
	}
	for id, name := range tools {
		n.calls++
		if failed[id] || !answered[id] {
			n.failed++
		}
		if name == "Task" || name == "Agent" {
			n.spawns++
		}
	}
	if !n.totals {
		for _, u := range messages {
			n.in, n.out = n.in+u.In+u.Created+u.Read, n.out+u.Out
		}
	}
	return n
}

// checkCounted requires that all places show what the lines tell.
func checkCounted(t *testing.T, want counted, log []eventlog.Entry, s *recorder.Store, target, id string) {
	t.Helper()
	status, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: id}, time.Now(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	stats, err := s.Answers.Stats(t.Context(), wire.StatsRequest{Run: id}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var page strings.Builder
	if _, err := export.HTML(&page, export.Run{ID: id}, entriesOf(log)); err != nil {
		t.Fatal(err)
	}
	var failed, spawned, table int64
	for _, tool := range stats.Tools {
		failed += tool.Failed + tool.Denied
		if tool.Tool == "Task" || tool.Tool == "Agent" {
			spawned += tool.Calls
		}
	}
	db := openDB(t, target)
	defer func() { _ = db.Close() }()
	if err := db.QueryRow(fmt.Sprintf(`SELECT count(*) FROM tool_calls c JOIN runs r ON r.id = c.run WHERE r.run = '%s'`, id)).Scan(&table); err != nil {
		t.Fatal(err)
	}
	for place, calls := range map[string]int64{
		"state": inState(t, log).Calls, "status": status.ToolsUsed, "stats": inStats(t, s, id, 0).Calls, "SQLite": table,
		"KAHN": inKAHN(t, log, 0).Calls, "OTLP": inOTLP(t, id, log).Calls, "HTML": countOnCard(t, page.String(), "tool calls"),
	} {
		if calls != want.calls {
			t.Errorf("%s has %d calls, the lines %d", place, calls, want.calls)
		}
	}
	if failed != want.failed || spawned != want.spawns {
		t.Errorf("%d failed calls and %d spawns, of the lines %d and %d", failed, spawned, want.failed, want.spawns)
	}
	if text := textOf(log); text != want.text {
		t.Errorf("%d bytes of text, in the lines %d", text, want.text)
	}
	got := spentInState(t, log)
	if got.In != want.in || want.totals && (got.Out != want.out || math.Abs(got.Usd-want.usd) > 1e-9) {
		t.Errorf("spent %+v, of the lines %+v", got, want)
	}
}

func textOf(log []eventlog.Entry) (n int) {
	for _, e := range log {
		switch p := e.Event.Payload.(type) {
		case *wire.AgentText:
			n += len(p.Content)
		case *wire.AgentTextDelta:
			n += len(p.Content)
		}
	}
	return n
}

// BenchmarkSharedData records all recordings, and takes their lines into the full text. Then it weighs the events where they are at
// rest, and unpacks them.
func BenchmarkSharedData(b *testing.B) {
	runs, _, _ := ingested(b, sharedFiles(b))
	p := newTape(b)
	for i := range len(runs) {
		for _, e := range runs[fmt.Sprintf("r%d", i)] {
			p.put(e.Event)
		}
	}
	var size int64
	var target string
	b.ResetTimer()
	for b.Loop() {
		b.StopTimer()
		target = newTarget(b)
		s := openAt(b, target)
		b.StartTimer()
		p.store(s, 1000)
		indexed(b, s)
		b.StopTimer()
		closed(b, s)
		if info, err := os.Stat(target); err == nil {
			size = info.Size()
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(len(p.entries)*b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(size)/float64(len(p.entries)), "B/event")
	b.StopTimer()
	weighAtRest(b, target, p.entries)
}

// weighAtRest reports what events take in segments and tails, as a part of their JSON, and how much of the time of decoding them it takes to
// unpack them.
func weighAtRest(b *testing.B, target string, events []eventlog.Entry) {
	text := 0
	for _, e := range events {
		line, err := wire.EncodeJSON(e.Event)
		if err != nil {
			b.Fatal(err)
		}
		text += len(line) + 1
	}
	db := openDB(b, target)
	defer func() { _ = db.Close() }()
	var packed, loose, few int
	if err := db.QueryRow(`SELECT (SELECT sum(length(data)) FROM segments), (SELECT coalesce(sum(length(data) + length(hash)), 0) FROM tail),
		(SELECT count(*) FROM segments WHERE events < 100)`).Scan(&packed, &loose, &few); err != nil {
		b.Fatal(err)
	}
	codec, err := archive.NewCodec()
	if err != nil {
		b.Fatal(err)
	}
	rows, err := db.Query(`SELECT codec, data FROM segments`)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	var unpacking, decoding time.Duration
	for rows.Next() {
		var kind int
		var data []byte
		if err := rows.Scan(&kind, &data); err != nil {
			b.Fatal(err)
		}
		for range 10 {
			began := time.Now()
			list, err := codec.Unpack(nil, kind, data)
			unpacked := time.Now()
			for i := range list {
				if _, err := wire.Decode(list[i].Data); err != nil {
					b.Fatal(err)
				}
			}
			if err != nil {
				b.Fatal(err)
			}
			unpacking, decoding = unpacking+unpacked.Sub(began), decoding+time.Since(unpacked)
		}
	}
	if err := rows.Err(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(packed+loose)/float64(text), "of-JSON")
	b.ReportMetric(float64(few), "small-segments")
	b.ReportMetric(float64(unpacking)/float64(decoding), "of-decoding")
}

// What sessions of agents look like is in the dictionary, so that short ones are packed well, too: those that it was made of,
// and those of others, of which it has nothing.
func TestSharedDataDictionary(t *testing.T) {
	var made, others []string
	for _, file := range sharedFiles(t) {
		if strings.Contains(file, "third-party") {
			others = append(others, file)
		} else {
			made = append(made, file)
		}
	}
	samples, part := packedFrames(t, made)
	if *updateDerivation {
		if err := os.WriteFile("archive/dictionary.zdict", findCommon(samples, 64<<10), 0o644); err != nil { // a part of the program
			t.Fatal(err)
		}
		return
	}
	_, ofOthers := packedFrames(t, others)
	t.Logf("of JSON: %.4f, of others' sessions %.4f", part, ofOthers)
	if part > 0.15 || ofOthers > 0.12 {
		t.Errorf("%.4f of their JSON, others' sessions %.4f", part, ofOthers)
	}
}

// No other session has ids, hashes and data; and paths and sentences are those of the agents' makers and users, and no part of wake.
const uncommonTexts = "[A-Za-z'`,.;:()*-]+( [A-Za-z'`,.;:()*/-]+){3,}|" + `(/[A-Za-z0-9_.-]+){2,}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{64}|[a-z]+_[0-9A-Za-z]{12,40}|[A-Z2-7]{26}|[0-9A-Za-z+/]{100,}`

// packedFrames returns what is packed in the segments of recordings, at most 128 KiB of each without what is uncommon, and which part of the
// events' JSON the segments take.
func packedFrames(t *testing.T, files []string) (frames [][]byte, part float64) {
	runs, _, target := ingested(t, files)
	codec, err := archive.NewCodec()
	if err != nil {
		t.Fatal(err)
	}
	db := openDB(t, target)
	defer func() { _ = db.Close() }()
	rows, err := db.Query(`SELECT data FROM segments`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	uncommon, packed, text := regexp.MustCompile(uncommonTexts), 0, 0
	for rows.Next() {
		var data []byte
		if err := rows.Scan(&data); err != nil {
			t.Fatal(err)
		}
		frame, err := codec.Dec.DecodeAll(data, nil)
		if err != nil {
			t.Fatal(err)
		}
		packed += len(data)
		frames = append(frames, uncommon.ReplaceAllLiteral(frame[:min(len(frame), 128<<10)], nil))
	}
	for _, entries := range runs {
		for _, e := range entries {
			line, err := wire.EncodeJSON(e.Event)
			if err != nil {
				t.Fatal(err)
			}
			text += len(line) + 1
		}
	}
	return frames, float64(packed) / float64(text)
}

// findCommon returns so many bytes of what at least three samples have in common, what most of them have last: a match is
// the cheaper the nearer it is.
func findCommon(samples [][]byte, size int) (common []byte) {
	const width = 8 // what is looked for is longer than twice that
	count, last := map[string]int{}, map[string]int{}
	for i, s := range samples {
		for at := range len(s) - width {
			if k := string(s[at : at+width]); last[k] != i+1 {
				count[k]++
				last[k] = i + 1
			}
		}
	}
	for least := len(samples); least >= 3 && len(common) < size; least = min(least-1, least*3/4) {
		for _, s := range samples {
			for at := 0; at+width < len(s); at++ {
				end := at
				for end+width < len(s) && count[string(s[end:end+width])] >= least {
					end++
				}
				if end-at > width {
					piece := s[at : end+width-1]
					for k := range len(piece) - width + 1 {
						delete(count, string(piece[k:k+width])) // once is enough
					}
					if !bytes.ContainsAny(piece, "`$()") { // code
						common = append(bytes.Clone(piece), common...)
					}
				}
				at = end
			}
		}
	}
	return common[max(0, len(common)-size):]
}
