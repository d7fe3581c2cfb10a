package registry

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// FuzzRegistration puts anything in the place of a run's registration: what can
// be read comes back as it was written, what can't is as good as none, and the
// registration that its owner writes next counts.
func FuzzRegistration(f *testing.F) {
	for _, text := range []string{
		`{"run":"r1","runner":"a","folder":"a","since":1700000000000,"released":3,"incarnation":"i"}`, `{"run":"","incarnation":""}`, `{}`, `[]`, `{"since":1.5}`,
	} {
		raw, err := wire.RawFromJSON([]byte(text))
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(raw))
	}
	f.Add([]byte("{\"run\":\"r1\"}"))
	f.Add([]byte("\xc1"))
	f.Fuzz(func(t *testing.T, value []byte) {
		g := newRegistry(nil, nil, subjects.Default, "", nil)
		good := Registration{Run: "r1", Runner: "b", Folder: "b", Since: 5, Incarnation: "i"}
		g.keepNewer(g.stateKey("r1"), knownRun{Registration: good, revision: 1})
		g.noteChange(keys.Entry{Key: g.stateKey("r1"), Value: value, Revision: 2})
		reg, ok := g.Get("r1")
		readable := wire.Unmarshal(value, new(Registration)) == nil
		if ok != readable || ok != (len(g.List()) == 1) {
			t.Fatalf("%q: readable %t, found %t, and listed are %v", value, readable, ok, g.List())
		}
		var again Registration
		if ok {
			encoded, err := wire.Marshal(reg)
			if err != nil {
				t.Fatalf("%q: %+v can't be written: %v", value, reg, err)
			}
			if err := wire.Unmarshal(encoded, &again); err != nil || again != reg {
				t.Fatalf("%q: %+v comes back as %+v, %v", value, reg, again, err)
			}
		}
		encoded, err := wire.Marshal(good)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(encoded, value) && (!ok || reg != good) {
			t.Fatalf("%+v was read as %+v", good, reg)
		}
		g.noteChange(keys.Entry{Key: g.stateKey("r1"), Value: encoded, Revision: 3})
		if reg, _ := g.Get("r1"); !cmp.Equal(reg, good) {
			t.Fatalf("behind %q it is %+v", value, reg)
		}
	})
}

// The runs that a run's calls wait for are found without a look at all others.
func TestCalled(t *testing.T) {
	g := newRegistry(nil, nil, subjects.Default, "", nil)
	put := func(revision uint64, reg Registration) {
		g.keepNewer(g.stateKey(reg.Run), knownRun{Registration: reg, revision: revision})
	}
	put(1, Registration{Run: "a", Parent: "p", Call: "c"})
	put(2, Registration{Run: "b", Parent: "p"})
	put(3, Registration{Run: "c", Parent: "q", Call: "c"})
	put(4, Registration{Run: "a", Parent: "p", Call: "c", Runner: "another"})
	if got := g.Called("p"); len(got) != 1 || got[0].Run != "a" || got[0].Runner != "another" {
		t.Errorf("called by p: %+v", got)
	}
	g.noteChange(keys.Entry{Key: g.stateKey("a"), Deleted: true, Revision: 5})
	if got := g.Called("p"); len(got) != 0 || len(g.called) != 1 {
		t.Errorf("behind its removal: %+v, known are %v", got, g.called)
	}
}
