//go:build amd64

package redact

import (
	"testing"

	"pgregory.net/rapid"
)

// What is told of blocks at once is what is told of each byte.
func TestScanBlocks(t *testing.T) {
	t.Parallel()
	s, err := New(All, knownValues)
	if err != nil {
		t.Fatal(err)
	}
	if s.scan == nil {
		t.Skip("this processor has no AVX2")
	}
	c := &s.scan.classes
	rapid.Check(t, func(t *rapid.T) {
		blocks := rapid.IntRange(1, maxBlocks).Draw(t, "blocks")
		text := rapid.SliceOfN(rapid.OneOf(rapid.Byte(), rapid.SampledFrom([]byte("*+@x-iz \x7f\x80\x1b\xe2"))), blocks*blockSize+1, blocks*blockSize+1).Draw(t, "text")
		var hits [maxBlocks]uint64
		var runs [maxBlocks]uint16
		hit := scanBlocks(&text[0], blocks, c, &hits[0], &runs[0])
		some := false
		for i := range blocks * blockSize {
			now, next := text[i], text[i+1]
			want := c.low[now&15]&c.high[now>>4]&c.nextLow[next&15]&c.nextHigh[next>>4] != 0
			some = some || want
			if got := hits[i/blockSize]>>(i%blockSize)&1 == 1; got != want {
				t.Fatalf("hit at %d: %t", i, got)
			}
			if i%groupSize == 0 {
				want := isRunByte(text[i]) && isRunByte(text[i+1]) && isRunByte(text[i+2]) && isRunByte(text[i+3])
				if got := runs[i/blockSize]>>(i%blockSize/groupSize)&1 == 1; got != want {
					t.Fatalf("run at %d: %t", i, got)
				}
			}
		}
		if hit != some {
			t.Fatalf("%t, and there are hits: %t", hit, some)
		}
	})
}
