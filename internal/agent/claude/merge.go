package claude

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"code.wake.dev/wake/internal/agent"
)

// MergeLines returns the lines of a session's file with those of its sub-agents' files where they belong by their times, as
// versions before 2.0 wrote them into one. The lines of each file keep their order, and that of the session begins.
func MergeLines(main io.Reader, agents []agent.SubAgent) io.Reader {
	return mergeLines(main, agents, MaxLine)
}

// mergeLines holds limit bytes of a line at most.
func mergeLines(main io.Reader, agents []agent.SubAgent, limit int) io.Reader {
	m := &mergedLines{main: newFeed(main, limit)}
	for _, a := range agents {
		m.agents = append(m.agents, newFeed(bytes.NewReader(a.Content), limit))
	}
	return m
}

// mergedLines reads several files as one.
type mergedLines struct {
	main   *feed
	agents []*feed
	open   *feed // in the middle of a line
	begun  bool  // the main conversation has
	rest   []byte
}

// Read implements [io.Reader].
func (m *mergedLines) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(m.rest) == 0 {
		f := m.open
		if f == nil {
			f = m.nextFeed()
		}
		if f.err != nil {
			return 0, f.err
		}
		if m.rest = f.line; f == m.main && (f.typ == "user" || f.typ == "assistant") {
			m.begun = true
		}
		if m.open = nil; f.cut {
			m.open = f
		}
		f.advance()
	}
	n := copy(p, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

// nextFeed returns the file with the earliest line. At the same time a call comes before what its sub-agent does, and its
// result behind it.
func (m *mergedLines) nextFeed() *feed {
	next := m.main
	if !m.begun && next.err == nil {
		return next
	}
	for _, a := range m.agents {
		switch {
		case errors.Is(a.err, io.EOF):
		case errors.Is(next.err, io.EOF), a.at < next.at, a.at == next.at && next == m.main && next.typ == "user":
			next = a
		}
	}
	return next
}

// feed is a file of which one line is known.
type feed struct {
	in   *bufio.Reader
	most int    // bytes of a line that are read at once
	line []byte // with its end, or the beginning of a long one
	cut  bool   // it isn't the end of the line
	at   int64  // Unix ms; a line without a time has that of the one before
	typ  string
	err  error // there is none
}

func newFeed(r io.Reader, most int) *feed {
	f := &feed{in: bufio.NewReaderSize(r, min(most, 64<<10)), most: most}
	f.advance()
	return f
}

// advance reads the next line, or more of the one that was cut.
func (f *feed) advance() {
	again := f.cut
	f.line, f.cut = nil, false
	for {
		piece, err := f.in.ReadSlice('\n')
		f.line = append(f.line, piece...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull) && len(f.line) <= f.most:
			continue
		case errors.Is(err, bufio.ErrBufferFull):
			f.cut = true
		case errors.Is(err, io.EOF) && (len(f.line) > 0 || again):
			f.line = append(f.line, '\n') // another file's may follow
		case err != nil:
			f.err = err
			return
		}
		break
	}
	if again || f.cut { // too long to be read
		return
	}
	var l struct {
		Type string `json:"type"`
		At   string `json:"timestamp"`
	}
	_ = json.Unmarshal(f.line, &l) // what is no JSON has no time
	f.typ, f.at = l.Type, max(f.at, parseMillis(l.At))
}
