package export_test

import (
	"bytes"
	"testing"

	"code.wake.dev/wake/pkg/wire"
)

// What the agent is told while calls are open comes behind their results. Only its end, and that of its program, cuts calls off.
func TestCodexTold(t *testing.T) {
	h := newHistory(t)
	h.start("")
	s := speaker{h, "a#1", "s1"}
	s.say(&wire.AgentStart{Prompt: wire.RawString("Go.")}, "")
	s.say(&wire.TurnStart{Model: "m"}, "")
	s.say(intent(), "c1")
	s.say(intent(), "c2")
	s.say(&wire.UserMessage{Content: "Faster!", Source: "command"}, "")
	s.say(toolResult("1"), "c1")
	s.say(&wire.UserMessage{Content: "Still faster!", Source: "command"}, "")
	s.say(toolResult("2"), "c2")
	s.say(intent(), "c3")
	s.say(&wire.UserMessage{Content: "Too late.", Source: "command"}, "")
	s.say(&wire.AgentComplete{Result: ""}, "")
	s.say(&wire.AgentStart{Prompt: wire.RawString("Go on."), Resumed: true}, "")
	s.say(intent(), "c4")
	s.say(&wire.UserMessage{Content: "Before the crash.", Source: "command"}, "")
	s.say(&wire.AgentStart{Prompt: wire.RawString("continue"), Resumed: true}, "")
	for n := range 3 {
		s.say(&wire.AgentTextDelta{Content: "piece ", Block: 1 + n/2}, "")
	}
	s.say(intent(), "c5")
	s.say(&wire.UserMessage{Content: "At the end.", Source: "command"}, "")
	var b bytes.Buffer
	if err := formats["codex.jsonl"](&b, h); err != nil {
		t.Fatal(err)
	}
	golden(t, "told.codex.jsonl", b.Bytes())
}
