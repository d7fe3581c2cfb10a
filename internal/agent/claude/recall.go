package claude

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// sessionRecord is the file of a session that a request goes on with.
type sessionRecord struct {
	files   sessionFiles
	content []byte // nil: not found
	here    bool   // it is where the program looks for it
}

// recallRecord finds the record of the session that the request goes on with, tells the
// agent in its prompt which facts aren't in there, and readies the normalizer
// for that prompt.
func (s *session) recallRecord() (before sessionRecord, err error) {
	defer func() {
		s.n = s.makeNormalizer()
	}()
	if before.files, err = s.provider.filesOf(s.request.Options); err != nil || baseSession(s.request) == "" {
		return before, err
	}
	if before, err = s.provider.loadRecord(s.Context(), s.request, before.files); err != nil || before.content == nil {
		return before, err // the program will say that it doesn't know the session
	}
	if baseSession(s.request) == s.request.SessionID { // it is ours to correct
		if content := correctRefusals(before.content, s.request.Denied); !bytes.Equal(content, before.content) {
			before.content, before.here = content, false
		}
	}
	text, ok := s.request.Prompt.Text()
	if !ok {
		return before, nil
	}
	lapse := agent.DescribeLapse(s.request.Facts, func(f agent.Fact) bool { return strings.Contains(text, f.Text) || inRecord(before.content, f) })
	if lapse != "" {
		s.request.Prompt = wire.RawString(text + "\n\n" + lapse)
		s.prompts = []wire.Raw{textBlocks(text + "\n\n" + lapse)}
	}
	return before, nil
}

// loadRecord returns the record of the session that a request goes on with. A local file will do
// if the kept one can't be had; and if nothing is kept at all, the program may know better.
func (p *Provider) loadRecord(ctx context.Context, request agent.Request, f sessionFiles) (sessionRecord, error) {
	r, id := sessionRecord{files: f}, baseSession(request)
	var kept []byte
	var missed, err error
	load := request.Transcript.Load
	if load != nil {
		kept, missed = load(ctx, id)
	}
	r.content, r.here, err = f.bestVersion(id, kept)
	switch {
	case err != nil && load == nil:
		p.Logger.Warn("session file not read", "error", err)
		return sessionRecord{files: f}, nil
	case err != nil:
		return r, fmt.Errorf("session file: %w", err)
	case missed != nil && r.content == nil:
		return r, fmt.Errorf("session file: %w", missed)
	case missed != nil:
		p.Logger.Warn("kept session file not read", "error", missed)
	}
	return r, nil
}

// inRecord reports whether a session file has a fact. What a former prompt told stands there as a text.
func inRecord(content []byte, f agent.Fact) bool {
	for _, field := range []string{"tool_use_id", "uuid", "source_uuid"} {
		if bytes.Contains(content, fmt.Appendf(nil, "%q:%q", field, f.Mark)) {
			return true
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	return e.Encode(f.Text) == nil && bytes.Contains(content, bytes.Trim(b.Bytes(), "\"\n"))
}
