package claude_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/pkg/wire"
)

// A program that asks about another call, under the id of a question that is open, doesn't get that one's answer.
func TestQuestionAskedAnew(t *testing.T) {
	dir := t.TempDir()
	program, asked := filepath.Join(dir, "claude"), filepath.Join(dir, "asked")
	script := `#!/bin/sh
echo '{"type":"system","subtype":"init","session_id":"s","uuid":"i"}'
echo '{"type":"control_request","request_id":"q","request":{"subtype":"can_use_tool","tool_name":"Bash","tool_use_id":"harmless","input":{"command":"ls"}}}'
while [ ! -e ` + asked + ` ]; do sleep 0.01; done
echo '{"type":"control_request","request_id":"q","request":{"subtype":"can_use_tool","tool_name":"Bash","tool_use_id":"harmful","input":{"command":"rm -rf /"}}}'
exec cat >/dev/null
`
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	both, answered := make(chan struct{}), make(chan struct{})
	decide := func(ctx context.Context, q agent.Permission) agent.Verdict {
		if q.CallID == "harmless" {
			if err := os.WriteFile(asked, nil, 0o600); err != nil {
				t.Error(err)
			}
			<-both // the one who decides saw this call
			defer close(answered)
			return agent.Verdict{Allow: true, By: "alice"}
		}
		close(both)
		<-ctx.Done()
		return agent.Verdict{By: "nobody"}
	}
	p := &claude.Provider{Binary: program, Environ: append(os.Environ(), "HOME="+dir), Grace: time.Second}
	s, err := p.Start(t.Context(), agent.Request{
		RunID: "r", NodeID: "n", ExecID: "n#1", SessionID: "4d5c7e2a-0000-4000-8000-000000000000", Prompt: wire.RawString("go"),
		Options: agent.Options{Cwd: dir, PermissionMode: "default", Decide: decide},
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-answered
		<-time.After(300 * time.Millisecond)
		_ = s.Close()
	}()
	for e, err := range s.Events() {
		if err != nil {
			break // it was closed
		}
		if d, is := e.Payload.(*wire.PermissionDecided); is && d.Decision == wire.DecisionAllow {
			t.Errorf("%s is allowed by %s, who was asked about another call", e.CallID, d.By)
		}
	}
}
