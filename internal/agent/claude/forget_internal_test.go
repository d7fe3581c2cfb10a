package claude

import (
	"fmt"
	"strings"
	"testing"

	"code.wake.dev/wake/pkg/wire"
)

// entries counts what a normalizer keeps.
func (n *Normalizer) entries() int {
	return len(n.threads) + len(n.agents) + len(n.calls) + len(n.open) + len(n.asked) + len(n.denied) + len(n.todos) +
		len(n.seen) + len(n.sent) + len(n.counted) + len(n.background)
}

// aMessage is a line of one message that makes calls, each of whom may be a sub-agent's.
func aMessage(n int, parent, calls string) []byte {
	return fmt.Appendf(nil, `{"type":"assistant","uuid":"a%[1]d","parent_tool_use_id":%[2]s,"session_id":"s1","message":{"id":"m%[1]d","model":"m","content":[%[3]s],"usage":{"input_tokens":1,"output_tokens":2}}}`, n, parent, calls)
}

func aCall(id, name string) string {
	return fmt.Sprintf(`{"type":"tool_use","id":%q,"name":%q,"input":{"prompt":"p"}}`, id, name)
}

func aResult(n int, parent, results string) []byte {
	return fmt.Appendf(nil, `{"type":"user","uuid":"b%d","parent_tool_use_id":%s,"session_id":"s1","message":{"content":[%s]}}`, n, parent, results)
}

func aResultOf(id string) string {
	return fmt.Sprintf(`{"type":"tool_result","tool_use_id":%q,"content":"x"}`, id)
}

// An agent that makes calls without end, in sub-agents too, doesn't make its runner larger: what is open is
// kept, and of the rest the last.
func TestForget(t *testing.T) {
	calls := 100_000
	if testing.Short() {
		calls = 10_000
	}
	const perLine = 10
	n := NewNormalizer(NormalizerOptions{SessionID: "s1", Started: true})
	n.Line(1, aMessage(-1, "null", aCall("long", "Task")+","+aCall("server", "Bash")))
	n.Line(1, []byte(`{"type":"system","subtype":"task_started","task_id":"t","task_type":"local_bash","tool_use_id":"server","is_backgrounded":true,"uuid":"t1","session_id":"s1"}`))
	n.Line(1, aResult(-1, "null", aResultOf("server")))
	most, ends, counted := 0, 0, make(map[string]int)
	take := func(events []*wire.Event) {
		for _, e := range events {
			switch p := e.Payload.(type) {
			case *wire.AgentTool:
				ends++
			case *wire.Usage:
				counted[p.MessageID]++
			}
		}
	}
	for i := range calls / perLine {
		parent := "null"
		var begun, ended []string
		if i%4 > 0 { // three messages of a sub-agent for one of the agent, which begins the next one
			parent = fmt.Sprintf(`"c%d-0"`, i-i%4)
		}
		for j := range perLine {
			id := fmt.Sprintf("c%d-%d", i, j)
			begun = append(begun, aCall(id, "Agent"))
			if j > 0 || i%4 > 0 {
				ended = append(ended, aResultOf(id))
			}
		}
		take(n.Line(int64(i), aMessage(i, parent, strings.Join(begun, ","))))
		take(n.Line(int64(i), aResult(i, parent, strings.Join(ended, ","))))
		take(n.Line(int64(i), aResult(i, parent, strings.Join(ended, ",")))) // the same line again
		if i%4 == 3 {
			take(n.Line(int64(i), aResult(calls+i, "null", aResultOf(fmt.Sprintf("c%d-0", i-3)))))
		}
		most = max(most, n.entries())
	}
	if want := calls / perLine / 4 * 4 * perLine; ends != want {
		t.Errorf("%d calls have ended, want %d", ends, want)
	}
	if most > 2000 {
		t.Errorf("%d entries after %d calls", most, calls)
	}
	if n.calls["long"] == nil || n.threads[""] == nil {
		t.Error("what is open was forgotten")
	}
	n.Line(9, []byte(`{"type":"system","subtype":"task_notification","task_id":"t","tool_use_id":"server","status":"completed","uuid":"t2","session_id":"s1"}`))
	if _, reports := n.Busy(); reports != 1 {
		t.Errorf("%d reports of a task whose call has ended long before", reports)
	}
	take(n.Finish(9, Exit{}))
	for id, times := range counted {
		if times != 1 {
			t.Errorf("the usage of %s was told %d times", id, times)
		}
	}
	t.Logf("%d entries at most, in %d calls", most, calls)
}

// The usage of a message is told once, also if a sub-agent has had many more before the next one.
func TestForgetKeepsCurrentUsage(t *testing.T) {
	n := NewNormalizer(NormalizerOptions{SessionID: "s1", Started: true})
	var told int
	take := func(events []*wire.Event) {
		for _, e := range events {
			if p, ok := e.Payload.(*wire.Usage); ok && p.MessageID == "m0" {
				told++
			}
		}
	}
	take(n.Line(1, []byte(`{"type":"stream_event","session_id":"s1","event":{"type":"message_start","message":{"id":"m0","model":"m","usage":{"input_tokens":1}}}}`)))
	take(n.Line(1, aMessage(0, "null", aCall("task", "Task"))))
	take(n.Line(1, []byte(`{"type":"stream_event","session_id":"s1","event":{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":2}}}`)))
	for i := range 3 * keptCalls {
		take(n.Line(2, aMessage(i+1, `"task"`, aCall(fmt.Sprint("c", i), "Bash"))))
		take(n.Line(2, aResult(i+1, `"task"`, aResultOf(fmt.Sprint("c", i)))))
	}
	take(n.Line(3, aResult(0, "null", aResultOf("task"))))
	take(n.Line(3, aMessage(1000, "null", aCall("next", "Bash"))))
	if told != 1 {
		t.Errorf("told %d times", told)
	}
}
