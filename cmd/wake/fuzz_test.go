package main

import (
	"bytes"
	"maps"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// FuzzScreen shows any text as each kind of line, streamed in two pieces and whole:
// nothing that moves the cursor, hides or reorders text comes to the terminal, and of
// what a person could read nothing is lost.
func FuzzScreen(f *testing.F) {
	for _, s := range []string{
		"plain\ntwo", "\x1b[2J\x1b[1;1Hgone", "a\rb", "\x1b]0;title\x07", "\u202eevil", "\x9b31m", "tab\there", "\xff\xfe", "\x1b", "\x1b\\", "half \x1b[3",
		"é\u0301", "\u200b", "a\u2028b", "", "\n\n", "\x1b]52;c;ZXZpbA==\x1b\\x", "\u0090$q\u009c",
	} {
		f.Add(s, uint16(len(s)/2), "coder")
	}
	f.Add("text", uint16(1), "\x1b[31m../évil node name that is long")
	f.Fuzz(func(t *testing.T, text string, at uint16, node string) {
		if len(text) > 64<<10 {
			return
		}
		cut := int(at) % (len(text) + 1)
		var out bytes.Buffer
		s := &screen{w: &out, zone: time.UTC, panes: map[string]*pane{}, fenced: claims{}}
		payloads := []wire.Payload{
			&wire.AgentStart{Prompt: wire.RawString(text), Provider: text},
			&wire.AgentTextDelta{Content: text[:cut], Block: 1}, &wire.AgentTextDelta{Content: text[cut:], Block: 1},
			&wire.AgentThinkingDelta{Content: text[:cut], Block: 2}, &wire.AgentThinkingDelta{Content: text[cut:], Block: 2},
			&wire.AgentText{Content: text}, &wire.ExecOutput{Content: text, Stream: "stdout"},
			&wire.AgentTool{ToolName: text, ToolInput: wire.RawString(text), ToolOutput: wire.RawString(text), Error: text},
			&wire.AgentError{ErrorType: text, Message: text}, &wire.NodeError{Error: text},
			&wire.InputRequested{PromptID: text, Prompt: text, Choices: []string{text}}, &wire.CCMessage{Text: text, Priority: wire.Priority(text)},
			&wire.CommandReceived{Command: wire.RawString(text), Reason: text},
		}
		for i, p := range payloads {
			e := &wire.Event{RunID: "r1", NodeID: node, ExecID: "a#1", Epoch: 1, Seq: uint64(i) + 1, Payload: p}
			if err := s.showEvent(uint64(i)+1, e); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
		shown := out.String()
		if !utf8.ValidString(shown) {
			t.Fatalf("%q: not UTF-8: %q", text, shown)
		}
		for _, r := range shown {
			if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0x2028 || r == 0x2029 {
				t.Fatalf("%q: %U comes to the terminal in %q", text, r, shown)
			}
		}
		for want := range strings.SplitSeq(timeline.Sanitize(text), "\n") {
			if want = strings.TrimRight(want, " "); !strings.Contains(shown, want) {
				t.Fatalf("%q: %q isn't shown in %q", text, want, shown)
			}
		}
	})
}

// FuzzByteSize compares sizes with exact arithmetic.
func FuzzByteSize(f *testing.F) {
	for _, s := range []string{"0", "-1", "1024", "1k", "1.5GiB", "20MB", "2tb", "1e3", "NaN", "-Inf", "1e30", "-1e30TB", "0x1p4", "1_000", "9223372036854775807", ".5k", "1bk", ""} {
		f.Add(s)
	}
	units := map[string]int64{
		"": 1, "b": 1, "k": 1e3, "kb": 1e3, "m": 1e6, "mb": 1e6, "g": 1e9, "gb": 1e9, "t": 1e12, "tb": 1e12,
		"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
	}
	f.Fuzz(func(t *testing.T, s string) {
		var b, negative byteSize
		err := b.Set(s)
		if mirrored := negative.Set("-" + s); !strings.HasPrefix(s, "-") && !strings.HasPrefix(s, "+") && ((err == nil) != (mirrored == nil) || negative != -b) {
			t.Fatalf("%q is %d, %v, and with a sign %d, %v", s, b, err, negative, mirrored)
		}
		if err != nil {
			return
		}
		var again byteSize
		if err := again.Set(b.String()); len(b.String()) < 16 && (err != nil || again != b) {
			t.Fatalf("%q is %s, which is read as %d, %v", s, &b, again, err)
		}
		for unit := range maps.Keys(units) {
			number, ok := strings.CutSuffix(strings.ToLower(s), unit)
			exact, isNumber := new(big.Rat), false
			if ok && len(number) < 30 && strings.Trim(number, "0123456789.-+") == "" {
				_, isNumber = exact.SetString(number)
			}
			if !isNumber {
				continue
			}
			want, _ := exact.Mul(exact, new(big.Rat).SetInt64(units[unit])).Float64()
			if got := float64(b); math.Abs(got-want) > 1+math.Abs(want)/1e12 {
				t.Fatalf("%q is %d, want %g", s, b, want)
			}
			return
		}
		if b < 0 && !strings.HasPrefix(strings.TrimSpace(s), "-") {
			t.Fatalf("%q is %d", s, b)
		}
	})
}

// FuzzSets reads anything as settings and overrides: what is accepted is an object
// that has the value at the path that was named, and what isn't is the user's fault.
func FuzzSets(f *testing.F) {
	for _, s := range []string{"model=opus", "a.b=1", "v1.2.model=x", "limits.maxCostUsd=5", "=x", "a..b=1", "a={\"b\":1}", "a.b.c=", "a=\xff", "x=1e400", "a=[1", "coder.x=null", ".=1", "a=\"\\ud800\""} {
		f.Add(s, "a=1")
		f.Add(s, s)
	}
	nodes := []string{"coder", "v1", "v1.2"}
	f.Fuzz(func(t *testing.T, first, second string) {
		for name, parse := range map[string]func([]string) (wire.Raw, error){
			"overrides": func(sets []string) (wire.Raw, error) { return parseOverrides(sets, nodes) },
			"sets":      parseSets,
		} {
			raw, err := parse([]string{first, second})
			if err != nil {
				if exitCode(apiError(err).Code) != exitUsage {
					t.Fatalf("%s %q %q: %v is no usage error", name, first, second, err)
				}
				continue
			}
			if canonical, err := wire.Canonical(raw); err != nil || !bytes.Equal(canonical, raw) {
				t.Fatalf("%s %q %q make %x: %v", name, first, second, raw, err)
			}
			key, text, _ := strings.Cut(second, "=")
			path := strings.Split(key, ".")
			if name == "overrides" {
				if path, err = overridePath(key, nodes); err != nil {
					t.Fatal(err)
				}
			}
			value := raw
			for _, part := range path {
				value = value.Get(part)
			}
			want, err := wire.RawFromJSON([]byte(text))
			if err != nil {
				want = wire.RawString(text)
			}
			if canonical, err := wire.Canonical(want); err == nil && !bytes.Equal(value, canonical) {
				t.Fatalf("%s %q %q: %v, want %v", name, first, second, value.Any(), want.Any())
			}
		}
	})
}
