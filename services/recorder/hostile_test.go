package recorder_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// What an agent prints, or a file that is imported says, doesn't end recording: neither texts that a database may not find by an index,
// with characters that it stores as others, nor numbers that it doesn't have. The store is sound.
func TestHostileValues(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	for b.Len() < table.MaxKey { // no database can pack it
		if c := byte(random.IntN(120)); c < '!' {
			b.WriteByte(0)
		} else {
			b.WriteByte(c)
		}
	}
	odd := b.String()
	for name, add := range map[string]func(p *tape, exec string){
		"model": func(p *tape, exec string) {
			p.add("r1", "coder", exec, &wire.Usage{Model: odd, InputTokens: 1, OutputTokens: 1, MessageID: "m"})
		},
		"message": func(p *tape, exec string) {
			p.add("r1", "coder", exec, &wire.Usage{Model: "m", InputTokens: 1, OutputTokens: 1, MessageID: odd})
		},
		"session": func(p *tape, exec string) {
			p.add("r1", "coder", exec, &wire.SessionBound{OldSession: "s", NewSession: odd})
		},
		"label":      func(p *tape, _ string) { p.start("r2", "coder", map[string]string{odd: "x"}) },
		"two labels": func(p *tape, _ string) { p.start("r2", "coder", map[string]string{"a\x00": "x", "a\u2400": "y"}) },
		"run":        func(p *tape, _ string) { p.start(odd, "coder", nil) },
		"node":       func(p *tape, exec string) { p.add("r1", odd, exec, &wire.AgentText{Content: "x"}) },
		"run's parent": func(p *tape, _ string) {
			p.add("r2", wire.RunNode, "", &wire.RunClaimed{Runner: "runner", Nonce: "n"})
			p.add("r2", wire.RunNode, "", &wire.FlowStart{FlowName: "review", Definition: wire.Null, DefinitionHash: "h", ParentRun: odd})
		},
		"truncation": func(p *tape, exec string) {
			p.add("r1", "coder", exec, &wire.LogTruncated{AtSeq: math.MaxUint64, Reason: "x"})
		},
		"seq": func(p *tape, exec string) {
			p.seqs["r1/coder"] = math.MaxUint64 - 3
			p.add("r1", "coder", exec, &wire.AgentText{Content: "x"})
		},
		"tokens": func(p *tape, exec string) {
			for _, id := range []string{"m1", "m2", "m3"} {
				p.add("r1", "coder", exec, &wire.Usage{Model: "m", InputTokens: math.MaxInt64, OutputTokens: math.MaxInt64, MessageID: id})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTape(t)
			add(p, p.start("r1", "coder", nil))
			s := openStore(t)
			if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: p.entries}); err != nil {
				t.Fatal(err)
			}
			v, err := s.Checker.Verify(t.Context(), "")
			if err != nil || len(v.Damages) > 0 {
				t.Errorf("the store is damaged: %v, %+v", err, v.Damages)
			}
		})
	}
}
