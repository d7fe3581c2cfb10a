package recorder_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// A truncation hides the lines of its node that come behind its point, and no others, whatever is hidden already, in which batch they
// come, and whether the recorder has started anew meanwhile.
func TestTruncationsHideLines(t *testing.T) {
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := newTape(t)
		execs := map[string]string{}
		for _, node := range []string{"coder", "judge"} {
			execs[node] = p.start("r1", node, nil)
		}
		type line struct {
			node string
			seq  uint64
			text string
		}
		var want []line
		path := newTarget(t)
		s := openAt(t, path)
		for i := range 120 {
			node := []string{"coder", "judge"}[r.IntN(2)]
			if r.IntN(4) > 0 {
				text := fmt.Sprint("line ", i)
				e := p.add("r1", node, execs[node], &wire.AgentText{Content: text, Block: i + 1})
				want = append(want, line{node, e.Seq, text})
			} else {
				at := p.seqs["r1/"+node] - min(p.seqs["r1/"+node], uint64(r.IntN(12)))
				p.add("r1", node, execs[node], &wire.LogTruncated{AtSeq: at, Reason: "rollback"})
				want = slices.DeleteFunc(want, func(l line) bool { return l.node == node && l.seq > at })
			}
			if r.IntN(6) == 0 {
				p.store(s, 5)
				p.entries = nil
			}
			if r.IntN(25) == 0 {
				closed(t, s)
				s = openAt(t, path)
			}
		}
		p.store(s, 1000)
		answer, err := s.Answers.Log(t.Context(), wire.LogRequest{Run: "r1", Limit: new(1000), Grep: "line "}, time.UnixMilli(p.clock), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		var got, texts []string
		for _, l := range answer.Lines {
			got = append(got, l.Text)
		}
		for _, l := range want {
			texts = append(texts, l.text)
		}
		if d := cmp.Diff(texts, got); d != "" {
			t.Errorf("seed %d: (-want +got)\n%s", seed, d)
		}
		closed(t, s)
	}
}

// BenchmarkTruncations records truncations that hide nothing, and such as hide a line each: the cost of one doesn't grow with the lines
// of the run.
func BenchmarkTruncations(b *testing.B) {
	for _, n := range []int{1000, 4000} {
		for name, hides := range map[string]bool{"nothing": false, "lines": true} {
			b.Run(fmt.Sprint(name, "/", n), func(b *testing.B) {
				p := newTape(b)
				exec := p.start("r1", "coder", nil)
				for i := range n {
					p.add("r1", "coder", exec, &wire.AgentText{Content: fmt.Sprint("line ", i)})
				}
				last := p.seqs["r1/coder"]
				for i := range n {
					at := p.seqs["r1/coder"]
					if hides {
						at = last - uint64(i)
					}
					p.add("r1", "coder", exec, &wire.LogTruncated{AtSeq: at, Reason: "x"})
				}
				for b.Loop() {
					b.StopTimer()
					s := openStore(b)
					b.StartTimer()
					for rest := p.entries; len(rest) > 0; rest = rest[min(500, len(rest)):] {
						if _, err := s.Index.Record(b.Context(), recorder.Batch{Incarnation: incarnation, Entries: rest[:min(500, len(rest))]}); err != nil {
							b.Fatal(err)
						}
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/truncation")
			})
		}
	}
}
