package acp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode/utf8"

	acp "github.com/coder/acp-go-sdk"

	"code.wake.dev/wake/internal/agent/workdir"
	"code.wake.dev/wake/pkg/wire"
)

// serve does what the program asks for. It returns nil if the answer follows later.
func (s *session) serve(m rpcMessage) (any, error) {
	switch m.Method {
	case acp.ClientMethodFsReadTextFile:
		return serveAs(m, s.readFile)
	case acp.ClientMethodFsWriteTextFile:
		return serveAs(m, s.writeFile)
	case acp.ClientMethodTerminalCreate:
		return serveAs(m, func(r acp.CreateTerminalRequest) (any, error) { return s.createTerminal(m, r) })
	case acp.ClientMethodTerminalOutput:
		return serveAs(m, s.terminalOutput)
	case acp.ClientMethodTerminalWaitForExit:
		return serveAs(m, func(r acp.WaitForTerminalExitRequest) (any, error) { return s.awaitTerminal(m, r) })
	case acp.ClientMethodTerminalKill:
		return serveAs(m, s.killTerminal)
	case acp.ClientMethodTerminalRelease:
		return serveAs(m, func(r acp.ReleaseTerminalRequest) (any, error) { return s.releaseTerminal(m, r) })
	}
	return nil, acp.NewMethodNotFound(m.Method)
}

// serveAs reads the parameters of a request and has it served.
func serveAs[P any](m rpcMessage, serve func(P) (any, error)) (any, error) {
	var p P
	if err := json.Unmarshal(m.Params, &p); err != nil {
		return nil, fmt.Errorf("parameters of %s: %w", m.Method, err)
	}
	return serve(p)
}

// readFile gives the agent a text file of its folder, or some lines of it.
func (s *session) readFile(r acp.ReadTextFileRequest) (any, error) {
	content, err := s.folder.LoadFile(r.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &acp.RequestError{Code: resourceNotFound, Message: r.Path + " doesn't exist"}
	}
	if err != nil {
		return nil, err
	}
	if !utf8.Valid(content) {
		return nil, fmt.Errorf("%s is no text file (%d bytes)", r.Path, len(content))
	}
	text := string(content)
	if r.Line != nil || r.Limit != nil {
		text = cutLines(text, r.Line, r.Limit)
	}
	return acp.ReadTextFileResponse{Content: text}, nil
}

// resourceNotFound is the code for a file that isn't there.
const resourceNotFound = -32002

// cutLines returns some lines of a text, from the first one, counted from 1, on.
func cutLines(text string, first, limit *int) string {
	if first != nil {
		text = text[endOfLines(text, *first-1):]
	}
	if limit != nil {
		text = text[:endOfLines(text, *limit)]
	}
	return text
}

// endOfLines returns where so many lines of a text end.
func endOfLines(text string, lines int) (end int) {
	for ; lines > 0; lines-- {
		i := strings.IndexByte(text[end:], '\n')
		if i < 0 {
			return len(text)
		}
		end += i + 1
	}
	return end
}

// writeFile writes a file of the agent's folder.
func (s *session) writeFile(r acp.WriteTextFileRequest) (any, error) {
	if len(r.Content) > workdir.MaxFile {
		return nil, fmt.Errorf("the content has %d bytes, more than %d", len(r.Content), workdir.MaxFile)
	}
	if had, err := s.folder.LoadFile(r.Path); err == nil && string(had) == r.Content { // also of a runner that died before it had answered
		return acp.WriteTextFileResponse{}, nil
	}
	change, err := s.folder.SaveFile(r.Path, []byte(r.Content))
	if err != nil {
		return nil, err
	}
	s.f.at = nowMillis()
	s.f.emit("", &wire.FileChanged{Path: r.Path, Change: change})
	return acp.WriteTextFileResponse{}, nil
}
