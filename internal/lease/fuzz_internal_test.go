package lease

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/pkg/wire"
)

// FuzzInfo puts anything in the place of a lease. Unless it says that it is of our
// own home, somebody else holds it until one time to live has passed; then it is free.
func FuzzInfo(f *testing.F) {
	for _, text := range []string{
		`{"runner":"b","home":"h2","since":1700000000000,"nonce":"x"}`, `{"runner":"a","home":"h1","since":1}`, `{"runner":"a","since":1}`,
		`{"home":"h1"}`, `{"home":""}`, `{}`, `[]`, `{"home":["h1"]}`,
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
				id: Identity{Runner: "a", Home: "h1"}, ttl: ttl, logger: slog.New(slog.DiscardHandler),
				held: map[string]*Lease{}, seen: map[string]sighting{}, since: now, up: now, wrote: now,
			}
			k.noteSighting(keys.Entry{Key: "run.r1", Value: value, Revision: 5})
			var read struct {
				Home string `json:"home"`
			}
			ours := wire.Unmarshal(value, &read) == nil && wire.Unmarshal(value, new(Info)) == nil && read.Home == "h1"
			if free := k.Free("run.r1", "b"); free != ours {
				t.Fatalf("%q: free %t, ours %t", value, free, ours)
			}
			info, held := k.Of("run.r1")
			if !held {
				t.Fatalf("%q is held by nobody", value)
			}
			encoded, err := wire.Marshal(info)
			if err != nil {
				t.Fatalf("%q: %+v can't be written: %v", value, info, err)
			}
			var again Info
			if err := wire.Unmarshal(encoded, &again); err != nil || again != info {
				t.Fatalf("%q: %+v comes back as %+v, %v", value, info, again, err)
			}
			<-time.After(ttl)
			k.wrote = time.Now()
			if _, held := k.Of("run.r1"); held || !k.Free("run.r1", "b") {
				t.Fatalf("%q never expires", value)
			}
		})
	})
}
