package backup_test

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/backup"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
)

// However well a stream can be compressed, a server that syncs each message gets no more of it at once than it stores within its patience of 5 s.
func TestPiecesAreSmall(t *testing.T) {
	ctx, n, dir := t.Context(), subjects.Default, filepath.Join(t.TempDir(), "copy")
	from, js := startWake(t)
	const events = 5000
	for i := range events {
		if _, err := js.PublishAsync(n.Event("run", "coder", "text"), []byte(strings.Repeat(fmt.Sprint(i%7), 300))); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	copied, err := backup.Take(ctx, from, n, dir, nil, quiet)
	if err != nil {
		t.Fatal(err)
	}
	to := natstest.Start(t)
	sub, err := to.SubscribeSync("$JS.SNAPSHOT.RESTORE." + n.EventsStream() + ".>")
	if err != nil {
		t.Fatal(err)
	}
	if err := backup.Restore(ctx, to, n, dir, copied, backup.Options{}, quiet); err != nil {
		t.Fatal(err)
	}
	if err := to.Flush(); err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	before, most := int64(0), int64(0)
	for {
		m, err := sub.NextMsg(nats.DefaultTimeout)
		if err != nil || len(m.Data) == 0 {
			break
		}
		all.Write(m.Data)
		now, err := io.Copy(io.Discard, s2.NewReader(bytes.NewReader(all.Bytes())))
		if err != nil {
			t.Fatalf("a piece ends within a block: %v", err)
		}
		before, most = now, max(most, now-before)
	}
	if before < 300*events || most > 64<<10 {
		t.Errorf("of %d bytes up to %d came at once", before, most)
	}
}
