package redact

import (
	mathbits "math/bits"
	"slices"
	"strings"
	"unicode"
	"unsafe"

	"golang.org/x/sys/cpu"

	"code.wake.dev/wake/internal/visible"
)

// scan tells that a text has no secret by one pass over blocks of 64 bytes. A block
// stops it if it has one of few pairs of bytes, something that people don't see, or a part of a
// long run of characters of tokens: each secret has one of these. The scan then looks at that
// place again, so that few texts are suspect without a reason. A scan is to be
// made by [newScan].
type scan struct {
	classes nibbles
	unseen  [256]bool                 // first bytes of what people don't see
	pairs   [1 << 16 / 64]uint64      // of words, as bits
	words   map[uint16][]anchoredWord // by their pairs
	inRuns  *filter
}

// nibbles have eight classes of pairs of bytes, as bits: a pair is of a class if the four
// halves of its bytes are.
type nibbles struct{ low, high, nextLow, nextHigh [16]uint8 }

//go:noescape
func scanBlocks(text *byte, blocks int, classes *nibbles, hits *uint64, runs *uint16) bool

// newScan returns a scan for words that may stand anywhere, and those of a filter in runs; nil
// if this processor can't do it.
func newScan(anywhere []string, inRuns *filter) *scan {
	if !cpu.X86.HasAVX2 {
		return nil
	}
	s := &scan{words: map[uint16][]anchoredWord{}, inRuns: inRuns}
	pairs := []pairClass{newPairClass('@')}
	for _, lead := range []byte(visible.Leads) {
		s.unseen[lead] = true
		pairs = append(pairs, newPairClass(lead))
	}
	for _, w := range anywhere {
		at := rarestPair(w)
		pair := uint16(w[at]) | uint16(w[at+1])<<8
		if s.words[pair] == nil {
			pairs = append(pairs, newPairClass(w[at], w[at+1]))
			s.pairs[pair/64] |= 1 << (pair % 64)
		}
		s.words[pair] = append(s.words[pair], anchoredWord{w, at})
	}
	s.classes = joinClasses(pairs)
	return s
}

const (
	blockSize = 64
	maxBlocks = 32 // in one go
	groupSize = 4  // what runs are told by
)

// isSuspect reports whether a text may have a secret.
func (s *scan) isSuspect(text string) bool {
	var (
		hits [maxBlocks]uint64
		runs [maxBlocks]uint16
		last [2 * blockSize]byte
		open openRun
	)
	b := unsafe.Slice(unsafe.StringData(text), len(text))
	for from := 0; from < len(b); from += maxBlocks * blockSize {
		// A block needs a byte behind it, so the last one of a text is a copy.
		blocks, hit := min(maxBlocks, (len(b)-from-1)/blockSize), false
		if blocks > 0 {
			hit = scanBlocks(&b[from], blocks, &s.classes, &hits[0], &runs[0])
		}
		if blocks < maxBlocks {
			copy(last[:], b[from+blocks*blockSize:])
			hit = scanBlocks(&last[0], 1, &s.classes, &hits[blocks], &runs[blocks]) || hit
			blocks++
			clear(runs[blocks:])
		}
		if hit && s.isSuspectHit(text, from, &hits) || s.isSuspectRun(text, from, &runs, blocks, &open) {
			return true
		}
	}
	return false
}

// isSuspectHit reports whether there is something of a secret where blocks have hits, and
// clears these.
func (s *scan) isSuspectHit(text string, from int, hits *[maxBlocks]uint64) bool {
	for block, bits := range hits {
		for ; bits != 0; bits &= bits - 1 {
			at := from + block*blockSize + mathbits.TrailingZeros64(bits)
			if at < len(text) && s.isSuspectAt(text, at) {
				return true
			}
		}
	}
	clear(hits[:])
	return false
}

func (s *scan) isSuspectAt(text string, at int) bool {
	c := text[at]
	if c == '@' && endsInPassword(text[:at]) || s.unseen[c] && visible.BeginsUnseen(text[at:]) {
		return true
	}
	if at+1 == len(text) {
		return false
	}
	pair := uint16(c) | uint16(text[at+1])<<8
	if s.pairs[pair/64]>>(pair%64)&1 == 0 {
		return false
	}
	for _, w := range s.words[pair] {
		if from := at - w.at; from >= 0 && strings.HasPrefix(text[from:], w.word) {
			return true
		}
	}
	return false
}

// endsInPassword reports whether a text ends in what may be a password of an address.
func endsInPassword(text string) bool {
	at := len(text) - 1
	for at >= 0 && strings.IndexByte("/@\"'<>[ \t\n\f\r", text[at]) < 0 {
		at--
	}
	return strings.HasSuffix(text[:at+1], "://")
}

