package bookmark_test

import (
	"slices"
	"strconv"
	"testing"

	"code.wake.dev/wake/internal/bookmark"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/pkg/wire"
)

// FuzzResolve asks for any point of a run: what is found is found again under the
// label and the position that it has, lies within the run, and is in the list if it
// has a label; what isn't is refused with a reason.
func FuzzResolve(f *testing.F) {
	log := logtest.Start(f)
	s := tell(f, log, "r1")
	s.begin(log, "r1")
	s.act("", &wire.UserMessage{Content: "go on", Source: "command", Point: "m1"})
	s.tool("c1")
	s.decide("", &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: "good"})
	last := s.tool("c2")
	listed, err := bookmark.List(f.Context(), log, "r1")
	if err != nil {
		f.Fatal(err)
	}
	for _, at := range []string{"", "good", "sfp-1", "sfp-4", "sfp-0", "sfp-5", "sfp-01", "sfp-+1", "sfp-", "1", "0", "7", "-1", "+3", "007", "18446744073709551616", "Good", "good ", "\x00", "1e1", "0x3", "sfp-1\n"} {
		f.Add(at)
	}
	f.Fuzz(func(t *testing.T, at string) {
		p, _, err := bookmark.Find(t.Context(), log, "r1", at)
		if err != nil {
			if code(err) == "" || code(err) == wire.CodeInternal {
				t.Fatalf("%q: %v", at, err)
			}
			if slices.ContainsFunc(listed, func(p bookmark.Point) bool { return p.Label == at }) {
				t.Fatalf("%q is listed: %v", at, err)
			}
			return
		}
		if p.Run != "r1" || p.Position == 0 || p.Position > last {
			t.Fatalf("%q is %+v", at, p)
		}
		if p.Label != "" && !slices.Contains(listed, p) {
			t.Fatalf("%q is %+v, which isn't listed", at, p)
		}
		if p.Label != "" {
			if again, _, err := bookmark.Find(t.Context(), log, "r1", p.Label); err != nil || again != p {
				t.Fatalf("%q is %+v, and that %+v, %v", at, p, again, err)
			}
		}
		if again, _, err := bookmark.Find(t.Context(), log, "r1", strconv.FormatUint(p.Position, 10)); err != nil || again.Position != p.Position {
			t.Fatalf("%q is at %d, and that at %d, %v", at, p.Position, again.Position, err)
		}
	})
}
