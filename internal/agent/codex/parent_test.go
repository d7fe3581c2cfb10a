package codex_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/process/processtest"
	"code.wake.dev/wake/pkg/wire"
)

// notify is a call of notify_parent, in the lines of 0.169.
func notifyLine(arguments string) string {
	const call = `"id":"item_1","type":"mcp_tool_call","server":"parent","tool":"notify_parent","arguments":`
	return `raw {"type":"item.started","item":{` + call + arguments + `,"result":null,"error":null,"status":"in_progress"}}` + "\n" +
		`raw {"type":"item.completed","item":{` + call + arguments + `,"result":{"content":[{"type":"text","text":"delivered"}],"structured_content":null},"error":null,"status":"completed"}}` + "\n"
}

// What Codex tells its parent is on record before the call's result. One that has asked waits for the answer when its turn is over; other
// messages don't answer.
func TestParent(t *testing.T) {
	s := start(t, newPlace(t).request(notifyLine(`{"message":"Tabs?","priority":"question"}`)+"--\nsay Noted.\n--\nsay Tabs."))
	var ends int
	var told []string
	var question string
	lines := drain(t, s, func(e *wire.Event) {
		switch p := e.Payload.(type) {
		case *wire.CCMessage:
			told, question = append(told, string(p.Priority)+" "+p.Text), e.CallID
		case *wire.AgentTool:
			told = append(told, "result")
		case *wire.TurnEnd:
			m := agent.Message{CommandID: "k1", Content: "It is late.", Notice: true}
			if ends++; ends == 2 {
				m = agent.Message{CommandID: "k2", Content: "Tabs.", Answers: question}
			}
			if ends <= 2 {
				if err := s.Send(t.Context(), m); err != nil {
					t.Error(err)
				}
			}
		}
	})
	if !slices.Equal(told, []string{"question Tabs?", "result"}) || ends != 3 || !strings.HasPrefix(lines[len(lines)-1], "agent:complete") {
		t.Errorf("told %q, %d turns:\n%s", told, ends, strings.Join(lines, "\n"))
	}
}

// A session that goes on knows what the agent has asked; an interruption ends the wait for the answer.
func TestParentInterrupted(t *testing.T) {
	r := newPlace(t).request("say Hi.")
	r.Asked = []string{"c0"}
	s := start(t, r)
	lines := drain(t, s, func(e *wire.Event) {
		if e.Type() == wire.TypeTurnEnd {
			if err := s.Interrupt(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	if lines[len(lines)-1] != "agent:paused" {
		t.Errorf("it didn't end as paused:\n%s", strings.Join(lines, "\n"))
	}
}

// Codex is given the server of its parent by its configuration.
func TestParentIsServed(t *testing.T) {
	p := newPlace(t)
	provider := provider(t)
	provider.Parent = []string{"wake", "mcp", "parent"}
	s, err := provider.Start(t.Context(), p.request("say Hi."))
	if err != nil {
		t.Fatal(err)
	}
	drain(t, s, nil)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, want := range []string{`-c mcp_servers.parent.command="wake"`, `-c mcp_servers.parent.args=["mcp","parent"]`} {
		if got := p.read(t, "arguments"); !strings.Contains(got, want) {
			t.Errorf("arguments %s lack %s", got, want)
		}
	}
}

// A session that is closed while the agent waits for an answer hasn't come to its end: its node goes on waiting elsewhere, or has run
// out of time.
func TestParentClosed(t *testing.T) {
	r := newPlace(t).request("say Hi.")
	r.Asked = []string{"c0"}
	s := start(t, r)
	closed := make(chan error, 1)
	lines := drain(t, s, func(e *wire.Event) {
		if e.Type() == wire.TypeTurnEnd {
			go func() { closed <- s.Close() }()
		}
	})
	if err := <-closed; err != nil || !strings.HasPrefix(lines[len(lines)-1], "turn:end") {
		t.Errorf("%v: it went on behind its turn:\n%s", err, strings.Join(lines, "\n"))
	}
}

// The next session hears again what the agent has asked. It waits for no answer that was given.
func TestParentAnsweredBefore(t *testing.T) {
	host := new(processtest.Keeper)
	defer host.Close()
	r := newPlace(t).request(notifyLine(`{"message":"Tabs?","priority":"question"}`) + "--\nsay Tabs.")
	r.Host = host
	s := start(t, r)
	var log []*wire.Event
	var question string
	for e, err := range s.Events() {
		if err != nil {
			t.Fatal(err)
		}
		log = append(log, e)
		switch e.Payload.(type) {
		case *wire.CCMessage:
			question = e.CallID
		case *wire.TurnEnd:
			if err := s.Send(t.Context(), agent.Message{CommandID: "k1", Content: "Tabs.", Answers: question}); err != nil {
				t.Fatal(err)
			}
		}
		if e.Type() == wire.TypeUserMessage && s.(agent.Leaver).Leave() {
			break
		}
	}
	r.Resume, r.SessionID, r.History = true, "thread-1", func(yield func(*wire.Event, error) bool) {
		for _, e := range log {
			if !yield(e, nil) {
				return
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // it would wait for ever
	defer cancel()
	s, err := provider(t).Start(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	lines := drain(t, s, nil)
	if !strings.HasPrefix(lines[len(lines)-1], "agent:complete") {
		t.Errorf("it waits:\n%s", strings.Join(lines, "\n"))
	}
}