// openRun is the state between blocks: groups of the ones before, and where the last run ends
// that was looked at.
type openRun struct {
	groups uint64
	end    int
}

// isSuspectRun reports whether a secret may be in a run, or behind a word as a run. A run of
// [minRun] bytes has three whole groups in a row.
func (s *scan) isSuspectRun(text string, from int, runs *[maxBlocks]uint16, blocks int, open *openRun) bool {
	for i := 0; i < blocks; i += 4 {
		groups := uint64(runs[i]) | uint64(runs[i+1])<<16 | uint64(runs[i+2])<<32 | uint64(runs[i+3])<<48
		third := groups & (groups<<1 | open.groups>>63) & (groups<<2 | open.groups>>62)
		open.groups = groups
		for ; third != 0; third &= third - 1 {
			end := from + i*blockSize + mathbits.TrailingZeros64(third)*groupSize
			if end < open.end {
				continue
			}
			begin := end - 2*groupSize
			for begin > 0 && isRunByte(text[begin-1]) {
				begin--
			}
			for end += groupSize; end < len(text) && isRunByte(text[end]); {
				end++
			}
			open.end = end
			if end-begin >= minRun && (s.inRuns.containsWord(text[begin:end]) || endsInBearer(text[:begin])) {
				return true
			}
		}
	}
	return false
}

// endsInBearer reports whether a text ends in the word before a token.
func endsInBearer(text string) bool {
	const bearer = "earer"
	before := strings.TrimRightFunc(text, unicode.IsSpace)
	return len(before) < len(text) && len(before) >= len(bearer) && strings.EqualFold(before[len(before)-len(bearer):], bearer)
}

// rarestPair returns where the two bytes of a word begin that texts have least.
func rarestPair(word string) int {
	best := 0
	for i := range len(word) - 1 {
		if byteFrequency(word[i])*byteFrequency(word[i+1]) < byteFrequency(word[best])*byteFrequency(word[best+1]) {
			best = i
		}
	}
	return best
}

// pairClass is a set of pairs of bytes: of each half those that are in it, as bits.
type pairClass struct{ low, high, nextLow, nextHigh uint16 }

// newPairClass returns the class of one pair, or of c and any byte behind it.
func newPairClass(c byte, next ...byte) pairClass {
	p := pairClass{1 << (c & 15), 1 << (c >> 4), 0xffff, 0xffff}
	for _, n := range next {
		p.nextLow, p.nextHigh = 1<<(n&15), 1<<(n>>4)
	}
	return p
}

func (p pairClass) join(q pairClass) pairClass {
	return pairClass{p.low | q.low, p.high | q.high, p.nextLow | q.nextLow, p.nextHigh | q.nextHigh}
}

// frequency tells how often texts have a pair of the class.
func (p pairClass) frequency() int {
	return halvesFrequency(p.low, p.high) * halvesFrequency(p.nextLow, p.nextHigh)
}

// halvesFrequency tells how often texts have a byte of these halves.
func halvesFrequency(low, high uint16) int {
	sum := 0
	for h := high; h != 0; h &= h - 1 {
		for l := low; l != 0; l &= l - 1 {
			sum += byteFrequency(byte(mathbits.TrailingZeros16(h)<<4 | mathbits.TrailingZeros16(l)))
		}
	}
	return sum
}

// joinClasses returns eight classes that have all the pairs, and few more that texts have.
func joinClasses(pairs []pairClass) nibbles {
	var classes []pairClass
	for _, p := range pairs {
		if classes = append(classes, p); len(classes) > 8 {
			classes = joinTwo(classes)
		}
	}
	var n nibbles
	for i, c := range classes {
		for half := range 16 {
			n.low[half] |= uint8(c.low>>half&1) << i
			n.high[half] |= uint8(c.high>>half&1) << i
			n.nextLow[half] |= uint8(c.nextLow>>half&1) << i
			n.nextHigh[half] |= uint8(c.nextHigh>>half&1) << i
		}
	}
	return n
}

// joinTwo joins the two classes that together have the fewest other pairs.
func joinTwo(classes []pairClass) []pairClass {
	one, other, least := 0, 0, -1
	for i, c := range classes {
		for j, d := range classes[:i] {
			if more := c.join(d).frequency() - c.frequency() - d.frequency(); least < 0 || more < least {
				one, other, least = i, j, more
			}
		}
	}
	classes[other] = classes[other].join(classes[one])
	return slices.Delete(classes, one, one+1)
}
