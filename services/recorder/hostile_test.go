package recorder_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/subjects"
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
			for i := range 20 { // of one model, and of others
				id := strconv.Itoa(i)
				p.add("r1", "coder", exec, &wire.Usage{Model: "m" + id[:1], InputTokens: math.MaxInt64, OutputTokens: math.MaxInt64, MessageID: id})
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
			at := len(p.entries)
			add(p, "coder#1") // once more, in a batch of its own
			if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: p.entries[at:]}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Answers.Budgets(t.Context(), []wire.SharedBudget{{Name: "all"}}, time.Now()); err != nil {
				t.Error(err)
			}
			v, err := s.Checker.Verify(t.Context(), "")
			if err != nil || len(v.Damages) > 0 {
				t.Errorf("the store is damaged: %v, %+v", err, v.Damages)
			}
		})
	}
}

// What is no event, and as large as a message may be, doesn't hold up recording: its dead letter has the beginning of it.
func TestLargestPoison(t *testing.T) {
	p := newPlant(t)
	p.record(recorder.Config{})
	data := bytes.Repeat([]byte{0xc1}, int(p.nc.MaxPayload())-20)
	if err := p.nc.Publish(subjects.Default.Event("r2", "x", string(wire.KindText)), data); err != nil {
		t.Fatal(err)
	}
	if err := p.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	p.until(p.write(p.claim("r1", "coder"), text("after it")))
	letters, err := p.log.JetStream().Stream(t.Context(), subjects.Default.DeadLetterStream())
	if err != nil {
		t.Fatal(err)
	}
	m, err := letters.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	var letter wire.Poison
	if err := wire.Unmarshal(m.Data, &letter); err != nil || !strings.Contains(letter.Reason, "of "+strconv.Itoa(len(data))+" bytes follow") || !bytes.HasPrefix(data, letter.Data) {
		t.Errorf("the letter (%v) says %q, of %d bytes", err, letter.Reason, len(letter.Data))
	}
}

// A run that is asked for while it goes on has all its lines, also where the log of another one is hidden in part amid them.
func TestLinesBesideTruncation(t *testing.T) {
	p := newTape(t)
	first, second := p.start("r1", "coder", nil), p.start("r2", "coder", nil)
	p.add("r1", "coder", first, &wire.AgentText{Content: "r1 one"})
	p.add("r2", "coder", second, &wire.AgentText{Content: "r2 one"})
	s := openStore(t)
	s.Answers.HoldLive(1000)
	p.store(s, 1000)
	lines := func() []string {
		r, err := s.Answers.Log(t.Context(), wire.LogRequest{Run: "r2", Limit: new(2)}, time.Now(), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		return texts(r.Lines)
	}
	lines()
	at := len(p.entries)
	p.add("r2", "coder", second, &wire.AgentText{Content: "r2 two"})
	p.add("r1", "coder", first, &wire.LogTruncated{AtSeq: 3, Reason: "x"})
	p.add("r2", "coder", second, &wire.AgentText{Content: "r2 three"})
	if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: p.entries[at:]}); err != nil {
		t.Fatal(err)
	}
	held := lines()
	s.Answers.ForgetLive()
	if diff := cmp.Diff(lines(), held); diff != "" {
		t.Errorf("(-stored +held):\n%s", diff)
	}
}

// A run that is asked for while it goes on is shown as it is, also when it was derived again.
func TestRebuiltWhileHeld(t *testing.T) {
	p := newTape(t)
	exec := p.start("r1", "coder", nil)
	p.add("r1", "coder", exec, &wire.AgentText{Content: "x"})
	s := openStore(t)
	s.Answers.HoldLive(1000)
	p.store(s, 1000)
	nodes := func() int {
		r, err := s.Answers.Status(t.Context(), wire.StatusRequest{Run: "r1"}, time.Now(), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		return len(r.Agents)
	}
	nodes()
	if err := s.Index.Rebuild(t.Context(), "o1", func(int64, int64) {}); err != nil {
		t.Fatal(err)
	}
	at := len(p.entries)
	p.add("r1", "coder", exec, &wire.AgentTool{ToolName: "Read", ToolInput: wire.Null, ToolOutput: wire.RawString("x")})
	if _, err := s.Index.Record(t.Context(), recorder.Batch{Incarnation: incarnation, Entries: p.entries[at:]}); err != nil {
		t.Fatal(err)
	}
	if n := nodes(); n != 1 {
		t.Errorf("it has %d nodes", n)
	}
}
