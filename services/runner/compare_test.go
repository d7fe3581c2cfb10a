package runner_test

import (
	"fmt"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
)

// TestComparesFeeds has an agent end whose own session file has more, less or the same as the log.
func TestComparesFeeds(t *testing.T) {
	said := func(calls ...string) string {
		var file strings.Builder
		for _, id := range calls {
			fmt.Fprintf(&file, `{"type":"assistant","message":{"id":"m%[1]s","content":[{"type":"tool_use","id":%[1]q,"name":"Bash"}]}}`+"\n", id)
			fmt.Fprintf(&file, `{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":%q}]}}`+"\n", id)
		}
		return file.String()
	}
	for name, test := range map[string]struct{ file, agent, want string }{
		"complete":            {said("t1", "t2"), "", "complete"},
		"the log has less":    {said("t1", "t0", "t2"), "", "stream short: message mt0, line 3, call t0 (Bash), line 3, result t0, line 4"},
		"the file has less":   {said("t1"), "", "transcript short: call t2 (Bash), position"},
		"of another session":  {said("t9"), "", "can't tell"},
		"of a sub-agent less": {said("t1", "t2"), said("t3"), "stream short: message mt3, line 1 of sub-agent agent-a.jsonl, call t3 (Bash), line 1 of sub-agent agent-a.jsonl, result t3"},
		"the agent kept none": {"", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				p := &puppet{
					agents:  []agent.SubAgent{{File: "agent-a.jsonl", Call: "t1", Content: []byte(test.agent)}},
					recover: func(agent.Request, agent.Calls) []*wire.Event { return nil },
					play: func(a *act) {
						for _, id := range []string{"t1", "t2"} {
							a.intend(id)
							a.say(&wire.AgentTool{ToolName: "Bash", ToolInput: wire.RawString(id), ToolOutput: wire.RawString("ok")}, id)
							a.say(&wire.Usage{MessageID: "m" + id, InputTokens: 1}, "")
						}
						if test.file != "" {
							if err := a.request.Transcript.Save(a.ctx, a.request.SessionID, 0, []byte(test.file)); err != nil {
								t.Error(err)
							}
						}
						a.say(&wire.AgentComplete{Result: "done"}, "")
					},
				}
				b.runner("r1", p)
				b.submit("run1", single)
				_, entries := b.ended("run1")
				var got []string
				for _, e := range entries {
					if v, is := e.Event.Payload.(*wire.SessionCompared); is {
						got = append(got, v.Verdict, ": ", strings.Join(append(v.StreamLacks, v.TranscriptLacks...), ", "))
					}
				}
				if text := strings.Join(got, ""); !strings.HasPrefix(text, test.want) || (text == "") != (test.want == "") {
					t.Errorf("%q, want %q", text, test.want)
				}
			})
		})
	}
}
