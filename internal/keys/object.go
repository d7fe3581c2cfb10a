package keys

import (
	"bytes"
	"context"
	"runtime"

	"github.com/nats-io/nats.go/jetstream"
)

// PutObject stores an object in one piece.
func PutObject(ctx context.Context, store jetstream.ObjectStore, name string, data []byte) error {
	_, err := store.Put(ctx, jetstream.ObjectMeta{Name: name}, &yieldingReader{content: bytes.NewReader(data)})
	return err
}

// yieldingReader lets others run before it is read on. nats.go 1.55 starts a goroutine with the first chunk of an object that stays for
// ever if it hasn't begun when the object is stored.
type yieldingReader struct {
	content *bytes.Reader
	begun   bool
}

// Read implements [io.Reader].
func (y *yieldingReader) Read(p []byte) (int, error) {
	if y.begun {
		runtime.Gosched()
	}
	y.begun = true
	return y.content.Read(p)
}
