//go:build claudecli

package claude_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/pkg/wire"
)

// An agent that asks a person gets the answers, in the mode that asks for nothing else too;
// and is told when it gets none.
func TestCLIAskUserQuestion(t *testing.T) {
	const answered = `asked AskUserQuestion; allow; Your questions have been answered: "Tabs or spaces?"="Tabs", "Which checks?"="vet, lint". You can now continue with these answers in mind.`
	for _, test := range []struct{ mode, answer, want string }{
		{"", `{"Indent":"1","Checks":["vet","lint"]}`, answered},
		{"default", `{"Indent":"tabs","Checks":"1,2"}`, answered},
		{"", "", "asked AskUserQuestion; deny; not now"},
	} {
		t.Run(test.mode+test.answer, func(t *testing.T) {
			versions(t, func(t *testing.T, l lab) {
				r := l.request(t, "ask")
				r.Options.PermissionMode = test.mode
				r.Options.Decide = func(_ context.Context, p agent.Permission) agent.Verdict {
					if test.answer == "" {
						return agent.Verdict{By: "ann", Note: "not now"}
					}
					answer, err := wire.RawFromJSON([]byte(test.answer))
					if err != nil {
						t.Error(err)
					}
					input, err := ask.Answer(p.Input, answer)
					if err != nil {
						t.Error(err)
					}
					return agent.Verdict{Allow: true, By: "ann", UpdatedInput: input}
				}
				var got []string
				for _, e := range l.run(t, r, nil) {
					switch p := e.Payload.(type) {
					case *wire.PermissionRequired:
						got = append(got, "asked "+p.ToolName)
					case *wire.PermissionDecided:
						got = append(got, string(p.Decision))
					case *wire.AgentTool:
						got = append(got, fmt.Sprint(p.ToolOutput.Any()))
					}
				}
				if s := strings.Join(got, "; "); s != test.want {
					t.Errorf("got  %s\nwant %s", s, test.want)
				}
			})
		})
	}
}
