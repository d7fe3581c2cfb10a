package flow

import (
	"fmt"
	"strings"
	"testing"

	"code.wake.dev/wake/pkg/wire"
)

// A library doesn't grow without bound.
func TestLibraryForgets(t *testing.T) {
	t.Parallel()
	var lib Library
	raw := func(i int) wire.Raw {
		d, err := Parse("x.yaml", fmt.Appendf(nil, "name: f%d\ndescription: %s\nnodes:\n  - {id: s, type: set, input: {set: {x: 1}}}\n", i, strings.Repeat("x", i%2*60_000)))
		if err != nil {
			t.Fatal(err)
		}
		return d.Raw()
	}
	for i := range 1200 {
		if _, err := lib.Read(raw(i)); err != nil {
			t.Fatal(err)
		}
		if n, size := len(lib.kept), lib.bytes; n > keptDefinitions || size > keptBytes {
			t.Fatalf("%d definitions of %d bytes", n, size)
		}
	}
}
