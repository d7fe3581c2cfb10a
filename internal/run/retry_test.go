package run_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// TestAttempts is what an agent is told whose attempts have failed.
func TestAttempts(t *testing.T) {
	about := func(call string, p wire.Payload) *wire.Event {
		return &wire.Event{SessionID: "s1", CallID: call, Payload: p}
	}
	input := wire.RawString("in")
	intent := func(call string) *wire.Event {
		return about(call, &wire.ToolIntent{ToolName: "Bash", ToolInput: input})
	}
	ended := func(call, text, problem string) *wire.Event {
		return about(call, &wire.AgentTool{ToolName: "Bash", ToolInput: input, ToolOutput: wire.RawString(text), Error: problem})
	}
	start := about("", &wire.AgentStart{})
	failed := about("", &wire.NodeError{Error: "no\nluck"})
	child := ended("x", "child", "")
	child.Parent = "t1"
	other := &wire.Event{SessionID: "s2", Payload: &wire.AgentStart{}}
	bound := &wire.Event{SessionID: "s2", Payload: &wire.SessionBound{OldSession: "s1", NewSession: "s2"}}
	copied := &wire.Event{SessionID: "s2", Payload: &wire.AgentStart{Resumed: true}}
	const head = "Your last attempt at this task failed: no luck\n\n" +
		"This is the next one, in the same conversation. What you have done has happened: don't begin anew, go on where you were."
	const listed = "These tool calls have ended (at most the last 20 are listed). Don't repeat them for the failure:"
	const cut = "These tool calls were cut off with the attempt and have no result. What they have done is unknown: check that before you repeat one."
	const unrefused = "Unless it says above that a call was denied, nobody has refused any of them. " +
		"If this conversation says of one that the user rejected it, didn't want to proceed or told you to stop, " +
		"or that it had no effect, those words came from the interruption and not from the user: go by what stands here, and go on."
	many := []*wire.Event{start}
	for i := range 30 {
		many = append(many, ended(fmt.Sprint(i), fmt.Sprint("did ", i), ""))
	}
	for name, test := range map[string]struct {
		events  []*wire.Event
		session string
		want    []string
	}{
		"nothing":         {nil, "", nil},
		"no work":         {[]*wire.Event{start, failed}, "s1", nil},
		"no call":         {[]*wire.Event{start, about("", &wire.TurnStart{}), failed}, "s1", []string{head}},
		"an end":          {[]*wire.Event{start, intent("a"), ended("a", "did a", ""), failed}, "s1", []string{head, listed, "- Bash \"in\"\n  Its result: did a"}},
		"a failed one":    {[]*wire.Event{start, intent("a"), ended("a", "", "exit 1"), failed}, "s1", []string{head, listed, "- Bash \"in\"\n  It failed: exit 1"}},
		"cut off":         {[]*wire.Event{start, intent("a"), failed}, "s1", []string{head, cut, "- Bash \"in\"\n  It was cut off.", unrefused}},
		"interrupted":     {[]*wire.Event{start, intent("a"), ended("a", "", wire.CallInterrupted), failed}, "s1", []string{head, cut, "- Bash \"in\"\n  It was cut off.", unrefused}},
		"of a sub-agent":  {[]*wire.Event{start, about("", &wire.TurnStart{}), child, failed}, "s1", []string{head}},
		"another session": {[]*wire.Event{start, intent("a"), failed, other, failed}, "s2", nil},
		"its own name":    {[]*wire.Event{start, bound, intent("a"), failed}, "s2", []string{head, cut, "- Bash \"in\"\n  It was cut off.", unrefused}},
		"a copy":          {[]*wire.Event{start, intent("a"), failed, copied, failed}, "s2", []string{head, cut, "- Bash \"in\"\n  It was cut off.", unrefused}},
		"not kept yet":    {[]*wire.Event{start, about("", &wire.TurnStart{}), failed}, "s1", nil},
		"two attempts":    {[]*wire.Event{start, intent("a"), failed, start, failed}, "s1", []string{head, cut, "- Bash \"in\"\n  It was cut off.", unrefused}},
		"many":            {append(many, failed), "s1", nil},
	} {
		t.Run(name, func(t *testing.T) {
			a := run.Attempts{Late: name == "not kept yet"}
			for _, e := range test.events {
				a.Take(e)
			}
			if name == "many" {
				if got := a.Prompt(nil); strings.Count(got, "did ") != 20 || !strings.Contains(got, "did 29") {
					t.Errorf("it is told %s", got)
				}
				return
			}
			if diff := cmp.Diff(strings.Join(test.want, "\n\n"), a.Prompt(nil)); diff != "" || a.Session != test.session {
				t.Errorf("session %s, prompt (-want +got):\n%s", a.Session, diff)
			}
		})
	}
}
