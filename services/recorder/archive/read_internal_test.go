package archive

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Events are sorted by their positions, also where some are missing, many are, or a store that is damaged has one twice.
func TestSortDense(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for name, step := range map[string]func() uint64{
		"all":    func() uint64 { return 1 },
		"dense":  func() uint64 { return 1 + r.Uint64N(3) },
		"sparse": func() uint64 { return 1 + r.Uint64N(100) },
		"twice":  func() uint64 { return r.Uint64N(2) },
	} {
		for _, n := range []int{0, 1, 2, 500} {
			var list []Event
			for i, pos := 0, uint64(7); i < n; i++ {
				pos += step()
				list = append(list, Event{Pos: pos})
			}
			want := slices.Clone(list)
			r.Shuffle(n, func(i, j int) { list[i], list[j] = list[j], list[i] })
			sortDense(list)
			if diff := cmp.Diff(want, list); diff != "" {
				t.Errorf("%s: %d events (-want +got):\n%s", name, n, diff)
			}
		}
	}
}
