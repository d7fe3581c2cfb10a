package inlet

import (
	"errors"
	"io"
	"testing"
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
