package claude

import (
	"bytes"

	"code.wake.dev/wake/internal/process"
)

// input is a line that the program has printed, or, before [process.Live], one that it was
// given; or what says that what follows has just come.
type input struct {
	process.Frame                   // Data is the line; Offset is just behind it; At is of its end
	long          *LineTooLongError // in the place of a line
}

// readLines makes lines of what the program says. They end with its output, or with done.
func readLines(p *process.Process, done <-chan struct{}) <-chan input {
	inputs := make(chan input, 16)
	go func() {
		defer close(inputs)
		pass := func(in input) {
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
				pass(input{Frame: f})
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

func (a *assembly) addFrame(f process.Frame, pass func(input)) {
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
func (a *assembly) passLastLine(pass func(input)) {
	if a.size > 0 {
		a.passLine(pass)
	}
}

func (a *assembly) passLine(pass func(input)) {
	in := input{Frame: a.last}
	if in.Data = a.line; a.size > MaxLine {
		in.Data, in.long = nil, &LineTooLongError{Bytes: int64(a.size), Limit: MaxLine, Head: bytes.Clone(a.line[:maxHead])}
	}
	a.line, a.size = nil, 0
	pass(in)
}
