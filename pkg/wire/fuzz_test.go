package wire_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
)

// seedEvents adds an event of each of a few types, as bytes and as JSON.
func seedEvents(f *testing.F, asJSON bool) {
	f.Helper()
	for _, typ := range []wire.Type{"agent:text:delta", "agent:tool", "agent:complete", "state:patch", "todo:changed", "future:type"} {
		m := fullEvent(typ)
		m["zFuture"] = map[string]any{"n": -1.5}
		e := decodeMap(f, m)
		if asJSON {
			f.Add(wantError(f, wire.EncodeJSON, e))
		} else {
			f.Add(encode(f, e))
		}
	}
}

// FuzzDecode: whatever is decoded is encoded in one way and comes back.
func FuzzDecode(f *testing.F) {
	seedEvents(f, false)
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := wire.Decode(b); err == nil {
			checkEvent(t, e)
		}
	})
}

// FuzzDecodeJSON is [FuzzDecode] for JSON.
func FuzzDecodeJSON(f *testing.F) {
	seedEvents(f, true)
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := wire.DecodeJSON(b)
		if err == nil {
			checkEvent(t, e)
			j := wantError(t, wire.EncodeJSON, e)
			if again, err := wire.DecodeJSON(j); err != nil || !cmp.Equal(e, again) {
				t.Fatalf("%v: %s", err, cmp.Diff(e, again))
			}
		}
	})
}

func checkEvent(t *testing.T, e *wire.Event) {
	t.Helper()
	b := encode(t, e)
	again, err := wire.Decode(b)
	if err != nil {
		t.Fatalf("encoded as %x: %v", b, err)
	}
	if !cmp.Equal(e, again) {
		t.Fatal(cmp.Diff(e, again))
	}
	j := wantError(t, wire.EncodeJSON, e)
	if !json.Valid(j) {
		t.Fatalf("not JSON: %s", j)
	}
	if _, err := wire.DecodeJSON(j); err != nil { // binary data has become text, so it may differ
		t.Fatalf("%v: %s", err, j)
	}
	if kind := e.Type().Kind(); kind == "" || e.Node() == "" {
		t.Fatalf("kind %q, node %q", kind, e.Node())
	}
}

// FuzzRawFromJSON compares the parser with encoding/json: they take the same
// texts for the same values.
func FuzzRawFromJSON(f *testing.F) {
	for _, s := range []string{
		`{"b":[1,-2.5,1e3],"a":null,"b":true}`, `"\ud83d\ude00\u0000\ud800"`, "\"\xff\"", `[[[]],{}]`, `18446744073709551616`, `-0.0`, ` 1 `,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		raw, err := wire.RawFromJSON(b)
		var want any
		wantErr := json.Unmarshal(b, &want)
		switch {
		case errors.Is(err, wire.ErrDepth):
			return
		case (err == nil) != (wantErr == nil):
			t.Fatalf("%q: ours %v, encoding/json %v", b, err, wantErr)
		case err != nil:
			return
		}
		if diff := cmp.Diff(want, floats(raw.Any())); diff != "" {
			t.Fatalf("(-encoding/json +ours):\n%s", diff)
		}
		checkRaw(t, raw)
		again, err := wire.RawFromJSON(wantError(t, wire.Raw.MarshalJSON, raw))
		if err != nil || !bytes.Equal(again, raw) {
			t.Fatalf("%v: %x has become %x", err, raw, again)
		}
	})
}

