package recorder_test

import (
	"fmt"
	"testing"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// shortRuns is a tape of 10 000 runs, of which all go on, one in so many, or none.
func shortRuns(b *testing.B, every int) *tape {
	p := newTape(b)
	for i := range 10_000 {
		run := fmt.Sprint("r", i)
		exec := p.start(run, "coder", map[string]string{"team": fmt.Sprint(i % 7)})
		p.add(run, "coder", exec, &wire.AgentText{Content: "Half of it is done."})
		p.add(run, "coder", exec, &wire.Usage{MessageID: "m", InputTokens: 10, OutputTokens: 5})
		if every == 0 || i%every > 0 {
			p.add(run, "coder", exec, &wire.AgentComplete{Result: "done"})
			p.add(run, wire.RunNode, "", &wire.FlowComplete{FlowName: "review", Status: wire.FlowStatusComplete})
		}
	}
	return p
}

// BenchmarkAnswers asks a store of 10 000 runs, of which all go on, one in ten or none.
func BenchmarkAnswers(b *testing.B) {
	for _, every := range []int{0, 10, 1} {
		p := shortRuns(b, every)
		s := openStore(b)
		s.Answers.HoldLive(1000)
		p.store(s, 4096)
		now := time.UnixMilli(p.clock)
		const room = 1 << 20
		cursor := ""
		for _, ask := range []struct {
			name string
			ask  func() error
		}{
			{"runs", func() error {
				r, err := s.Answers.Runs(b.Context(), wire.RunsRequest{}, now, room)
				cursor = r.Cursor
				return err
			}},
			{"runs, next page", func() error {
				_, err := s.Answers.Runs(b.Context(), wire.RunsRequest{Cursor: cursor}, now, room)
				return err
			}},
			{"runs by label", func() error {
				_, err := s.Answers.Runs(b.Context(), wire.RunsRequest{Label: "team=3"}, now, room)
				return err
			}},
			{"runs that failed", func() error {
				_, err := s.Answers.Runs(b.Context(), wire.RunsRequest{Status: []string{"failed"}}, now, room)
				return err
			}},
			{"top", func() error { _, err := s.Answers.Top(b.Context(), wire.TopRequest{}, now, room); return err }},
			{"fleet", func() error { _, err := s.Answers.Fleet(b.Context(), wire.FleetRequest{}, now, room); return err }},
			{"stats", func() error { _, err := s.Answers.Stats(b.Context(), wire.StatsRequest{}, now); return err }},
			{"approvals", func() error {
				_, err := s.Answers.Approvals(b.Context(), wire.ApprovalsRequest{}, now, room)
				return err
			}},
			{"status", func() error {
				_, err := s.Answers.Status(b.Context(), wire.StatusRequest{Run: "r5000"}, now, room)
				return err
			}},
			{"log", func() error {
				_, err := s.Answers.Log(b.Context(), wire.LogRequest{Run: "r5000"}, now, room)
				return err
			}},
		} {
			b.Run(fmt.Sprintf("1 in %d goes on/%s", every, ask.name), func(b *testing.B) {
				if err := ask.ask(); err != nil { // what it keeps is read
					b.Fatal(err)
				}
				began, n := used(b), 0
				for b.Loop() {
					if err := ask.ask(); err != nil {
						b.Fatal(err)
					}
					n++
				}
				b.ReportMetric(float64((used(b)-began).Microseconds())/1000/float64(n), "cpu-ms/op")
			})
		}
	}
}

// BenchmarkFirstAnswers asks a store that was just opened, of 10 000 runs, of which one in ten goes on, and one that was warmed.
func BenchmarkFirstAnswers(b *testing.B) {
	p := shortRuns(b, 10)
	filled := openStore(b)
	p.store(filled, 4096)
	path, now := filled.Archive.Path, time.UnixMilli(p.clock)
	closed(b, filled)
	for name, ask := range map[string]func(*recorder.Store) error{
		"top": func(s *recorder.Store) error {
			_, err := s.Answers.Top(b.Context(), wire.TopRequest{}, now, 1<<20)
			return err
		},
		"fleet": func(s *recorder.Store) error {
			_, err := s.Answers.Fleet(b.Context(), wire.FleetRequest{}, now, 1<<20)
			return err
		},
		"stats": func(s *recorder.Store) error {
			_, err := s.Answers.Stats(b.Context(), wire.StatsRequest{}, now)
			return err
		},
		"approvals": func(s *recorder.Store) error {
			_, err := s.Answers.Approvals(b.Context(), wire.ApprovalsRequest{}, now, 1<<20)
			return err
		},
	} {
		for _, warm := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/warm=%t", name, warm), func(b *testing.B) {
				var took time.Duration
				for b.Loop() {
					s := openAt(b, path)
					s.Answers.HoldLive(1000)
					if warm {
						if err := s.Answers.Warm(b.Context(), now); err != nil {
							b.Fatal(err)
						}
					}
					began := used(b)
					if err := ask(s); err != nil {
						b.Fatal(err)
					}
					took += used(b) - began
					closed(b, s)
				}
				b.ReportMetric(float64(took.Microseconds())/1000/float64(b.N), "cpu-ms/op")
			})
		}
	}
}
