package eventlog_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

func sealKeys(t testing.TB, text string) *seal.Keys {
	t.Helper()
	k, err := seal.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

const (
	firstKey  = "one MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n"
	secondKey = "two YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXphYmNkZWY=\n"
)

// A reader with the keys sees the log as if nothing were encrypted, large fields and old
// keys included; nobody else sees what events carry, and nobody takes the log for
// another one.
func TestSealed(t *testing.T) {
	t.Parallel()
	nc := natstest.Start(t)
	setUp(t, nc, topology.Config{})
	plain := start(t, nc, eventlog.Options{BlobLimit: 8 << 10})
	appendTo(t, plain.claim("r", "n"), text("open"))
	old := start(t, nc, eventlog.Options{BlobLimit: 8 << 10, Keys: sealKeys(t, firstKey)})
	appendTo(t, old.claim("r", "n"), text("the plan"), delta("the plan"))
	long := strings.Repeat("the plan ", 2<<10)
	p := start(t, nc, eventlog.Options{BlobLimit: 8 << 10, Keys: sealKeys(t, secondKey+firstKey)})
	w := p.claim("r", "n")
	appendTo(t, w, text(long))
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	equal(t, "with keys", p.read(eventlog.Query{Run: "r"}),
		"r/n 1.1 node:claimed", "r/n 1.2 agent:text open", "r/n 2.3 node:claimed", "r/n 2.4 agent:text the plan",
		"r/n 2.5 agent:text:delta the plan", "r/n 3.6 node:claimed", "r/n 3.7 agent:text ")

	last, _, err := p.Last(t.Context(), "r", "n")
	if err != nil {
		t.Fatal(err)
	}
	whole, err := p.Inline(t.Context(), last.Event)
	if err != nil || whole.Payload.(*wire.AgentText).Content != long {
		t.Errorf("the large field: %v", err)
	}
	var stored []byte
	for e, err := range plain.Read(t.Context(), eventlog.Query{Run: "r", To: last.Pos}) {
		if err != nil {
			if !errors.Is(err, seal.ErrNoKey) || !strings.Contains(err.Error(), `"one"`) {
				t.Errorf("without keys: %v", err)
			}
			break
		}
		stored = e.Data
	}
	if !bytes.Contains(stored, []byte("node:claimed")) {
		t.Errorf("without keys the last readable event is %q", stored)
	}
	if _, err := plain.Blob(t.Context(), last.Event.Blobs[0].SHA256); !errors.Is(err, seal.ErrNoKey) {
		t.Errorf("the blob without keys: %v", err)
	}
	if _, err := plain.Claim(soon(t), "r", "n", eventlog.Claim{Runner: "x"}); !errors.Is(err, seal.ErrNoKey) {
		t.Errorf("a claim without keys: %v", err)
	}
	p.nowhere("the plan")
}

// What was put into the place of another event opens nowhere: it is poison, and
// readers go on.
func TestSealedMoved(t *testing.T) {
	t.Parallel()
	p := one(t, eventlog.Options{Keys: sealKeys(t, firstKey)})
	w := p.claim("r", "n")
	appendTo(t, w, text("yes"))
	entry, _, err := p.Last(t.Context(), "r", "n")
	if err != nil {
		t.Fatal(err)
	}
	stream, err := p.JetStream().Stream(t.Context(), subjects.Default.EventsStream())
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.GetMsg(t.Context(), entry.Pos)
	if err != nil {
		t.Fatal(err)
	}
	e, err := wire.Decode(m.Data)
	if err != nil {
		t.Fatal(err)
	}
	e.Seq++
	if _, err := p.JetStream().Publish(t.Context(), entry.Subject, encoded(t, e)); err != nil {
		t.Fatal(err)
	}
	moved, _, err := p.Last(t.Context(), "r", "n")
	if err != nil || moved.Event != nil || !errors.Is(moved.Err, seal.ErrForged) {
		t.Errorf("%v, %v, %+v", err, moved.Err, moved.Event)
	}
}

// A process without the key that is in use is told at once, before anything is read or
// written; so is one that has another one of the same name. A change of the key is noted.
func TestKeyInUse(t *testing.T) {
	t.Parallel()
	nc := natstest.Start(t)
	setUp(t, nc, topology.Config{})
	const another = "one MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTI=\n"
	steps := []struct {
		name, keys string
		use        bool
		want       error
	}{
		{"nobody seals", "", true, nil},
		{"a reader with keys", firstKey, false, nil},
		{"still nobody seals", "", false, nil},
		{"the first", firstKey, true, nil},
		{"again", firstKey, true, nil},
		{"no keys", "", true, seal.ErrNoKey},
		{"a reader without keys", "", false, seal.ErrNoKey},
		{"another key", secondKey, true, seal.ErrNoKey},
		{"another key of that name", another, true, seal.ErrForged},
		{"who has both reads", secondKey + firstKey, false, nil},
		{"the former one is in use", firstKey, false, nil},
		{"who has both writes", secondKey + firstKey, true, nil},
		{"the former one alone", firstKey, false, seal.ErrNoKey},
		{"the new one alone", secondKey, false, nil},
	}
	for _, s := range steps {
		var o eventlog.Options
		if s.keys != "" {
			o.Keys = sealKeys(t, s.keys)
		}
		log, err := eventlog.Open(t.Context(), nc, o)
		if err != nil {
			t.Fatal(err)
		}
		f := log.CheckKeys
		if s.use {
			f = log.UseKeys
		}
		if err := f(t.Context()); !errors.Is(err, s.want) {
			t.Errorf("%s: %v, want %v", s.name, err, s.want)
		}
	}
}
