package console

import (
	"context"
	"testing"
	"testing/synctest"

	"code.wake.dev/wake/pkg/wire"
)

// Pages are told whether the list of what waits may have changed: if a run of it has, or if it is longer or shorter than before.
func TestPulseTellsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := []change{
			{Position: 5, Many: true, waiting: map[string]int{"approval": 1}},
			{Position: 6, Runs: []string{"works"}, waiting: map[string]int{"approval": 1}},
			{Position: 7, Runs: []string{"asks"}, Waits: true, waiting: map[string]int{"approval": 1}},
			{Position: 8, Runs: []string{"works"}, waiting: map[string]int{"approval": 1}},
			{Position: 9, Runs: []string{"answered"}, waiting: map[string]int{}},
			{Position: 9, waiting: map[string]int{}},
			{Position: 10, Runs: []string{"works"}, waiting: map[string]int{}},
		}
		asked := 0
		var p pulse
		heard, leave := p.look(t.Context(), func(context.Context, uint64) (change, error) {
			asked++
			return answers[min(asked, len(answers))-1], nil
		})
		for _, want := range []struct {
			pos   uint64
			waits bool
		}{{5, true}, {6, false}, {7, true}, {8, false}, {9, true}, {10, false}} {
			if c := <-heard; c.Position != want.pos || c.Waits != want.waits {
				t.Errorf("heard %+v, want %+v", c, want)
			}
		}
		leave()
		p.wait()
	})
}

// Where not all runs that have changed are named, a page asks for everything anew.
func TestPulseTellsOfMany(t *testing.T) {
	named := wire.FleetResponse{Position: 7, Total: 1, Runs: make([]wire.TopRun, 1), Left: []string{"left"}}
	if c := makeChange(named, 6); c.Many || len(c.Runs) != 2 {
		t.Errorf("all are named: %+v", c)
	}
	more, left := named, named
	more.Total, left.LeftMore = 2, true
	for _, f := range []wire.FleetResponse{more, left} {
		if !makeChange(f, 6).Many {
			t.Errorf("%+v isn't told", f)
		}
	}
}
