package queries

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"code.wake.dev/wake/pkg/wire"
)

// Lines that follow each other within a pixel are drawn as if each were looked up.
func TestDrawLines(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		k := course{kinds: nameTable{all: []string{"text", "tool", "retry"}}, lanes: make([]courseLane, 3)}
		keys := []laneKey{{node: "a"}, {node: "a", parent: "t1"}, {node: "left out"}}
		ts := rapid.Int64Range(-50, 50).Draw(r, "begin")
		for i := range rapid.IntRange(0, 300).Draw(r, "lines") {
			ts += rapid.Int64Range(-3, 20).Draw(r, "later")
			k.lines = append(k.lines, courseLine{pos: uint64(i), ts: ts, lane: rapid.Int32Range(0, 2).Draw(r, "lane"), kind: rapid.Int32Range(0, 2).Draw(r, "kind")})
		}
		from, px := rapid.Int64Range(-20, 20).Draw(r, "from"), rapid.Int64Range(1, 400).Draw(r, "px")
		draw := func(all func(*picture)) []wire.TimelineLane {
			p := &picture{px: px, lanes: map[laneKey]*wire.TimelineLane{}, marks: map[markKey]int{}}
			p.From, p.To = from, from+1000
			p.Lanes = make([]wire.TimelineLane, 2)
			p.lanes[keys[0]], p.lanes[keys[1]] = &p.Lanes[0], &p.Lanes[1]
			all(p)
			return p.Lanes
		}
		want := draw(func(p *picture) {
			for _, l := range k.lines {
				if p.isSeen(l.ts) {
					p.addMark(p.lanes[keys[l.lane]], wire.TimelineMark{Kind: k.kinds.all[l.kind], At: l.ts, N: 1, Pos: l.pos})
				}
			}
		})
		if diff := cmp.Diff(want, draw(func(p *picture) { p.drawLines(&k, keys) })); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}
