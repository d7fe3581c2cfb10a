package backup_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/backup"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

func TestMain(m *testing.M) { natstest.Main(m) }

func quiet(string, int64, int64) {}

// startEmpty starts a server without streams.
func startEmpty(t *testing.T) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc := natstest.Start(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

// startWake starts a server with the streams of wake.
func startWake(t *testing.T) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, js := startEmpty(t)
	if _, err := topology.Init(t.Context(), js, topology.Config{}); err != nil {
		t.Fatal(err)
	}
	return nc, js
}

// A run that is registered while streams are copied is registered in what is
// restored, too; objects of many pieces come back as they were.
func TestRegisteredMeanwhile(t *testing.T) {
	ctx, n, dir := t.Context(), subjects.Default, filepath.Join(t.TempDir(), "copy")
	from, js := startWake(t)
	objects, err := js.ObjectStore(ctx, n.BlobsBucket())
	if err != nil {
		t.Fatal(err)
	}
	large := make([]byte, 3<<20)
	for i := range large {
		large[i] = byte(i * i >> 7)
	}
	if _, err := objects.PutBytes(ctx, "large", large); err != nil {
		t.Fatal(err)
	}
	states, err := js.KeyValue(ctx, n.StateBucket())
	if err != nil {
		t.Fatal(err)
	}
	before, late := n.StateKey("runner", "before"), n.StateKey("runner", "late")
	if _, err := states.PutString(ctx, before, "1"); err != nil {
		t.Fatal(err)
	}
	parked, err := wire.Marshal(map[string]any{"run": "parked", "parked": 7, "due": 0})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := states.Put(ctx, n.StateKey("runner", "parked"), parked); err != nil {
		t.Fatal(err)
	}
	m, err := backup.Take(ctx, from, n, dir, nil, func(name string, _, _ int64) {
		if name == n.EventsStream() {
			if _, err := states.PutString(ctx, late, "2"); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Late) != 1 || m.Late[0].Key != late {
		t.Errorf("late: %+v", m.Late)
	}

	to := natstest.Start(t)
	if m, err = backup.Open(ctx, dir, quiet); err != nil {
		t.Fatal(err)
	}
	if err := backup.Restore(ctx, to, n, dir, m, backup.Options{}, quiet); err != nil {
		t.Fatal(err)
	}
	if js, err = jetstream.New(to); err != nil {
		t.Fatal(err)
	}
	if states, err = js.KeyValue(ctx, n.StateBucket()); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{before: "1", late: "2"} {
		e, err := states.Get(ctx, key)
		if err != nil || string(e.Value()) != want {
			t.Errorf("%s: %v, %v", key, e, err)
		}
	}
	// It may have been woken meanwhile: the next runner looks.
	var woken struct {
		Run    string `json:"run"`
		Parked int64  `json:"parked"`
		Due    int64  `json:"due"`
	}
	if e, err := states.Get(ctx, n.StateKey("runner", "parked")); err != nil || wire.Unmarshal(e.Value(), &woken) != nil ||
		woken.Run != "parked" || woken.Parked != 7 || woken.Due != 1 {
		t.Errorf("parked: %+v, %v", woken, err)
	}
	if objects, err = js.ObjectStore(ctx, n.BlobsBucket()); err != nil {
		t.Fatal(err)
	}
	if got, err := objects.GetBytes(ctx, "large"); err != nil || !bytes.Equal(got, large) {
		t.Errorf("%d bytes of %d came back, %v", len(got), len(large), err)
	}
	var exists *backup.ExistsError
	if err := backup.Restore(ctx, to, n, dir, m, backup.Options{}, quiet); !errors.As(err, &exists) || len(exists.Streams) != len(m.Streams) {
		t.Errorf("over what is there: %v", err)
	}
}

// What isn't as it was written is never restored.
func TestDamaged(t *testing.T) {
	ctx, n, dir := t.Context(), subjects.Default, filepath.Join(t.TempDir(), "copy")
	nc, _ := startWake(t)
	if _, err := backup.Take(ctx, nc, n, dir, nil, quiet); err != nil {
		t.Fatal(err)
	}
	manifest := filepath.Join(dir, "manifest.json")
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	events := filepath.Join(dir, n.EventsStream()+".snapshot")
	data, err := os.ReadFile(events)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(dir), filepath.Base(events)), data, 0o600); err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(data)
	flipped[len(data)/2] ^= 1
	outside := bytes.ReplaceAll(text, []byte(`"WAKE_EVENTS.snapshot"`), []byte(`"../WAKE_EVENTS.snapshot"`))
	other := bytes.Replace(text, []byte(`"max_msgs": -1`), []byte(`"max_msgs": -9`), 1)
	if bytes.Equal(other, text) {
		t.Fatal("the manifest has no such setting")
	}
	sumOf := func(text []byte) []byte { return fmt.Appendf(nil, "%x  manifest.json\n", sha256.Sum256(text)) }
	for name, tt := range map[string]struct {
		path      string
		data, sum []byte
	}{
		"a bit":               {events, flipped, sumOf(text)},
		"the end":             {events, data[:len(data)-1], sumOf(text)},
		"no manifest":         {manifest, []byte("["), sumOf([]byte("["))},
		"a file elsewhere":    {manifest, outside, sumOf(outside)},
		"a bit of a setting":  {manifest, other, sumOf(text)},
		"a bit of a checksum": {manifest, text, sumOf(other)},
	} {
		for _, f := range []struct {
			path string
			data []byte
		}{{events, data}, {manifest, text}, {tt.path, tt.data}, {manifest + ".sha256", tt.sum}} {
			if err := os.WriteFile(f.path, f.data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := backup.Open(ctx, dir, quiet); !errors.Is(err, backup.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for path, whole := range map[string][]byte{events: data, manifest: text, manifest + ".sha256": sumOf(text)} {
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := backup.Open(ctx, dir, quiet); err != nil {
		t.Errorf("as it was written: %v", err)
	}
}

// A backup holds marks of keys that were deleted, which the server drops after their time: it can be restored later all the same.
func TestRestoredWhenMarksAreGone(t *testing.T) {
	ctx, n, dir := t.Context(), subjects.Default, filepath.Join(t.TempDir(), "copy")
	from, js := startWake(t)
	states, err := js.KeyValue(ctx, n.StateBucket())
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range []string{"a", "b"} {
		if _, err := states.PutString(ctx, n.StateKey("runner", run), "1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := states.Purge(ctx, n.StateKey("runner", "a"), jetstream.PurgeTTL(time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Take(ctx, from, n, dir, nil, quiet); err != nil {
		t.Fatal(err)
	}
	m, err := backup.Open(ctx, dir, quiet)
	if err != nil {
		t.Fatal(err)
	}
	<-time.After(1500 * time.Millisecond)
	if err := backup.Restore(ctx, natstest.Start(t), n, dir, m, backup.Options{}, quiet); err != nil {
		t.Error(err)
	}
}
