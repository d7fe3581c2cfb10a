//go:build claudecli

package claude_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// What the API is asked by a fork is what stood before its point, and then the new message: at the prompt, at a call
// that was sealed, at a result, and behind the last word.
func TestCLIForkPrefix(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		r := l.request(t, "midtool")
		r.RunID = "parent"
		events := l.run(t, r, nil)
		last[*wire.AgentComplete](t, events)
		for _, e := range events {
			e.RunID = "parent"
		}
		upTo := func(is func(*wire.Event) bool) []*wire.Event { return events[:slices.IndexFunc(events, is)+1] }
		toolN := func(n int, is func(wire.Payload) bool) func(*wire.Event) bool {
			seen := 0
			return func(e *wire.Event) bool {
				if is(e.Payload) {
					seen++
				}
				return seen == n
			}
		}
		isIntent := func(p wire.Payload) bool { _, ok := p.(*wire.ToolIntent); return ok }
		isResult := func(p wire.Payload) bool { _, ok := p.(*wire.AgentTool); return ok }
		prompt := upTo(toolN(1, func(p wire.Payload) bool { _, ok := p.(*wire.AgentStart); return ok }))
		open, result := upTo(toolN(2, isIntent)), upTo(toolN(1, isResult))
		sealed := sealedHere(open[len(open)-1].CallID)
		point := result[len(result)-1].Payload.(*wire.AgentTool).Point
		const begin, again = "user Lab run [[scn:midtool]]", "user Another way [[scn:second]]"
		one := []string{begin, "assistant Step one.", "assistant Bash", "user step1"}
		two := append(slices.Clone(one), "assistant Step two.", "assistant Bash")
		parent := r.SessionID
		for name, c := range map[string]struct {
			history []*wire.Event
			fork    []*wire.Event
			at      string
			want    []string
		}{
			"prompt":      {prompt, nil, "", []string{begin, again}},
			"result":      {result, nil, point, append(slices.Clone(one), again)},
			"sealed call": {open, []*wire.Event{sealed}, point, append(slices.Clone(two), `user "it was cut off"`, again)},
			"last word":   {events, nil, "", append(slices.Clone(two), "user step2", "assistant …", again)},
		} {
			r.RunID, r.ForkOf, r.ForkAt, r.SessionID = "fork", parent, c.at, agent.NewSessionID()
			r.Prompt, r.History = wire.RawString("Another way [[scn:second]]"), historyOf(c.history, c.fork...)
			got := l.run(t, r, nil)
			last[*wire.AgentComplete](t, got)
			if n := count[*wire.AgentError](got); n > 0 {
				t.Errorf("%s: %v", name, heard(got))
			}
			asked := l.asked(t)
			if i := len(asked) - 2; name == "last word" && i > 0 && strings.HasPrefix(asked[i], "assistant ") {
				asked[i] = "assistant …"
			}
			if diff := cmp.Diff(c.want, asked); diff != "" {
				t.Errorf("%s: the API was asked (-want +got):\n%s", name, diff)
			}
		}
	})
}
