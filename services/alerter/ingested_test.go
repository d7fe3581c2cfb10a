package alerter_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/alerter"
)

// commitLines are lines of a session file (shared/data/claude-transcripts/gitbuild): a call
// that commits, and a second later what it answered.
const commitLines = `{"isSidechain":false,"message":{"content":[{"id":"toolu_%[1]d","input":{"command":"git commit -am 'fix: part %[1]d'"},"name":"Bash","type":"tool_use"}],"id":"msg_%[1]d","model":"claude-opus-4-8","role":"assistant","stop_reason":"tool_use","type":"message","usage":{"input_tokens":12,"output_tokens":68}},"type":"assistant","uuid":"a%[1]d","timestamp":%[2]q,"sessionId":"15e22f0a-f54d-4d99-a045-1e702ec2373d","version":"2.1.197"}
{"isSidechain":false,"type":"user","message":{"role":"user","content":[{"tool_use_id":"toolu_%[1]d","type":"tool_result","content":"[main d55f49%[1]d] fix: part %[1]d\n 1 file changed","is_error":false}]},"uuid":"u%[1]d","timestamp":%[3]q,"sessionId":"15e22f0a-f54d-4d99-a045-1e702ec2373d","version":"2.1.197"}
`

// A session that was ingested when it was over is told as it was, of its file and of what its program printed, which
// tells the times of what calls have answered: five commits over an hour are five, and a silence of 572 s is one, where
// it isn't a call that may have taken that long.
func TestIngestedTimes(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	var file strings.Builder
	for i := range 5 {
		at := begin.Add(time.Duration(i) * 572 * time.Second)
		fmt.Fprintf(&file, commitLines, i, at.Format(time.RFC3339), at.Add(time.Second).Format(time.RFC3339))
	}
	called := regexp.MustCompile(`"timestamp":"[^"]*",("sessionId":"[^"]*","version":"[^"]*"}\n{"isSidechain":false,"type":"user")`)
	stream := called.ReplaceAllString(file.String(), "$1")
	for format, of := range map[string]struct {
		input string
		stuck int
	}{
		"transcript": {file.String(), 2},
		"stream":     {`{"type":"system","subtype":"init","session_id":"s"}` + "\n" + strings.ReplaceAll(stream, "sessionId", "session_id"), 0},
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			checkIngestedTimes(t, of.input, begin, of.stuck)
		})
	}
}

func checkIngestedTimes(t *testing.T, input string, begin time.Time, stuck int) {
	t.Helper()
	log := logtest.Start(t)
	var out printed
	start(t, log, alerter.Config{Out: &out, Delay: time.Millisecond})
	if _, err := ingest.Run(t.Context(), log, strings.NewReader(input), ingest.Options{RunID: "old", Runner: "test"}); err != nil {
		t.Fatal(err)
	}
	var entries []eventlog.Entry
	for e, err := range log.Read(t.Context(), eventlog.Query{Run: "old"}) {
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	waitRead(t, log, entries[len(entries)-1].Pos)
	for who, list := range map[string][]wire.Alert{
		"backtest": alerter.Backtest(alerter.Defaults(), entries), "alerter": alerts(t, log, "old"),
	} {
		kinds := map[string]int{}
		for _, a := range list {
			kinds[a.Kind]++
			if at := time.UnixMilli(a.Timestamp); at.Before(begin) || at.After(begin.Add(time.Hour)) {
				t.Errorf("%s: %s at %s", who, a.Text, at)
			}
		}
		if kinds["git_commit"] != 5 || kinds["stuck"] != stuck {
			t.Errorf("%s: %v, %q", who, kinds, texts(list))
		}
	}
}
