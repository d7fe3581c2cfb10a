package alerter_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/alerter"
)

// A compaction empties the context: what the message before it had used is no news behind it,
// and the levels are told again as it fills up anew. A transcript, and a stream without partial
// messages, tell a message's usage with each of its lines, and nothing says which is the last.
func TestCompactionRearms(t *testing.T) {
	for name, format := range map[string]claude.Format{"stream": claude.Stream, "transcript": claude.Transcript} {
		t.Run(name, func(t *testing.T) {
			got := contextAlerts(normalize(format, compactedTwice(format)))
			if d := cmp.Diff([]string{"50 at 60%", "75 at 83%", "50 at 55%", "50 at 61%"}, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// A log that was recorded when the usage of the message before a compaction came behind it
// raises no alert by that.
func TestUsageBehindItsCompaction(t *testing.T) {
	usage := func(id string, tokens int64) wire.Payload {
		return &wire.Usage{MessageID: id, Model: "m", InputTokens: tokens, ContextTokens: tokens, ContextWindow: 100}
	}
	var entries []eventlog.Entry
	for _, x := range []struct {
		turn int
		p    wire.Payload
	}{
		{1, usage("a", 60)}, {2, &wire.Compaction{Trigger: "auto"}}, {2, usage("b", 83)}, {3, usage("c", 20)}, {4, usage("d", 55)},
	} {
		entries = logged(entries, &wire.Event{Turn: x.turn, Timestamp: begin0.UnixMilli(), Payload: x.p})
	}
	if d := cmp.Diff([]string{"50 at 60%", "50 at 55%"}, contextAlerts(entries)); d != "" {
		t.Error(d)
	}
}

// compactedTwice are the lines of an agent whose context is compacted twice.
func compactedTwice(format claude.Format) []string {
	var lines []string
	add := func(kind, rest string) {
		lines = append(lines, fmt.Sprintf(`{"type":%q,"uuid":"u%d","session_id":"s1","timestamp":"2026-01-01T00:00:%02dZ",%s}`, kind, len(lines), len(lines), rest))
	}
	if format == claude.Stream {
		add("system", `"subtype":"init","model":"claude-sonnet-4-5","tools":[]`)
	}
	add("user", `"message":{"role":"user","content":"go"}`)
	for i, tokens := range []int{60, 83, 0, 20, 55, 0, 61} {
		if tokens == 0 {
			add("system", `"subtype":"compact_boundary","compact_metadata":{"trigger":"auto","pre_tokens":166000},"compactMetadata":{"trigger":"auto","preTokens":166000}`)
			continue
		}
		for range 2 { // a line per block
			add("assistant", fmt.Sprintf(`"message":{"id":"msg_%d","role":"assistant","model":"claude-sonnet-4-5",`+
				`"content":[{"type":"text","text":"x"}],"usage":{"input_tokens":%d,"output_tokens":3}}`, i, tokens*2000))
		}
	}
	return lines
}

// normalize returns what the lines are in a log.
func normalize(format claude.Format, lines []string) []eventlog.Entry {
	n := claude.NewNormalizer(claude.NormalizerOptions{Format: format})
	now := begin0.UnixMilli()
	var entries []eventlog.Entry
	for _, line := range lines {
		entries = logged(entries, n.Line(now, []byte(line))...)
	}
	return logged(entries, n.Finish(now, claude.Exit{Unknown: true})...)
}

// logged appends events of an agent to a log.
func logged(entries []eventlog.Entry, events ...*wire.Event) []eventlog.Entry {
	for _, e := range events {
		e.RunID, e.NodeID, e.ExecID, e.Epoch, e.Seq = "r1", "agent", "agent#1", 1, uint64(len(entries)+1)
		entries = append(entries, eventlog.Entry{Pos: e.Seq, Time: time.UnixMilli(e.Timestamp), RunID: "r1", NodeID: "agent", Kind: e.Type().Kind(), Event: e})
	}
	return entries
}

// contextAlerts are the alerts about a full context, as level and percent.
func contextAlerts(entries []eventlog.Entry) []string {
	var got []string
	for _, a := range alerter.Backtest(alerter.Defaults(), entries) {
		if a.Kind != "context_pressure" {
			continue
		}
		level := a.Key[strings.LastIndex(a.Key, "-")+1:]
		_, text, _ := strings.Cut(a.Text, "Context at ")
		percent, _, _ := strings.Cut(text, " ")
		got = append(got, level+" at "+percent)
	}
	return got
}
