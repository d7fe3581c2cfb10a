package shell

import "code.wake.dev/wake/pkg/wire"

// excerpt keeps of what a command prints the beginning, which passes at once, and the end, which
// follows when the command has ended.
type excerpt struct {
	limit  int64 // bytes of the beginning, and again of the end; 0: everything is the beginning
	passed int64
	end    []outputPiece
	size   int64            // bytes of end
	left   map[string]int64 // bytes that were left out, by stream
}

// outputPiece is something that a command has printed.
type outputPiece struct {
	stream, text string
	at           int64  // Unix ms
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
}

// lastOutput returns what is to be recorded when the command has ended. The first of each stream tells how
// much was left out before.
func (x *excerpt) lastOutput() []*wire.ExecOutput {
	var all []*wire.ExecOutput
	told := map[string]bool{}
	for _, p := range x.end {
		e := &wire.ExecOutput{Stream: p.stream, Content: p.text}
		if !told[p.stream] {
			told[p.stream], e.Omitted = true, x.left[p.stream]
		}
		all = append(all, e)
	}
	for _, stream := range []string{"stdout", "stderr"} {
		if n := x.left[stream]; n > 0 && !told[stream] {
			all = append(all, &wire.ExecOutput{Stream: stream, Omitted: n})
		}
	}
	return all
}
