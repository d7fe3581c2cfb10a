package ask_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/pkg/wire"
)

func raw(t testing.TB, s string) wire.Raw {
	t.Helper()
	r, err := wire.RawFromJSON([]byte(s))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const (
	indent = `{"question":"Tabs or spaces?","header":"Indent","options":[{"label":"Tabs","description":"one byte"},{"label":"Spaces"}]}`
	checks = `{"question":"Which checks?","header":"Checks","options":[{"label":"vet"},{"label":"lint, all"},{"label":"2"}],"multiSelect":true}`
	one    = `{"questions":[` + indent + `]}`
	both   = `{"questions":[` + indent + `,` + checks + `]}`
)

// Claude Code takes what comes with an answer for what its model had asked.
func TestAnswerKeepsInput(t *testing.T) {
	got, err := ask.Answer(raw(t, `{"metadata":{"source":"x"},"questions":[{"question":"Why?","header":"Why","multiSelect":false,"later":1,
		"options":[{"label":"A","description":"","preview":"| a |"},{"label":"B","description":"b"}]}]}`), raw(t, `"B"`))
	if err != nil {
		t.Fatal(err)
	}
	want := raw(t, `{"answers":{"Why?":"B"},"metadata":{"source":"x"},"questions":[{"question":"Why?","header":"Why","multiSelect":false,"later":1,
		"options":[{"label":"A","description":"","preview":"| a |"},{"label":"B","description":"b"}]}]}`)
	if diff := cmp.Diff(want.Any(), got.Any()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestAnswer(t *testing.T) {
	for _, test := range []struct {
		input, answer string
		want          map[string]any // or
		problem       string
	}{
		{one, `"Tabs"`, map[string]any{"Tabs or spaces?": "Tabs"}, ""},
		{one, `" sPaces "`, map[string]any{"Tabs or spaces?": "Spaces"}, ""},
		{one, `"2"`, map[string]any{"Tabs or spaces?": "Spaces"}, ""},
		{one, `2`, map[string]any{"Tabs or spaces?": "Spaces"}, ""},
		{one, `"3"`, map[string]any{"Tabs or spaces?": "3"}, ""},
		{one, `"Tabs, Spaces"`, map[string]any{"Tabs or spaces?": "Tabs, Spaces"}, ""},
		{one, `"What gofmt does"`, map[string]any{"Tabs or spaces?": "What gofmt does"}, ""},
		{one, `["Tabs"]`, map[string]any{"Tabs or spaces?": "Tabs"}, ""},
		{one, `["Tabs","Spaces"]`, nil, "only one"},
		{one, `""`, nil, "empty"},
		{one, `"  "`, nil, "empty"},
		{one, `null`, nil, "no text"},
		{one, `{}`, nil, "no answer"},
		{one, `[]`, nil, "empty"},
		{one, `[1]`, nil, "something else"},
		{one, `{"Nope":"Tabs"}`, nil, `they are "Indent"`},
		{both, `{"indent":"1","2":"vet,2"}`, map[string]any{"Tabs or spaces?": "Tabs", "Which checks?": "vet, 2"}, ""},
		{both, `{"Which checks?":["vet","lint, all","more"]}`, map[string]any{"Which checks?": "vet, lint, all, more"}, ""},
		{both, `{"Checks":"lint, all"}`, map[string]any{"Which checks?": "lint, all"}, ""},
		{both, `{"Checks":"vet, and whatever helps"}`, map[string]any{"Which checks?": "vet, and whatever helps"}, ""},
		{both, `"as you like"`, map[string]any{"Tabs or spaces?": "as you like", "Which checks?": "as you like"}, ""},
		{`{"questions":[]}`, `"x"`, nil, "empty"},
		{`{"questions":"x"}`, `"x"`, nil, "must be a list"},
		{`{"questions":[{"question":" "}]}`, `"x"`, nil, "question 1 is empty"},
		{`{"questions":[{"question":"a"},{"question":"a"}]}`, `"x"`, nil, "asked twice"},
		{`null`, `"x"`, nil, "empty"},
	} {
		got, err := ask.Answer(raw(t, test.input), raw(t, test.answer))
		if test.problem != "" {
			if err == nil || !strings.Contains(err.Error(), test.problem) {
				t.Errorf("%s to %s: error %v, want %q", test.answer, test.input, err, test.problem)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s to %s: %v", test.answer, test.input, err)
			continue
		}
		if diff := cmp.Diff(any(test.want), got.Get("answers").Any()); diff != "" {
			t.Errorf("%s to %s (-want +got):\n%s", test.answer, test.input, diff)
		}
	}
}

func TestChosen(t *testing.T) {
	for _, test := range []struct {
		input   string
		options []string
		want    string // or problem
	}{
		{one, []string{"tabs"}, `{"Tabs or spaces?":["Tabs"]}`},
		{one, []string{"Indent=2"}, `{"Tabs or spaces?":["Spaces"]}`},
		{both, []string{"indent=Tabs", "Checks=vet,2", "Checks=lint, all"}, `{"Tabs or spaces?":["Tabs"],"Which checks?":["vet","2","lint, all"]}`},
		{both, []string{"Tabs"}, `"Tabs": say QUESTION=OPTION; the questions are "Indent", "Checks"`},
		{both, []string{"Style=Tabs"}, `there is no question "Style"; they are "Indent", "Checks"`},
		{one, []string{"Both"}, `"Both" is no option of "Tabs or spaces?": Tabs, Spaces`},
	} {
		questions, err := ask.Questions(raw(t, test.input))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if content, err := ask.Chosen(questions, test.options); err != nil {
			got = err.Error()
		} else {
			b, _ := wire.AppendJSON(nil, content)
			got = string(b)
		}
		if got != test.want {
			t.Errorf("%q: got %s, want %s", test.options, got, test.want)
		}
	}
}

// What an agent writes for answers into its own questions isn't one, and it is told which
// question has none.
func TestOwnAnswers(t *testing.T) {
	input := raw(t, `{"questions":[`+indent+`],"answers":{"Tabs or spaces?":"Tabs"}}`)
	got, err := ask.Answer(input, raw(t, `"Spaces"`))
	if err != nil {
		t.Fatal(err)
	}
	if want := `The questions were answered. "Tabs or spaces?": "Spaces"`; ask.Result(got) != want {
		t.Errorf("told %s", ask.Result(got))
	}
	some, err := ask.Answer(raw(t, both), raw(t, `{"Checks":"vet"}`))
	if err != nil {
		t.Fatal(err)
	}
	if want := `The questions were answered. "Tabs or spaces?" was left open; "Which checks?": "vet"`; ask.Result(some) != want {
		t.Errorf("told %s", ask.Result(some))
	}
	if got := ask.Result(raw(t, one)); got != "The questions have no answer." {
		t.Errorf("told %s", got)
	}
}

// Agents count their calls: where ids of several nodes are the same, the command names the node.
func TestEqualIDs(t *testing.T) {
	waits := func(node, call string) wire.ToolCall {
		return wire.ToolCall{Node: node, CallID: call, Tool: "Bash", State: wire.ToolApprovalRequired}
	}
	s := &wire.State{RunID: "r1", Status: wire.RunRunning, Tools: map[string]wire.ToolCall{
		"a#1/call_1": waits("a", "call_1"), "b#1/call_1": waits("b", "call_1"), "b#1/call_2": waits("b", "call_2"),
	}}
	var got []string
	for _, a := range ask.Pending(s) {
		got = append(got, a.Answer)
	}
	want := []string{"wake approve r1 call_1 --node a", "wake approve r1 call_1 --node b", "wake approve r1 call_2"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPending(t *testing.T) {
	s := &wire.State{
		RunID: "r 1", Status: wire.RunPaused,
		Tools: map[string]wire.ToolCall{
			"a#1/t1": {Node: "a", CallID: "t1", Tool: "Bash", Input: raw(t, `{"command":"ls"}`), State: wire.ToolApprovalRequired, Since: 5, AskedAt: 50},
			"a#1/t2": {Node: "a", CallID: "t2", Tool: ask.Tool, Input: raw(t, one), State: wire.ToolApprovalRequired, Since: 40},
			"a#1/t3": {Node: "a", CallID: "t3", Tool: "Bash", State: wire.ToolExecuting, Since: 1},
		},
		Nodes: map[string]wire.NodeState{
			"a": {Scheduled: 1, Asked: []wire.Question{
				{ID: "m1", Text: "which?", Priority: wire.PriorityBlocker, Since: 30}, {Text: "and this?", Priority: wire.PriorityQuestion, Since: 60},
			}},
			"q": {Scheduled: 1, PromptID: "p-1", PromptAt: 20, Input: raw(t, `{"prompt":"Deploy?","choices":["yes",2]}`)},
			"z": {Scheduled: 1, Ended: 2, PromptID: "p-2"},
		},
	}
	var got []string
	for _, a := range ask.Pending(s) {
		got = append(got, strings.Join([]string{string(a.Kind), a.RunID, a.NodeID, a.CallID, a.ToolName, a.Text, string(a.Priority), a.Answer}, "|"))
	}
	want := []string{
		"ask|r 1|q|p-1||Deploy? (yes, 2)||wake reply 'r 1' ANSWER --prompt p-1",
		"message|r 1|a|m1||which?|blocker|wake reply 'r 1' ANSWER --prompt m1",
		"question|r 1|a|t2|AskUserQuestion|Tabs or spaces? (Tabs, Spaces)||wake reply 'r 1' ANSWER --prompt t2",
		"approval|r 1|a|t1|Bash|||wake approve 'r 1' t1",
		"message|r 1|a|||and this?|question|wake steer 'r 1' ANSWER --node a",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, m := range []struct{ node, command string }{
		{"", `{"type":"reply","promptId":"p-1","content":"yes"}`},
		{"a", `{"type":"send","message":"this","answers":"m1"}`},
		{"a", `{"type":"approve","callId":"t1"}`},
		{"b", `{"type":"deny","callId":"t2"}`}, // another node's
		{"a", `{"type":"send","message":"by the way"}`},
	} {
		s.Inbox = append(s.Inbox, wire.InboxEntry{Node: m.node, Command: raw(t, m.command)})
	}
	var left []string
	for _, a := range ask.Pending(s) {
		left = append(left, string(a.Kind)+" "+a.CallID)
	}
	if want := []string{"question t2", "message "}; !slices.Equal(left, want) || len(ask.Open(s)) != 5 {
		t.Errorf("with answers on their way %q wait, want %q; %d are open", left, want, len(ask.Open(s)))
	}
	s.Imported = wire.ImportedCopy
	if got := ask.Pending(s); len(got) != 0 {
		t.Errorf("of a copy %v wait, which nobody can answer", got)
	}
	s.Imported, s.Status = "", wire.RunAborted
	if got := ask.Pending(s); len(got) != 0 {
		t.Errorf("of a run that has ended %v wait", got)
	}
}

// What a model or a person has written breaks nothing, and an answer that is taken answers.
func FuzzAnswer(f *testing.F) {
	f.Add(one, `"Tabs"`)
	f.Add(both, `{"Checks":["vet"]}`)
	f.Fuzz(func(t *testing.T, input, answer string) {
		i, err := wire.RawFromJSON([]byte(input))
		if err != nil {
			return
		}
		a, err := wire.RawFromJSON([]byte(answer))
		if err != nil {
			return
		}
		if got, err := ask.Answer(i, a); err == nil && !ask.Answered(got) {
			t.Errorf("%s to %s answers nothing", answer, input)
		}
	})
}

// A shell takes a word for the text that it is of, and a person sees all of it.
func TestShellWord(t *testing.T) {
	for text, want := range map[string]string{
		"run-1.f#2":       "'run-1.f#2'",
		"a.b":             "a.b",
		"":                "''",
		"it's\\":          `'it'\''s\'`,
		"vic\x1b[m":       `$'vic\x1b[m'`,
		"a\nb'c\\1":       `$'a\x0ab\'c\\1'`,
		"\u202e1\xff2":    `$'\xe2\x80\xae1\xff2'`,
		"ä ö\u00a0\ufffd": `$'ä ö\xc2\xa0\xef\xbf\xbd'`,
	} {
		word := ask.ShellWord(text)
		if word != want {
			t.Errorf("%q is %s, want %s", text, word, want)
		}
		got, err := exec.CommandContext(t.Context(), "bash", "-c", "printf %s "+word).Output()
		if err != nil || string(got) != text {
			t.Errorf("bash takes %s for %q, %v", word, got, err)
		}
	}
}
