package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
)

// Segments are read with the dictionary that they were written with: another one is another codec.
func TestDictionaryStays(t *testing.T) {
	const is = "60f3291f07bee0c249de48cc2c9051d12bc119770d57c411e2fa50030412237d"
	if sum := sha256.Sum256(dictionary); hex.EncodeToString(sum[:]) != is {
		t.Errorf("the dictionary is %x: no segment that was written with the one before can be read, unless the codec has another number", sum)
	}
}

// oddEvents are what is in no column as it should be, and what is just so.
func oddEvents(t testing.TB) (list []Event) {
	many := []byte{0xde, 0x01, 0x00} // as many fields as no shape has
	for i := range 256 {
		many = append(binary.AppendUvarint(append(many, 0xa1), uint64(i&0x7f)), 1)
	}
	some := append([]byte{0xde, 0, 16}, bytes.Repeat([]byte("\xa1a\x01"), 16)...)
	for _, data := range []string{
		"", "\x80", "\x05", "\xc1", "no event", "\x81\xa1a\x01", "\x81\xa1a\xcc\x05", "\x81\xa1a\xcc\xff", "\x81\xa1a\xcd\x00\xff", "\x81\xa1a\xff", "\x81\xa1a\xd0\x05",
		"\x81\xa1a\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "\x81\xa1a\xce\x00\x01\x00\x00", "\x81\xa1a\x01\x00", "\xde\x00\x01\xa1a\x01", "\x81\xd9\x01a\x01", "\x81\xa0\xa0",
		"\x82\xa1a\x01\xa1a\x02", "\x82\xa1a\xa1b\xa1a\xa1b", "\x82\xa1a\x01", "\x82\xa1a\xa1b", "\x81\xd9\x20" + strings.Repeat("k", 32) + "\x01", "\x81\xbf" + strings.Repeat("k", 31) + "\xc0",
		"\xdf\xff\xff\xff\xff", string(some), string(some[:len(some)-1]), string(many),
	} {
		list = append(list, Event{Pos: uint64(len(list)), Time: int64(100 - 7*len(list)), Data: []byte(data)})
	}
	for i := range 3 {
		data, err := wire.Encode(&wire.Event{RunID: "r1", NodeID: "coder", Seq: uint64(i + 1), Epoch: 1, Timestamp: 1, Payload: &wire.AgentText{Content: "x"}})
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, Event{Pos: math.MaxUint64 - uint64(i), Time: math.MinInt64 + int64(i), Data: data, Mark: Void, Note: fmt.Sprint("note ", i/2)})
	}
	return list
}

// What is unpacked is what was packed, byte by byte, whatever it is.
func TestColumnsAreExact(t *testing.T) {
	z, err := NewCodec()
	if err != nil {
		t.Fatal(err)
	}
	list := oddEvents(t)
	for range 3 { // the columns of one segment leave nothing in those of the next one
		for n := range len(list) + 1 {
			for _, part := range [][]Event{list[:n], list[n:]} {
				checkExact(t, z, part)
			}
		}
		slices.Reverse(list)
	}
}

func checkExact(t *testing.T, z *Codec, list []Event) {
	t.Helper()
	got, err := z.Unpack(nil, Columns, z.Pack(list))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(list) {
		t.Fatalf("%d events instead of %d", len(got), len(list))
	}
	for i := range list {
		if !bytes.Equal(got[i].Data, list[i].Data) {
			t.Fatalf("event %d: %x instead of %x", i, got[i].Data, list[i].Data)
		}
		got[i].Data = list[i].Data
	}
	if diff := cmp.Diff(list, got); len(list) > 0 && diff != "" {
		t.Fatal(diff)
	}
}

// A segment that says it has more than it does takes no more memory for that.
func TestColumnsThatLie(t *testing.T) {
	one := new(columns).pack([]Event{{Pos: 1, Data: []byte("\x81\xa1a\xa1b")}})
	for name, raw := range map[string][]byte{
		"nothing":             nil,
		"of a huge size":      append([]byte{0xff, 0xff, 0xff, 0x7f}, one[1:]...),
		"of a size too small": append([]byte{1}, one[1:]...),
		"cut off":             one[:len(one)-1],
		"with more":           append(slices.Clone(one), 0),
		"of too many shapes":  append([]byte{one[0], 0xff, 0x7f}, one[2:]...),
	} {
		if list, err := new(columns).unpack(nil, raw); !errors.Is(err, ErrSegment) {
			t.Errorf("%s: %v, %v", name, list, err)
		}
	}
	large := make([]Event, SegmentEvents)
	for i := range large {
		large[i].Data = append([]byte("\x81\xa1a\xda\x10\x00"), bytes.Repeat([]byte("x"), 4096)...)
	}
	raw := slices.Clone(new(columns).pack(large))
	raw[0]++ // the size: 4 MB from 5 kB, and a byte
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := new(columns).unpack(nil, raw); !errors.Is(err, ErrSegment) {
		t.Error(err)
	}
	if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 32<<20 {
		t.Errorf("%d bytes", after.TotalAlloc-before.TotalAlloc)
	}
}

// FuzzColumns reads anything as columns, and writes anything as an event.
func FuzzColumns(f *testing.F) {
	for _, e := range oddEvents(f) {
		f.Add(slices.Clone(new(columns).pack([]Event{e, e})), e.Data)
	}
	z, err := NewCodec()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw, data []byte) {
		if list, err := new(columns).unpack(nil, raw); err == nil {
			checkExact(t, z, list)
		} else if !errors.Is(err, ErrSegment) {
			t.Fatal(err)
		}
		checkExact(t, z, []Event{{Data: data}, {Data: data[:len(data)/2]}, {Data: data}})
	})
}
