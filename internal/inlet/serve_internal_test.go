package inlet

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"

	"code.wake.dev/wake/pkg/wire"
)

// What was taken of an input is read, also if its sender is gone by then.
func TestTakenPiecesAreRead(t *testing.T) {
	for range 20 {
		in := &input{pieces: make(chan []byte, maxWaiting), gone: make(chan struct{})}
		for range maxWaiting {
			in.pieces <- []byte("line\n")
		}
		close(in.gone)
		content, err := io.ReadAll(&pieceReader{ctx: t.Context(), in: in})
		if len(content) != 5*maxWaiting || !errors.Is(err, errGone) {
			t.Fatalf("%d of %d bytes are read (%v)", len(content), 5*maxWaiting, err)
		}
	}
}

// A defect that an input meets is told to its sender, and doesn't end the process.
func TestDefectIsTold(t *testing.T) {
	in := &input{server: &Server{logger: slog.New(slog.DiscardHandler)}, ask: wire.IngestRequest{Format: "stream-json"}, pieces: make(chan []byte, 1)}
	in.pieces <- []byte(`{"type":"system","subtype":"init"}` + "\n") // for a log that isn't there
	if _, problem := in.makeRuns(t.Context(), "w"); problem == nil || problem.Code != wire.CodeInternal {
		t.Errorf("%+v", problem)
	}
}

// Exported runs that are read at the same time have room for so many bytes together, and what is refused gives its room back.
func TestExportsShareRoom(t *testing.T) {
	s := &Server{logger: slog.New(slog.DiscardHandler), dir: t.TempDir()}
	s.onDisk.Store(maxExported - 1000)
	_, err := s.restoreExport(t.Context(), strings.NewReader(strings.Repeat("x", 2000)))
	if !wire.HasCode(err, wire.CodeTooLarge) {
		t.Error(err)
	}
	if _, err := s.restoreExport(t.Context(), strings.NewReader("no export")); err == nil || wire.HasCode(err, wire.CodeTooLarge) {
		t.Error(err)
	}
	left, err := os.ReadDir(s.dir)
	if n := s.onDisk.Load(); err != nil || len(left) > 0 || n != maxExported-1000 {
		t.Errorf("%d files are left (%v), %d bytes count", len(left), err, n-maxExported+1000)
	}
}
