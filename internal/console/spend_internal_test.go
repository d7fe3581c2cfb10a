package console

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
)

// What matched is marked where it is, also behind a sign that pages leave out.
func TestPiecesOf(t *testing.T) {
	got := piecesOf(wire.SearchHit{Type: wire.LineSystem, Snippet: "📋 next: test", Matches: []wire.Span{{From: 8, To: 12}}})
	if diff := cmp.Diff([]piece{{"next: ", false}, {"test", true}, {"", false}}, got); diff != "" {
		t.Error(diff)
	}
}
