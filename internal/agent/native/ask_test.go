package native_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

// TestAskUserQuestion has the agent ask a person, whatever its mode is: nobody but a person,
// or a hook that has the answer, answers.
func TestAskUserQuestion(t *testing.T) {
	const question = `{"questions":[{"question":"Tabs or spaces?","header":"Indent","options":[{"label":"Tabs"},{"label":"Spaces"}]}],"answers":{"Tabs or spaces?":"mine"}}`
	const told = `The questions were answered. "Tabs or spaces?": "Tabs"`
	const answered = `{"decision":"modify","input":{"questions":[{"question":"Tabs or spaces?"}],"answers":{"Tabs or spaces?":"Tabs"}}}`
	for _, test := range []struct {
		name    string
		options agent.Options
		hook    string
		input   string
		want    string
	}{
		{"auto", agent.Options{}, "", question, "asked; " + told},
		{"readonly", agent.Options{PermissionMode: "readonly"}, "", question, "asked; " + told},
		{"approval", agent.Options{PermissionMode: "approval"}, "", question, "asked; " + told},
		{"a hook that allows", agent.Options{}, `{"decision":"allow"}`, question, "asked; " + told},
		{"a hook that answers", agent.Options{}, answered, question, told},
		{"disallowed", agent.Options{DisallowedTools: []string{ask.Tool}}, "", question, "Permission denied for tool: AskUserQuestion: the tool is disallowed"},
		{"not allowed", agent.Options{AllowedTools: []string{"read"}}, "", question, "Permission denied for tool: AskUserQuestion: the tool is not among the allowed ones"},
		{"no question", agent.Options{}, "", `{"questions":[]}`, "input: questions is empty"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t)
			if test.hook != "" {
				b.hooks(saysSomething(flow.HookPreToolUse, "", test.hook))
			}
			test.options.Cwd = b.request.Options.Cwd
			b.request.Options = test.options
			b.request.Options.Decide = func(_ context.Context, p agent.Permission) agent.Verdict {
				input, err := ask.Answer(p.Input, wire.RawString("tabs"))
				if err != nil {
					t.Error(err)
				}
				return agent.Verdict{Allow: true, By: "ann", UpdatedInput: input}
			}
			var got []string
			text, _ := b.called(ask.Tool, test.input).ToolOutput.Text()
			if len(of[*wire.PermissionRequired](b.log)) == 1 {
				got = append(got, "asked")
			}
			if diff := cmp.Diff(test.want, strings.Join(append(got, text), "; ")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