// floats makes all numbers floats, as encoding/json does.
func floats(v any) any {
	switch v := v.(type) {
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	case float64:
		return v + 0 // -0 is 0
	case []any:
		for i := range v {
			v[i] = floats(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = floats(v[k])
		}
	}
	return v
}

// FuzzCanonical: the canonical form is a fixed point and says the same.
func FuzzCanonical(f *testing.F) {
	for _, v := range []any{nil, 1, -1.5, "text", []any{1, []byte{2}}, map[string]any{"b": uint64(math.MaxUint64), "a": 1e300}} {
		f.Add([]byte(raw(v)))
		f.Add(appendLong(nil, raw(v).Any(), false))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if v, err := wire.Canonical(b); err == nil {
			checkRaw(t, v)
			before, err := wire.AppendJSON(nil, b)
			if err != nil {
				t.Fatal(err)
			}
			after := wantError(t, wire.Raw.MarshalJSON, v)
			if diff := cmp.Diff(floats(decodeJSON(t, before)), floats(decodeJSON(t, after))); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

func checkRaw(t *testing.T, v wire.Raw) {
	t.Helper()
	if again, err := wire.Canonical(v); err != nil || !bytes.Equal(again, v) {
		t.Fatalf("%v: %x has become %x", err, v, again)
	}
	if again := raw(v.Any()); !bytes.Equal(again, v) {
		t.Fatalf("%x has become %x", v, again)
	}
	var again wire.Raw
	if err := wire.Unmarshal(v, &again); err != nil || !bytes.Equal(again, v) {
		t.Fatalf("%v: %x has become %x", err, v, again)
	}
}

// FuzzExternalize: what is moved comes back, and what is left is an event.
func FuzzExternalize(f *testing.F) {
	e := anEventOf(&wire.AgentText{Content: string(bytes.Repeat([]byte("x"), 3000))})
	f.Add(encode(f, e), 1500)
	e = anEventOf(&wire.StatePatch{Patch: wire.Patch{Op: wire.PatchSet, Value: wire.RawString(string(bytes.Repeat([]byte("x"), 3000)))}})
	f.Add(encode(f, e), 1000)
	f.Fuzz(func(t *testing.T, b []byte, limit int) {
		small, blobs, err := wire.Externalize(b, limit)
		if err != nil || len(blobs) == 0 {
			return
		}
		if len(small) > limit {
			t.Fatalf("%d bytes, limit %d", len(small), limit)
		}
		before, err := wire.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		if len(before.Blobs) > 0 {
			return // its blobs are elsewhere
		}
		back, err := wire.Inline(small, store(blobs).get)
		if err != nil || !bytes.Equal(back, encode(t, before)) {
			t.Fatalf("%v: %x", err, back)
		}
	})
}

// FuzzUnmarshal: hostile states and requests are refused or have one encoding.
func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(raw(wire.State{V: 1, Outputs: map[string]wire.Raw{"a": wire.Null}, Inbox: []wire.InboxEntry{{ID: "x"}}})))
	f.Add([]byte(raw(wire.Command{Type: "send", Message: "m"})))
	f.Add([]byte(raw(wire.Poison{Data: []byte{1}})))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, v := range []any{new(wire.State), new(wire.Command), new(wire.Poison), new(wire.Alert), new(wire.RunRequest), new(any)} {
			if err := wire.Unmarshal(b, v); err != nil {
				continue
			}
			first := raw(v)
			if err := wire.Unmarshal(first, v); err != nil || !bytes.Equal(raw(v), first) {
				t.Fatalf("%T: %v: %x has become %x", v, err, first, raw(v))
			}
		}
	})
}

// FuzzAgo: a span that is read is not negative, is read again from what it is in
// milliseconds, and means the same in a request as on a command line.
func FuzzAgo(f *testing.F) {
	for _, s := range []string{"90s", "5m", "1h30m", "2d", "0.5d", "-1s", "36500d", "36501d", "1e3d", "NaNd", "+Infd", "", "d", "1", "9223372036854775807ns", "0x1p4d", "5", "1µs"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ago, err := wire.ParseAgo(s)
		quoted, quoteErr := json.Marshal(s)
		if quoteErr != nil {
			t.Fatal(quoteErr)
		}
		var told wire.Ago
		if toldErr := json.Unmarshal(quoted, &told); utf8.ValidString(s) && ((err == nil) != (toldErr == nil) || told != ago) {
			t.Fatalf("%q is %d, %v; in a request %d, %v", s, ago, err, told, toldErr)
		}
		if err != nil {
			return
		}
		again, err := wire.ParseAgo(strconv.FormatInt(int64(ago), 10) + "ms")
		if ago < 0 || err != nil || again != ago {
			t.Fatalf("%q is %d, and read again %d, %v", s, ago, again, err)
		}
	})
}
