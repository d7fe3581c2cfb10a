package lease

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/pkg/wire"
)

// FuzzSession puts anything in the place of a session. Unless it says that it is over or of our
// own home, its process acts until one time to live has passed; then what it claimed is free.
func FuzzSession(f *testing.F) {
	for _, text := range []string{
		`{"runner":"b","home":"h2","process":"p","at":1700000000000,"runs":3}`, `{"runner":"a","home":"h1","process":"p"}`, `{"runner":"a","process":"p"}`,
		`{"process":"p","over":true}`, `{"home":"h1"}`, `{"home":""}`, `{}`, `[]`, `{"home":["h1"]}`, `{"process":"own"}`,
	} {
		raw, err := wire.RawFromJSON([]byte(text))
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(raw))
	}
	f.Add([]byte{})
	f.Add([]byte("\xc1"))
	f.Add([]byte(`{"home":"h1"}`))
	const ttl = 10 * time.Second
	f.Fuzz(func(t *testing.T, value []byte) {
		synctest.Test(t, func(t *testing.T) {
			now := time.Now()
			k := &Holder{
				id: Identity{Runner: "a", Home: "h1", Process: "own"}, ttl: ttl, logger: slog.New(slog.DiscardHandler),
				held: map[Key]*Lease{}, seen: map[string]sighting{}, since: now, session: ownSession{up: now, wrote: now},
			}
			k.noteSighting(keys.Entry{Key: "b.p", Value: value, Revision: 5})
			var read Session
			known := wire.Unmarshal(value, &read) == nil && read.Process != ""
			last := Claimant{Runner: "b", Process: "p"}
			over := known && read.Process == "p" && (read.Over || read.Home == "h1")
			if free := k.Free(Key{"r1", "n"}, last); free != over {
				t.Fatalf("%q: free %t, over %t", value, free, over)
			}
			if s, seen := k.seen[read.Process]; seen != known || known && s.Session != read {
				t.Fatalf("%q: seen %+v, %t", value, s, seen)
			}
			<-time.After(ttl)
			k.session.wrote = time.Now()
			if !k.Free(Key{"r1", "n"}, last) {
				t.Fatalf("%q never expires", value)
			}
		})
	})
}
