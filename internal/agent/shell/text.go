package shell

import (
	"strings"
	"unicode/utf8"

	"code.wake.dev/wake/pkg/wire"
)

// toValidUTF8 returns s in UTF-8.
func toValidUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// textDecoder cuts a stream of bytes into text without cutting characters.
// Invalid bytes become U+FFFD.
type textDecoder struct{ held []byte }

// decode returns the text of the next bytes, less a character that hasn't ended.
func (d *textDecoder) decode(b []byte) string {
	b = append(d.held, b...)
	cut := len(b) - incompleteBytes(b)
	d.held = append([]byte(nil), b[cut:]...)
	return toValidUTF8(string(b[:cut]))
}

// takeRest returns what is held at the end of the stream.
func (d *textDecoder) takeRest() string {
	s := toValidUTF8(string(d.held))
	d.held = nil
	return s
}

// incompleteBytes returns how many bytes at the end begin a character that more
// bytes may complete.
func incompleteBytes(b []byte) int {
	for n := 1; n <= min(utf8.UTFMax-1, len(b)); n++ {
		c := b[len(b)-n]
		if !utf8.RuneStart(c) {
			continue
		}
		if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-n:]) {
			return n
		}
		return 0
	}
	return 0
}

// excerpt keeps of what a command prints the beginning, which passes at once, and the end, which
// follows when the command has ended. The end is that of both streams together, and of each that says less there as much as the output
// of a node has.
type excerpt struct {
	limit  int64 // bytes of the beginning, and again of the end; 0: everything is the beginning
	passed int64
	end    []outputPiece
	size   int64             // bytes of end
	left   map[string]int64  // bytes that were left out, by stream
	tails  map[string][]byte // and the last of them
}

// outputPiece is something that a command has printed.
type outputPiece struct {
	stream, text string
	from         uint64 // where it begins in the journal
	whole        bool   // no character is cut there
}

// passPiece reports whether a piece is to be recorded now. If not, it is kept until it turns out to be
// in the middle.
func (x *excerpt) passPiece(p outputPiece) bool {
	size := int64(len(p.text))
	if x.limit == 0 || x.passed < x.limit {
		x.passed += size
		return true
	}
	x.end, x.size = append(x.end, p), x.size+size
	for x.size-int64(len(x.end[0].text)) >= x.limit {
		x.leaveOut(x.end[0])
		x.size -= int64(len(x.end[0].text))
		x.end[0] = outputPiece{}
		x.end = x.end[1:]
	}
	return false
}

func (x *excerpt) leaveOut(p outputPiece) {
	if x.left == nil {
		x.left = map[string]int64{}
	}
	x.left[p.stream] += int64(len(p.text))
	if x.tails == nil {
		x.tails = map[string][]byte{}
	}
	tail := append(x.tails[p.stream], p.text...)
	if most := x.tailSize(); len(tail) > 2*most {
		tail = tail[:copy(tail, tail[len(tail)-most:])]
	}
	x.tails[p.stream] = tail
}

// tailSize is how much of the end of each stream is kept at least, in bytes.
func (x *excerpt) tailSize() int { return int(min(tailSize, x.limit)) }

// tailOf is what was left out of a stream and is kept: as much as the end has less of the stream than is kept of each.
func (x *excerpt) tailOf(stream string) string {
	tail, room := x.tails[stream], x.tailSize()
	for i := 0; i < len(x.end) && room > 0 && len(tail) > 0; i++ {
		if x.end[i].stream == stream {
			room -= len(x.end[i].text)
		}
	}
	from := max(0, len(tail)-max(0, room))
	for from < len(tail) && !utf8.RuneStart(tail[from]) {
		from++
	}
	return string(tail[from:])
}

// lastOutput returns what is to be recorded when the command has ended. The first of each stream tells how
// much was left out before.
func (x *excerpt) lastOutput() []*wire.ExecOutput {
	var all []*wire.ExecOutput
	told := map[string]bool{}
	begin := func(stream, text string) *wire.ExecOutput {
		tail := x.tailOf(stream)
		told[stream] = true
		return &wire.ExecOutput{Stream: stream, Content: tail + text, Omitted: x.left[stream] - int64(len(tail))}
	}
	for _, p := range x.end {
		if told[p.stream] {
			all = append(all, &wire.ExecOutput{Stream: p.stream, Content: p.text})
		} else {
			all = append(all, begin(p.stream, p.text))
		}
	}
	for _, stream := range []string{"stdout", "stderr"} {
		if x.left[stream] > 0 && !told[stream] {
			all = append(all, begin(stream, ""))
		}
	}
	return all
}
