package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// longestLine bounds a line that is read to be refused: a request that is too long is
// answered under its id, which may be at its end.
const longestLine = 16 * MaxRequest

// messages reads the lines that are messages. The SDK ends the session with the
// first that is none; here it is answered with an error.
type messages struct {
	lines *bufio.Scanner
	out   io.Writer
	rest  []byte // of a line, what wasn't read yet
}

func newMessages(in io.Reader, out io.Writer) *messages {
	s := bufio.NewScanner(in)
	s.Buffer(nil, longestLine)
	return &messages{lines: s, out: out}
}

// Read reads from a line that is a message. A line longer than [longestLine] is an
// error.
func (m *messages) Read(p []byte) (int, error) {
	for len(m.rest) == 0 {
		if !m.lines.Scan() {
			if err := m.lines.Err(); err != nil {
				return 0, fmt.Errorf("read a request: %w", err)
			}
			return 0, io.EOF
		}
		line := bytes.TrimSpace(m.lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if id, problem := examineLine(line); problem != nil {
			if err := m.refuseLine(id, problem); err != nil {
				return 0, err
			}
			continue
		}
		m.rest = append(line, '\n') // the scanner's line: its end is free until the next Scan
	}
	n := copy(p, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

// Close does nothing: stdin isn't ours to close.
func (*messages) Close() error { return nil }

// examineLine says why a line can't be served, and the id of its request.
func examineLine(line []byte) (id any, problem *jsonrpc.Error) {
	if !json.Valid(line) {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeParseError, Message: "the line is no JSON"}
	}
	if line[0] == '[' {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "one message a line, please, no batches"}
	}
	message, err := jsonrpc.DecodeMessage(line)
	if err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "the line is no message of JSON-RPC 2.0"}
	}
	if len(line) < MaxRequest {
		return nil, nil
	}
	if r, ok := message.(*jsonrpc.Request); ok {
		id = r.ID.Raw()
	}
	return id, &jsonrpc.Error{
		Code: jsonrpc.CodeInvalidRequest, Message: fmt.Sprintf("the message has %d bytes, less than %d are allowed", len(line), MaxRequest),
	}
}

func (m *messages) refuseLine(id any, problem *jsonrpc.Error) error {
	line, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "error": problem})
	if err == nil {
		_, err = m.out.Write(append(line, '\n'))
	}
	if err != nil {
		return errors.Join(errors.New("answer a bad line"), err)
	}
	return nil
}
