package owner

import (
	"testing"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

// TestForkOfCopy shows that a fork of an imported fork takes no position of another log for one of this one.
func TestForkOfCopy(t *testing.T) {
	def, err := flow.Parse("f.yaml", []byte("name: f\nnodes: [{id: a, type: agent, input: {prompt: a}}]"))
	if err != nil {
		t.Fatal(err)
	}
	for imported, want := range map[string]int{wire.ImportedCopy: 0, wire.ImportedIngest: 1} {
		s := &wire.State{Imported: imported, Lineage: []wire.Ancestor{{RunID: "r0", Position: 9}}}
		if adoptImported(s, def); len(s.Lineage) != want || s.Imported != "" {
			t.Errorf("of a run by %s: lineage %v, imported %q", imported, s.Lineage, s.Imported)
		}
	}
}
