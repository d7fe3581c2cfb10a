package redact

import (
	"encoding/binary"
	mathbits "math/bits"
	"strings"
	"unsafe"
)

// block is the length of the shortest word of a [filter].
const block = 4

// filter tells quickly that a text has none of many words. Each word is known by
// four bytes of it. Of any four bytes in a row, one pair begins at a position that
// three divides, so it is enough to look at those, and most pairs of bytes that
// texts have are in no word's four. A filter is to be made by [newFilter].
type filter struct {
	pair  *[1 << 16]uint8           // where in the four bytes of words the two are, as bits
	four  *[1 << fourBits / 8]byte  // hashes of the four bytes, as bits
	words map[uint32][]anchoredWord // by their four bytes
}

// anchoredWord is a word and where in it its four bytes are.
type anchoredWord struct {
	word string
	at   int
}

const fourBits = 16

// hashFour spreads four bytes over fourBits bits.
func hashFour(four uint32) uint32 { return four * 0x9e3779b1 >> (32 - fourBits) }

func newFilter(words []string) filter {
	f := filter{pair: new([1 << 16]uint8), four: new([1 << fourBits / 8]byte), words: map[uint32][]anchoredWord{}}
	for _, w := range words {
		at := rarestPart(w)
		four := [block]byte([]byte(w[at : at+block]))
		for i := range block - 1 {
			f.pair[binary.LittleEndian.Uint16(four[i:])] |= 1 << i
		}
		key := binary.LittleEndian.Uint32(four[:])
		f.four[hashFour(key)/8] |= 1 << (hashFour(key) % 8)
		f.words[key] = append(f.words[key], anchoredWord{w, at})
	}
	return f
}

// common are the characters of prose, code and JSON, the most frequent first: the tenth
// next one is about half as frequent.
const common = " etns\"roaid\nlc,:uphfm.g\twyb-`{}k1_|v0/2()\\435x968T7=ESARCIq[]LN'D*;POjFUWMB!#$K&H%<>G+VzQJZYX?@^~"

// byteFrequency tells how frequent a byte is, beside others.
func byteFrequency(c byte) int {
	at := strings.IndexByte(common, c)
	if at < 0 {
		return 1
	}
	return 2 << ((len(common) - at) / 10)
}

// rarestPart returns where the four bytes of a word begin that texts have least.
func rarestPart(word string) int {
	best, least := 0, 0
	for i := range len(word) - block + 1 {
		frequent := 0
		for _, c := range []byte(word[i : i+block]) {
			frequent += byteFrequency(c)
		}
		if i == 0 || frequent < least {
			best, least = i, frequent
		}
	}
	return best
}

// stride is the number of bytes that are looked at in one step.
const stride = 12

// containsWord reports whether one of the words is in the text.
func (f *filter) containsWord(text string) bool {
	b := unsafe.Slice(unsafe.StringData(text), len(text))
	i, pair := 0, f.pair
	for ; i+stride <= len(b); i += stride {
		// The pairs at i, i+3, i+6 and i+9.
		x, y := binary.LittleEndian.Uint64(b[i:]), binary.LittleEndian.Uint32(b[i+8:])
		p, q, r, s := pair[uint16(x)], pair[uint16(x>>24)], pair[uint16(x>>48)], pair[uint16(y>>8)]
		if p|q|r|s == 0 {
			continue
		}
		if p != 0 && f.hasWordAt(b, i, p) || q != 0 && f.hasWordAt(b, i+3, q) || r != 0 && f.hasWordAt(b, i+6, r) || s != 0 && f.hasWordAt(b, i+9, s) {
			return true
		}
	}
	for ; i+1 < len(b); i += block - 1 {
		if f.hasWordAt(b, i, pair[binary.LittleEndian.Uint16(b[i:])]) {
			return true
		}
	}
	return false
}

// hasWordAt reports whether one of the words is there so that the pair at i is where bits
// say in its four bytes.
func (f *filter) hasWordAt(b []byte, i int, bits uint8) bool {
	for ; bits != 0; bits &= bits - 1 {
		start := i - mathbits.TrailingZeros8(bits)
		if start < 0 || start+block > len(b) {
			continue
		}
		four := binary.LittleEndian.Uint32(b[start:])
		if h := hashFour(four); f.four[h/8]&(1<<(h%8)) != 0 && f.hasWholeWord(b, start, four) {
			return true
		}
	}
	return false
}

func (f *filter) hasWholeWord(b []byte, i int, four uint32) bool {
	for _, w := range f.words[four] {
		if from := i - w.at; from >= 0 && len(b)-from >= len(w.word) && string(b[from:from+len(w.word)]) == w.word {
			return true
		}
	}
	return false
}

// isSuspectBytes is [Set.isSuspect] of bytes, which the caller doesn't change meanwhile.
func (s *Set) isSuspectBytes(b []byte) bool {
	return s.isSuspect(unsafe.String(unsafe.SliceData(b), len(b)))
}
