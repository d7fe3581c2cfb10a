// Package pipe is how sessions talk with their agents' programs: lines that are written without
// holding up the writer, and lines that are made of the frames of a journal.
package pipe

import (
	"bytes"

	"code.wake.dev/wake/internal/process"
)

// Line is a line that the program has printed, or, before [process.Live], one that it was
// given; or what says that what follows has just come.
type Line struct {
	process.Frame          // Data is the line; Offset is just behind it; At is of its end
	Long          *TooLong // in the place of a line
}

// MaxLine bounds a line, in bytes; MaxHead is how much of a longer one is kept to recognise it by.
const (
	MaxLine = 64 << 20
	MaxHead = 4 << 10
)

// TooLong tells of a line that was longer than [MaxLine].
type TooLong struct {
	Bytes int64  // its length, without the line end
	Head  []byte // its beginning
}

// ReadLines makes lines of what the program says. They end with its output, or with done.
func ReadLines(p *process.Process, done <-chan struct{}) <-chan Line {
	inputs := make(chan Line, 16)
	go func() {
		defer close(inputs)
		pass := func(in Line) {
			select {
			case inputs <- in:
			case <-done: // the frames are read to their end all the same
			}
		}
		var said, told assembly
		for f := range p.Frames {
			switch f.Direction {
			case process.Out:
				said.addFrame(f, pass)
			case process.In:
				told.addFrame(f, pass)
			case process.Live:
				pass(Line{Frame: f})
			case process.Err: // it is kept
			}
		}
		said.passLastLine(pass)
	}()
	return inputs
}

// assembly makes lines of the frames of one direction.
type assembly struct {
	last process.Frame
	line []byte
	size int // of the line so far, which may be longer than what is kept
}

func (a *assembly) addFrame(f process.Frame, pass func(Line)) {
	for data := f.Data; len(data) > 0; {
		piece, rest, ended := bytes.Cut(data, []byte{'\n'})
		a.size += len(piece)
		if room := MaxLine + 1 - len(a.line); room > 0 {
			a.line = append(a.line, piece[:min(len(piece), room)]...)
		}
		data = rest
		a.last = process.Frame{Offset: f.Offset + uint64(len(f.Data)-len(rest)), Direction: f.Direction, At: f.At}
		if ended {
			a.passLine(pass)
		}
	}
}

// passLastLine passes on a last line without an end.
func (a *assembly) passLastLine(pass func(Line)) {
	if a.size > 0 {
		a.passLine(pass)
	}
}

func (a *assembly) passLine(pass func(Line)) {
	in := Line{Frame: a.last}
	if in.Data = a.line; a.size > MaxLine {
		in.Data, in.Long = nil, &TooLong{Bytes: int64(a.size), Head: bytes.Clone(a.line[:MaxHead])}
	}
	a.line, a.size = nil, 0
	pass(in)
}
